// SPDX-License-Identifier: Apache-2.0 - Array: an immutable device value, pending or with a buffer; reference counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "src/hlo/type.h"
#include "src/pjrt/buffer.h"
#include "src/run/check.h"

namespace torch_tpu::run {

// Equal types share one object that is never freed (there are few of them).
const hlo::Type* intern(const hlo::Type& type);

class Array {
 public:
  enum State : uint32_t {
    Pending,      // a program that makes it is queued or not yet cut
    Ready,        // buffer() is set (its contents may still be on their way)
    Failed,       // error() is set
    Placeholder,  // an input of a capture; never gets a buffer
  };

  explicit Array(const hlo::Type* type) : type_(type) {}
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  // One is made for each result of each op and often freed by another thread: from a pool of our
  // own.
  static void* operator new(size_t size);
  static void operator delete(void* p);
  ~Array();

  const hlo::Type& type() const { return *type_; }
  const hlo::Type* interned_type() const { return type_; }
  State state() const { return state_.load(std::memory_order_acquire); }
  // Blocks until Ready or Failed. The caller makes sure that somebody is working on it.
  void wait() const;

  pjrt::Buffer& buffer() { return buffer_; }
  const std::string& error() const { return *error_; }
  // Run-time checks that may have failed and that the contents depend on; null: none. Once Ready.
  const ChecksPtr& checks() const { return checks_; }
  void set_checks(ChecksPtr checks) { checks_ = std::move(checks); }  // before set_buffer()
  void set_buffer(pjrt::Buffer buffer);
  void set_error(std::shared_ptr<const std::string> error);
  void set_placeholder() { state_.store(Placeholder, std::memory_order_release); }
  // The buffer was donated: its bytes now belong to another array.
  void consumed();

  int32_t references() const { return references_.load(std::memory_order_acquire); }
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // Scratch of the pending window, guarded by the runtime's mutex: which window the numbers below
  // belong to, the index among its results (or -1), and among its inputs (or -1).
  uint64_t window = 0;
  int32_t result_index = -1;
  int32_t input_index = -1;

 private:
  const hlo::Type* type_;
  std::atomic<int32_t> references_{0};
  std::atomic<State> state_{Pending};
  pjrt::Buffer buffer_;
  int64_t counted_bytes_ = 0;
  std::shared_ptr<const std::string> error_;
  ChecksPtr checks_;
};

class ArrayPtr {
 public:
  ArrayPtr() = default;
  explicit ArrayPtr(Array* p) : p_(p) {
    if (p_ != nullptr) p_->retain();
  }
  ArrayPtr(const ArrayPtr& o) : ArrayPtr(o.p_) {}
  ArrayPtr(ArrayPtr&& o) noexcept : p_(std::exchange(o.p_, nullptr)) {}
  ArrayPtr& operator=(ArrayPtr o) noexcept {
    std::swap(p_, o.p_);
    return *this;
  }
  ~ArrayPtr() {
    if (p_ != nullptr) p_->release();
  }
  Array* get() const { return p_; }
  Array* operator->() const { return p_; }
  Array& operator*() const { return *p_; }
  explicit operator bool() const { return p_ != nullptr; }
  bool operator==(const ArrayPtr& o) const { return p_ == o.p_; }

 private:
  Array* p_ = nullptr;
};

// Bytes of live device buffers, counted here because the CPU plugin does not.
struct MemoryCount {
  std::atomic<int64_t> live{0}, peak{0}, buffers{0}, total_buffers{0};
  void add(int64_t bytes);
  void remove(int64_t bytes);
};
MemoryCount& memory_count();

}  // namespace torch_tpu::run
