// SPDX-License-Identifier: Apache-2.0 - Recognizes and makes the channels-last memory order.
#include "src/ops/channels_last.h"

#include <algorithm>

namespace torch_tpu::ops {

bool is_channels_last(const TensorArg& tensor) {
  const int64_t rank = tensor.rank();
  if (rank != 4 && rank != 5) return false;
  Dims order = {1};
  for (int64_t d = rank - 1; d >= 2; --d) order.push_back(d);
  order.push_back(0);
  if (tensor.strides[1] == 0) return false;
  int64_t least = 0;
  for (int64_t d : order) {
    if (tensor.sizes[d] == 0 || tensor.strides[d] < least) return false;
    // N111 and the like are both; they count as contiguous.
    if (d == 0 && least == tensor.strides[1]) return false;
    least = tensor.strides[d] * std::max<int64_t>(tensor.sizes[d], 1);
  }
  return true;
}

void make_channels_last(Call& c, int64_t i, const Dims& sizes) {
  Dims strides(sizes.size());
  int64_t step = 1;
  strides[1] = step;
  step *= std::max<int64_t>(sizes[1], 1);
  for (size_t d = sizes.size() - 1; d >= 2; --d) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  strides[0] = step;
  c.output_strides(i, strides);
}

}  // namespace torch_tpu::ops
