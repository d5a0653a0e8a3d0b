// SPDX-License-Identifier: Apache-2.0 - the PJRT C API, for the .cpp files of src/pjrt only.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "third_party/openxla/pjrt_c_api.h"

namespace torch_tpu::pjrt {

// The size that goes into struct_size. It ends with the last field, before any padding: with sizeof
// a newer plugin could take our padding for a field it has since added there. No general
// definition, so that a struct missing from the list below is a compile error.
template <typename Struct>
inline constexpr std::size_t kStructSize = 0;

#define TORCH_TPU_PJRT_STRUCT(name) \
  template <>                       \
  inline constexpr std::size_t kStructSize<name> = name##_STRUCT_SIZE

TORCH_TPU_PJRT_STRUCT(PJRT_NamedValue);
TORCH_TPU_PJRT_STRUCT(PJRT_Error_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Error_Message_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Error_GetCode_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Plugin_Initialize_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Plugin_Attributes_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Event_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Event_IsReady_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Event_Await_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Event_OnReady_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_Create_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_PlatformName_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_PlatformVersion_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_ProcessIndex_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_AddressableDevices_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_TopologyDescription_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Program);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_Compile_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_MemoryLayout);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_MemoryLayout_Tiled);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_BufferFromHostBuffer_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Client_CreateViewOfDeviceBuffer_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_DeviceDescription_Id_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_DeviceDescription_ProcessIndex_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_DeviceDescription_Attributes_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_DeviceDescription_Kind_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_DeviceDescription_ToString_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Device_GetDescription_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Device_DefaultMemory_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Device_MemoryStats_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_Name_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_NumOutputs_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_OutputElementTypes_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_OutputDimensions_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_GetCostAnalysis_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_GetCompiledMemoryStats_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_OptimizedProgram_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_Serialize_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_Fingerprint_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Executable_DeserializeAndLoad_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_LoadedExecutable_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_LoadedExecutable_GetExecutable_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_LoadedExecutable_AddressableDevices_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_ExecuteOptions);
TORCH_TPU_PJRT_STRUCT(PJRT_LoadedExecutable_Execute_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_ElementType_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_Dimensions_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_OnDeviceSizeInBytes_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_Device_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_Delete_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_IsDeleted_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_CopyToDevice_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_ToHostBuffer_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_IsOnCpu_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_ReadyEvent_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Buffer_UnsafePointer_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_Create_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_Destroy_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_PlatformName_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_PlatformVersion_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_GetDeviceDescriptions_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_TopologyDescription_Serialize_Args);
TORCH_TPU_PJRT_STRUCT(PJRT_Compile_Args);

#undef TORCH_TPU_PJRT_STRUCT

// A zeroed args struct that knows its size.
template <typename Struct>
inline Struct sized() {
  static_assert(kStructSize<Struct> != 0, "add the struct to the list in api.h");
  Struct value{};
  value.struct_size = kStructSize<Struct>;
  return value;
}

// The number in an enum that the plugin wrote. A newer plugin knows more values than the enum has
// here, and to load one of those as the enum is undefined behaviour.
template <typename Enum>
inline int number(const Enum& value) {
  static_assert(std::is_enum_v<Enum> && sizeof(Enum) == sizeof(int));
  int result = 0;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

}  // namespace torch_tpu::pjrt
