// SPDX-License-Identifier: Apache-2.0 - Seed, offset and state of the random generator.
#include "src/tensor/generator.h"

#include <ATen/ATen.h>

#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

GeneratorImpl::GeneratorImpl(c10::DeviceIndex index)
    : c10::GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, index),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  seed_ = seed;
  offset_ = 0;
}

void GeneratorImpl::set_offset(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "the offset of a tpu generator must be a multiple of 4, got ",
              offset);
  offset_ = offset;
}

uint64_t GeneratorImpl::get_offset() const { return offset_; }
uint64_t GeneratorImpl::current_seed() const { return seed_; }

uint64_t GeneratorImpl::seed() {
  uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK(state.numel() == 16, "a tpu generator's state has 16 bytes (seed, offset), got ",
              state.numel());
  const auto* bytes = static_cast<const uint8_t*>(state.data());
  uint64_t seed;
  int64_t offset;
  std::memcpy(&seed, bytes, 8);
  std::memcpy(&offset, bytes + 8, 8);
  set_current_seed(seed);
  set_offset(static_cast<uint64_t>(offset));
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  at::Tensor state = at::detail::empty_cpu({16}, at::kByte, {}, {}, {}, {});
  auto* bytes = state.data_ptr<uint8_t>();
  auto offset = static_cast<int64_t>(offset_);
  std::memcpy(bytes, &seed_, 8);
  std::memcpy(bytes + 8, &offset, 8);
  return state.getIntrusivePtr();
}

uint64_t GeneratorImpl::draw(uint64_t words) {
  uint64_t before = offset_;
  offset_ += (words + 3) / 4 * 4;
  return before;
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator() {
  static const at::Generator* generator = new at::Generator(at::make_generator<GeneratorImpl>(0));
  return *generator;
}

}  // namespace torch_tpu::tensor
