// SPDX-License-Identifier: Apache-2.0 - Results that keep an input's channels-last memory order.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// PyTorch's suggest_memory_format() != contiguous, for 4 and 5 dimensions.
bool is_channels_last(const TensorArg& tensor);
// Makes result i of these sizes channels-last.
void make_channels_last(Call& c, int64_t i, const Dims& sizes);
inline void keep_channels_last(Call& c, int64_t i, const Dims& sizes, const TensorArg& like) {
  if (is_channels_last(like)) make_channels_last(c, i, sizes);
}

}  // namespace torch_tpu::ops
