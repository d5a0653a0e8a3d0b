// SPDX-License-Identifier: Apache-2.0 - Philox 4x32-10 in StableHLO integer operations.
#include "src/graph/philox.h"

namespace torch_tpu::graph {

using hlo::Builder;
using hlo::DType;
using hlo::Value;

namespace philox {

Value ProgramWords::xor_(const Value& a, const Value& b) { return hlo::xor_(a, b); }

Value ProgramWords::bump(const Value& key, uint32_t by) {
  return key + hlo::constant_int(key.builder(), {DType::U32, {}}, by);
}

void ProgramWords::multiply(const Value& a, uint32_t by, Value& high, Value& low) {
  Builder& b = a.builder();
  Value wide = hlo::convert(a, DType::U64) * hlo::constant_int(b, {DType::U64, {}}, by);
  high = hlo::convert(hlo::shift_right_logical(wide, hlo::constant_int(b, {DType::U64, {}}, 32)),
                      DType::U32);
  // Not the low half of `wide`: a 32-bit product is one instruction where 64 bits are emulated.
  low = a * hlo::constant_int(b, {DType::U32, {}}, by);
}

}  // namespace philox

Value philox_u32(Builder& b, const Value& seed_lo, const Value& seed_hi, const Value& offset_lo,
                 const Value& offset_hi, int64_t count) {
  if (count == 0) return hlo::zeros(b, {DType::U32, {0}});
  const int64_t blocks = (count + 3) / 4;
  auto u64 = [&](int64_t v) { return hlo::constant_int(b, {DType::U64, {}}, v); };
  Value offset = hlo::or_(hlo::convert(offset_lo, DType::U64),
                          hlo::shift_left(hlo::convert(offset_hi, DType::U64), u64(32)));
  Value counter =
      hlo::iota(b, {DType::U64, {blocks}}, 0) + hlo::shift_right_logical(offset, u64(2));
  Value zero = hlo::zeros(b, {DType::U32, {blocks}});
  Value counter_lo = hlo::convert(counter, DType::U32);
  Value counter_hi = hlo::convert(hlo::shift_right_logical(counter, u64(32)), DType::U32);
  auto words = philox::rounds<philox::ProgramWords>({counter_lo, counter_hi, zero, zero},
                                                    {seed_lo, seed_hi});
  hlo::Values columns;
  for (const Value& word : words) columns.push_back(hlo::reshape(word, {blocks, 1}));
  Value all = hlo::reshape(hlo::concatenate(columns, 1), {blocks * 4});
  return blocks * 4 == count ? all : hlo::slice_dim(all, 0, 0, count);
}

uint32_t philox_u32(uint64_t seed, uint64_t offset, uint64_t index) {
  const uint64_t counter = offset / 4 + index / 4;
  auto words = philox::rounds<philox::HostWords>(
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return words[index % 4];
}

}  // namespace torch_tpu::graph
