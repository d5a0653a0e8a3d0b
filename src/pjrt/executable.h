// SPDX-License-Identifier: Apache-2.0 - compiled programs: what is known of them, and running them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/pjrt/compile_options.h"
#include "src/pjrt/event.h"

struct PJRT_Api;
struct PJRT_Buffer;
struct PJRT_Device;
struct PJRT_Executable;
struct PJRT_LoadedExecutable;

namespace torch_tpu::pjrt {

class Client;
class Plugin;

// A program after compilation, with or without devices to run it on. Move-only.
class CompiledProgram {
 public:
  struct MemoryStats {
    int64_t argument_bytes = 0;
    int64_t output_bytes = 0;
    int64_t temp_bytes = 0;
    int64_t alias_bytes = 0;  // of the arguments, reused for outputs
    int64_t code_bytes = 0;
    int64_t peak_bytes = 0;  // 0 where the plugin doesn't say
    int64_t host_bytes = 0;  // arguments, outputs, temporaries in host memory
  };
  struct OptimizedProgram {
    std::string format;  // "hlo", "hlo_with_config" (both protobuf), "mlir"; empty: not available
    std::string code;
  };

  CompiledProgram(std::shared_ptr<const Plugin> plugin, PJRT_Executable* raw);
  CompiledProgram(CompiledProgram&& other) noexcept;
  CompiledProgram& operator=(CompiledProgram&& other) noexcept;
  ~CompiledProgram();

  std::size_t num_outputs() const { return num_outputs_; }
  std::vector<int> output_types() const;  // ElementType
  std::vector<std::vector<int64_t>> output_dims() const;
  std::string name() const;

  // Bytes that Client::load() of the same plugin file turns into an Executable.
  std::string serialize() const;
  // Throws Error (is_unimplemented) where the plugin has none.
  MemoryStats memory_stats() const;
  // "flops", "bytes accessed", ...; empty where the plugin has none.
  std::map<std::string, double> cost() const;
  // Empty where the plugin has none.
  std::string fingerprint() const;
  OptimizedProgram optimized_program() const;

  PJRT_Executable* raw_program() const { return raw_; }

 protected:
  void destroy_program() noexcept;

  std::shared_ptr<const Plugin> plugin_;
  PJRT_Executable* raw_ = nullptr;
  std::size_t num_outputs_ = 0;
};

// A program loaded on a client's devices. Move-only; keeps its client alive.
class Executable : public CompiledProgram {
 public:
  Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* raw);
  Executable(Executable&& other) noexcept;
  Executable& operator=(Executable&& other) noexcept;
  ~Executable();

  // Starts the program on its one device and fills `outputs` (exactly num_outputs() places) with
  // buffers that the caller owns. Inputs that the program aliases (tf.aliasing_output,
  // jax.buffer_donor) are consumed, save those whose index is in non_donatable. Nothing is
  // allocated here; a failure of the program itself shows when an output is awaited.
  void execute(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> non_donatable,
               std::span<PJRT_Buffer*> outputs) const {
    run(inputs, non_donatable, outputs, nullptr);
  }
  void execute(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> non_donatable,
               std::span<PJRT_Buffer*> outputs, Event* done) const;

  // The same on several devices: one row of inputs and of outputs for each of devices().
  void execute_sharded(std::span<const std::vector<PJRT_Buffer*>> inputs,
                       std::span<const int64_t> non_donatable,
                       std::span<std::vector<PJRT_Buffer*>> outputs) const;

  std::vector<PJRT_Device*> devices() const;
  PJRT_LoadedExecutable* raw() const { return loaded_; }
  const std::shared_ptr<const Client>& client() const { return client_; }

 private:
  void run(std::span<PJRT_Buffer* const> inputs, std::span<const int64_t> non_donatable,
           std::span<PJRT_Buffer*> outputs, PJRT_Event** done) const;

  std::shared_ptr<const Client> client_;
  const PJRT_Api* api_ = nullptr;
  PJRT_LoadedExecutable* loaded_ = nullptr;
  std::size_t num_devices_ = 1;
};

}  // namespace torch_tpu::pjrt
