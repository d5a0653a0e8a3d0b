// SPDX-License-Identifier: Apache-2.0 - What the indexing families share: index checks and row scatters.
#pragma once

#include <string>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

enum class Negative : uint8_t { Reject, Wrap };

// Index values into a dimension of `size`, as S32 (S64 where the size needs it), safe to use: those
// out of range raise `message` when the host next waits ("{}" in it becomes such a value), and are
// clamped so that the program itself stays in bounds. Negative::Wrap counts negative ones from the
// end.
Value checked_index(Call& c, const Value& index, int64_t size, Negative negative,
                    graph::CheckSpec::Error error, const std::string& message);
// The same without the check, for callers that vouch for the values.
Value trusted_index(const Value& index, int64_t size, Negative negative);

// "index {} is out of bounds for dimension 1 with size 5"
std::string out_of_bounds(int64_t dim, int64_t size);

// 0-dim values as 1-dim ones, the way PyTorch's indexing ops see them.
Value at_least_1d(const Value& x);
// 0, 1, ..., n-1 without `except`.
Dims dims_but(int64_t rank, int64_t except);

// x with rows (slices of one element along dim) `index` (1-dim) combined with those of `updates`.
Value scatter_rows(const Value& x, int64_t dim, const Value& index, const Value& updates,
                   const hlo::Combiner& combine);
Value overwrite(const Value& old_value, const Value& update);  // Combiner

// x[p with p[dim] = index[p]] for every p of the index, which is nowhere larger than x but along
// dim and holds valid places.
Value gather_along(const Value& x, const Value& index, int64_t dim);

// Inclusive running sum of a 1-dim value.
Value running_sum(const Call& c, const Value& x);

// Sums and products of halves are formed in float32: PyTorch's opmath type, also for the integers
// and bool (where add means or, multiply means and).
DType accumulate_type(DType dtype);

}  // namespace torch_tpu::ops
