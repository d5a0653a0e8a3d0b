// SPDX-License-Identifier: Apache-2.0 - Elementwise choices, bounds, interpolation and fused products.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// ---- choices -----------------------------------------------------------------------------------

TPU_POINTWISE("aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor") {
  DType condition = c.dtype_of("condition");
  c.check(condition == DType::Pred || condition == DType::U8,
          "where expected condition to be a boolean tensor, but got a tensor with dtype ",
          condition);
  Operands o = exact_operands(c);
  return {select(c.tensor("condition", DType::Pred), o.a, o.b)};
}

// value where mask, in self's dtype.
static Values masked_fill(Call& c) {
  DType mask = c.dtype_of("mask");
  c.check(mask == DType::Pred, "masked_fill_ only supports boolean masks, but got mask with dtype ",
          mask);
  if (const TensorArg* value = c.meta_or_null("value")) {
    c.check(value->rank() == 0,
            "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
            value->rank(), " dimension(s).");
    c.check(!hlo::is_complex(value->dtype) || hlo::is_complex(c.dtype_of("self")),
            "value cannot be converted to type ", c.dtype_of("self"), " without overflow");
  }
  Value self = c.tensor("self");
  Value y = select(c.tensor("mask"), c.tensor("value", self.dtype()), self);
  c.output_strides(0, hlo::contiguous_strides(y.dims()));  // whatever the arguments' are
  return {y};
}
TPU_OP_FN("aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", Pointwise,
          masked_fill);
TPU_OP_FN("aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor", Pointwise,
          masked_fill);

// ---- bounds ------------------------------------------------------------------------------------

// min(max(self, min), max): max wins over min, NaN over both.
static Values bounded(Call& c, std::string_view min, std::string_view max) {
  bool low = !min.empty() && c.has(min), high = !max.empty() && c.has(max);
  c.check(low || high, "torch.clamp: At least one of 'min' or 'max' must not be None");
  std::vector<std::string_view> names = {"self"};
  if (low) names.push_back(min);
  if (high) names.push_back(max);
  DType result = c.result_type(names);
  c.check_supported(!hlo::is_complex(result), "clamp is not supported for complex types");
  Value x = c.tensor("self", result);
  if (low) x = hlo::maximum(x, c.tensor(min, result));
  if (high) x = hlo::minimum(x, c.tensor(max, result));
  return {x};
}
static Values clamp(Call& c) { return bounded(c, "min", "max"); }
static Values clamp_min(Call& c) { return bounded(c, "min", ""); }
static Values clamp_max(Call& c) { return bounded(c, "", "max"); }
TPU_OP_FN("aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor", Pointwise,
          clamp);
TPU_OP_FN("aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
          Pointwise, clamp);
TPU_OP_FN("aten::clamp_min(Tensor self, Scalar min) -> Tensor", Pointwise, clamp_min);
TPU_OP_FN("aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor", Pointwise, clamp_min);
TPU_OP_FN("aten::clamp_max(Tensor self, Scalar max) -> Tensor", Pointwise, clamp_max);
TPU_OP_FN("aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor", Pointwise, clamp_max);

// ---- interpolation and fused products ----------------------------------------------------------

// From the nearer end, so that both ends are met exactly.
static Values lerp(Call& c) {
  DType dtype = c.dtype_of("self");
  c.check(c.dtype_of("end") == dtype, "expected dtype ", dtype, " for `end` but got dtype ",
          c.dtype_of("end"));
  if (const TensorArg* weight = c.meta_or_null("weight")) {
    c.check(weight->dtype == dtype || (weight->rank() == 0 && hlo::is_floating(weight->dtype)),
            "expected dtype ", dtype, " for `weight` but got dtype ", weight->dtype);
  }
  require_float(c, dtype);
  DType compute = hlo::opmath(dtype);
  Value self = c.tensor("self", compute), end = c.tensor("end", compute);
  Value weight = c.tensor("weight", compute);
  Value way = end - self;
  Value small = hlo::lt(hlo::abs(weight), 0.5);
  Value y = select(small, self + weight * way, end - way * (1.0 - weight));
  return {convert(y, dtype)};
}
TPU_OP_FN("aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", Pointwise, lerp);
TPU_OP_FN("aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", Pointwise, lerp);

struct Product {
  Value self, a, b;  // at opmath precision, a already scaled by value
  DType result;
};
static Product product(Call& c) {
  DType result = c.result_type({"self", "tensor1", "tensor2"});
  reject_bool(c, result);
  DType compute = hlo::opmath(result);
  Value a = c.tensor("tensor1", compute);
  if (!c.equals("value", 1)) a = c.scalar("value", compute) * a;
  return {c.tensor("self", compute), a, c.tensor("tensor2", compute), result};
}

// self + value * tensor1 * tensor2.
TPU_POINTWISE(
    "aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor") {
  Product p = product(c);
  return {convert(p.self + p.a * p.b, p.result)};
}

// self + value * tensor1 / tensor2.
TPU_POINTWISE(
    "aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor") {
  auto whole = [&](std::string_view name) {
    DType d = c.dtype_of(name);
    return d == DType::Pred || hlo::is_integer(d);
  };
  c.check(!whole("tensor1") || !whole("tensor2"),
          "Integer division with addcdiv is no longer supported, and in a future  release addcdiv "
          "will perform a true division of tensor1 and tensor2. The historic addcdiv behavior can "
          "be implemented as (input + value * torch.trunc(tensor1 / tensor2)).to(input.dtype) for "
          "integer inputs and as (input + value * tensor1 / tensor2) for float inputs.");
  Product p = product(c);
  return {convert(p.self + p.a / p.b, p.result)};
}

}  // namespace torch_tpu::ops
