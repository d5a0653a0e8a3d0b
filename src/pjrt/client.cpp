// SPDX-License-Identifier: Apache-2.0 - creates clients, their buffers and their programs.
#include "src/pjrt/client.h"

#include <string>

#include "src/pjrt/call.h"
#include "src/pjrt/compile_call.h"
#include "src/pjrt/describe_device.h"
#include "src/pjrt/error.h"
#include "src/pjrt/named_value.h"
#include "src/pjrt/plugin.h"
#include "src/pjrt/stderr_capture.h"

namespace torch_tpu::pjrt {

namespace {

PJRT_Client* create_client(const Plugin& plugin, const NamedOptions& options) {
  const std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_Client_Create_Args args{};
  args.create_options = values.data();
  args.num_options = values.size();
  call<&PJRT_Api::PJRT_Client_Create>(plugin.api(), args);
  return args.client;
}

// Some plugins refuse options they don't know.
bool is_unknown_option(const Error& error) {
  return error.code() == kInvalidArgument || error.code() == kNotFound ||
         error.code() == kUnimplemented;
}

PJRT_Client* create_with_fallback(const Plugin& plugin, const ClientOptions& options) {
  if (plugin.is_libtpu()) return create_client(plugin, options.extra);
  NamedOptions with_count = options.extra;
  with_count.emplace_back("cpu_device_count", int64_t{options.cpu_device_count});
  if (options.asynchronous.has_value()) {
    NamedOptions all = with_count;
    all.emplace_back("asynchronous", *options.asynchronous);
    try {
      return create_client(plugin, all);
    } catch (const Error& error) {
      if (!is_unknown_option(error)) throw;
    }
  }
  try {
    return create_client(plugin, with_count);
  } catch (const Error& error) {
    if (plugin.is_cpu_plugin() || !is_unknown_option(error)) throw;
  }
  return create_client(plugin, options.extra);
}

void check_array(const char* what, const void* data, int type, std::span<const int64_t> dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    if (dim < 0) {
      throw Error(kInvalidArgument, std::string(what) + ": a dimension is " + std::to_string(dim) +
                                        ", expected 0 or more");
    }
    elements *= dim;
  }
  if (element_bits(type) == 0) {
    throw Error(kInvalidArgument, std::string(what) + ": element type " + std::to_string(type) +
                                      " (" + element_name(type) + ") has no host representation");
  }
  if (data == nullptr && elements != 0) {
    throw Error(kInvalidArgument, std::string(what) +
                                      ": the data pointer is null, but the array has " +
                                      std::to_string(elements) + " elements");
  }
}

}  // namespace

std::shared_ptr<Client> Client::create(std::shared_ptr<const Plugin> plugin,
                                       const ClientOptions& options) {
  if (options.cpu_device_count < 1) {
    throw Error(kInvalidArgument, "client options: cpu_device_count is " +
                                      std::to_string(options.cpu_device_count) +
                                      ", expected at least 1");
  }
  std::shared_ptr<Client> client(new Client);
  client->plugin_ = std::move(plugin);
  client->api_ = client->plugin_->api();
  const PJRT_Api* api = client->api_;
  {
    const StderrCapture capture(true);
    try {
      client->raw_ = create_with_fallback(*client->plugin_, options);
    } catch (const Error& error) {
      const std::string log = capture.text();
      throw Error(error.code(), "cannot open the devices of " + client->plugin_->path() + ": " +
                                    error.what() + (log.empty() ? "" : "\nIt logged:\n" + log));
    }
  }

  PJRT_Client_PlatformName_Args name{};
  name.client = client->raw_;
  call<&PJRT_Api::PJRT_Client_PlatformName>(api, name);
  client->platform_name_.assign(name.platform_name, name.platform_name_size);
  client->is_cpu_ = client->platform_name_ == "cpu";

  PJRT_Client_PlatformVersion_Args version{};
  version.client = client->raw_;
  call<&PJRT_Api::PJRT_Client_PlatformVersion>(api, version);
  client->platform_version_.assign(version.platform_version, version.platform_version_size);

  PJRT_Client_ProcessIndex_Args process{};
  process.client = client->raw_;
  call<&PJRT_Api::PJRT_Client_ProcessIndex>(api, process);
  client->process_index_ = process.process_index;

  PJRT_Client_AddressableDevices_Args devices{};
  devices.client = client->raw_;
  call<&PJRT_Api::PJRT_Client_AddressableDevices>(api, devices);
  client->devices_.assign(devices.addressable_devices,
                          devices.addressable_devices + devices.num_addressable_devices);
  return client;
}

Client::~Client() {
  if (raw_ == nullptr) return;
  PJRT_Client_Destroy_Args args{};
  args.client = raw_;
  call_quietly<&PJRT_Api::PJRT_Client_Destroy>(api_, args);
}

PJRT_Device* Client::device(int index) const {
  if (index < 0 || index >= device_count()) {
    throw Error(kInvalidArgument,
                "device " + std::to_string(index) + " doesn't exist: the plugin has " +
                    std::to_string(device_count()) + " device(s), numbered from 0");
  }
  return devices_[static_cast<size_t>(index)];
}

DeviceDescription Client::describe(PJRT_Device* device) const {
  PJRT_Device_GetDescription_Args args{};
  args.device = device;
  call<&PJRT_Api::PJRT_Device_GetDescription>(api_, args);
  return describe_device(api_, args.device_description);
}

std::optional<Client::MemoryStats> Client::memory_stats(PJRT_Device* device) const {
  PJRT_Device_MemoryStats_Args args{};
  args.device = device;
  if (!try_call<&PJRT_Api::PJRT_Device_MemoryStats>(api_, args)) return std::nullopt;
  MemoryStats stats;
  stats.bytes_in_use = args.bytes_in_use;
  if (args.peak_bytes_in_use_is_set) stats.peak_bytes_in_use = args.peak_bytes_in_use;
  if (args.num_allocs_is_set) stats.num_allocs = args.num_allocs;
  if (args.largest_alloc_size_is_set) stats.largest_alloc_bytes = args.largest_alloc_size;
  if (args.bytes_limit_is_set) stats.bytes_limit = args.bytes_limit;
  if (args.bytes_reserved_is_set) stats.bytes_reserved = args.bytes_reserved;
  if (args.largest_free_block_bytes_is_set) {
    stats.largest_free_block_bytes = args.largest_free_block_bytes;
  }
  if (args.pool_bytes_is_set) stats.pool_bytes = args.pool_bytes;
  return stats;
}

Buffer Client::from_host(const void* data, int type, std::span<const int64_t> dims,
                         PJRT_Device* device, HostSemantics semantics,
                         std::function<void()> on_release) const {
  PJRT_Client_BufferFromHostBuffer_Args args{};
  try {
    check_array("copy from host", data, type, dims);
    args.client = raw_;
    args.data = data;
    args.type = static_cast<PJRT_Buffer_Type>(type);
    args.dims = dims.data();
    args.num_dims = dims.size();
    args.host_buffer_semantics = semantics == HostSemantics::copy_during_call
                                     ? PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
                                     : PJRT_HostBufferSemantics_kImmutableZeroCopy;
    args.device = device;
    call<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(api_, args);
  } catch (...) {
    if (on_release) on_release();
    throw;
  }
  Buffer buffer(api_, args.buffer);
  const Event done(api_, args.done_with_host_buffer);
  if (on_release) {
    if (semantics == HostSemantics::copy_during_call) {
      on_release();
    } else {
      done.on_ready([release = std::move(on_release)](const Error*) { release(); });
    }
  }
  return buffer;
}

Buffer Client::view_of_device_memory(void* data, int type, std::span<const int64_t> dims,
                                     PJRT_Device* device, std::function<void()> on_delete) const {
  check_array("view of device memory", data, type, dims);
  auto callback = std::make_unique<std::function<void()>>(std::move(on_delete));
  PJRT_Client_CreateViewOfDeviceBuffer_Args args{};
  args.client = raw_;
  args.device_buffer_ptr = data;
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.element_type = static_cast<PJRT_Buffer_Type>(type);
  args.device = device;
  args.on_delete_callback_arg = callback.get();
  // Always given: the CPU plugins abort the process when they are to call a null one.
  args.on_delete_callback = [](void*, void* user_arg) {
    const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(user_arg));
    if (*own) (*own)();
  };
  call<&PJRT_Api::PJRT_Client_CreateViewOfDeviceBuffer>(api_, args);
  callback.release();
  return Buffer(api_, args.buffer);
}

Executable Client::compile(std::string_view module_text, const CompileOptions& options) const {
  PJRT_Client_Compile_Args args{};
  args.client = raw_;
  compile_call<&PJRT_Api::PJRT_Client_Compile>(*plugin_, args, module_text, options, "");
  return Executable(shared_from_this(), args.executable);
}

Executable Client::load(std::string_view serialized) const {
  PJRT_Executable_DeserializeAndLoad_Args args{};
  args.client = raw_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  call<&PJRT_Api::PJRT_Executable_DeserializeAndLoad>(api_, args);
  return Executable(shared_from_this(), args.loaded_executable);
}

}  // namespace torch_tpu::pjrt
