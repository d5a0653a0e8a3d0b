// SPDX-License-Identifier: Apache-2.0 - a PJRT client: devices, buffers from the host, compilation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/pjrt/buffer.h"
#include "src/pjrt/compile_options.h"
#include "src/pjrt/executable.h"

struct PJRT_Client;
struct PJRT_Device;
struct PJRT_DeviceDescription;

namespace torch_tpu::pjrt {

class Plugin;

struct ClientOptions {
  // Devices of a CPU client (other plugins have as many as there are).
  int cpu_device_count = 1;
  // false: a CPU program runs in the thread that calls execute(). Newer plugins only; others ignore
  // it.
  std::optional<bool> asynchronous;
  // Passed on as they are.
  std::vector<std::pair<std::string, OptionValue>> extra;
};

struct DeviceDescription {
  int id = 0;
  int process_index = 0;
  std::string kind;       // "TPU v5 lite", "cpu"
  std::string to_string;  // "TpuDevice(id=0, ...)"
  // Integer lists are printed "[0, 1, 2]".
  std::map<std::string, std::string> attributes;
};

// What becomes of the host array given to Client::from_host().
enum class HostSemantics {
  copy_during_call,          // the caller may reuse it when from_host() returns
  zero_copy_until_released,  // the buffer may be that very memory; on_release says when it is no
                             // more
};

class Client : public std::enable_shared_from_this<Client> {
 public:
  // A device's allocator, where the plugin tells; fields it doesn't know are -1.
  struct MemoryStats {
    int64_t bytes_in_use = 0;
    int64_t peak_bytes_in_use = -1;
    int64_t num_allocs = -1;
    int64_t largest_alloc_bytes = -1;
    int64_t bytes_limit = -1;
    int64_t bytes_reserved = -1;
    int64_t largest_free_block_bytes = -1;
    int64_t pool_bytes = -1;
  };

  static std::shared_ptr<Client> create(std::shared_ptr<const Plugin> plugin,
                                        const ClientOptions& options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }
  bool is_cpu() const { return is_cpu_; }
  int process_index() const { return process_index_; }

  // Devices this process can use.
  int device_count() const { return static_cast<int>(devices_.size()); }
  PJRT_Device* device(int index) const;
  DeviceDescription describe(PJRT_Device* device) const;
  // Nothing where the plugin doesn't count (the CPU plugin).
  std::optional<MemoryStats> memory_stats(PJRT_Device* device) const;

  // A dense, row-major host array as a buffer. With zero_copy_until_released the array must stay
  // alive and unchanged until on_release is called, once, from any thread - also when the plugin
  // preferred to copy (the CPU plugin shares memory aligned to 64 bytes), and also when this
  // throws.
  Buffer from_host(const void* data, int type, std::span<const int64_t> dims, PJRT_Device* device,
                   HostSemantics semantics = HostSemantics::copy_during_call,
                   std::function<void()> on_release = {}) const;

  // Memory of the device that someone else owns, as a buffer; on_delete is called once when the
  // buffer lets go of it (not when this throws). The memory may be written, if the buffer is
  // donated.
  Buffer view_of_device_memory(void* data, int type, std::span<const int64_t> dims,
                               PJRT_Device* device, std::function<void()> on_delete = {}) const;

  // StableHLO as text (or MLIR bytecode). Errors carry the compiler's diagnostics.
  Executable compile(std::string_view module_text, const CompileOptions& options = {}) const;
  // What serialize() made. Damaged or foreign bytes throw an Error.
  Executable load(std::string_view serialized) const;

  const std::shared_ptr<const Plugin>& plugin() const { return plugin_; }
  const PJRT_Api* api() const { return api_; }
  PJRT_Client* raw() const { return raw_; }

 private:
  Client() = default;

  std::shared_ptr<const Plugin> plugin_;
  const PJRT_Api* api_ = nullptr;
  PJRT_Client* raw_ = nullptr;
  std::vector<PJRT_Device*> devices_;
  std::string platform_name_;
  std::string platform_version_;
  bool is_cpu_ = false;
  int process_index_ = 0;
};

}  // namespace torch_tpu::pjrt
