// SPDX-License-Identifier: Apache-2.0 - Slots, the allocator behind torch.empty, addresses, dtype tables.
#include "src/tensor/storage.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "src/run/runtime.h"
#include "src/tensor/errors.h"

namespace torch_tpu::tensor {

using hlo::DType;

DType dtype_of(c10::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DType::Pred;
    case at::kChar:
      return DType::S8;
    case at::kShort:
      return DType::S16;
    case at::kInt:
      return DType::S32;
    case at::kLong:
      return DType::S64;
    case at::kByte:
      return DType::U8;
    case at::kUInt16:
      return DType::U16;
    case at::kUInt32:
      return DType::U32;
    case at::kUInt64:
      return DType::U64;
    case at::kHalf:
      return DType::F16;
    case at::kBFloat16:
      return DType::BF16;
    case at::kFloat:
      return DType::F32;
    case at::kDouble:
      return DType::F64;
    case at::kComplexHalf:
      return DType::C32;
    case at::kComplexFloat:
      return DType::C64;
    case at::kComplexDouble:
      return DType::C128;
    case at::kFloat8_e4m3fn:
      return DType::F8E4M3FN;
    case at::kFloat8_e5m2:
      return DType::F8E5M2;
    case at::kFloat8_e4m3fnuz:
      return DType::F8E4M3FNUZ;
    case at::kFloat8_e5m2fnuz:
      return DType::F8E5M2FNUZ;
    case at::kFloat8_e8m0fnu:
      return DType::F8E8M0FNU;
    // Two 4-bit floats to a byte: storage only, moved as bytes.
    case at::kFloat4_e2m1fn_x2:
      return DType::U8;
    default:
      TORCH_CHECK_TYPE(false, "tpu tensors cannot have dtype ", c10::toString(type),
                       "; supported are bool, the integers, float16, bfloat16, float32, float64, "
                       "complex32, complex64, complex128 and the float8 types");
  }
}

c10::ScalarType scalar_type_of(DType dtype) {
  switch (dtype) {
    case DType::Pred:
      return at::kBool;
    case DType::S8:
      return at::kChar;
    case DType::S16:
      return at::kShort;
    case DType::S32:
      return at::kInt;
    case DType::S64:
      return at::kLong;
    case DType::U8:
      return at::kByte;
    case DType::U16:
      return at::kUInt16;
    case DType::U32:
      return at::kUInt32;
    case DType::U64:
      return at::kUInt64;
    case DType::F16:
      return at::kHalf;
    case DType::BF16:
      return at::kBFloat16;
    case DType::F32:
      return at::kFloat;
    case DType::F64:
      return at::kDouble;
    case DType::C32:
      return at::kComplexHalf;
    case DType::C64:
      return at::kComplexFloat;
    case DType::C128:
      return at::kComplexDouble;
    case DType::F8E4M3FN:
      return at::kFloat8_e4m3fn;
    case DType::F8E5M2:
      return at::kFloat8_e5m2;
    case DType::F8E4M3FNUZ:
      return at::kFloat8_e4m3fnuz;
    case DType::F8E5M2FNUZ:
      return at::kFloat8_e5m2fnuz;
    case DType::F8E8M0FNU:
      return at::kFloat8_e8m0fnu;
    case DType::F4E2M1FN:
      return at::kFloat4_e2m1fn_x2;
  }
  TORCH_INTERNAL_ASSERT(false);
}

namespace {

// Addresses: the slot's number in the upper bits, one terabyte for each, all outside of what a
// process can map.
constexpr int kAddressBits = 40;

// Held for a few instructions only, once or twice an op: a mutex would cost more than the work.
class SpinLock {
 public:
  void lock() {
    while (flag_.exchange(true, std::memory_order_acquire))
      while (flag_.load(std::memory_order_relaxed)) std::this_thread::yield();
  }
  void unlock() { flag_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> flag_{false};
};

struct SlotTable {
  SpinLock mutex;
  std::vector<Slot*> slots{nullptr};  // number 0 is not used: addresses are not null
  std::vector<uint32_t> free;
};
SlotTable& slot_table() {
  static auto* table = new SlotTable;
  return *table;
}

c10::DataPtr new_slot(run::ArrayPtr value) {
  auto* slot = new Slot{std::move(value)};
  SlotTable& t = slot_table();
  {
    std::lock_guard lock(t.mutex);
    if (t.free.empty()) {
      slot->index = static_cast<uint32_t>(t.slots.size());
      t.slots.push_back(slot);
    } else {
      slot->index = t.free.back();
      t.free.pop_back();
      t.slots[slot->index] = slot;
    }
  }
  auto address = (uint64_t{1} << 62) | (static_cast<uint64_t>(slot->index) << kAddressBits);
  return c10::DataPtr(reinterpret_cast<void*>(address), slot, &delete_slot, device());
}

void check_memory(int64_t nbytes) {
  if (nbytes < (1 << 20)) return;  // small ones are not worth the question
  run::Runtime& r = run::Runtime::instance();
  int64_t limit = r.memory_limit(), live = run::memory_count().live.load();
  if (nbytes > limit - live) {
    auto mib = [](int64_t b) { return static_cast<double>(b) / (1 << 20); };
    throw c10::OutOfMemoryError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        c10::str("tpu out of memory: tried to allocate ", mib(nbytes), " MiB; ", mib(live),
                 " MiB of ", mib(limit),
                 " MiB are in use. Free tensors, use a smaller batch, or raise "
                 "TORCH_TPU_MEMORY_LIMIT_MB if the limit is yours"));
  }
}

}  // namespace

void delete_slot(void* p) {
  auto* slot = static_cast<Slot*>(p);
  {
    SlotTable& t = slot_table();
    std::lock_guard lock(t.mutex);
    t.slots[slot->index] = nullptr;
    t.free.push_back(slot->index);
  }
  delete slot;
}

Slot& slot_at(const void* address) {
  auto bits = reinterpret_cast<uint64_t>(address) & ~(uint64_t{1} << 62);
  SlotTable& t = slot_table();
  std::lock_guard lock(t.mutex);
  uint64_t index = bits >> kAddressBits;
  Slot* slot = index < t.slots.size() ? t.slots[index] : nullptr;
  TORCH_CHECK(slot != nullptr && (bits & ((uint64_t{1} << kAddressBits) - 1)) == 0,
              "a tpu tensor was made around a memory address that is not the start of a live tpu "
              "storage; make tpu tensors with torch.empty or Tensor.to instead");
  return *slot;
}

c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

Slot& slot_of(const at::TensorBase& tensor) {
  return slot_of(*tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

c10::Storage make_storage(run::ArrayPtr value, int64_t nbytes) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                            static_cast<size_t>(nbytes),
                                                            new_slot(std::move(value)), allocator(),
                                                            /*resizable=*/true));
}

at::TensorBase make_tensor(run::ArrayPtr value, const graph::OutputSpec& spec,
                           c10::ScalarType dtype) {
  int64_t nbytes = value->type().bytes();
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      make_storage(std::move(value), nbytes), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  if (spec.contiguous) {
    if (spec.sizes.size() != 1 || spec.sizes[0] != 0) impl->set_sizes_contiguous(spec.sizes);
  } else {
    impl->set_sizes_and_strides(spec.sizes, spec.strides);
  }
  return at::TensorBase(std::move(impl));
}

hlo::Type base_type(const c10::TensorImpl& t) {
  const auto& storage = *t.unsafe_storage().unsafeGetStorageImpl();
  const Slot& slot = slot_of(storage);
  if (slot.value) return slot.value->type();
  DType dtype = dtype_of(c10::typeMetaToScalarType(t.dtype()));
  auto bytes = static_cast<int64_t>(storage.nbytes()), n = bytes / hlo::byte_size(dtype);
  if (n * hlo::byte_size(dtype) != bytes) return {DType::U8, {bytes}};
  if (t.storage_offset() == 0 && t.numel() == n && t.is_contiguous())
    return {dtype, t.sizes().vec()};
  return {dtype, {n}};
}

run::ArrayPtr base_of(const at::TensorBase& tensor) {
  run::Runtime& r = run::Runtime::instance();
  hlo::Type type;
  {
    std::lock_guard lock(r.mutex());
    Slot& slot = slot_of(tensor);
    if (slot.value) return slot.value;
    type = base_type(*tensor.unsafeGetTensorImpl());
  }
  std::vector<char> zeros(r.abstract() ? 0 : static_cast<size_t>(type.bytes()), 0);
  run::ArrayPtr made = r.upload(zeros.data(), type);
  std::lock_guard lock(r.mutex());
  Slot& slot = slot_of(tensor);
  if (!slot.value) slot.value = made;
  return slot.value;
}

namespace {

// What torch.empty and storage constructors call: memory without contents.
class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    return guard([&] {
      check_memory(static_cast<int64_t>(n));
      return new_slot({});
    });
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tpu memory cannot be copied by address; use Tensor.copy_");
  }
  bool initialized() override { return run::Runtime::instance().initialized(); }
  void emptyCache(c10::MempoolId_t = {0, 0}) override { run::Runtime::instance().clear_programs(); }
  // Programs run in the order of submission whatever stream they came from, so memory is never
  // reused early.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats s;
    auto& m = run::memory_count();
    auto set = [](auto& stat, int64_t now, int64_t peak, int64_t total) {
      stat.current = now;
      stat.peak = peak;
      stat.allocated = total;
      stat.freed = total - now;
    };
    guard([&] { run::Runtime::instance().drain(); });
    for (auto* stat : {&s.allocated_bytes[0], &s.reserved_bytes[0], &s.active_bytes[0]})
      set(*stat, m.live, m.peak, std::max<int64_t>(m.peak, m.live));
    set(s.allocation[0], m.buffers, m.buffers, m.total_buffers);
    return s;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {
    guard([&] { run::Runtime::instance().drain(); });
    auto& m = run::memory_count();
    m.peak.store(m.live.load());
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return guard([&] {
      int64_t total = run::Runtime::instance().memory_limit();
      int64_t live = run::memory_count().live;
      return std::pair<size_t, size_t>(std::max<int64_t>(total - live, 0), total);
    });
  }
};

DeviceAllocator the_allocator;

}  // namespace

c10::Allocator* allocator() { return &the_allocator; }

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &the_allocator)

}  // namespace torch_tpu::tensor
