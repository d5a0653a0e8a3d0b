// SPDX-License-Identifier: Apache-2.0 - What ops that make tensors share.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// The dtype asked for. In the out= form the tensor to be filled stands in the place of dtype.
DType wanted_dtype(Call& c, DType otherwise);

}  // namespace torch_tpu::ops
