// SPDX-License-Identifier: Apache-2.0 - host functions that a compiled program can call (XLA FFI
// custom calls).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace torch_tpu::pjrt {

namespace ffi_abi {
struct CallFrame;
}

class Plugin;

// An argument or a result of the call: dense, row major, in host memory. Results are uninitialized.
struct FfiBuffer {
  int type = 0;  // ElementType
  std::span<const int64_t> dims;
  void* data = nullptr;
  std::size_t num_elements = 0;
  std::size_t bytes =
      0;  // 0 for elements narrower than a byte: their packing is the plugin's affair

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// One call, while it lasts. Nothing here allocates, save fail().
class FfiCall {
 public:
  explicit FfiCall(ffi_abi::CallFrame* frame) : frame_(frame) {}

  std::size_t num_args() const;
  std::size_t num_results() const;
  FfiBuffer arg(std::size_t index) const;     // throws std::out_of_range
  FfiBuffer result(std::size_t index) const;  // throws std::out_of_range

  // Attributes of the custom call's backend_config dictionary; nothing when the name or the kind
  // doesn't fit. Integers of any width and booleans are ints; floats of f32 and f64 are floats.
  std::optional<std::string_view> string_attr(std::string_view name) const;
  std::optional<int64_t> int_attr(std::string_view name) const;
  std::optional<double> float_attr(std::string_view name) const;
  std::optional<std::span<const int64_t>> int_array_attr(
      std::string_view name) const;  // array<i64>

  // How many threads run_pieces() can use, the caller's included.
  int64_t num_threads() const;
  // piece(0) ... piece(pieces - 1), on the caller and the plugin's threads; returns when all are
  // done. The first exception is thrown on.
  void run_pieces(int64_t pieces, const std::function<void(int64_t)>& piece) const;

  // Makes the program fail with this message once the kernel returns (throwing does the same).
  void fail(std::string message) { failure_ = std::move(message); }
  const std::string& failure() const { return failure_; }

 private:
  const void* find_attr(std::string_view name, int kind) const;

  ffi_abi::CallFrame* frame_;
  std::string failure_;
};

// Called from a thread of the plugin; must not call into the same client.
using HostKernel = void (*)(FfiCall&);

// Whether programs of this plugin can call registered kernels. `why`, when given, receives the
// reason if they can't.
bool ffi_supported(const Plugin& plugin, std::string* why = nullptr);

// Makes `stablehlo.custom_call @name(...) {api_version = 4 : i32, backend_config = {...}}` call fn.
// A name registered again with the same fn is fine, with another one is an Error. Registration
// lasts as long as the process.
void register_handler(const Plugin& plugin, const std::string& name, HostKernel fn);

}  // namespace torch_tpu::pjrt
