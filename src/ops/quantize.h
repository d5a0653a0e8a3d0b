// SPDX-License-Identifier: Apache-2.0 - Numbers of few bits, unpacked.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// float4_e2m1fn_x2, as U8 [..., n], to F32 [..., 2 n]: two numbers a byte, the first in the lower
// half.
Value unpacked_float4(const Value& x);

}  // namespace torch_tpu::ops
