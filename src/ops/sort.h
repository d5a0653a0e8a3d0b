// SPDX-License-Identifier: Apache-2.0 - Sorting along a dimension, for the ops that need an order.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// Where the sorted elements of x stand along dim, S32: x's places in the order of their values. NaN
// comes after everything (descending: before), equal values keep their order. x is not 0-dim.
Value sorted_places(const Value& x, int64_t dim, bool descending);

}  // namespace torch_tpu::ops
