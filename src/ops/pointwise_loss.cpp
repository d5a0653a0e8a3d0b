// SPDX-License-Identifier: Apache-2.0 - Losses that are an elementwise function and a mean or sum, and their derivatives.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// Input and target at opmath precision of their common dtype.
struct Loss {
  Call& c;
  DType result;
  Value x, t;
  int64_t reduction;
  explicit Loss(Call& call, bool complex = false)
      : c(call),
        result(call.result_type({"self", "target"})),
        reduction(call.integer("reduction")) {
    require_float(c, result);
    if (!complex) reject_complex(c, result);
    x = c.tensor("self", hlo::opmath(result));
    t = c.tensor("target", hlo::opmath(result));
  }
  Value scalar(std::string_view name) { return c.scalar(name, x.dtype()); }
  // The reduced loss.
  Values of(const Value& loss) const { return {convert(reduced(loss, reduction), result)}; }
  // grad_output * slope, and the mean's 1/n.
  Values gradient(const Value& slope) {
    Value g = c.tensor("grad_output", x.dtype()) * slope;
    if (reduction == 1) g = g / static_cast<double>(slope.elements());
    return {convert(g, result)};
  }
};

// (x - t)^2.
TPU_POINTWISE("aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor") {
  Loss l(c, true);
  Value d = l.x - l.t;
  return l.of(d * d);
}
TPU_POINTWISE(
    "aten::mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> "
    "Tensor") {
  Loss l(c, true);
  return l.gradient((l.x - l.t) * 2);
}

// d^2 / (2 beta) below beta, d - beta / 2 from there on; d = |x - t|.
TPU_POINTWISE(
    "aten::smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.0) -> Tensor") {
  Loss l(c);
  c.check(c.derive([](const graph::Number* a) -> int64_t { return a[3].as_double() >= 0; }) != 0,
          "smooth_l1_loss does not support negative values for beta.");
  Value beta = l.scalar("beta"), d = hlo::abs(l.x - l.t);
  return l.of(select(hlo::lt(d, beta), d * d * 0.5 / beta, d - beta * 0.5));
}
TPU_POINTWISE(
    "aten::smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, "
    "float beta) -> Tensor") {
  Loss l(c);
  Value beta = l.scalar("beta"), d = l.x - l.t;
  Value outer = select(hlo::ge(d, beta), hlo::full_like(d, 1), d / beta);
  return l.gradient(select(hlo::le(d, -beta), -1, outer));
}

// d^2 / 2 up to delta, delta (d - delta / 2) from there on.
TPU_POINTWISE(
    "aten::huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.0) -> Tensor") {
  Loss l(c);
  c.check(c.derive([](const graph::Number* a) -> int64_t { return a[3].as_double() > 0; }) != 0,
          "huber_loss does not support non-positive values for delta.");
  Value delta = l.scalar("delta"), d = hlo::abs(l.x - l.t);
  return l.of(select(hlo::le(d, delta), d * d * 0.5, delta * (d - delta * 0.5)));
}
TPU_POINTWISE(
    "aten::huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, "
    "float delta) -> Tensor") {
  Loss l(c);
  Value delta = l.scalar("delta"), d = l.x - l.t;
  return l.gradient(select(hlo::le(d, -delta), -delta, select(hlo::ge(d, delta), delta, d)));
}

// log(1 + exp(-t x)).
TPU_POINTWISE("aten::soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor") {
  Loss l(c);
  return l.of(hlo::log_plus_one(hlo::exponential(-l.t * l.x)));
}
TPU_POINTWISE(
    "aten::soft_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int "
    "reduction) -> Tensor") {
  Loss l(c);
  return l.gradient(-l.t * hlo::logistic(-l.t * l.x));
}

static void check_same_size(const Call& c) {
  const Dims &x = c.meta("self").sizes, &t = c.meta("target").sizes;
  c.check_value(x == t, "Using a target size (", t, ") that is different to the input size (", x,
                ") is deprecated. Please ensure they have the same size.");
}
static Value weighted(Call& c, const Value& loss) {
  return c.has("weight") ? loss * c.tensor("weight", loss.dtype()) : loss;
}

// -(t log x + (1 - t) log(1 - x)), each logarithm at least -100.
TPU_POINTWISE(
    "aten::binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) "
    "-> Tensor") {
  check_same_size(c);
  Loss l(c);
  c.fail_if(~(hlo::ge(l.x, 0) & hlo::le(l.x, 1)), graph::CheckSpec::Runtime,
            "all elements of input should be between 0 and 1");
  auto log = [](const Value& x) { return hlo::maximum(hlo::log(x), -100); };
  auto log1p = [](const Value& x) { return hlo::maximum(hlo::log_plus_one(x), -100); };
  return l.of(weighted(c, (l.t - 1) * log1p(-l.x) - l.t * log(l.x)));
}
TPU_POINTWISE(
    "aten::binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
    "weight=None, int reduction=1) -> Tensor") {
  Loss l(c);
  Value slope = (l.x - l.t) / hlo::maximum((1.0 - l.x) * l.x, 1e-12);
  return l.gradient(weighted(c, slope));
}

// (1 - t) x - (1 + (pos_weight - 1) t) log(sigmoid(x)).
TPU_POINTWISE(
    "aten::binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, "
    "Tensor? pos_weight=None, int reduction=1) -> Tensor") {
  Loss l(c);
  Value log_sigmoid = hlo::minimum(l.x, 0) - hlo::log_plus_one(hlo::exponential(-hlo::abs(l.x)));
  Value positive = log_sigmoid;
  if (c.has("pos_weight")) {
    Value pos_weight = c.tensor("pos_weight", l.x.dtype());
    positive = ((pos_weight - 1) * l.t + 1) * log_sigmoid;
  }
  return l.of(weighted(c, (1.0 - l.t) * l.x - positive));
}

}  // namespace torch_tpu::ops
