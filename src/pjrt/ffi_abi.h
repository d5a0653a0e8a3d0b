// SPDX-License-Identifier: Apache-2.0 - memory layout of XLA's FFI calls.
//
// Written from the public interface of OpenXLA (xla/ffi/api/c_api.h, version 0.1 to 0.4, and
// xla/pjrt/c/pjrt_c_api_ffi_extension.h). Only what a host kernel needs; structs whose tail is of
// no interest stop early, which is fine for memory that the plugin owns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/pjrt/api.h"

namespace torch_tpu::pjrt::ffi_abi {

enum ExtensionType : int32_t { kMetadata = 1 };
enum Stage : int32_t { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };
enum AttrKind : int32_t { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };
enum { kErrorInternal = 13 };

struct Extension {
  size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct Version {
  size_t struct_size;
  Extension* extensions;
  int32_t major;
  int32_t minor;
};

// What a handler fills in when it is called with the metadata extension instead of for work.
struct Metadata {
  size_t struct_size;
  Version api_version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;
struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extensions;
  const char* message;  // ends with a zero
  int32_t code;
};
struct ErrorDestroyArgs {
  size_t struct_size;
  Extension* extensions;
  Error* error;
};
struct ScheduleArgs {
  size_t struct_size;
  Extension* extensions;
  void* context;  // of the call
  void (*task)(void* data);
  void* data;
};
struct NumThreadsArgs {
  size_t struct_size;
  Extension* extensions;
  void* context;
  int64_t* num_threads;
};
struct Api {
  size_t struct_size;
  Extension* extensions;
  Version version;
  void* internal;
  Error* (*create_error)(ErrorCreateArgs*);
  void* get_message;
  void (*destroy_error)(ErrorDestroyArgs*);
  void* between[8];  // registration, streams, types, state, memory
  // The plugin's own threads; absent from plugins whose struct ends earlier.
  Error* (*schedule)(ScheduleArgs*);
  Error* (*num_threads)(NumThreadsArgs*);
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int32_t type;  // xla::PrimitiveType, which is not PJRT_Buffer_Type
  void* data;
  int64_t rank;
  const int64_t* dims;
};
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* kinds;  // 1: Buffer
  void* const* items;
};

struct Span {
  const char* data;
  size_t size;
};
struct Scalar {
  int32_t type;
  const void* value;
};
struct Array {
  int32_t type;
  size_t size;
  const void* data;
};
struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  const int32_t* kinds;      // AttrKind
  const Span* const* names;  // sorted
  const void* const* items;  // Scalar, Array, Span, or Attributes for a dictionary
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  void* context;
  Stage stage;
  Buffers args;
  Buffers results;
  Attributes attributes;
};

using Handler = Error* (*)(CallFrame*);

// PJRT's extension of type PJRT_Extension_Type_FFI. The first two entries concern user data.
struct RegisterArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  int32_t traits;
};
// Its struct_size, which ends before the padding. All plugins tried (0.81 to 0.117) expect this
// one.
inline constexpr size_t kRegisterArgsSize = offsetof(RegisterArgs, traits) + sizeof(int32_t);

struct FfiExtension {
  PJRT_Extension_Base base;
  void* register_type;
  void* add_user_data;
  PJRT_Error* (*register_handler)(RegisterArgs* args);
};

static_assert(sizeof(Buffer) == 48 && sizeof(Buffers) == 40 && sizeof(Attributes) == 48 &&
              offsetof(CallFrame, args) == 40 && offsetof(Api, create_error) == 48 &&
              offsetof(Api, schedule) == 136 && kRegisterArgsSize == 52);

}  // namespace torch_tpu::pjrt::ffi_abi
