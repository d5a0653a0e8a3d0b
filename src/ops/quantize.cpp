// SPDX-License-Identifier: Apache-2.0 - Fake quantization: values rounded to what an integer type could hold, in float.
//
// q(x) = clamp(round(x / scale) + zero_point, quant_min, quant_max), and the result is
// (q - zero_point) scale. The mask says where q was not clamped: there the gradient passes.
#include "src/ops/quantize.h"

#include <cmath>

#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

using graph::CheckSpec;

// Sign, two bits of exponent (bias 1), one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
Value unpacked_float4(const Value& x) {
  Value bytes = hlo::convert(x, DType::S32);
  const Value halves[] = {
      hlo::unsqueeze(hlo::and_(bytes, hlo::full_like(bytes, 15)), bytes.rank()),
      hlo::unsqueeze(hlo::shift_right_logical(bytes, hlo::full_like(bytes, 4)), bytes.rank())};
  Dims dims = bytes.dims();
  dims.back() *= 2;
  Value code = hlo::reshape(hlo::concatenate(halves, bytes.rank()), dims);
  Value size = hlo::and_(code, hlo::full_like(code, 7));
  Value number = hlo::convert(size, DType::F32) * 0.5;  // codes 0 to 4
  number = hlo::select(hlo::ge(size, 5), hlo::convert(size, DType::F32) - 2.0, number);
  number = hlo::select(hlo::eq(size, 7), 6.0, number);
  return hlo::select(hlo::ge(code, 8), -number, number);
}

namespace {

struct Grid {
  Value scale, zero;  // float, 0-dim or shaped to broadcast over the channels
  double low = 0, high = 0;
  bool float_zero = false;  // added before rounding, as the affine quantizer does
};

struct Quantized {
  Value q, mask;  // before clamping
};

Value inverse(const Value& x) { return hlo::full_like(x, 1) / x; }

Quantized quantized(const Grid& g, const Value& x) {
  Value scaled = x * inverse(g.scale);
  Value q = g.float_zero ? hlo::round_nearest_even(scaled + g.zero)
                         : hlo::round_nearest_even(scaled) + g.zero;
  return {q, hlo::ge(q, g.low) & hlo::le(q, g.high)};
}

Value clamped(const Grid& g, const Value& q) {
  return hlo::minimum(hlo::maximum(q, g.low), g.high);
}

Values fake_quantized(Call& c, const Grid& g, const Value& x) {
  const Quantized q = quantized(g, x);
  Value y = (clamped(g, q.q) - g.zero) * g.scale;
  return {hlo::convert(y, c.dtype_of("self")), hlo::broadcast_to(q.mask, x.dims())};
}

Value input(Call& c) {
  const DType dtype = c.dtype_of("self");
  require_real_float(c, dtype);
  return c.tensor("self", hlo::opmath(dtype));
}

void set_range(Call& c, Grid& g) {
  const int64_t low = c.integer("quant_min"), high = c.integer("quant_max");
  c.check(low <= high, "`quant_min` should be less than or equal to `quant_max`, got ", low,
          " and ", high);
  g.low = static_cast<double>(low);
  g.high = static_cast<double>(high);
}

Value one_number(Call& c, const char* name, DType dtype) {
  const TensorArg& t = c.meta(name);
  c.check(t.elements() == 1, name, " must hold one number, but has sizes ", t.sizes);
  return hlo::reshape(c.tensor(name, dtype), {});
}

// `name`, one number a channel, shaped to broadcast against self.
Value per_channel(Call& c, const char* name, int64_t axis, DType dtype) {
  const TensorArg &self = c.meta("self"), &t = c.meta(name);
  c.check(t.rank() == 1 && t.sizes[0] == self.sizes[axis], "dimensions of ", name,
          " and input are not consistent at axis ", axis, ": got ", t.sizes, " and ", self.sizes);
  Dims dims(self.rank(), 1);
  dims[axis] = t.sizes[0];
  return hlo::reshape(c.tensor(name, dtype), dims);
}

int64_t channel_axis(Call& c) {
  const int64_t axis = c.integer("axis");
  const TensorArg& self = c.meta("self");
  c.check(axis >= 0 && axis < self.rank(), "`axis` must be between 0 and number of dimensions of ",
          "input, got ", axis, " for sizes ", self.sizes);
  return axis;
}

void check_zero_point(Call& c, const Grid& g) {
  c.fail_if(hlo::lt(g.zero, g.low) | hlo::gt(g.zero, g.high), CheckSpec::Runtime,
            c.op_name() + "(): `zero_point` must be between `quant_min` and `quant_max`");
}

}  // namespace

TPU_OP(
    "aten::fake_quantize_per_tensor_affine_cachemask(Tensor self, float scale, int zero_point, int "
    "quant_min, int quant_max) -> (Tensor output, Tensor mask)") {
  Value x = input(c);
  Grid g;
  set_range(c, g);
  g.scale = c.scalar("scale", x.dtype());
  const int64_t zero = c.integer("zero_point");
  c.check(zero >= g.low && zero <= g.high,
          "`zero_point` must be between `quant_min` and `quant_max`, got ", zero);
  g.zero = hlo::scalar(c.builder(), x.dtype(), static_cast<double>(zero));
  return fake_quantized(c, g, x);
}

TPU_OP(
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams(Tensor self, Tensor scale, "
    "Tensor zero_point, Tensor fake_quant_enabled, int quant_min, int quant_max) -> (Tensor "
    "output, Tensor mask)") {
  Value x = input(c);
  Grid g;
  set_range(c, g);
  g.scale = one_number(c, "scale", x.dtype());
  g.zero = one_number(c, "zero_point", x.dtype());
  const Values y = fake_quantized(c, g, x);
  Value on = hlo::ne(one_number(c, "fake_quant_enabled", DType::F32), 0);
  return {hlo::select(on, y[0], c.tensor("self")), hlo::or_(y[1], ~on)};
}

TPU_OP(
    "aten::fake_quantize_per_channel_affine_cachemask(Tensor self, Tensor scale, Tensor "
    "zero_point, int axis, int quant_min, int quant_max) -> (Tensor output, Tensor mask)") {
  Value x = input(c);
  const int64_t axis = channel_axis(c);
  const DType zero = c.dtype_of("zero_point");
  c.check(c.dtype_of("scale") == DType::F32, "Scale must be Float, found ", c.dtype_of("scale"));
  c.check(zero == DType::S32 || zero == DType::F32 || zero == DType::F16,
          "Zero-point must be Int32, Float or Half, found ", zero);
  Grid g;
  set_range(c, g);
  g.float_zero = zero != DType::S32;
  g.scale = per_channel(c, "scale", axis, x.dtype());
  g.zero = per_channel(c, "zero_point", axis, x.dtype());
  if (!g.float_zero) check_zero_point(c, g);
  return fake_quantized(c, g, x);
}

// ---- with a scale and a zero point that learn ---------------------------------------------------
namespace {

Grid learnable_grid(Call& c, const Value& x, bool channels) {
  Grid g;
  set_range(c, g);
  if (channels) {
    const int64_t axis = channel_axis(c);
    g.scale = per_channel(c, "scale", axis, x.dtype());
    g.zero = clamped(g, hlo::round_nearest_even(per_channel(c, "zero_point", axis, x.dtype())));
  } else {
    g.scale = one_number(c, "scale", x.dtype());
    g.zero = trunc(clamped(g, one_number(c, "zero_point", x.dtype()) + 0.5));
  }
  return g;
}

Values learnable(Call& c, bool channels) {
  Value x = input(c);
  return {fake_quantized(c, learnable_grid(c, x, channels), x)[0]};
}

// Where q was not clamped dx = dy, dscale = dy (y - x) / scale and dzero = 0; elsewhere dx = 0,
// dscale = dy (q - zero) and dzero = -dy scale.
Values learnable_backward(Call& c, bool channels) {
  Value x = input(c), dy = c.tensor("grad", x.dtype());
  Grid g = learnable_grid(c, x, channels);
  Value factor = c.scalar("grad_factor", x.dtype());
  const Quantized q = quantized(g, x);
  Value dx = hlo::select(q.mask, dy, 0.0), steps = clamped(g, q.q) - g.zero;
  Value dscale = dy * factor * hlo::select(q.mask, (steps * g.scale - x) * inverse(g.scale), steps);
  Value dzero = hlo::select(q.mask, 0.0, -(dy * g.scale * factor));
  Dims summed;
  for (int64_t i = 0; i < x.rank(); ++i)
    if (!channels || i != c.integer("axis")) summed.push_back(i);
  const auto total = [&](const Value& v, const char* name) {
    Value sum = summed.empty() ? v : hlo::reduce(v, summed, hlo::Reduce::Add);
    return hlo::convert(hlo::reshape(sum, c.meta(name).sizes), c.dtype_of(name));
  };
  return {hlo::convert(dx, c.dtype_of("self")), total(dscale, "scale"), total(dzero, "zero_point")};
}

}  // namespace

TPU_OP(
    "aten::_fake_quantize_learnable_per_tensor_affine(Tensor self, Tensor scale, Tensor "
    "zero_point, int quant_min, int quant_max, float grad_factor=1.0) -> Tensor") {
  return learnable(c, false);
}
TPU_OP(
    "aten::_fake_quantize_learnable_per_channel_affine(Tensor self, Tensor scale, Tensor "
    "zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.0) -> Tensor") {
  return learnable(c, true);
}
TPU_OP(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward(Tensor grad, Tensor self, Tensor "
    "scale, Tensor zero_point, int quant_min, int quant_max, float grad_factor=1.0) -> (Tensor, "
    "Tensor, Tensor)") {
  return learnable_backward(c, false);
}
TPU_OP(
    "aten::_fake_quantize_learnable_per_channel_affine_backward(Tensor grad, Tensor self, Tensor "
    "scale, Tensor zero_point, int axis, int quant_min, int quant_max, float grad_factor=1.0) -> "
    "(Tensor, Tensor, Tensor)") {
  return learnable_backward(c, true);
}

// ---- with an observer ---------------------------------------------------------------------------
namespace {

struct Parameters {
  Value scale, zero;
};

// The scale and zero point that map [min, max], made to hold 0, onto the integers of the grid; the
// zero point is rounded from the end of the range where that is more exact.
Parameters choose(const Grid& g, const Value& given_min, const Value& given_max, bool symmetric) {
  Value min = hlo::minimum(given_min, 0.0), max = hlo::maximum(given_max, 0.0);
  if (symmetric) {
    const double half = std::floor((g.high - g.low) / 2);
    Value widest = hlo::maximum(hlo::abs(min / -(half + 1)), hlo::abs(max / half));
    min = widest * -(half + 1);
    max = widest * half;
  }
  Value scale = (max - min) / (g.high - g.low);
  Value degenerate = hlo::eq(scale, 0) | ~hlo::is_finite(inverse(scale));
  scale = hlo::select(degenerate, 0.1, scale);
  // Smaller scales lose too much in float arithmetic: the range grows with the scale.
  constexpr double kSmallest = 6.1e-5;
  Value small = hlo::lt(scale, kSmallest);
  Value grown = hlo::full_like(scale, kSmallest) / scale;
  const double range = kSmallest * (g.high - g.low);
  Value one_sided = hlo::eq(min, 0) | hlo::eq(max, 0);
  Value new_max = hlo::select(hlo::eq(min, 0), range, hlo::select(one_sided, max, max * grown));
  Value new_min = hlo::select(hlo::eq(min, 0), min,
                              hlo::select(one_sided, hlo::full_like(min, -range), min * grown));
  max = hlo::select(small, new_max, max);
  min = hlo::select(small, new_min, min);
  scale = hlo::select(small, kSmallest, scale);
  Value from_min = g.low - min / scale, from_max = g.high - max / scale;
  Value error_min = hlo::abs(min / scale) + std::abs(g.low);
  Value error_max = hlo::abs(max / scale) + std::abs(g.high);
  Value zero = hlo::select(hlo::lt(error_min, error_max), from_min, from_max);
  if (symmetric) {
    Value both = hlo::lt(min, 0) & hlo::gt(max, 0);
    zero = hlo::select(both, (g.low + g.high) / 2, zero);
  }
  return {scale, clamped(g, hlo::round_nearest_even(zero))};
}

}  // namespace

// Where observing is on, the running range moves towards that of self and gives scale and zero
// point; where fake quantization is on, self is quantized with them.
TPU_OP(
    "aten::_fused_moving_avg_obs_fq_helper(Tensor self, Tensor observer_on, Tensor fake_quant_on, "
    "Tensor(a!) running_min, Tensor(b!) running_max, Tensor(c!) scale, Tensor(d!) zero_point, "
    "float averaging_const, int quant_min, int quant_max, int ch_axis, bool "
    "per_row_fake_quant=False, bool symmetric_quant=False) -> (Tensor output, Tensor mask)") {
  Value x = input(c);
  Grid g;
  set_range(c, g);
  const bool rows = c.flag("per_row_fake_quant");
  const int64_t axis = rows ? c.wrap(c.integer("ch_axis"), x.rank()) : 0;
  c.check(x.elements() > 0, "self must not be empty, got sizes ", x.dims());
  Dims summed;
  for (int64_t i = 0; i < x.rank(); ++i)
    if (!rows || i != axis) summed.push_back(i);
  Value low = hlo::reduce(x, summed, hlo::Reduce::Minimum);
  Value high = hlo::reduce(x, summed, hlo::Reduce::Maximum);
  const auto old = [&](const char* name) {
    const TensorArg& t = c.meta(name);
    const int64_t wanted = rows ? x.dim(axis) : 1;
    c.check(t.elements() == wanted, name, " must have ", wanted, " elements, but has sizes ",
            t.sizes);
    return hlo::reshape(c.tensor(name, x.dtype()), low.dims());
  };
  Value observe = hlo::ne(one_number(c, "observer_on", DType::F32), 0);
  Value quantize = hlo::ne(one_number(c, "fake_quant_on", DType::F32), 0);
  Value rate = c.scalar("averaging_const", x.dtype());
  const auto moved = [&](const char* name, const Value& now) {
    Value before = old(name);
    Value after = hlo::select(hlo::is_finite(before), before + rate * (now - before), now);
    return hlo::select(observe, after, before);
  };
  Value min = moved("running_min", low), max = moved("running_max", high);
  const Parameters chosen = choose(g, min, max, c.flag("symmetric_quant"));
  Value scale = hlo::select(observe, chosen.scale, old("scale"));
  Value zero = hlo::select(observe, chosen.zero, old("zero_point"));
  const auto write = [&](const char* name, const Value& v) {
    c.write(name, hlo::convert(hlo::reshape(v, c.meta(name).sizes), c.dtype_of(name)));
  };
  write("running_min", min);
  write("running_max", max);
  write("scale", scale);
  write("zero_point", zero);
  Dims shape(x.rank(), 1);
  if (rows) shape[axis] = x.dim(axis);
  g.scale = hlo::reshape(scale, rows ? shape : Dims{});
  g.zero = hlo::reshape(zero, rows ? shape : Dims{});
  const Values y = fake_quantized(c, g, x);
  return {hlo::select(quantize, y[0], c.tensor("self")), hlo::or_(y[1], ~quantize)};
}

}  // namespace torch_tpu::ops
