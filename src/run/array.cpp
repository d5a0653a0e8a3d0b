// SPDX-License-Identifier: Apache-2.0 - Waiting for arrays, and the count of live device memory.
#include "src/run/array.h"

#include <mutex>
#include <unordered_map>

namespace torch_tpu::run {

const hlo::Type* intern(const hlo::Type& type) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::unique_ptr<const hlo::Type>> types;
  std::lock_guard lock(mutex);
  auto& slot = types[type.str()];
  if (!slot) slot = std::make_unique<const hlo::Type>(type);
  return slot.get();
}

MemoryCount& memory_count() {
  static MemoryCount count;
  return count;
}

void MemoryCount::add(int64_t bytes) {
  int64_t now = live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  buffers.fetch_add(1, std::memory_order_relaxed);
  total_buffers.fetch_add(1, std::memory_order_relaxed);
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (now > seen && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
  }
}

void MemoryCount::remove(int64_t bytes) {
  live.fetch_sub(bytes, std::memory_order_relaxed);
  buffers.fetch_sub(1, std::memory_order_relaxed);
}

namespace {

struct ArrayPool {
  struct Free {
    Free* next;
  };
  std::atomic<bool> locked{false};
  Free* first = nullptr;
  int count = 0;
  static constexpr int kMost = 4096;

  void lock() {
    while (locked.exchange(true, std::memory_order_acquire)) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
  void unlock() { locked.store(false, std::memory_order_release); }
};
ArrayPool array_pool;

}  // namespace

void* Array::operator new(size_t size) {
  array_pool.lock();
  ArrayPool::Free* p = array_pool.first;
  if (p != nullptr) {
    array_pool.first = p->next;
    --array_pool.count;
  }
  array_pool.unlock();
  return p != nullptr ? static_cast<void*>(p) : ::operator new(size);
}

void Array::operator delete(void* p) {
  array_pool.lock();
  bool keep = array_pool.count < ArrayPool::kMost;
  if (keep) {
    auto* f = static_cast<ArrayPool::Free*>(p);
    f->next = array_pool.first;
    array_pool.first = f;
    ++array_pool.count;
  }
  array_pool.unlock();
  if (!keep) ::operator delete(p);
}

Array::~Array() {
  if (buffer_) memory_count().remove(counted_bytes_);
}

void Array::set_buffer(pjrt::Buffer buffer) {
  buffer_ = std::move(buffer);
  counted_bytes_ = type_->bytes();
  memory_count().add(counted_bytes_);
  state_.store(Ready, std::memory_order_release);
  state_.notify_all();
}

void Array::set_error(std::shared_ptr<const std::string> error) {
  error_ = std::move(error);
  state_.store(Failed, std::memory_order_release);
  state_.notify_all();
}

void Array::consumed() {
  if (buffer_) memory_count().remove(counted_bytes_);
  buffer_ = pjrt::Buffer();
}

void Array::wait() const {
  // The usual wait is for a program of a few microseconds: look for a while before sleeping.
  for (int i = 0; i < 4000; ++i) {
    if (state() != Pending) return;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  while (state() == Pending) state_.wait(Pending, std::memory_order_acquire);
}

}  // namespace torch_tpu::run
