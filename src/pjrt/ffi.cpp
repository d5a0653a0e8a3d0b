// SPDX-License-Identifier: Apache-2.0 - hands calls of compiled programs over to host kernels.
#include "src/pjrt/ffi.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "src/pjrt/call.h"
#include "src/pjrt/element_type.h"
#include "src/pjrt/error.h"
#include "src/pjrt/ffi_abi.h"
#include "src/pjrt/plugin.h"

namespace torch_tpu::pjrt {

namespace {

// XLA's FFI version is 0.minor; the layouts in ffi_abi.h hold for these.
constexpr int kNewestMinor = 4;

// From xla::PrimitiveType, by its number, to ElementType.
constexpr std::array<int, 34> kElementTypes = {
    kInvalid,    kPred,       kS8,   kS16,    kS32,      kS64,     kU8,      kU16,
    kU32,        kU64,        kF16,  kF32,    kF64,      kInvalid, kInvalid, kC64,
    kBF16,       kToken,      kC128, kF8E5M2, kF8E4M3FN, kS4,      kU4,      kF8E4M3B11FNUZ,
    kF8E5M2FNUZ, kF8E4M3FNUZ, kS2,   kU2,     kF8E4M3,   kF8E3M4,  kInvalid, kInvalid,
    kF4E2M1FN,   kF8E8M0FNU};

int element_type(int primitive) {
  return primitive >= 0 && primitive < static_cast<int>(kElementTypes.size())
             ? kElementTypes[primitive]
             : kInvalid;
}

FfiBuffer buffer_at(const ffi_abi::Buffers& buffers, std::size_t index, const char* what) {
  if (index >= static_cast<std::size_t>(buffers.size)) {
    throw std::out_of_range(std::string(what) + " " + std::to_string(index) +
                            " of a host kernel that was called with " +
                            std::to_string(buffers.size));
  }
  const auto& raw = *static_cast<const ffi_abi::Buffer*>(buffers.items[index]);
  FfiBuffer buffer;
  buffer.type = element_type(raw.type);
  buffer.dims = {raw.dims, static_cast<std::size_t>(raw.rank)};
  buffer.data = raw.data;
  buffer.num_elements = 1;
  for (const int64_t dim : buffer.dims) buffer.num_elements *= static_cast<std::size_t>(dim);
  buffer.bytes = buffer.num_elements * (element_bits(buffer.type) / 8);
  return buffer;
}

template <typename T>
T read_as(const void* at) {
  T value{};
  std::memcpy(&value, at, sizeof value);
  return value;
}

// --- From a C function pointer to a kernel: a call carries no user data, so each kernel needs a
// handler of its own. They are made ahead of time, one for each slot. ---

constexpr std::size_t kSlots = 256;
std::array<HostKernel, kSlots>
    g_kernels{};  // written under g_mutex before the slot's handler is known

ffi_abi::Error* fail(const ffi_abi::CallFrame* frame, const char* message) {
  ffi_abi::ErrorCreateArgs args{};
  args.struct_size = offsetof(ffi_abi::ErrorCreateArgs, code) + sizeof args.code;
  args.message = message;
  args.code = ffi_abi::kErrorInternal;
  return frame->api->create_error(&args);
}

ffi_abi::Error* handle(HostKernel kernel, ffi_abi::CallFrame* frame) {
  if (frame->extensions != nullptr && frame->extensions->type == ffi_abi::kMetadata) {
    // "Which version do you speak?" A plugin refuses a handler newer than itself.
    auto* asked = reinterpret_cast<ffi_abi::MetadataExtension*>(frame->extensions)->metadata;
    asked->api_version.major = 0;
    asked->api_version.minor =
        frame->api != nullptr ? std::min(frame->api->version.minor, kNewestMinor) : 1;
    asked->traits = 0;
    return nullptr;
  }
  if (frame->stage != ffi_abi::kExecute) return nullptr;
  FfiCall call(frame);
  try {
    kernel(call);
  } catch (const std::exception& error) {
    return fail(frame, error.what());
  } catch (...) {
    return fail(frame, "a host kernel threw something that is no std::exception");
  }
  return call.failure().empty() ? nullptr : fail(frame, call.failure().c_str());
}

template <std::size_t Slot>
ffi_abi::Error* handler(ffi_abi::CallFrame* frame) {
  return handle(g_kernels[Slot], frame);
}

template <std::size_t... Slots>
constexpr std::array<ffi_abi::Handler, kSlots> make_handlers(std::index_sequence<Slots...>) {
  return {&handler<Slots>...};
}
constexpr std::array<ffi_abi::Handler, kSlots> kHandlers =
    make_handlers(std::make_index_sequence<kSlots>());

std::mutex g_mutex;
std::map<std::pair<const Plugin*, std::string>, HostKernel> g_registered;

ffi_abi::Handler handler_of(HostKernel kernel) {
  for (std::size_t slot = 0; slot < kSlots; ++slot) {
    if (g_kernels[slot] == nullptr) g_kernels[slot] = kernel;
    if (g_kernels[slot] == kernel) return kHandlers[slot];
  }
  throw Error(kResourceExhausted,
              "there is room for " + std::to_string(kSlots) +
                  " host kernels; raise kSlots in src/pjrt/ffi.cpp to register more");
}

}  // namespace

std::size_t FfiCall::num_args() const { return static_cast<std::size_t>(frame_->args.size); }
std::size_t FfiCall::num_results() const { return static_cast<std::size_t>(frame_->results.size); }
FfiBuffer FfiCall::arg(std::size_t index) const {
  return buffer_at(frame_->args, index, "argument");
}
FfiBuffer FfiCall::result(std::size_t index) const {
  return buffer_at(frame_->results, index, "result");
}

const void* FfiCall::find_attr(std::string_view name, int kind) const {
  const ffi_abi::Attributes& attributes = frame_->attributes;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const ffi_abi::Span& found = *attributes.names[i];
    if (std::string_view(found.data, found.size) == name) {
      return attributes.kinds[i] == kind ? attributes.items[i] : nullptr;
    }
  }
  return nullptr;
}

std::optional<std::string_view> FfiCall::string_attr(std::string_view name) const {
  const auto* found = static_cast<const ffi_abi::Span*>(find_attr(name, ffi_abi::kString));
  if (found == nullptr) return std::nullopt;
  return std::string_view(found->data, found->size);
}

std::optional<int64_t> FfiCall::int_attr(std::string_view name) const {
  const auto* found = static_cast<const ffi_abi::Scalar*>(find_attr(name, ffi_abi::kScalar));
  if (found == nullptr) return std::nullopt;
  switch (element_type(found->type)) {
    case kPred:
      return read_as<uint8_t>(found->value) != 0 ? 1 : 0;
    case kS8:
      return read_as<int8_t>(found->value);
    case kS16:
      return read_as<int16_t>(found->value);
    case kS32:
      return read_as<int32_t>(found->value);
    case kS64:
      return read_as<int64_t>(found->value);
    case kU8:
      return read_as<uint8_t>(found->value);
    case kU16:
      return read_as<uint16_t>(found->value);
    case kU32:
      return read_as<uint32_t>(found->value);
    case kU64:
      return static_cast<int64_t>(read_as<uint64_t>(found->value));
    default:
      return std::nullopt;
  }
}

std::optional<double> FfiCall::float_attr(std::string_view name) const {
  const auto* found = static_cast<const ffi_abi::Scalar*>(find_attr(name, ffi_abi::kScalar));
  if (found == nullptr) return std::nullopt;
  switch (element_type(found->type)) {
    case kF32:
      return read_as<float>(found->value);
    case kF64:
      return read_as<double>(found->value);
    default:
      return std::nullopt;
  }
}

std::optional<std::span<const int64_t>> FfiCall::int_array_attr(std::string_view name) const {
  const auto* found = static_cast<const ffi_abi::Array*>(find_attr(name, ffi_abi::kArray));
  if (found == nullptr || element_type(found->type) != kS64) return std::nullopt;
  return std::span<const int64_t>(static_cast<const int64_t*>(found->data), found->size);
}

namespace {

bool succeeded(const ffi_abi::Api& api, ffi_abi::Error* error) {
  if (error == nullptr) return true;
  ffi_abi::ErrorDestroyArgs args{sizeof args, nullptr, error};
  api.destroy_error(&args);
  return false;
}

// Shared by the threads that take pieces. A thread that comes late, perhaps after the call has
// returned, finds none left and touches nothing else.
struct Pieces {
  Pieces(int64_t n, const std::function<void(int64_t)>* f) : count(n), piece(f) {}

  const int64_t count;
  const std::function<void(int64_t)>* piece;
  std::atomic<int64_t> next = 0;
  std::atomic<int64_t> done = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr failure;

  void take() {
    for (int64_t i = next++; i < count; i = next++) {
      try {
        (*piece)(i);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
      }
      ++done;
    }
  }
};

void take_pieces(void* data) {
  const std::unique_ptr<std::shared_ptr<Pieces>> pieces(
      static_cast<std::shared_ptr<Pieces>*>(data));
  (*pieces)->take();
}

}  // namespace

int64_t FfiCall::num_threads() const {
  const ffi_abi::Api& api = *frame_->api;
  if (api.struct_size < sizeof(ffi_abi::Api)) return 1;
  int64_t threads = 1;
  ffi_abi::NumThreadsArgs args{sizeof args, nullptr, frame_->context, &threads};
  return succeeded(api, api.num_threads(&args)) ? std::max<int64_t>(threads, 1) : 1;
}

void FfiCall::run_pieces(int64_t pieces, const std::function<void(int64_t)>& piece) const {
  auto shared = std::make_shared<Pieces>(pieces, &piece);
  const int64_t helpers = std::min(pieces, num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) {
    auto data = std::make_unique<std::shared_ptr<Pieces>>(shared);
    ffi_abi::ScheduleArgs args{sizeof args, nullptr, frame_->context, take_pieces, data.get()};
    if (!succeeded(*frame_->api, frame_->api->schedule(&args))) break;
    data.release();
  }
  shared->take();
  // What is left is at work in other threads at this moment.
  while (shared->done.load(std::memory_order_acquire) < pieces) std::this_thread::yield();
  if (shared->failure) std::rethrow_exception(shared->failure);
}

bool ffi_supported(const Plugin& plugin, std::string* why) {
  std::string reason;
  if (plugin.is_libtpu()) {
    reason = "programs for a TPU cannot call functions of the host";
  } else if (plugin.extension(PJRT_Extension_Type_FFI) == nullptr) {
    reason = "the plugin " + plugin.path() + " (PJRT C API " + std::to_string(plugin.api_major()) +
             "." + std::to_string(plugin.api_minor()) + ") has no FFI extension";
  }
  if (why != nullptr) *why = reason;
  return reason.empty();
}

void register_handler(const Plugin& plugin, const std::string& name, HostKernel fn) {
  std::string why;
  if (!ffi_supported(plugin, &why)) {
    throw Error(kUnimplemented, "cannot register the host kernel '" + name + "': " + why);
  }
  if (fn == nullptr || name.empty()) {
    throw Error(kInvalidArgument, "cannot register a host kernel without a name or a function");
  }
  const std::lock_guard lock(g_mutex);
  const auto key = std::make_pair(&plugin, name);
  if (const auto known = g_registered.find(key); known != g_registered.end()) {
    if (known->second == fn) return;
    throw Error(kAlreadyExists,
                "the host kernel '" + name + "' is already registered, with another function");
  }
  constexpr std::string_view kPlatform = "Host";
  ffi_abi::RegisterArgs args{};
  args.struct_size = ffi_abi::kRegisterArgsSize;
  args.target_name = name.data();
  args.target_name_size = name.size();
  args.handler = reinterpret_cast<void*>(handler_of(fn));
  args.platform_name = kPlatform.data();
  args.platform_name_size = kPlatform.size();
  const auto* extension =
      reinterpret_cast<const ffi_abi::FfiExtension*>(plugin.extension(PJRT_Extension_Type_FFI));
  if (PJRT_Error* error = extension->register_handler(&args)) {
    raise(plugin.api(), error, "registering the host kernel '" + name + "'");
  }
  g_registered.emplace(key, fn);
}

}  // namespace torch_tpu::pjrt
