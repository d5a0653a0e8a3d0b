// SPDX-License-Identifier: Apache-2.0 - What every family that multiplies and sums shares: accumulation and precision.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// Sum over the contracted dimensions at opmath precision (halves and float8 accumulate in, and
// return, float32). Result dims: batch, rest of lhs, rest of rhs.
Value contract(Call& c, const Value& lhs, const Value& rhs, const Dims& lhs_batch,
               const Dims& rhs_batch, const Dims& lhs_contract, const Dims& rhs_contract);
// lhs @ rhs of equal ranks, all dimensions but the last two being batch dimensions.
Value matrix_product(Call& c, const Value& lhs, const Value& rhs);

// The precision at which a contraction of this dtype keeps PyTorch's meaning.
hlo::Precision contraction_precision(Call& c, DType dtype);

Value conjugate(const Value& x);
// The last two dimensions swapped; adjoint conjugates as well.
Value transposed(const Value& x);
inline Value adjoint(const Value& x) { return conjugate(transposed(x)); }
// 0, 1, ..., n-1.
Dims counting(int64_t n, int64_t first = 0);
// self expanded to `sizes`; PyTorch's words when it does not fit.
void check_expands(const Call& c, const Dims& from, const Dims& sizes);

}  // namespace torch_tpu::ops
