// SPDX-License-Identifier: Apache-2.0 - Powers: of two tensors, of a tensor and a number.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// Whole powers; a negative exponent gives the truncated result, which is 0 but for bases 1 and -1.
static Value whole_power(const Value& base, const Value& exponent) {
  if (hlo::is_unsigned_integer(base.dtype())) return hlo::power(base, exponent);
  Value zero = hlo::zeros_like(exponent);
  Value y = hlo::power(base, hlo::maximum(exponent, zero));
  Value odd = hlo::ne(exponent & hlo::full_like(exponent, 1), 0);
  Value of_minus_one = select(odd, -1, hlo::full_like(exponent, 1));
  Value unit = select(hlo::eq(base, 1), 1, select(hlo::eq(base, -1), of_minus_one, 0));
  return select(hlo::lt(exponent, 0), unit, y);
}

// exp(b log a) has no value at a = 0: 0^0 = 1, 0^b = 0 where b has a positive real part.
static Value complex_power(const Value& base, const Value& exponent) {
  Value y = hlo::power(base, exponent);
  Value at_zero = hlo::eq(base, 0) & hlo::gt(hlo::real(exponent), 0);
  return select(hlo::eq(exponent, 0), 1, select(at_zero, hlo::zeros_like(y), y));
}

static Value raised(const Value& base, const Value& exponent) {
  if (hlo::is_integer(base.dtype())) return whole_power(base, exponent);
  if (hlo::is_complex(base.dtype())) return complex_power(base, exponent);
  return hlo::power(base, exponent);
}

static Values power_of_two_arguments(Call& c) {
  Operands o = operands(c, "self", "exponent");
  reject_bool(c, o.result);
  return o.rounded(raised(o.a, o.b));
}
TPU_OP_FN("aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", Pointwise,
          power_of_two_arguments);
TPU_OP_FN("aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor", Pointwise,
          power_of_two_arguments);

// x^n by squaring: exact for integers, wrapping around like them.
static Value repeated(const Value& x, uint64_t n) {
  Value y, square = x;
  for (; n != 0; n >>= 1) {
    if (n & 1) y = y ? y * square : square;
    if (n > 1) square = square * square;
  }
  return y ? y : hlo::full_like(x, 1);
}

// The exponents of everyday are products and roots, as on CPU: x^2 is x * x, x^0.5 is sqrt(x).
TPU_POINTWISE("aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor") {
  DType result = c.result_type({"self", "exponent"});
  reject_bool(c, result);
  Value x = c.tensor("self", hlo::opmath(result));
  auto rounded = [&](const Value& y) -> Values { return {convert(y, result)}; };
  if (hlo::is_integer(result)) {
    int64_t n = c.whole_number("exponent");
    c.check(n >= 0, "Integers to negative integer powers are not allowed.");
    return {repeated(x, static_cast<uint64_t>(n))};
  }
  if (c.number_kind("exponent") != graph::Number::Complex) {
    if (c.equals("exponent", 2)) return rounded(x * x);
    if (c.equals("exponent", 0.5)) return rounded(hlo::sqrt(x));
    if (c.equals("exponent", -1)) return rounded(1.0 / x);
    if (c.equals("exponent", 3)) return rounded(x * x * x);
    if (c.equals("exponent", -0.5)) return rounded(hlo::rsqrt(x));
    if (c.equals("exponent", -2)) return rounded(1.0 / (x * x));
    if (c.equals("exponent", 1)) return rounded(x);
    if (c.equals("exponent", 0)) return rounded(hlo::full_like(x, 1));
  }
  return rounded(raised(x, c.scalar("exponent", x.dtype())));
}

}  // namespace torch_tpu::ops
