// SPDX-License-Identifier: Apache-2.0 - queries and execution of compiled programs.
#include "src/pjrt/executable.h"

#include <utility>

#include "src/pjrt/call.h"
#include "src/pjrt/client.h"
#include "src/pjrt/error.h"
#include "src/pjrt/plugin.h"

namespace torch_tpu::pjrt {

CompiledProgram::CompiledProgram(std::shared_ptr<const Plugin> plugin, PJRT_Executable* raw)
    : plugin_(std::move(plugin)), raw_(raw) {
  PJRT_Executable_NumOutputs_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_NumOutputs>(plugin_->api(), args);
  num_outputs_ = args.num_outputs;
}

CompiledProgram::CompiledProgram(CompiledProgram&& other) noexcept
    : plugin_(std::move(other.plugin_)),
      raw_(std::exchange(other.raw_, nullptr)),
      num_outputs_(other.num_outputs_) {}

CompiledProgram& CompiledProgram::operator=(CompiledProgram&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(raw_, other.raw_);
  std::swap(num_outputs_, other.num_outputs_);
  return *this;
}

CompiledProgram::~CompiledProgram() { destroy_program(); }

void CompiledProgram::destroy_program() noexcept {
  if (raw_ == nullptr) return;
  PJRT_Executable_Destroy_Args args{};
  args.executable = std::exchange(raw_, nullptr);
  call_quietly<&PJRT_Api::PJRT_Executable_Destroy>(plugin_->api(), args);
}

std::vector<int> CompiledProgram::output_types() const {
  PJRT_Executable_OutputElementTypes_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_OutputElementTypes>(plugin_->api(), args);
  std::vector<int> types(args.num_output_types);
  for (size_t i = 0; i < types.size(); ++i) types[i] = number(args.output_types[i]);
  return types;
}

std::vector<std::vector<int64_t>> CompiledProgram::output_dims() const {
  PJRT_Executable_OutputDimensions_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_OutputDimensions>(plugin_->api(), args);
  std::vector<std::vector<int64_t>> all;
  const int64_t* at = args.dims;
  for (size_t i = 0; i < args.num_outputs; ++i) {
    all.emplace_back(at, at + args.dim_sizes[i]);
    at += args.dim_sizes[i];
  }
  return all;
}

std::string CompiledProgram::name() const {
  PJRT_Executable_Name_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_Name>(plugin_->api(), args);
  return {args.executable_name, args.executable_name_size};
}

std::string CompiledProgram::serialize() const {
  PJRT_Executable_Serialize_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_Serialize>(plugin_->api(), args);
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  args.serialized_executable_deleter(args.serialized_executable);
  return bytes;
}

CompiledProgram::MemoryStats CompiledProgram::memory_stats() const {
  PJRT_Executable_GetCompiledMemoryStats_Args args{};
  args.executable = raw_;
  call<&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats>(plugin_->api(), args);
  MemoryStats stats;
  stats.argument_bytes = args.argument_size_in_bytes;
  stats.output_bytes = args.output_size_in_bytes;
  stats.temp_bytes = args.temp_size_in_bytes;
  stats.alias_bytes = args.alias_size_in_bytes;
  stats.code_bytes = args.generated_code_size_in_bytes;
  stats.peak_bytes = args.peak_memory_in_bytes;
  stats.host_bytes = args.host_argument_size_in_bytes + args.host_output_size_in_bytes +
                     args.host_temp_size_in_bytes;
  return stats;
}

std::map<std::string, double> CompiledProgram::cost() const {
  std::map<std::string, double> found;
  PJRT_Executable_GetCostAnalysis_Args args{};
  args.executable = raw_;
  if (!try_call<&PJRT_Api::PJRT_Executable_GetCostAnalysis>(plugin_->api(), args)) return found;
  for (size_t i = 0; i < args.num_properties; ++i) {
    const PJRT_NamedValue& value = args.properties[i];
    std::string name(value.name, value.name_size);
    if (number(value.type) == PJRT_NamedValue_kFloat) {
      found.emplace(std::move(name), value.float_value);
    } else if (number(value.type) == PJRT_NamedValue_kInt64) {
      found.emplace(std::move(name), static_cast<double>(value.int64_value));
    }
  }
  return found;
}

std::string CompiledProgram::fingerprint() const {
  PJRT_Executable_Fingerprint_Args args{};
  args.executable = raw_;
  if (!try_call<&PJRT_Api::PJRT_Executable_Fingerprint>(plugin_->api(), args)) return {};
  return {args.executable_fingerprint, args.executable_fingerprint_size};
}

CompiledProgram::OptimizedProgram CompiledProgram::optimized_program() const {
  auto program = sized<PJRT_Program>();
  PJRT_Executable_OptimizedProgram_Args args{};
  args.executable = raw_;
  args.program = &program;
  if (!try_call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(plugin_->api(), args)) return {};
  OptimizedProgram found;
  found.code.resize(program.code_size);
  program.code = found.code.data();
  call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(plugin_->api(), args);
  found.format.assign(program.format, program.format_size);
  return found;
}

namespace {

PJRT_Executable* program_of(const Client& client, PJRT_LoadedExecutable* loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args args{};
  args.loaded_executable = loaded;
  call<&PJRT_Api::PJRT_LoadedExecutable_GetExecutable>(client.api(), args);
  return args.executable;
}

}  // namespace

Executable::Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* raw)
    : CompiledProgram(client->plugin(), program_of(*client, raw)),
      client_(std::move(client)),
      api_(client_->api()),
      loaded_(raw) {
  num_devices_ = devices().size();
}

Executable::Executable(Executable&& other) noexcept
    : CompiledProgram(std::move(other)),
      client_(std::move(other.client_)),
      api_(other.api_),
      loaded_(std::exchange(other.loaded_, nullptr)),
      num_devices_(other.num_devices_) {}

Executable& Executable::operator=(Executable&& other) noexcept {
  CompiledProgram::operator=(std::move(other));
  std::swap(client_, other.client_);
  std::swap(api_, other.api_);
  std::swap(loaded_, other.loaded_);
  std::swap(num_devices_, other.num_devices_);
  return *this;
}

Executable::~Executable() {
  if (loaded_ == nullptr) return;
  destroy_program();  // here already: client_ is gone by the time the base class is destroyed
  PJRT_LoadedExecutable_Destroy_Args args{};
  args.executable = loaded_;
  call_quietly<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(api_, args);
}

std::vector<PJRT_Device*> Executable::devices() const {
  PJRT_LoadedExecutable_AddressableDevices_Args args{};
  args.executable = loaded_;
  call<&PJRT_Api::PJRT_LoadedExecutable_AddressableDevices>(api_, args);
  return {args.addressable_devices, args.addressable_devices + args.num_addressable_devices};
}

void Executable::run(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> non_donatable,
                     std::span<PJRT_Buffer*> outputs, PJRT_Event** done) const {
  // The plugin writes num_outputs pointers without being told how many there is room for.
  if (outputs.size() != num_outputs_ || num_devices_ != 1) [[unlikely]] {
    throw Error(kInvalidArgument,
                num_devices_ != 1
                    ? "execute: the program runs on " + std::to_string(num_devices_) +
                          " devices; use execute_sharded"
                    : "execute: there is room for " + std::to_string(outputs.size()) +
                          " outputs, the program has " + std::to_string(num_outputs_));
  }
  PJRT_ExecuteOptions options{};
  options.struct_size = kStructSize<PJRT_ExecuteOptions>;
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  PJRT_Buffer* const* const argument_list = inputs.data();
  PJRT_Buffer** const output_list = outputs.data();
  PJRT_LoadedExecutable_Execute_Args args{};
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = &argument_list;
  args.num_devices = 1;
  args.num_args = inputs.size();
  args.output_lists = &output_list;
  args.device_complete_events = done;
  call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(api_, args);
}

void Executable::execute(std::span<PJRT_Buffer* const> inputs,
                         std::span<const int64_t> non_donatable, std::span<PJRT_Buffer*> outputs,
                         Event* done) const {
  if (done == nullptr) return run(inputs, non_donatable, outputs, nullptr);
  PJRT_Event* raw = nullptr;
  run(inputs, non_donatable, outputs, &raw);
  *done = Event(api_, raw);
}

void Executable::execute_sharded(std::span<const std::vector<PJRT_Buffer*>> inputs,
                                 std::span<const int64_t> non_donatable,
                                 std::span<std::vector<PJRT_Buffer*>> outputs) const {
  if (inputs.size() != num_devices_ || outputs.size() != num_devices_) {
    throw Error(kInvalidArgument,
                "execute_sharded: got inputs for " + std::to_string(inputs.size()) +
                    " and outputs for " + std::to_string(outputs.size()) +
                    " devices, the program runs on " + std::to_string(num_devices_));
  }
  std::vector<PJRT_Buffer* const*> argument_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t i = 0; i < num_devices_; ++i) {
    if (inputs[i].size() != inputs[0].size()) {
      throw Error(kInvalidArgument, "execute_sharded: device 0 has " +
                                        std::to_string(inputs[0].size()) + " inputs, device " +
                                        std::to_string(i) + " has " +
                                        std::to_string(inputs[i].size()));
    }
    argument_lists.push_back(inputs[i].data());
    outputs[i].assign(num_outputs_, nullptr);
    output_lists.push_back(outputs[i].data());
  }
  auto options = sized<PJRT_ExecuteOptions>();
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  PJRT_LoadedExecutable_Execute_Args args{};
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = argument_lists.data();
  args.num_devices = num_devices_;
  args.num_args = inputs.empty() ? 0 : inputs[0].size();
  args.output_lists = output_lists.data();
  call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(api_, args);
}

}  // namespace torch_tpu::pjrt
