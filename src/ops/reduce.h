// SPDX-License-Identifier: Apache-2.0 - What the reducing families share: dimension lists, means, moments and extremes.
#pragma once

#include "src/ops/entry.h"
#include "src/ops/index.h"

namespace torch_tpu::ops {

inline Dims all_dims(int64_t rank) { return dims_but(rank, -1); }

// How many elements one result element is made of.
int64_t reduced_count(const Value& x, const Dims& dims);
inline Value sum(const Value& x, const Dims& dims, bool keepdim = false) {
  return hlo::reduce(x, dims, hlo::Reduce::Add, keepdim);
}
// NaN over nothing. x is at opmath precision here and below.
Value mean(const Value& x, const Dims& dims, bool keepdim = false);

// Both with the reduced dimensions kept as 1. The sum of squares is that of the deviations from the
// mean (two passes: no cancellation), |x - mean|^2 for complex.
struct Moments {
  Value mean, squares;
};
Moments moments(const Value& x, const Dims& dims);

// The largest (smallest) along a dimension and the first place it has; NaN beats every number.
// Ties and NaN as on CPU. Two plain reductions: on XLA's CPU plugin 6 to 20 times faster than one
// over pairs (2048x128: 276 against 1211 us, 1048576: 600 against 12711 us).
struct Extreme {
  Value value, index;  // index: S64
};
Extreme extreme(const Value& x, int64_t dim, hlo::Reduce how, bool keepdim);

// A tensor argument as at least 1-dim, for ops along one dimension, and results back to 0-dim.
struct Along {
  Value x;
  int64_t dim = 0;
  bool scalar = false;
  // y, shaped like x, shaped like the argument.
  Value same(const Value& y) const { return scalar ? hlo::reshape(y, {}) : y; }
};
Along along_dim(Call& c, const Value& x, std::string_view name = "dim");
// "Expected reduction dim ... to have non-zero size."
void check_nonempty(Call& c, const Value& x, int64_t dim);

}  // namespace torch_tpu::ops
