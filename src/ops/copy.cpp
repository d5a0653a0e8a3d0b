// SPDX-License-Identifier: Apache-2.0 - Copies and fills: a tensor's new contents, whatever its old ones.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// src in self's dtype and sizes.
TPU_POINTWISE("aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor") {
  const TensorArg& self = c.meta("self");
  return {broadcast_to(c.tensor("src", self.dtype), self.sizes)};
}

TPU_POINTWISE("aten::fill.Scalar(Tensor self, Scalar value) -> Tensor") {
  const TensorArg& self = c.meta("self");
  return {broadcast_to(c.scalar("value", self.dtype), self.sizes)};
}

TPU_POINTWISE("aten::fill.Tensor(Tensor self, Tensor value) -> Tensor") {
  const TensorArg& self = c.meta("self");
  c.check(c.meta("value").rank() == 0,
          "fill_ only supports 0-dimension value tensor but got tensor with ",
          c.meta("value").rank(), " dimensions.");
  return {broadcast_to(c.tensor("value", self.dtype), self.sizes)};
}

TPU_POINTWISE("aten::zero(Tensor self) -> Tensor") {
  const TensorArg& self = c.meta("self");
  return {hlo::zeros(c.builder(), {self.dtype, self.sizes})};
}

// What autograd takes for a gradient that is known to be zero.
TPU_OP(
    "aten::_efficientzerotensor(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, "
    "Device? device=None, bool? pin_memory=None) -> Tensor") {
  return {hlo::zeros(c.builder(), {c.dtype("dtype").value_or(c.default_float()), c.ints("size")})};
}

}  // namespace torch_tpu::ops
