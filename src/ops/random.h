// SPDX-License-Identifier: Apache-2.0 - Draws of the basic distributions, from the words of the call's generator.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// Independent draws of these sizes; dtype F32 or F64 where not said otherwise.

// 64-bit words, U64.
Value random_words(Call& c, const Dims& dims);
// [0, 1): all multiples of 2^-24 (F64: 2^-53).
Value unit(Call& c, const Dims& dims, DType dtype);
// (0, 1): multiples of 2^-32 (F64: 2^-52) near 0, as the type has them near 1. Logarithms are
// finite.
Value open_unit(Call& c, const Dims& dims, DType dtype);
Value standard_normal(Call& c, const Dims& dims, DType dtype);
// The same from words that are already there: U32 for F32 results, U64 for F64.
Value open_unit_of(const Value& words);
Value standard_normal_of(const Value& words);

}  // namespace torch_tpu::ops
