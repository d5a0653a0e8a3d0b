// SPDX-License-Identifier: Apache-2.0 - Derivatives of the activation functions.
#include "src/ops/activation.h"

namespace torch_tpu::ops {

// grad_output and another float tensor at the opmath precision of their common dtype.
struct Gradient {
  Call& c;
  DType result;
  Value g, x;
  explicit Gradient(Call& call, std::string_view grad = "grad_output",
                    std::string_view self = "self", bool complex = false)
      : c(call), result(call.result_type({grad, self})) {
    require_float(c, result);
    if (!complex) reject_complex(c, result);
    g = c.tensor(grad, hlo::opmath(result));
    x = c.tensor(self, hlo::opmath(result));
  }
  Value scalar(std::string_view name) { return c.scalar(name, x.dtype()); }
  Values rounded(const Value& y) const { return {convert(y, result)}; }
};

static Value conjugate(const Value& x) {
  return hlo::is_complex(x.dtype()) ? hlo::complex(hlo::real(x), -hlo::imag(x)) : x;
}

// grad (1 - y) y.
TPU_POINTWISE("aten::sigmoid_backward(Tensor grad_output, Tensor output) -> Tensor") {
  Gradient d(c, "grad_output", "output", true);
  return d.rounded(d.g * conjugate((1.0 - d.x) * d.x));
}
// grad (1 - y^2).
TPU_POINTWISE("aten::tanh_backward(Tensor grad_output, Tensor output) -> Tensor") {
  Gradient d(c, "grad_output", "output", true);
  return d.rounded(d.g * conjugate(1.0 - d.x * d.x));
}

// grad / (x (1 - x)); 0 where the clamp holds x, NaN outside of [0, 1] when there is none.
TPU_POINTWISE("aten::logit_backward(Tensor grad_output, Tensor self, float? eps=None) -> Tensor") {
  Gradient d(c);
  Value slope = d.g / (d.x * (1.0 - d.x));
  Value low = hlo::scalar(c.builder(), d.x.dtype(), 0), high = hlo::full_like(low, 1);
  Value outside = hlo::nan_of(c.builder(), d.x.dtype());
  if (c.has("eps")) {
    Value eps = d.scalar("eps");
    Value free = hlo::lt(eps, 0);
    low = select(free, low, eps);
    high = select(free, high, 1.0 - eps);
    outside = select(free, outside, 0);
  }
  Value out = hlo::lt(d.x, low) | hlo::gt(d.x, high);
  return d.rounded(select(out, outside, slope));
}

// grad where x is above the threshold (or NaN).
TPU_POINTWISE(
    "aten::threshold_backward(Tensor grad_output, Tensor self, Scalar threshold) -> Tensor") {
  DType result = c.result_type({"grad_output", "self"});
  reject_bool(c, result);
  reject_complex(c, result);
  Value g = c.tensor("grad_output", result), x = c.tensor("self", result);
  return {select(hlo::le(x, c.scalar("threshold", result)), 0, g)};
}

TPU_POINTWISE(
    "aten::hardtanh_backward(Tensor grad_output, Tensor self, Scalar min_val, Scalar max_val) -> "
    "Tensor") {
  Gradient d(c);
  Value held = hlo::le(d.x, d.scalar("min_val")) | hlo::ge(d.x, d.scalar("max_val"));
  return d.rounded(select(held, 0, d.g));
}

// grad (P(N < x) + x p(x)), p the normal density; or the derivative of the tanh form.
TPU_POINTWISE(
    "aten::gelu_backward(Tensor grad_output, Tensor self, *, str approximate='none') -> Tensor") {
  Gradient d(c);
  const Value& x = d.x;
  if (!is_tanh(c)) {
    Value density = hlo::exponential(x * x * -0.5) * kInvSqrt2Pi;
    return d.rounded(d.g * (normal_cdf(x) + x * density));
  }
  Value t = hlo::tanh(gelu_inner(x));
  Value inner_slope = (1.0 + x * x * (3 * kGeluCubic)) * kSqrt2OverPi;
  Value slope = (t + 1) * 0.5 + x * 0.5 * (1.0 - t * t) * inner_slope;
  return d.rounded(d.g * slope);
}

// grad s (1 + x (1 - s)), s = sigmoid(x).
TPU_POINTWISE("aten::silu_backward(Tensor grad_output, Tensor self) -> Tensor") {
  Gradient d(c, "grad_output", "self", true);
  Value s = hlo::logistic(d.x);
  return d.rounded(d.g * conjugate(s * (1.0 + d.x * (1.0 - s))));
}

// grad (t + x s (1 - t^2)), t = tanh(softplus(x)), s = sigmoid(x).
TPU_POINTWISE("aten::mish_backward(Tensor grad_output, Tensor self) -> Tensor") {
  Gradient d(c);
  Value t = hlo::tanh(hlo::log_plus_one(hlo::exponential(d.x)));
  return d.rounded(d.g * (t + d.x * hlo::logistic(d.x) * (1.0 - t * t)));
}

// Below 0 the slope is input_scale alpha scale exp(input_scale x), or input_scale (y + alpha scale)
// when the result is what was kept.
TPU_POINTWISE(
    "aten::elu_backward(Tensor grad_output, Scalar alpha, Scalar scale, Scalar input_scale, bool "
    "is_result, Tensor self_or_result) -> Tensor") {
  Gradient d(c, "grad_output", "self_or_result");
  bool is_result = c.flag("is_result");
  if (is_result) {
    c.check(c.derive([](const graph::Number* a) -> int64_t { return a[1].as_double() >= 0; }) != 0,
            "In-place elu backward calculation is triggered with a negative slope which is not "
            "supported. This is caused by calling in-place forward function with a negative slope, "
            "please call out-of-place version instead.");
  }
  Value scale = d.scalar("scale"), slope = d.scalar("input_scale");
  Value negative = d.scalar("alpha") * scale;
  Value below = is_result ? d.g * slope * (d.x + negative)
                          : d.g * slope * negative * hlo::exponential(d.x * slope);
  return d.rounded(select(hlo::le(d.x, 0), below, d.g * scale));
}

TPU_POINTWISE(
    "aten::leaky_relu_backward(Tensor grad_output, Tensor self, Scalar negative_slope, bool "
    "self_is_result) -> Tensor") {
  Gradient d(c);
  if (c.flag("self_is_result")) {
    c.check(c.derive([](const graph::Number* a) -> int64_t { return a[2].as_double() >= 0; }) != 0,
            "In-place leakyReLu backward calculation is triggered with a negative slope which is "
            "not supported. This is caused by calling in-place forward function with a negative "
            "slope, please call out-of-place version instead.");
  }
  return d.rounded(select(hlo::gt(d.x, 0), d.g, d.g * d.scalar("negative_slope")));
}

// grad (x / 3 + 1/2) between -3 and 3; outside as the identity, or 0.
TPU_POINTWISE("aten::hardswish_backward(Tensor grad_output, Tensor self) -> Tensor") {
  Gradient d(c);
  Value middle = select(hlo::lt(d.x, 3), d.g * (d.x / 3 + 0.5), d.g);
  return d.rounded(select(hlo::le(d.x, -3), 0, middle));
}
TPU_POINTWISE("aten::hardsigmoid_backward(Tensor grad_output, Tensor self) -> Tensor") {
  Gradient d(c);
  Value slope = hlo::gt(d.x, -3) & hlo::lt(d.x, 3);
  return d.rounded(select(slope, d.g / 6, 0));
}

// grad sigmoid(beta x); grad above the threshold.
TPU_POINTWISE(
    "aten::softplus_backward(Tensor grad_output, Tensor self, Scalar beta, Scalar threshold) -> "
    "Tensor") {
  Gradient d(c);
  Value t = d.x * d.scalar("beta");
  return d.rounded(select(hlo::gt(t, d.scalar("threshold")), d.g, d.g * hlo::logistic(t)));
}

// grad sigmoid(-x).
TPU_POINTWISE(
    "aten::log_sigmoid_backward(Tensor grad_output, Tensor self, Tensor buffer) -> Tensor") {
  Gradient d(c);
  return d.rounded(d.g * hlo::logistic(-d.x));
}

static Values shrink_backward(Gradient d) {
  return d.rounded(select(inside(d.x, d.scalar("lambd")), 0, d.g));
}
TPU_POINTWISE("aten::hardshrink_backward(Tensor grad_out, Tensor self, Scalar lambd) -> Tensor") {
  return shrink_backward(Gradient(c, "grad_out"));
}
TPU_POINTWISE(
    "aten::softshrink_backward(Tensor grad_output, Tensor self, Scalar lambd) -> Tensor") {
  return shrink_backward(Gradient(c));
}

// To x: grad, or weight * grad below 0. To the weight: x * grad below 0, summed by autograd.
TPU_POINTWISE(
    "aten::_prelu_kernel_backward(Tensor grad_output, Tensor self, Tensor weight) -> (Tensor, "
    "Tensor)") {
  Gradient d(c);
  Value weight = c.tensor("weight", d.x.dtype());
  Value above = hlo::gt(d.x, 0);
  return {convert(select(above, d.g, weight * d.g), d.result),
          convert(select(above, 0, d.x * d.g), d.result)};
}

// noise * grad when training (the noise holds the slopes), else leaky_relu with the mean slope.
TPU_POINTWISE(
    "aten::rrelu_with_noise_backward(Tensor grad_output, Tensor self, Tensor noise, Scalar lower, "
    "Scalar upper, bool training, bool self_is_result) -> Tensor") {
  Gradient d(c);
  Value lower = d.scalar("lower"), upper = d.scalar("upper");
  Value slope = (lower + upper) / 2;
  Value evaluated = select(hlo::gt(d.x, 0), d.g, d.g * slope);
  if (!c.flag("training")) return d.rounded(evaluated);
  Value random = hlo::gt(upper - lower, 1e-6);
  return d.rounded(select(random, d.g * c.tensor("noise", d.x.dtype()), evaluated));
}

// To the first half s(b) grad, to the second a s(b) (1 - s(b)) grad.
TPU_OP("aten::glu_backward(Tensor grad_output, Tensor self, int dim) -> Tensor") {
  Float f(c);
  Value g = c.tensor("grad_output", f.x.dtype());
  Halves h(c, f.x, "self");
  Value s = hlo::logistic(h.b);
  Values parts = {s * g, (1.0 - s) * s * h.a * g};
  return f.rounded(hlo::concatenate(parts, h.dim));
}

// The tangent of glu_backward.
TPU_OP(
    "aten::glu_backward_jvp(Tensor grad_x, Tensor grad_glu, Tensor x, Tensor dgrad_glu, Tensor dx, "
    "int dim) -> Tensor") {
  Float f(c, "grad_x");
  Halves grad(c, f.x, "grad_x"), x(c, f.tensor("x"), "x"), dx(c, f.tensor("dx"), "dx");
  Value grad_glu = f.tensor("grad_glu"), dgrad_glu = f.tensor("dgrad_glu");
  Value s = hlo::logistic(x.b);
  Value ds = dx.b * s * (1.0 - s);
  Value first = dgrad_glu * s + grad_glu * ds;
  // d(a s (1-s) g) with a = x.a.
  Value slope = s * (1.0 - s);
  Value dslope = ds * (1.0 - s * 2);
  Value second = dx.a * slope * grad_glu + x.a * dslope * grad_glu + x.a * slope * dgrad_glu;
  Values parts = {first, second};
  return f.rounded(hlo::concatenate(parts, grad.dim));
}

}  // namespace torch_tpu::ops
