// SPDX-License-Identifier: Apache-2.0 - Inclusive scans along one dimension.
#pragma once

#include <functional>
#include <span>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// Combines what came before with what comes after, elementwise; associative, not commutative.
using ScanFn = std::function<Values(const Values& before, const Values& after)>;

// y[i] = x[0] * x[1] * ... * x[i] along dim, of several tensors of one shape together. `identities`
// are 0-dim: fn(identity, x) = x.
//
// Blocks of 4: the elements of a block are added one after another as whole vectors (one for each
// place in a block), the totals of the blocks are scanned the same way, and each block takes the
// total before it: O(n) work, log4(n) levels. Measured on XLA's CPU plugin for float32 sums,
// against jax.lax.cumsum's reduce_window: 1048576 elements 1.1 against 19.6 ms, 64x4096 0.33
// against 0.61, 2048x128 0.25 against 0.44. Doubling is worse (298 ms for the first); blocks of 16
// run no faster and compile two to five times as long.
//
// Where sizes are open, one reduce_window instead, whose form does not depend on them.
Values scan(const Call& c, std::span<const Value> xs, std::span<const Value> identities,
            int64_t dim, const ScanFn& fn);

}  // namespace torch_tpu::ops
