// SPDX-License-Identifier: Apache-2.0 - Pinned host memory: page-aligned blocks that the device can read in place.
//
// Blocks are aligned to pages (a plugin shares host memory aligned to 64 bytes without a copy), and
// kept for reuse, since touching fresh pages costs more than copying into used ones. A copy to the
// device has read its source when it returns, so a block may be reused as soon as it is freed, and
// no events are tracked.
#include "src/device/host_allocator.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace torch_tpu::device {
namespace {

constexpr size_t kPage = 4096;
// Freed blocks kept for reuse, at most.
constexpr size_t kKeep = size_t{256} << 20;

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, nullptr, &release, c10::DeviceType::CPU};
    // Powers of two, so that batches of varying length find each other's blocks.
    size_t size = std::max(kPage, std::bit_ceil(n));
    std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (auto it = free_.find(size); it != free_.end() && !it->second.empty()) {
      block = it->second.back();
      it->second.pop_back();
      kept_ -= size;
    } else {
      block = std::aligned_alloc(kPage, size);
      if (block == nullptr) {
        drop_free();
        block = std::aligned_alloc(kPage, size);
      }
      TORCH_CHECK(block != nullptr, "pin_memory: the host has no ", n, " bytes of free memory");
      ++stats_.num_host_alloc;
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(size);
    }
    used_[block] = size;
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(size);
    return {block, block, &release, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
  bool record_event(void* address, void*, c10::Stream) override { return owns(address); }
  void empty_cache() override {
    std::lock_guard lock(mutex_);
    drop_free();
  }
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* s : all_stats()) s->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard lock(mutex_);
    for (auto* s : all_stats()) s->reset_peak();
  }

  bool owns(const void* address) {
    if (address == nullptr) return false;
    std::lock_guard lock(mutex_);
    auto it = used_.upper_bound(const_cast<void*>(address));
    if (it == used_.begin()) return false;
    --it;
    return static_cast<const char*>(address) < static_cast<const char*>(it->first) + it->second;
  }

  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator;  // tensors may outlive static destructors
    return *allocator;
  }

 private:
  static void release(void* block) {
    if (block != nullptr) instance().free(block);
  }
  void free(void* block) {
    std::lock_guard lock(mutex_);
    auto it = used_.find(block);
    if (it == used_.end()) return;
    size_t size = it->second;
    used_.erase(it);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(size);
    if (kept_ + size > kKeep) return give_back(block, size);
    free_[size].push_back(block);
    kept_ += size;
  }
  void give_back(void* block, size_t size) {
    std::free(block);
    ++stats_.num_host_free;
    stats_.allocations.decrease(1);
    stats_.allocated_bytes.decrease(size);
  }
  void drop_free() {
    for (auto& [size, blocks] : free_) {
      for (void* block : blocks) give_back(block, size);
    }
    free_.clear();
    kept_ = 0;
  }
  std::array<c10::CachingAllocator::Stat*, 4> all_stats() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations,
            &stats_.allocated_bytes};
  }

  std::mutex mutex_;
  std::map<void*, size_t> used_;
  std::map<size_t, std::vector<void*>> free_;
  size_t kept_ = 0;
  at::HostStats stats_;
};

}  // namespace

at::HostAllocator* host_allocator() { return &PinnedAllocator::instance(); }
bool is_pinned(const void* address) { return PinnedAllocator::instance().owns(address); }

REGISTER_HOST_ALLOCATOR(c10::DeviceType::PrivateUse1, &PinnedAllocator::instance())

}  // namespace torch_tpu::device
