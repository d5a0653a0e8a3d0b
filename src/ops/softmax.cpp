// SPDX-License-Identifier: Apache-2.0 - Softmax, its logarithm, and their backwards.
#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

using hlo::Reduce;

// Halves are computed in float32 and rounded once; half_to_float leaves them there.
DType softmax_dtype(Call& c) {
  DType self = c.dtype_of("self");
  c.check_supported(hlo::is_floating(self), "not implemented for '", self, "'");
  return c.flag("half_to_float") ? hlo::opmath(self) : self;
}
struct Exponentials {
  Value centered, e, total;  // x - max, exp of it, sum of that kept as 1
};
Exponentials exponentials(const Value& x, int64_t dim) {
  Value centered = x - hlo::reduce(x, {dim}, Reduce::Maximum, true);
  Value e = hlo::exponential(centered);
  return {centered, e, sum(e, {dim}, true)};
}

// exp(x - max) / sum exp(x - max).
TPU_OP("aten::_softmax(Tensor self, int dim, bool half_to_float) -> Tensor") {
  DType result = softmax_dtype(c);
  Along a = along_dim(c, c.tensor("self", hlo::opmath(result)));
  Exponentials s = exponentials(a.x, a.dim);
  return {hlo::convert(a.same(s.e / s.total), result)};
}

// x - max - log sum exp(x - max).
TPU_OP("aten::_log_softmax(Tensor self, int dim, bool half_to_float) -> Tensor") {
  DType result = softmax_dtype(c);
  Along a = along_dim(c, c.tensor("self", hlo::opmath(result)));
  Exponentials s = exponentials(a.x, a.dim);
  return {hlo::convert(a.same(s.centered - hlo::log(s.total)), result)};
}

// y * (g - sum(g y)).
TPU_OP(
    "aten::_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType "
    "input_dtype) -> Tensor") {
  DType compute = hlo::opmath(c.dtype_of("grad_output"));
  Along a = along_dim(c, c.tensor("grad_output", compute));
  Value y = at_least_1d(c.tensor("output", compute));
  Value dx = y * (a.x - sum(a.x * y, {a.dim}, true));
  return {hlo::convert(a.same(dx), c.dtype("input_dtype").value_or(c.dtype_of("grad_output")))};
}

// g - exp(y) * sum(g).
TPU_OP(
    "aten::_log_softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType "
    "input_dtype) -> Tensor") {
  DType compute = hlo::opmath(c.dtype_of("grad_output"));
  Along a = along_dim(c, c.tensor("grad_output", compute));
  Value y = at_least_1d(c.tensor("output", compute));
  Value dx = a.x - hlo::exponential(y) * sum(a.x, {a.dim}, true);
  return {hlo::convert(a.same(dx), c.dtype("input_dtype").value_or(c.dtype_of("grad_output")))};
}

// Softmax, but 0 where a whole row is -inf.
TPU_OP("aten::_safe_softmax(Tensor self, int dim, ScalarType? dtype=None) -> Tensor") {
  DType result = c.dtype("dtype").value_or(c.dtype_of("self"));
  c.check_supported(hlo::is_floating(result), "not implemented for '", result, "'");
  Along a = along_dim(c, hlo::convert(c.tensor("self", result), hlo::opmath(result)));
  Exponentials s = exponentials(a.x, a.dim);
  Value low = hlo::lowest(c.builder(), a.x.dtype());
  Value masked = hlo::reduce(hlo::eq(a.x, low), {a.dim}, Reduce::And, true);
  return {hlo::convert(a.same(hlo::select(masked, 0, s.e / s.total)), result)};
}

// Softmax over the elements where mask is false, 0 elsewhere; a row without any is 0. The mask is
// [L, L] (mask_type 0) or [batch, L] (1) for x [batch, heads, L, L], or of x's own shape (2).
Value mask_like(Call& c, const Value& x) {
  Value mask = c.tensor("mask", DType::Pred);
  int64_t type = c.integer_or_none("mask_type").value_or(2);
  const Dims& dims = x.dims();
  if (type == 2 || x.rank() != 4) {
    c.check(mask.dims() == dims, "mask shape should match input shape, got ", mask.dims(), " and ",
            dims);
    return mask;
  }
  if (type == 0) {
    c.check(mask.dims() == Dims({dims[2], dims[3]}),
            "for mask_type == 0, mask shape should be LxL, got ", mask.dims());
    return hlo::broadcast_to(mask, dims);
  }
  c.check(mask.dims() == Dims({dims[0], dims[3]}),
          "for mask_type == 1, mask shape should be BxL, got ", mask.dims());
  return hlo::broadcast_in_dim(mask, dims, {0, 3});
}
TPU_OP(
    "aten::_masked_softmax(Tensor self, Tensor mask, int? dim=None, int? mask_type=None) -> "
    "Tensor") {
  DType result = c.dtype_of("self");
  c.check(c.dtype_of("mask") == DType::Pred, "Mask should be a boolean tensor");
  Value x = c.tensor("self", hlo::opmath(result));
  Value mask = mask_like(c, x);
  bool scalar = x.rank() == 0;
  x = at_least_1d(x);
  mask = at_least_1d(mask);
  int64_t dim = c.wrap(c.integer_or_none("dim").value_or(-1), x.rank());
  Exponentials s = exponentials(hlo::select(mask, hlo::lowest(c.builder(), x.dtype()), x), dim);
  Value y = hlo::select(mask, 0, s.e / s.total);
  return {hlo::convert(scalar ? hlo::reshape(y, {}) : y, result)};
}
TPU_OP(
    "aten::_masked_softmax_backward(Tensor grad_output, Tensor output, Tensor mask, int? "
    "dim=None) -> Tensor") {
  DType result = c.dtype_of("grad_output");
  Value g = at_least_1d(c.tensor("grad_output", hlo::opmath(result)));
  Value y = at_least_1d(c.tensor("output", hlo::opmath(result)));
  Value mask = at_least_1d(c.tensor("mask", DType::Pred));
  int64_t dim = c.wrap(c.integer_or_none("dim").value_or(-1), g.rank());
  Value gy = hlo::select(mask, 0, g * y);
  Value dx = hlo::select(mask, 0, gy - y * sum(gy, {dim}, true));
  return {hlo::convert(hlo::reshape(dx, c.meta("grad_output").sizes), result)};
}

}  // namespace
}  // namespace torch_tpu::ops
