// SPDX-License-Identifier: Apache-2.0 - RAII handle of a PJRT buffer: one array on one device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "src/pjrt/element_type.h"
#include "src/pjrt/event.h"

struct PJRT_Api;
struct PJRT_Buffer;
struct PJRT_Device;

namespace torch_tpu::pjrt {

// Move-only and two words small: wrapping what Executable::execute() returns costs nothing. Must
// not outlive the client; the client is not kept alive here, because that would cost every op an
// atomic.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const PJRT_Api* api, PJRT_Buffer* raw) : api_(api), raw_(raw) {}
  Buffer(Buffer&& other) noexcept : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (raw_ != nullptr) destroy();
  }

  explicit operator bool() const { return raw_ != nullptr; }
  PJRT_Buffer* raw() const { return raw_; }
  // Gives up ownership: the caller destroys it, or wraps it again.
  [[nodiscard]] PJRT_Buffer* release() { return std::exchange(raw_, nullptr); }

  int type() const;                       // ElementType
  std::span<const int64_t> dims() const;  // lives as long as the buffer
  std::size_t nbytes() const;             // on the device, padding included
  PJRT_Device* device() const;

  // Address of the elements when the device's memory is the host's (CPU plugin): dense, row major,
  // writable, and valid while the buffer lives. nullptr elsewhere. Contents count after await().
  void* host_pointer() const;

  bool ready() const;
  // Blocks until the contents are there; throws Error when the program that makes them failed.
  void await() const;
  Event ready_event() const;

  // Copies out as a dense, row-major array; `bytes` must be exactly its size. Waits for the
  // contents.
  void to_host(void* dst, std::size_t bytes) const;
  // The same without waiting: dst belongs to the copy until the event is ready.
  [[nodiscard]] Event to_host_async(void* dst, std::size_t bytes) const;
  // Size of that array.
  std::size_t host_nbytes() const;

  [[nodiscard]] Buffer copy_to_device(PJRT_Device* device) const;

  // Frees the device memory now (pending work that uses it still finishes); the handle stays.
  void delete_now();
  // After delete_now(), or after a program took the buffer as a donation.
  bool is_deleted() const;

 private:
  void destroy() noexcept;

  const PJRT_Api* api_ = nullptr;
  PJRT_Buffer* raw_ = nullptr;
};

}  // namespace torch_tpu::pjrt
