// SPDX-License-Identifier: Apache-2.0 - Elementwise arithmetic of two arguments.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// ---- add, subtract, multiply -------------------------------------------------------------------

static void check_alpha(const Call& c, DType result) {
  using graph::Number;
  Number::Kind kind = c.number_kind("alpha");
  c.check(kind != Number::Bool || result == DType::Pred,
          "Boolean alpha only supported for Boolean results.");
  c.check(kind < Number::Float || hlo::is_floating(result) || hlo::is_complex(result),
          "For integral input tensors, argument alpha must not be a floating point number.");
  c.check(kind != Number::Complex || hlo::is_complex(result),
          "For non-complex input tensors, argument alpha must not be a complex number.");
}

// alpha * x, without the multiplication when alpha is 1.
static Value scaled(Call& c, const Value& x, std::string_view name = "alpha") {
  return c.equals(name, 1) ? x : x * c.scalar(name, x.dtype());
}

// self + alpha * other; of bools, self or (alpha and other).
static Values add(Call& c) {
  Operands o = operands(c);
  check_alpha(c, o.result);
  if (o.result == DType::Pred) {
    return {o.a | (c.equals("alpha", 1) ? o.b : o.b & c.scalar("alpha", DType::Pred))};
  }
  return o.rounded(o.a + scaled(c, o.b));
}
TPU_OP_FN("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Pointwise,
          add);
TPU_OP_FN("aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", Pointwise, add);

static bool is_bool(const Call& c, std::string_view name) {
  const TensorArg* meta = c.meta_or_null(name);
  return meta ? meta->dtype == DType::Pred : c.number_kind(name) == graph::Number::Bool;
}
static Operands difference_operands(Call& c) {
  bool a = is_bool(c, "self"), b = is_bool(c, "other");
  c.check(!(a && b),
          "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
          "`logical_xor()` operator instead.");
  c.check(!a && !b,
          "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying "
          "to invert a mask, use the `~` or `logical_not()` operator instead.");
  Operands o = operands(c);
  check_alpha(c, o.result);
  return o;
}
// self - alpha * other.
static Values sub(Call& c) {
  Operands o = difference_operands(c);
  return o.rounded(o.a - scaled(c, o.b));
}
TPU_OP_FN("aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Pointwise,
          sub);
TPU_OP_FN("aten::sub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", Pointwise, sub);
// other - alpha * self.
static Values rsub(Call& c) {
  Operands o = difference_operands(c);
  return o.rounded(o.b - scaled(c, o.a));
}
TPU_OP_FN("aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Pointwise,
          rsub);
TPU_OP_FN("aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", Pointwise,
          rsub);

static Values mul(Call& c) {
  Operands o = operands(c);
  return o.rounded(o.result == DType::Pred ? o.a & o.b : o.a * o.b);
}
TPU_OP_FN("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, mul);
TPU_OP_FN("aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, mul);

// ---- division ----------------------------------------------------------------------------------

static Values true_divide(Call& c) {
  Operands o = float_operands(c);
  return o.rounded(o.a / o.b);
}
TPU_OP_FN("aten::div.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, true_divide);
TPU_OP_FN("aten::div.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, true_divide);

// Integers have no quotient by zero. A divisor that is a number is looked at on the host.
static void reject_zero_divisor(Call& c, const Operands& o) {
  if (!hlo::is_integer(o.result)) return;
  constexpr const char* kMessage = "ZeroDivisionError: an integer was divided by zero";
  const TensorArg* divisor = c.meta_or_null("other");
  if (divisor == nullptr || divisor->host) {
    c.check(!c.equals("other", 0), kMessage);
  } else {
    c.fail_if(hlo::eq(o.b, 0), graph::CheckSpec::Runtime, kMessage);
  }
}

static Value negative(const Value& x) {
  if (hlo::is_unsigned_integer(x.dtype())) return hlo::zeros(x.builder(), {DType::Pred, x.dims()});
  return hlo::lt(x, 0);
}
// The remainder of division towards zero; true where it has to move to the divisor's side.
static Value crosses(const Value& remainder, const Value& divisor) {
  return hlo::ne(remainder, 0) & hlo::xor_(negative(remainder), negative(divisor));
}

// The largest whole number not above a / b. For floats as Python does it: from fmod, so that the
// quotient and the remainder agree.
static Value floor_quotient(const Value& a, const Value& b) {
  Value mod = hlo::remainder(a, b);
  if (hlo::is_integer(a.dtype())) {
    Value quotient = a / b;
    if (hlo::is_unsigned_integer(a.dtype())) return quotient;
    return quotient - convert(crosses(mod, b), a.dtype());
  }
  Value quotient = (a - mod) / b;
  quotient = select(crosses(mod, b), quotient - 1, quotient);
  Value whole = hlo::floor(quotient);
  whole = select(hlo::gt(quotient - whole, 0.5), whole + 1, whole);
  Value ratio = a / b;
  Value zero = select(sign_bit(ratio), -0.0, hlo::zeros_like(ratio));
  return select(hlo::eq(b, 0), ratio, select(hlo::eq(quotient, 0), zero, whole));
}

static Values floor_divide(Call& c) {
  Operands o = operands(c);
  reject_bool(c, o.result);
  reject_complex(c, o.result);
  reject_zero_divisor(c, o);
  return o.rounded(floor_quotient(o.a, o.b));
}
TPU_OP_FN("aten::floor_divide(Tensor self, Tensor other) -> Tensor", Pointwise, floor_divide);
TPU_OP_FN("aten::floor_divide.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise,
          floor_divide);

static Values divide(Call& c) {
  if (!c.has("rounding_mode")) return true_divide(c);
  std::string mode = c.text("rounding_mode");
  c.check(mode == "trunc" || mode == "floor",
          "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '", mode,
          "'");
  if (mode == "floor") return floor_divide(c);
  Operands o = operands(c);
  reject_bool(c, o.result);
  reject_complex(c, o.result);
  reject_zero_divisor(c, o);
  return o.rounded(hlo::is_integer(o.result) ? o.a / o.b : trunc(o.a / o.b));
}
TPU_OP_FN("aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor",
          Pointwise, divide);
TPU_OP_FN("aten::div.Scalar_mode(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor",
          Pointwise, divide);

// The remainder with the divisor's sign.
static Values remainder(Call& c) {
  Operands o = operands(c);
  reject_bool(c, o.result);
  reject_complex(c, o.result);
  reject_zero_divisor(c, o);
  Value mod = hlo::remainder(o.a, o.b);
  return o.rounded(select(crosses(mod, o.b), mod + o.b, mod));
}
TPU_OP_FN("aten::remainder.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, remainder);
TPU_OP_FN("aten::remainder.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, remainder);
TPU_OP_FN("aten::remainder.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Pointwise,
          remainder);

// The remainder with the dividend's sign.
static Values fmod(Call& c) {
  Operands o = operands(c);
  reject_bool(c, o.result);
  reject_complex(c, o.result);
  reject_zero_divisor(c, o);
  return o.rounded(hlo::remainder(o.a, o.b));
}
TPU_OP_FN("aten::fmod.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, fmod);
TPU_OP_FN("aten::fmod.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, fmod);

// Euclid's algorithm for all elements at once; rounds at most about 1.44 times the bits.
static Value greatest_common_divisor(const Value& a, const Value& b) {
  Dims dims = hlo::broadcast_dims(a.dims(), b.dims());
  auto magnitude = [&](const Value& x) {
    Value y = hlo::is_unsigned_integer(x.dtype()) ? x : hlo::abs(x);
    return broadcast_to(y, dims);
  };
  Values init = {magnitude(a), magnitude(b)};
  Dims all(dims.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return hlo::while_loop(
      init, [&](const Values& v) { return hlo::reduce(hlo::ne(v[1], 0), all, hlo::Reduce::Or); },
      [&](const Values& v) -> Values {
        Value done = hlo::eq(v[1], 0);
        Value divisor = select(done, 1, v[1]);
        return {select(done, v[0], v[1]), select(done, v[1], hlo::remainder(v[0], divisor))};
      })[0];
}
TPU_POINTWISE("aten::gcd(Tensor self, Tensor other) -> Tensor") {
  Operands o = exact_operands(c);
  require_whole(c, o.result);
  return {greatest_common_divisor(o.a, o.b)};
}
// |a / gcd * b|, 0 where both are 0.
TPU_POINTWISE("aten::lcm(Tensor self, Tensor other) -> Tensor") {
  Operands o = exact_operands(c);
  require_whole(c, o.result);
  Value g = greatest_common_divisor(o.a, o.b);
  Value y = o.a / select(hlo::eq(g, 0), 1, g) * o.b;
  return {hlo::is_unsigned_integer(o.result) ? y : hlo::abs(y)};
}

// ---- larger and smaller ------------------------------------------------------------------------

static Operands ordered_operands(Call& c, std::string_view name) {
  Operands o = exact_operands(c);
  c.check(!hlo::is_complex(o.result), name, " not implemented for complex tensors.");
  return o;
}
// NaN wins.
TPU_POINTWISE("aten::maximum(Tensor self, Tensor other) -> Tensor") {
  Operands o = ordered_operands(c, "maximum");
  return {hlo::maximum(o.a, o.b)};
}
TPU_POINTWISE("aten::minimum(Tensor self, Tensor other) -> Tensor") {
  Operands o = ordered_operands(c, "minimum");
  return {hlo::minimum(o.a, o.b)};
}
// NaN loses.
static Value skip_nan(const Operands& o, const Value& y) {
  if (!hlo::is_floating(o.result)) return y;
  return select(hlo::is_nan(o.a), o.b, select(hlo::is_nan(o.b), o.a, y));
}
TPU_POINTWISE("aten::fmax(Tensor self, Tensor other) -> Tensor") {
  Operands o = ordered_operands(c, "fmax");
  return {skip_nan(o, hlo::maximum(o.a, o.b))};
}
TPU_POINTWISE("aten::fmin(Tensor self, Tensor other) -> Tensor") {
  Operands o = ordered_operands(c, "fmin");
  return {skip_nan(o, hlo::minimum(o.a, o.b))};
}

// ---- float functions of two arguments ----------------------------------------------------------

TPU_POINTWISE("aten::atan2(Tensor self, Tensor other) -> Tensor") {
  Operands o = float_operands(c);
  reject_complex(c, o.result);
  return o.rounded(hlo::atan2(o.a, o.b));
}

// sqrt(a^2 + b^2) = m sqrt(1 + (n / m)^2) with m the larger, so that nothing overflows. An infinity
// wins even over NaN.
TPU_POINTWISE("aten::hypot(Tensor self, Tensor other) -> Tensor") {
  Operands o = operands(c);
  require_real_float(c, o.result);
  Value a = hlo::abs(o.a), b = hlo::abs(o.b);
  Value m = hlo::maximum(a, b), n = hlo::minimum(a, b);
  Value ratio = n / select(hlo::eq(m, 0), 1, m);
  Value y = m * hlo::sqrt(1.0 + ratio * ratio);
  Value inf = infinity_like(y);
  return o.rounded(select(hlo::eq(a, inf) | hlo::eq(b, inf), inf, y));
}

// |self| with the sign of other.
static Values copysign(Call& c) {
  Operands o = float_operands(c);
  reject_complex(c, o.result);
  Value a = hlo::abs(o.a);
  return o.rounded(select(sign_bit(o.b), -a, a));
}
TPU_OP_FN("aten::copysign.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, copysign);
TPU_OP_FN("aten::copysign.Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, copysign);

// The next number after self on the way to other.
TPU_POINTWISE("aten::nextafter(Tensor self, Tensor other) -> Tensor") {
  Operands o = exact_operands(c);
  require_real_float(c, o.result);
  return {hlo::next_after(o.a, o.b)};
}

// max + log1p(exp(min - max)); equal infinities are their own result.
static Value log_of_sum(const Value& a, const Value& b, double ln_base) {
  Value distance = hlo::abs(a - b) * ln_base;
  Value y = hlo::maximum(a, b) + hlo::log_plus_one(hlo::exponential(-distance)) / ln_base;
  return select(hlo::eq(a, b) & ~hlo::is_finite(a), a, y);
}
// The same for complex numbers, ordered by their real parts.
static Value complex_log_of_sum(const Value& a, const Value& b) {
  Value ra = hlo::real(a), rb = hlo::real(b);
  Value less = hlo::lt(ra, rb);
  Value low = select(less, a, b), high = select(less, b, a);
  Value y = hlo::log_plus_one(hlo::exponential(low - high)) + high;
  Value infinite = hlo::eq(ra, rb) & ~hlo::is_finite(ra);
  Value at_infinity =
      select(hlo::lt(ra, 0), low, hlo::log(hlo::exponential(a) + hlo::exponential(b)));
  Value nan = hlo::nan_of(a.builder(), ra.dtype());
  Value any_nan = hlo::ne(a, a) | hlo::ne(b, b);
  return select(any_nan, hlo::complex(nan, nan), select(infinite, at_infinity, y));
}
TPU_POINTWISE("aten::logaddexp(Tensor self, Tensor other) -> Tensor") {
  Operands o = operands(c);
  require_float(c, o.result);
  if (hlo::is_complex(o.result)) return {complex_log_of_sum(o.a, o.b)};
  return o.rounded(log_of_sum(o.a, o.b, 1));
}
TPU_POINTWISE("aten::logaddexp2(Tensor self, Tensor other) -> Tensor") {
  Operands o = operands(c);
  require_float(c, o.result);
  if (hlo::is_complex(o.result)) return {complex_log_of_sum(o.a * kLn2, o.b * kLn2) / kLn2};
  return o.rounded(log_of_sum(o.a, o.b, kLn2));
}

// self * fn(other); 0 where self is 0, unless other is NaN.
template <UnaryFn fn>
static Values times_log(Call& c) {
  Operands o = float_operands(c);
  reject_complex(c, o.result);
  Value y = select(hlo::eq(o.a, 0), 0, o.a * fn(o.b));
  return o.rounded(select(hlo::is_nan(o.b), o.b, y));
}
TPU_OP_FN("aten::xlogy.Tensor(Tensor self, Tensor other) -> Tensor", Pointwise,
          times_log<hlo::log>);
TPU_OP_FN("aten::xlogy.Scalar_Other(Tensor self, Scalar other) -> Tensor", Pointwise,
          times_log<hlo::log>);
TPU_OP_FN("aten::xlogy.Scalar_Self(Scalar self, Tensor other) -> Tensor", Pointwise,
          times_log<hlo::log>);
TPU_OP_FN("aten::special_xlog1py(Tensor self, Tensor other) -> Tensor", Pointwise,
          times_log<hlo::log_plus_one>);
TPU_OP_FN("aten::special_xlog1py.other_scalar(Tensor self, Scalar other) -> Tensor", Pointwise,
          times_log<hlo::log_plus_one>);
TPU_OP_FN("aten::special_xlog1py.self_scalar(Scalar self, Tensor other) -> Tensor", Pointwise,
          times_log<hlo::log_plus_one>);

// 0, values or 1 as self is negative (or NaN), zero or positive.
TPU_POINTWISE("aten::heaviside(Tensor self, Tensor values) -> Tensor") {
  DType dtype = c.dtype_of("self");
  c.check(!hlo::is_complex(dtype) && !hlo::is_complex(c.dtype_of("values")),
          "heaviside is not yet implemented for complex tensors.");
  c.check(dtype == c.dtype_of("values"),
          "heaviside is not yet implemented for tensors with different dtypes: self is ", dtype,
          ", values is ", c.dtype_of("values"), ".");
  Value x = c.tensor("self"), at_zero = c.tensor("values");
  if (dtype == DType::Pred) return {x | at_zero};
  return {select(hlo::eq(x, 0), at_zero, convert(hlo::gt(x, 0), dtype))};
}

}  // namespace torch_tpu::ops
