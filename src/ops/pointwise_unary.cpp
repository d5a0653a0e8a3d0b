// SPDX-License-Identifier: Apache-2.0 - Elementwise operators of one tensor.
#include <cmath>

#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// ---- signs and parts ---------------------------------------------------------------------------

// |x|; complex numbers give the real type.
TPU_POINTWISE("aten::abs(Tensor self) -> Tensor") {
  DType dtype = c.dtype_of("self");
  reject_bool(c, dtype);
  Value x = c.tensor("self");
  return {hlo::is_unsigned_integer(dtype) ? x : hlo::abs(x)};
}

TPU_POINTWISE("aten::neg(Tensor self) -> Tensor") {
  c.check(c.dtype_of("self") != DType::Pred,
          "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to "
          "invert a mask, use the `~` or `logical_not()` operator instead.");
  return {-c.tensor("self")};
}

// (0 < x) - (x < 0): NaN and both zeros give 0, unlike StableHLO's sign. Complex: x / |x|, or 0.
static Values sign(Call& c) {
  Value x = c.tensor("self");
  DType dtype = x.dtype();
  if (dtype == DType::Pred) return {x};
  if (hlo::is_complex(dtype)) return {hlo::sign(x)};
  Value positive = convert(hlo::gt(x, 0), dtype);
  if (hlo::is_unsigned_integer(dtype)) return {positive};
  return {positive - convert(hlo::lt(x, 0), dtype)};
}
TPU_OP_FN("aten::sgn(Tensor self) -> Tensor", Pointwise, sign);
TPU_POINTWISE("aten::sign(Tensor self) -> Tensor") {
  c.check_supported(!hlo::is_complex(c.dtype_of("self")),
                    "Unlike NumPy, torch.sign is not intended to support complex numbers. Please "
                    "use torch.sgn instead.");
  return sign(c);
}

TPU_POINTWISE("aten::signbit(Tensor self) -> Tensor") {
  DType dtype = c.dtype_of("self");
  c.check_supported(!hlo::is_complex(dtype), "signbit is not implemented for complex tensors.");
  Value x = c.tensor("self");
  if (hlo::is_floating(dtype)) return {sign_bit(x)};
  if (hlo::is_signed_integer(dtype)) return {hlo::lt(x, 0)};
  return {hlo::zeros(c.builder(), {DType::Pred, x.dims()})};
}

TPU_POINTWISE("aten::_conj_physical(Tensor self) -> Tensor") {
  Value x = c.tensor("self");
  if (!hlo::is_complex(x.dtype())) return {x};
  return {hlo::complex(hlo::real(x), -hlo::imag(x))};
}

// The argument of a complex number; of a real number 0 or pi.
TPU_POINTWISE("aten::angle(Tensor self) -> Tensor") {
  DType result = c.float_result_type({"self"});
  Value x = c.tensor("self", result);
  if (hlo::is_complex(result)) return {hlo::atan2(hlo::imag(x), hlo::real(x))};
  Value zero = hlo::zeros_like(x);
  return {select(hlo::is_nan(x), x, select(hlo::lt(x, 0), kPi, zero))};
}

static void check_part(const Call& c, std::string_view a, std::string_view b) {
  DType x = c.dtype_of(a), y = c.dtype_of(b);
  c.check(x == DType::F32 || x == DType::F64 || x == DType::F16,
          "Expected both inputs to be Half, Float or Double tensors but got ", x, " and ", y);
  c.check(x == y, "Expected object of scalar type ", x, " but got scalar type ", y,
          " for second argument");
}
TPU_POINTWISE("aten::complex(Tensor real, Tensor imag) -> Tensor") {
  check_part(c, "real", "imag");
  c.exact_outs();
  Dims dims = c.broadcast({&c.meta("real").sizes, &c.meta("imag").sizes});
  return {hlo::complex(broadcast_to(c.tensor("real"), dims), broadcast_to(c.tensor("imag"), dims))};
}
// abs * (cos(angle) + i sin(angle)).
TPU_POINTWISE("aten::polar(Tensor abs, Tensor angle) -> Tensor") {
  check_part(c, "abs", "angle");
  c.exact_outs();
  const DType dtype = c.dtype_of("abs"), compute = hlo::opmath(dtype);
  Value r = c.tensor("abs", compute), t = c.tensor("angle", compute);
  return {hlo::convert(hlo::complex(r * hlo::cosine(t), r * hlo::sine(t)), hlo::complex_of(dtype))};
}

// ---- whole numbers -----------------------------------------------------------------------------

// Floats round to floats; whole numbers are their own rounding.
template <UnaryFn fn>
static Values rounding(Call& c) {
  DType dtype = c.dtype_of("self");
  reject_bool(c, dtype);
  reject_complex(c, dtype);
  Value x = c.tensor("self");
  return {hlo::is_floating(dtype) ? fn(x) : x};
}
TPU_OP_FN("aten::floor(Tensor self) -> Tensor", Pointwise, rounding<hlo::floor>);
TPU_OP_FN("aten::ceil(Tensor self) -> Tensor", Pointwise, rounding<hlo::ceil>);
TPU_OP_FN("aten::round(Tensor self) -> Tensor", Pointwise, rounding<hlo::round_nearest_even>);
TPU_OP_FN("aten::trunc(Tensor self) -> Tensor", Pointwise, rounding<trunc>);

TPU_POINTWISE("aten::frac(Tensor self) -> Tensor") {
  require_real_float(c, c.dtype_of("self"));
  Value x = c.tensor("self");
  return {x - trunc(x)};
}

// round(x * 10^decimals) / 10^decimals, as CPU does it: with each step in the tensor's dtype.
TPU_POINTWISE("aten::round.decimals(Tensor self, *, int decimals) -> Tensor") {
  DType dtype = c.dtype_of("self");
  int64_t decimals = c.integer("decimals");
  Value x = c.tensor("self");
  if (decimals == 0) return rounding<hlo::round_nearest_even>(c);
  require_real_float(c, dtype);
  double scale = 1;
  for (int64_t i = 0; i < std::abs(decimals) && scale < 1e308; ++i) scale *= 10;
  if (decimals < 0) return {hlo::round_nearest_even(x / scale) * scale};
  return {hlo::round_nearest_even(x * scale) / scale};
}

// ---- tests -------------------------------------------------------------------------------------

// Float tests: never true of whole numbers; of complex numbers if true of a part.
template <UnaryFn fn>
static Values float_test(Call& c) {
  Value x = c.tensor("self");
  if (hlo::is_complex(x.dtype())) return {fn(hlo::real(x)) | fn(hlo::imag(x))};
  if (hlo::is_floating(x.dtype())) return {fn(x)};
  return {hlo::zeros(c.builder(), {DType::Pred, x.dims()})};
}
static Value is_infinite(const Value& x) { return hlo::eq(hlo::abs(x), infinity_like(x)); }
static Value is_plus_infinity(const Value& x) { return hlo::eq(x, infinity_like(x)); }
static Value is_minus_infinity(const Value& x) { return hlo::eq(x, -infinity_like(x)); }
TPU_OP_FN("aten::isnan(Tensor self) -> Tensor", Pointwise, float_test<hlo::is_nan>);
TPU_OP_FN("aten::isinf(Tensor self) -> Tensor", Pointwise, float_test<is_infinite>);
TPU_POINTWISE("aten::isposinf(Tensor self) -> Tensor") {
  c.check(!hlo::is_complex(c.dtype_of("self")), "isposinf does not support complex inputs.");
  return float_test<is_plus_infinity>(c);
}
TPU_POINTWISE("aten::isneginf(Tensor self) -> Tensor") {
  c.check(!hlo::is_complex(c.dtype_of("self")), "isneginf does not support complex inputs.");
  return float_test<is_minus_infinity>(c);
}

// NaN and infinities replaced; by default by 0 and the largest and smallest finite numbers.
TPU_POINTWISE(
    "aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> "
    "Tensor") {
  Value x = c.tensor("self");
  DType part = hlo::real_of(x.dtype());
  if (!hlo::is_floating(part)) return {x};
  auto given = [&](std::string_view name, const Value& otherwise) {
    return c.has(name) ? c.scalar(name, part) : otherwise;
  };
  Value nan = given("nan", hlo::scalar(c.builder(), part, 0));
  Value high = given("posinf", hlo::max_finite(c.builder(), part));
  Value low = given("neginf", hlo::min_finite(c.builder(), part));
  auto clean = [&](const Value& v) {
    return select(hlo::is_nan(v), nan,
                  select(is_plus_infinity(v), high, select(is_minus_infinity(v), low, v)));
  };
  if (hlo::is_complex(x.dtype())) {
    return {hlo::complex(clean(hlo::real(x)), clean(hlo::imag(x)))};
  }
  return {clean(x)};
}

// ---- powers, exponentials, logarithms ----------------------------------------------------------

static Value reciprocal(const Value& x) { return 1.0 / x; }
TPU_OP_FN("aten::reciprocal(Tensor self) -> Tensor", Pointwise, float_unary<reciprocal>);
TPU_OP_FN("aten::sqrt(Tensor self) -> Tensor", Pointwise, float_unary<hlo::sqrt>);
TPU_OP_FN("aten::rsqrt(Tensor self) -> Tensor", Pointwise, float_unary<hlo::rsqrt>);
TPU_OP_FN("aten::exp(Tensor self) -> Tensor", Pointwise, float_unary<hlo::exponential>);
TPU_OP_FN("aten::expm1(Tensor self) -> Tensor", Pointwise, float_unary<hlo::exponential_minus_one>);
// A power, not exp(x ln 2): the product's rounding would cost the last digits of large results.
static Value exp2(const Value& x) {
  if (hlo::is_complex(x.dtype())) return hlo::exponential(x * kLn2);
  return hlo::power(hlo::full_like(x, 2), x);
}
TPU_OP_FN("aten::exp2(Tensor self) -> Tensor", Pointwise, float_unary<exp2>);
static Value log2(const Value& x) { return hlo::log(x) / kLn2; }
static Value log10(const Value& x) { return hlo::log(x) / kLn10; }
TPU_OP_FN("aten::log(Tensor self) -> Tensor", Pointwise, float_unary<hlo::log>);
TPU_OP_FN("aten::log2(Tensor self) -> Tensor", Pointwise, float_unary<log2>);
TPU_OP_FN("aten::log10(Tensor self) -> Tensor", Pointwise, float_unary<log10>);
TPU_OP_FN("aten::log1p(Tensor self) -> Tensor", Pointwise, float_unary<hlo::log_plus_one>);
TPU_OP_FN("aten::sigmoid(Tensor self) -> Tensor", Pointwise, float_unary<hlo::logistic>);

// log(x / (1 - x)), x clamped to [eps, 1 - eps] unless eps is None or negative.
TPU_POINTWISE("aten::logit(Tensor self, float? eps=None) -> Tensor") {
  DType result = c.float_result_type({"self"});
  reject_complex(c, result);
  DType compute = hlo::opmath(result);
  Value x = c.tensor("self", compute);
  if (c.has("eps")) {
    Value eps = c.scalar("eps", compute);
    Value free = hlo::lt(eps, 0);
    Value low = select(free, -infinity_like(x), eps);
    Value high = select(free, infinity_like(x), 1.0 - eps);
    x = select(hlo::lt(x, low), low, select(hlo::gt(x, high), high, x));
  }
  return {convert(hlo::log(x / (1.0 - x)), result)};
}

// ---- angles ------------------------------------------------------------------------------------

TPU_OP_FN("aten::sin(Tensor self) -> Tensor", Pointwise, float_unary<hlo::sine>);
TPU_OP_FN("aten::cos(Tensor self) -> Tensor", Pointwise, float_unary<hlo::cosine>);
TPU_OP_FN("aten::tan(Tensor self) -> Tensor", Pointwise, float_unary<hlo::tan>);
TPU_OP_FN("aten::asin(Tensor self) -> Tensor", Pointwise, float_unary<hlo::asin>);
TPU_OP_FN("aten::acos(Tensor self) -> Tensor", Pointwise, float_unary<hlo::acos>);
TPU_OP_FN("aten::atan(Tensor self) -> Tensor", Pointwise, float_unary<hlo::atan>);
TPU_OP_FN("aten::sinh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::sinh>);
TPU_OP_FN("aten::cosh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::cosh>);
TPU_OP_FN("aten::tanh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::tanh>);
TPU_OP_FN("aten::asinh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::asinh>);
TPU_OP_FN("aten::acosh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::acosh>);
TPU_OP_FN("aten::atanh(Tensor self) -> Tensor", Pointwise, float_unary<hlo::atanh>);

static Value degrees_to_radians(const Value& x) { return x * (kPi / 180); }
static Value radians_to_degrees(const Value& x) { return x * (180 / kPi); }
TPU_OP_FN("aten::deg2rad(Tensor self) -> Tensor", Pointwise, real_unary<degrees_to_radians>);
TPU_OP_FN("aten::rad2deg(Tensor self) -> Tensor", Pointwise, real_unary<radians_to_degrees>);

// sin(pi x) / (pi x), 1 at 0.
static Value sinc(const Value& x) {
  Value t = x * kPi;
  return select(hlo::eq(x, 0), 1, hlo::sine(t) / t);
}
TPU_OP_FN("aten::sinc(Tensor self) -> Tensor", Pointwise, float_unary<sinc>);

// ---- bits and logic ----------------------------------------------------------------------------

TPU_POINTWISE("aten::bitwise_not(Tensor self) -> Tensor") {
  require_integral(c, c.dtype_of("self"));
  return {~c.tensor("self")};
}
TPU_POINTWISE("aten::logical_not(Tensor self) -> Tensor") {
  return {~c.tensor("self", DType::Pred)};
}

// x = mantissa * 2^exponent with 0.5 <= |mantissa| < 1; zero, NaN and infinities are their own
// mantissa. The exponent is found by halving steps of exact powers of two, which needs no bits of
// the number (a TPU has none of a float64) and is right for subnormal numbers.
TPU_POINTWISE("aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)") {
  DType dtype = c.dtype_of("self");
  c.check(hlo::is_floating(dtype), "torch.frexp() only supports floating-point dtypes, got ",
          dtype);
  Value x = c.tensor("self", hlo::opmath(dtype));
  Value plain = hlo::is_finite(x) & hlo::ne(x, 0);
  Value m = select(plain, hlo::abs(x), 0.5);
  Value e = hlo::zeros(c.builder(), {DType::S32, x.dims()});
  int top = x.dtype() == DType::F64 ? 9 : 6;  // 2^9 + ... + 1 covers the range of the exponent
  auto step = [&](const Value& when, double factor, double exponent) {
    m = select(when, m * factor, m);
    e = select(when, e + exponent, e);
  };
  double most = std::ldexp(1.0, 1 << top);
  step(hlo::lt(m, 1 / most), most, -std::ldexp(1.0, top));  // subnormal numbers need it twice
  for (int i = top; i >= 0; --i) {
    double p = std::ldexp(1.0, 1 << i);
    step(hlo::ge(m, p), 1 / p, std::ldexp(1.0, i));
    step(hlo::lt(m, 1 / p), p, -std::ldexp(1.0, i));
  }
  step(hlo::ge(m, 1), 0.5, 1);
  Value mantissa = select(plain, select(hlo::lt(x, 0), -m, m), x);
  return {convert(mantissa, dtype), select(plain, e, 0)};
}

}  // namespace torch_tpu::ops
