// SPDX-License-Identifier: Apache-2.0 - topologies: describing them and compiling for them.
#include "src/pjrt/topology.h"

#include "src/pjrt/call.h"
#include "src/pjrt/compile_call.h"
#include "src/pjrt/describe_device.h"
#include "src/pjrt/error.h"
#include "src/pjrt/named_value.h"
#include "src/pjrt/plugin.h"
#include "src/pjrt/stderr_capture.h"

namespace torch_tpu::pjrt {

Topology Topology::create(std::shared_ptr<const Plugin> plugin, const std::string& name,
                          const NamedOptions& options) {
  const std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_TopologyDescription_Create_Args args{};
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  const StderrCapture capture(true);
  try {
    call<&PJRT_Api::PJRT_TopologyDescription_Create>(plugin->api(), args);
  } catch (const Error& error) {
    std::string message = "cannot describe the topology '" + name + "': " + error.what();
    if (plugin->is_libtpu()) {
      message +=
          "\nlibtpu names a topology by generation and chips, such as v5e:2x2, v6e:4x4, v5p:4x4x4 "
          "or "
          "tpu7x:16x16x16";
    } else if (error.is_unimplemented()) {
      message +=
          "\nThis plugin describes only the devices of a client; topologies by name need libtpu "
          "(`pip "
          "install libtpu`)";
    }
    const std::string log = capture.text();
    if (!log.empty()) message += "\nIt logged:\n" + log;
    throw Error(error.code(), message);
  }
  Topology topology;
  topology.plugin_ = std::move(plugin);
  topology.raw_ = args.topology;
  topology.name_ = name;
  return topology;
}

Topology Topology::of(std::shared_ptr<const Client> client) {
  PJRT_Client_TopologyDescription_Args args{};
  args.client = client->raw();
  call<&PJRT_Api::PJRT_Client_TopologyDescription>(client->api(), args);
  Topology topology;
  topology.plugin_ = client->plugin();
  topology.raw_ = args.topology;
  topology.name_ = client->platform_name();
  topology.client_ = std::move(client);
  return topology;
}

Topology::Topology(Topology&& other) noexcept
    : plugin_(std::move(other.plugin_)),
      client_(std::move(other.client_)),
      raw_(std::exchange(other.raw_, nullptr)),
      name_(std::move(other.name_)) {}

Topology& Topology::operator=(Topology&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(client_, other.client_);
  std::swap(raw_, other.raw_);
  std::swap(name_, other.name_);
  return *this;
}

Topology::~Topology() {
  if (raw_ == nullptr || client_ != nullptr) return;
  PJRT_TopologyDescription_Destroy_Args args{};
  args.topology = raw_;
  call_quietly<&PJRT_Api::PJRT_TopologyDescription_Destroy>(plugin_->api(), args);
}

std::string Topology::platform_name() const {
  PJRT_TopologyDescription_PlatformName_Args args{};
  args.topology = raw_;
  call<&PJRT_Api::PJRT_TopologyDescription_PlatformName>(plugin_->api(), args);
  return {args.platform_name, args.platform_name_size};
}

std::string Topology::platform_version() const {
  PJRT_TopologyDescription_PlatformVersion_Args args{};
  args.topology = raw_;
  call<&PJRT_Api::PJRT_TopologyDescription_PlatformVersion>(plugin_->api(), args);
  return {args.platform_version, args.platform_version_size};
}

std::size_t Topology::device_count() const {
  PJRT_TopologyDescription_GetDeviceDescriptions_Args args{};
  args.topology = raw_;
  call<&PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions>(plugin_->api(), args);
  return args.num_descriptions;
}

std::vector<DeviceDescription> Topology::devices() const {
  PJRT_TopologyDescription_GetDeviceDescriptions_Args args{};
  args.topology = raw_;
  call<&PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions>(plugin_->api(), args);
  std::vector<DeviceDescription> all;
  all.reserve(args.num_descriptions);
  for (size_t i = 0; i < args.num_descriptions; ++i) {
    all.push_back(describe_device(plugin_->api(), args.descriptions[i]));
  }
  return all;
}

std::string Topology::serialize() const {
  PJRT_TopologyDescription_Serialize_Args args{};
  args.topology = raw_;
  call<&PJRT_Api::PJRT_TopologyDescription_Serialize>(plugin_->api(), args);
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_topology_deleter(args.serialized_topology);
  return bytes;
}

CompiledProgram Topology::compile(std::string_view module_text,
                                  const CompileOptions& options) const {
  PJRT_Compile_Args args{};
  args.topology = raw_;
  compile_call<&PJRT_Api::PJRT_Compile>(*plugin_, args, module_text, options, name_);
  return CompiledProgram(plugin_, args.executable);
}

}  // namespace torch_tpu::pjrt
