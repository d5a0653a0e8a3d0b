// SPDX-License-Identifier: Apache-2.0 - The device's random generator: a seed and an offset, both on the host.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace torch_tpu::tensor {

// State as a tensor: 16 bytes, the seed (uint64) and the offset (int64), as DTensor reads it.
// The offset counts 32-bit words drawn, in multiples of 4 (Philox makes four at a time).
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex index = 0);
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The offset before the draw; mutex_ must be held.
  uint64_t draw(uint64_t words);

 private:
  GeneratorImpl* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& default_generator();

}  // namespace torch_tpu::tensor
