// SPDX-License-Identifier: Apache-2.0 - Geometry and argument checks that the pooling families share.
#pragma once

#include "src/ops/windows.h"

namespace torch_tpu::ops {

// An unbatched or batched input as [N, C, spatial...], and back.
struct Planes {
  bool batched = true;
  Value wrap(const Value& x) const { return batched ? x : hlo::unsqueeze(x, 0); }
  Value unwrap(const Value& x) const { return batched ? x : hlo::squeeze(x, 0); }
};
Planes planes_of(const Call& c, const TensorArg& self, int64_t axes);
Dims spatial_sizes(const TensorArg& self, int64_t axes);

// Reads kernel_size, stride, padding, dilation (if the op has it) and ceil_mode.
Windows pool_windows(const Call& c, const TensorArg& self, int64_t axes, bool has_dilation);

// What adaptive pooling's output `o` of `out` sees of `in` elements: [begin, end).
inline int64_t adaptive_begin(int64_t o, int64_t in, int64_t out) { return o * in / out; }
inline int64_t adaptive_end(int64_t o, int64_t in, int64_t out) {
  return ((o + 1) * in + out - 1) / out;
}

// The same for each output of an axis.
struct Ranges {
  Dims begin, end;
  int64_t count() const { return static_cast<int64_t>(begin.size()); }
  int64_t size(int64_t o) const { return end[o] - begin[o]; }
  int64_t longest() const;
};
Ranges adaptive_ranges(int64_t in, int64_t out);
// Reads output_size for an input of these sizes.
Dims adaptive_output(const Call& c, const TensorArg& self, int64_t axes);

// x with updates added at flat positions of its last `axes` dimensions. index and updates:
// [N, C, P...], any size of P.
Value scatter_planes(const Value& updates, const Value& index, const Dims& sizes, bool add);

}  // namespace torch_tpu::ops
