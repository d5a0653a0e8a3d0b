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

// Every element computes its whole block and keeps its word. Four times the arithmetic is cheaper
// than putting four results side by side: a fused concatenation of 2^20 words took 18-28 ms on the
// CPU plugin, this form 2.3 ms; and a last dimension of 4 would use 4 of a TPU's 128 lanes.
Value philox_u32(Builder& b, const Value& seed_lo, const Value& seed_hi, const Value& offset_lo,
                 const Value& offset_hi, int64_t count) {
  auto u64 = [&](int64_t v) { return hlo::constant_int(b, {DType::U64, {}}, v); };
  auto u32 = [&](int64_t v) { return hlo::constant_int(b, {DType::U32, {}}, v); };
  Value offset = hlo::or_(hlo::convert(offset_lo, DType::U64),
                          hlo::shift_left(hlo::convert(offset_hi, DType::U64), u64(32)));
  Value block = hlo::shift_right_logical(offset, u64(2));
  Value counter_lo, counter_hi, word;
  if (count < (int64_t{1} << 32)) {
    // The low counter word may pass its end within the fill: then the high word is one more.
    Value element = hlo::iota(b, {DType::U32, {count}}, 0);
    Value first_lo = hlo::convert(block, DType::U32);
    Value first_hi = hlo::convert(hlo::shift_right_logical(block, u64(32)), DType::U32);
    counter_lo = hlo::shift_right_logical(element, u32(2)) + first_lo;
    counter_hi = hlo::convert(hlo::lt(counter_lo, first_lo), DType::U32) + first_hi;
    word = hlo::and_(element, u32(3));
  } else {
    Value element = hlo::iota(b, {DType::U64, {count}}, 0);
    Value counter = hlo::shift_right_logical(element, u64(2)) + block;
    counter_lo = hlo::convert(counter, DType::U32);
    counter_hi = hlo::convert(hlo::shift_right_logical(counter, u64(32)), DType::U32);
    word = hlo::convert(hlo::and_(element, u64(3)), DType::U32);
  }
  Value zero = hlo::zeros(b, {DType::U32, {count}});
  auto x = philox::rounds<philox::ProgramWords>({counter_lo, counter_hi, zero, zero},
                                                {seed_lo, seed_hi});
  Value low = hlo::select(hlo::eq(word, u32(0)), x[0], x[1]);
  Value high = hlo::select(hlo::eq(word, u32(2)), x[2], x[3]);
  return hlo::select(hlo::lt(word, u32(2)), low, high);
}

uint32_t philox_u32(uint64_t seed, uint64_t offset, uint64_t index) {
  const uint64_t counter = offset / 4 + index / 4;
  auto words = philox::rounds<philox::HostWords>(
      {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return words[index % 4];
}

}  // namespace torch_tpu::graph
