// SPDX-License-Identifier: Apache-2.0 - Activation functions.
#include "src/ops/activation.h"

namespace torch_tpu::ops {

// max(x, 0); also of whole numbers.
TPU_POINTWISE("aten::relu(Tensor self) -> Tensor") {
  DType dtype = c.dtype_of("self");
  c.check(dtype != DType::Pred, "Boolean inputs not supported for relu");
  c.check_supported(!hlo::is_complex(dtype), "clamp is not supported for complex types");
  return {hlo::maximum(c.tensor("self"), 0)};
}

// x above the threshold, else value.
TPU_POINTWISE("aten::threshold(Tensor self, Scalar threshold, Scalar value) -> Tensor") {
  Value x = c.tensor("self");
  reject_bool(c, x.dtype());
  reject_complex(c, x.dtype());
  Value below = hlo::le(x, c.scalar("threshold", x.dtype()));
  return {select(below, c.scalar("value", x.dtype()), x)};
}

// min(max(x, min_val), max_val).
TPU_POINTWISE("aten::hardtanh(Tensor self, Scalar min_val=-1, Scalar max_val=1) -> Tensor") {
  Value x = c.tensor("self");
  c.check(x.dtype() != DType::Pred, "Bool inputs not supported for hardtanh");
  c.check_supported(!hlo::is_complex(x.dtype()), "clamp is not supported for complex types");
  Value low = c.scalar("min_val", x.dtype()), high = c.scalar("max_val", x.dtype());
  return {hlo::minimum(hlo::maximum(x, low), high)};
}

// x * P(N < x), N standard normal; "tanh": x / 2 * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
TPU_POINTWISE("aten::gelu(Tensor self, *, str approximate='none') -> Tensor") {
  Float f(c);
  return f.rounded(f.x * (is_tanh(c) ? tanh_cdf(f.x) : normal_cdf(f.x)));
}

// x * sigmoid(x).
TPU_POINTWISE("aten::silu(Tensor self) -> Tensor") {
  Float f(c, "self", /*complex=*/true);
  return f.rounded(f.x * hlo::logistic(f.x));
}

// x * tanh(log(1 + exp(x))).
TPU_POINTWISE("aten::mish(Tensor self) -> Tensor") {
  Float f(c);
  return f.rounded(f.x * hlo::tanh(hlo::log_plus_one(hlo::exponential(f.x))));
}

// scale * x from 0 on; below, alpha * scale * (exp(input_scale * x) - 1).
TPU_POINTWISE(
    "aten::elu(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1) -> Tensor") {
  Float f(c);
  Value alpha = f.scalar("alpha"), scale = f.scalar("scale"), slope = f.scalar("input_scale");
  Value below = hlo::exponential_minus_one(f.x * slope) * (alpha * scale);
  return f.rounded(select(hlo::lt(f.x, 0), below, f.x * scale));
}

TPU_POINTWISE("aten::leaky_relu(Tensor self, Scalar negative_slope=0.01) -> Tensor") {
  Float f(c);
  return f.rounded(select(hlo::gt(f.x, 0), f.x, f.x * f.scalar("negative_slope")));
}

// x * min(max(x + 3, 0), 6) / 6.
static Value six(const Value& x) { return hlo::minimum(hlo::maximum(x + 3, 0), 6); }
TPU_POINTWISE("aten::hardswish(Tensor self) -> Tensor") {
  Float f(c);
  return f.rounded(f.x * six(f.x) / 6);
}
TPU_POINTWISE("aten::hardsigmoid(Tensor self) -> Tensor") {
  Float f(c);
  return f.rounded(six(f.x) / 6);
}

// log(1 + exp(beta x)) / beta; x itself above the threshold, where they are equal.
TPU_POINTWISE("aten::softplus(Tensor self, Scalar beta=1, Scalar threshold=20) -> Tensor") {
  Float f(c);
  Value beta = f.scalar("beta");
  Value t = f.x * beta;
  Value soft = hlo::log_plus_one(hlo::exponential(t)) / beta;
  return f.rounded(select(hlo::gt(t, f.scalar("threshold")), f.x, soft));
}

// log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)). The buffer is for CPU's backward only; ours is
// empty, as on CUDA.
TPU_POINTWISE("aten::log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)") {
  Float f(c);
  Value y = hlo::minimum(f.x, 0) - hlo::log_plus_one(hlo::exponential(-hlo::abs(f.x)));
  Value buffer = hlo::zeros(c.builder(), {f.result, {0}});
  return {convert(y, f.result), buffer};
}

TPU_POINTWISE("aten::hardshrink(Tensor self, Scalar lambd=0.5) -> Tensor") {
  Float f(c);
  return f.rounded(select(inside(f.x, f.scalar("lambd")), 0, f.x));
}

// x moved towards 0 by lambd; NaN stays.
TPU_POINTWISE("aten::softshrink(Tensor self, Scalar lambd=0.5) -> Tensor") {
  Float f(c);
  c.check(c.derive([](const graph::Number* a) -> int64_t { return a[1].as_double() >= 0; }) != 0,
          "lambda must be in range [0, inf) for input dtype ", f.result, ", but it is negative");
  Value lambd = f.scalar("lambd");
  Value below = select(hlo::lt(f.x, -lambd), f.x + lambd, f.x * 0);
  return f.rounded(select(hlo::gt(f.x, lambd), f.x - lambd, below));
}

// x above 0, else weight * x; the weight is already shaped to broadcast.
TPU_POINTWISE("aten::_prelu_kernel(Tensor self, Tensor weight) -> Tensor") {
  Float f(c);
  Value weight = c.tensor("weight", f.x.dtype());
  return f.rounded(select(hlo::gt(f.x, 0), f.x, weight * f.x));
}

// First half * sigmoid(second half).
TPU_OP("aten::glu(Tensor self, int dim=-1) -> Tensor") {
  Float f(c);
  Halves h(c, f.x, "self");
  return f.rounded(h.a * hlo::logistic(h.b));
}

// The tangent of glu: d(a s(b)) = da s(b) + glu (1 - s(b)) db.
TPU_OP("aten::glu_jvp(Tensor glu, Tensor x, Tensor dx, int dim) -> Tensor") {
  Float glu(c, "glu");
  Halves x(c, c.tensor("x", glu.x.dtype()), "x"), dx(c, c.tensor("dx", glu.x.dtype()), "dx");
  Value s = hlo::logistic(x.b);
  return glu.rounded(dx.a * s + glu.x * (dx.b - s * dx.b));
}

}  // namespace torch_tpu::ops
