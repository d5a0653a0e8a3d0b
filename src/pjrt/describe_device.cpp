// SPDX-License-Identifier: Apache-2.0 - reads a PJRT device description.
#include "src/pjrt/describe_device.h"

#include "src/pjrt/call.h"
#include "src/pjrt/named_value.h"

namespace torch_tpu::pjrt {

DeviceDescription describe_device(const PJRT_Api* api, PJRT_DeviceDescription* raw) {
  DeviceDescription found;
  PJRT_DeviceDescription_Id_Args id{};
  id.device_description = raw;
  call<&PJRT_Api::PJRT_DeviceDescription_Id>(api, id);
  found.id = id.id;
  PJRT_DeviceDescription_ProcessIndex_Args process{};
  process.device_description = raw;
  call<&PJRT_Api::PJRT_DeviceDescription_ProcessIndex>(api, process);
  found.process_index = process.process_index;
  PJRT_DeviceDescription_Kind_Args kind{};
  kind.device_description = raw;
  call<&PJRT_Api::PJRT_DeviceDescription_Kind>(api, kind);
  found.kind.assign(kind.device_kind, kind.device_kind_size);
  PJRT_DeviceDescription_ToString_Args text{};
  text.device_description = raw;
  call<&PJRT_Api::PJRT_DeviceDescription_ToString>(api, text);
  found.to_string.assign(text.to_string, text.to_string_size);
  PJRT_DeviceDescription_Attributes_Args attributes{};
  attributes.device_description = raw;
  call<&PJRT_Api::PJRT_DeviceDescription_Attributes>(api, attributes);
  for (size_t i = 0; i < attributes.num_attributes; ++i) {
    found.attributes.emplace(name_of(attributes.attributes[i]), to_text(attributes.attributes[i]));
  }
  return found;
}

}  // namespace torch_tpu::pjrt
