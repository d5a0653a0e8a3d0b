// SPDX-License-Identifier: Apache-2.0 - Special functions: gamma, error and Bessel functions.
#include <cmath>

#include "src/ops/pointwise.h"
#include "src/ops/special_tables.h"

namespace torch_tpu::ops {

// A Chebyshev series by Clenshaw's recurrence, at half of twice_x. What is below float32's
// precision is left out for float32.
template <size_t n>
static Value chebyshev(const Value& twice_x, const double (&c)[n]) {
  size_t first = 0;
  if (twice_x.dtype() == DType::F32) {
    while (std::abs(c[first]) < 1e-10) ++first;
  }
  Value b0 = hlo::full_like(twice_x, c[first]);
  Value b1 = hlo::zeros_like(twice_x), b2 = b1;
  for (size_t i = first + 1; i < n; ++i) {
    b2 = b1;
    b1 = b0;
    b0 = twice_x * b1 - b2 + c[i];
  }
  return (b0 - b2) * 0.5;
}
static Value infinity(const Value& x) { return infinity_like(x); }
static Value nan(const Value& x) { return hlo::nan_of(x.builder(), x.dtype()); }

// ---- gamma -------------------------------------------------------------------------------------

TPU_OP_FN("aten::lgamma(Tensor self) -> Tensor", Pointwise, real_unary<hlo::lgamma>);

// -+infinity at +-0, as C's gamma functions.
static Value digamma(const Value& x) {
  Value at_zero = select(sign_bit(x), infinity(x), -infinity(x));
  return select(hlo::eq(x, 0), at_zero, hlo::digamma(x));
}
TPU_OP_FN("aten::digamma(Tensor self) -> Tensor", Pointwise, real_unary<digamma>);

// The second derivative of log gamma: reflected below 1/2, moved up by 6, then a series in 1/x.
static Value trigamma(const Value& x) {
  Value reflected = hlo::lt(x, 0.5);
  Value sine = hlo::sine(x * kPi);
  Value sign = select(reflected, -1, hlo::full_like(x, 1));
  Value sum = select(reflected, -(kPi * kPi) / (sine * sine), hlo::zeros_like(x));
  Value t = select(reflected, 1.0 - x, x);
  for (int i = 0; i < 6; ++i) {
    sum = sum + 1.0 / (t * t);
    t = t + 1;
  }
  Value u = 1.0 / (t * t);
  sum = sum + (1.0 + 1.0 / (t * 2) + u * (1.0 / 6 - u * (1.0 / 30 - u * (1.0 / 42)))) / t;
  return sign * sum;
}
// Hurwitz' zeta: the sum of (q + k)^-x, until q + k is above 9; then the Euler-Maclaurin formula.
// After nine terms only elements with a negative q have further to go.
static Value hurwitz_zeta(const Value& x, const Value& q) {
  constexpr double kSteps = 9;
  Value pole = hlo::le(q, 0) & hlo::eq(q, hlo::floor(q));
  Value a = select(pole, 1, q);  // a pole must not keep the loop going
  Value sum = hlo::power(a, -x), term = sum;
  for (int i = 0; i < kSteps; ++i) {
    a = a + 1;
    term = hlo::power(a, -x);
    sum = sum + term;
  }
  Dims all(q.rank());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  Values v = hlo::while_loop(
      Values{sum, term, a},
      [&](const Values& v) { return hlo::reduce(hlo::le(v[2], kSteps), all, hlo::Reduce::Or); },
      [&](const Values& v) -> Values {
        Value more = hlo::le(v[2], kSteps);
        Value next = v[2] + 1;
        Value power = hlo::power(next, -x);
        return {select(more, v[0] + power, v[0]), select(more, power, v[1]),
                select(more, next, v[2])};
      });
  sum = v[0], term = v[1], a = v[2];
  sum = sum + term * a / (x - 1) - term * 0.5;
  double epsilon = x.dtype() == DType::F64 ? 1.11022302462515654042e-16 : 5.9604644775390625e-8;
  Value factor = hlo::full_like(x, 1);
  Value done;
  double k = 0;
  for (double divisor : kZetaDivisors) {
    factor = factor * (x + k);
    term = term / a;
    Value step = factor * term / divisor;
    // A finished element stops here, before its factor overflows.
    sum = done ? select(done, sum, sum + step) : sum + step;
    Value small = hlo::lt(hlo::abs(step), hlo::abs(sum) * epsilon);
    done = done ? done | small : small;
    factor = factor * (x + (k + 1));
    term = term / a;
    k += 2;
  }
  Value odd = hlo::lt(q, 0) & hlo::ne(x, hlo::floor(x));
  Value y = select(pole, infinity(q), select(odd, nan(q), sum));
  return select(hlo::eq(x, 1), infinity(q), select(hlo::lt(x, 1), nan(q), y));
}

// (-1)^(n+1) n! zeta(n + 1, x).
TPU_POINTWISE("aten::polygamma(int n, Tensor self) -> Tensor") {
  int64_t n = c.integer("n");
  c.check(n >= 0, "polygamma(n, x) does not support negative n.");
  if (n == 0) return real_unary<digamma>(c);
  if (n == 1) return real_unary<trigamma>(c);
  reject_complex(c, c.dtype_of("self"));
  DType result = c.float_result_type({"self"});
  Value x = c.tensor("self", hlo::opmath(result));
  double factorial = std::tgamma(static_cast<double>(n) + 1) * (n % 2 ? 1 : -1);
  Value zeta = hurwitz_zeta(hlo::full_like(x, static_cast<double>(n) + 1), x);
  return {convert(zeta * factorial, result)};
}

static Values zeta(Call& c) {
  Operands o = float_operands(c);
  reject_complex(c, o.result);
  Dims dims = hlo::broadcast_dims(o.a.dims(), o.b.dims());
  return o.rounded(hurwitz_zeta(broadcast_to(o.a, dims), broadcast_to(o.b, dims)));
}
TPU_OP_FN("aten::special_zeta(Tensor self, Tensor other) -> Tensor", Pointwise, zeta);
TPU_OP_FN("aten::special_zeta.other_scalar(Tensor self, Scalar other) -> Tensor", Pointwise, zeta);
TPU_OP_FN("aten::special_zeta.self_scalar(Scalar self, Tensor other) -> Tensor", Pointwise, zeta);

// -x log x; 0 at 0, -infinity below.
static Value entropy(const Value& x) {
  Value y = select(hlo::gt(x, 0), -x * hlo::log(x), select(hlo::eq(x, 0), 0, -infinity(x)));
  return select(hlo::is_nan(x), x, y);
}
TPU_OP_FN("aten::special_entr(Tensor self) -> Tensor", Pointwise, real_unary<entropy>);

// ---- error function ----------------------------------------------------------------------------

TPU_OP_FN("aten::erf(Tensor self) -> Tensor", Pointwise, real_unary<hlo::erf>);
TPU_OP_FN("aten::erfc(Tensor self) -> Tensor", Pointwise, real_unary<hlo::erfc>);
TPU_OP_FN("aten::erfinv(Tensor self) -> Tensor", Pointwise, real_unary<hlo::erf_inv>);

// exp(x^2) erfc(x): a Chebyshev series in (x - k) / (x + k) after Shepherd and Laframboise, without
// PyTorch's table of a hundred polynomials; 2 exp(x^2) - erfcx(-x) below 0.
static Value erfcx(const Value& x) {
  constexpr double k = 3.75;
  Value a = hlo::abs(x);
  Value t = select(hlo::eq(a, infinity(x)), 1, (a - k) / (a + k));
  Value y = chebyshev(t * 2, kErfcx) / (1.0 + a * 2);
  return select(hlo::lt(x, 0), hlo::exponential(x * x) * 2 - y, y);
}
TPU_OP_FN("aten::special_erfcx(Tensor self) -> Tensor", Pointwise, real_unary<erfcx>);

// log P(N < x).
static Value log_ndtr(const Value& x) {
  Value t = x * std::sqrt(0.5);
  Value tail = hlo::log(erfcx(-t) * 0.5) - t * t;
  return select(hlo::lt(x, -1), tail, hlo::log_plus_one(hlo::erfc(t) * -0.5));
}
TPU_OP_FN("aten::special_log_ndtr(Tensor self) -> Tensor", Pointwise, real_unary<log_ndtr>);

// The x with P(N < x) = y.
static Value ndtri(const Value& y) {
  constexpr double kExpMinus2 = 0.13533528323661269189, kSqrt2Pi = 2.50662827463100050242;
  Value upper = hlo::gt(y, 1 - kExpMinus2);
  Value p = select(upper, 1.0 - y, y);
  Value d = p - 0.5;
  Value d2 = d * d;
  Value middle = (d + d * (d2 * polynomial(d2, kNdtriP0) / polynomial(d2, kNdtriQ0))) * kSqrt2Pi;
  Value r = hlo::sqrt(hlo::log(p) * -2);
  Value z = 1.0 / r;
  Value near = z * polynomial(z, kNdtriP1) / polynomial(z, kNdtriQ1);
  Value far = z * polynomial(z, kNdtriP2) / polynomial(z, kNdtriQ2);
  Value tail = r - hlo::log(r) / r - select(hlo::lt(r, 8), near, far);
  tail = select(upper, tail, -tail);
  Value inside = select(hlo::gt(p, kExpMinus2), middle, tail);
  Value edge = select(hlo::eq(y, 0), -infinity(y), select(hlo::eq(y, 1), infinity(y), nan(y)));
  return select(hlo::gt(y, 0) & hlo::lt(y, 1), inside, edge);
}
TPU_OP_FN("aten::special_ndtri(Tensor self) -> Tensor", Pointwise, real_unary<ndtri>);

// ---- modified Bessel functions -----------------------------------------------------------------

// exp(-|x|) I0(x).
static Value i0e(const Value& x) {
  Value a = hlo::abs(x);
  Value far = chebyshev(32.0 / a - 2, kI0Far) * hlo::rsqrt(a);
  return select(hlo::le(a, 8), chebyshev(a * 0.5 - 2, kI0Near), far);
}
// exp(-|x|) I1(x).
static Value i1e(const Value& x) {
  Value a = hlo::abs(x);
  Value far = chebyshev(32.0 / a - 2, kI1Far) * hlo::rsqrt(a);
  Value y = select(hlo::le(a, 8), chebyshev(a * 0.5 - 2, kI1Near) * a, far);
  return select(hlo::lt(x, 0), -y, y);
}
static Value i0(const Value& x) { return i0e(x) * hlo::exponential(hlo::abs(x)); }
static Value i1(const Value& x) { return i1e(x) * hlo::exponential(hlo::abs(x)); }
TPU_OP_FN("aten::i0(Tensor self) -> Tensor", Pointwise, real_unary<i0>);
TPU_OP_FN("aten::special_i0e(Tensor self) -> Tensor", Pointwise, real_unary<i0e>);
TPU_OP_FN("aten::special_i1(Tensor self) -> Tensor", Pointwise, real_unary<i1>);
TPU_OP_FN("aten::special_i1e(Tensor self) -> Tensor", Pointwise, real_unary<i1e>);
TPU_OP_FN("aten::special_modified_bessel_i0(Tensor self) -> Tensor", Pointwise, real_unary<i0>);
TPU_OP_FN("aten::special_modified_bessel_i1(Tensor self) -> Tensor", Pointwise, real_unary<i1>);

// K has a pole at 0 and no real value below.
static Value from_zero(const Value& x, const Value& y) {
  return select(hlo::gt(x, 0), y, select(hlo::eq(x, 0), infinity(x), nan(x)));
}
static Value k0_near(const Value& x) {
  return chebyshev(x * x - 2, kK0Near) - hlo::log(x * 0.5) * i0(x);
}
static Value k1_near(const Value& x) {
  return hlo::log(x * 0.5) * i1(x) + chebyshev(x * x - 2, kK1Near) / x;
}
template <size_t n>
static Value k_far(const Value& x, const double (&table)[n]) {
  return chebyshev(8.0 / x - 2, table) * hlo::rsqrt(x);
}
static Value k0(const Value& x) {
  Value far = k_far(x, kK0Far) * hlo::exponential(-x);
  return from_zero(x, select(hlo::le(x, 2), k0_near(x), far));
}
static Value k1(const Value& x) {
  Value far = k_far(x, kK1Far) * hlo::exponential(-x);
  return from_zero(x, select(hlo::le(x, 2), k1_near(x), far));
}
static Value k0e(const Value& x) {
  Value near = k0_near(x) * hlo::exponential(x);
  return from_zero(x, select(hlo::le(x, 2), near, k_far(x, kK0Far)));
}
static Value k1e(const Value& x) {
  Value near = k1_near(x) * hlo::exponential(x);
  return from_zero(x, select(hlo::le(x, 2), near, k_far(x, kK1Far)));
}
// The schemas of the scaled ones call their argument x.
template <UnaryFn fn>
static Values of_x(Call& c) {
  DType result = c.float_result_type({"x"});
  reject_complex(c, result);
  return {convert(fn(c.tensor("x", hlo::opmath(result))), result)};
}
TPU_OP_FN("aten::special_modified_bessel_k0(Tensor self) -> Tensor", Pointwise, real_unary<k0>);
TPU_OP_FN("aten::special_modified_bessel_k1(Tensor self) -> Tensor", Pointwise, real_unary<k1>);
TPU_OP_FN("aten::special_scaled_modified_bessel_k0(Tensor x) -> Tensor", Pointwise, of_x<k0e>);
TPU_OP_FN("aten::special_scaled_modified_bessel_k1(Tensor x) -> Tensor", Pointwise, of_x<k1e>);

// ---- Bessel and Airy functions -----------------------------------------------------------------

// Beyond 5: sqrt(2 / (pi x)) (P cos(x - shift) - 5/x Q sin(x - shift)), and for Y the same with a
// quarter turn.
struct Wave {
  Value p, q, sine, cosine, size;
  Value j() const { return (p * cosine - q * sine) * size; }
  Value y() const { return (p * sine + q * cosine) * size; }
};
template <size_t a, size_t b, size_t d, size_t e>
static Wave wave(const Value& x, double shift, const double (&pp)[a], const double (&pq)[b],
                 const double (&qp)[d], const double (&qq)[e]) {
  Value u = 5.0 / x;
  Value u2 = u * u;
  Value angle = x - shift;
  return {polynomial(u2, pp) / polynomial(u2, pq), u * polynomial(u2, qp) / polynomial(u2, qq),
          hlo::sine(angle), hlo::cosine(angle),
          hlo::rsqrt(x) * 0.79788456080286535588 /* sqrt(2 / pi) */};
}
static Wave wave0(const Value& x) {
  return wave(x, kPi / 4, kBessel0Pp, kBessel0Pq, kBessel0Qp, kBessel0Qq);
}
static Wave wave1(const Value& x) {
  return wave(x, 3 * kPi / 4, kBessel1Pp, kBessel1Pq, kBessel1Qp, kBessel1Qq);
}
static Value j0(const Value& x) {
  Value a = hlo::abs(x);
  Value x2 = a * a;
  Value near = (x2 - 5.78318596294678452118) * (x2 - 30.4712623436620863991) *
               polynomial(x2, kJ0Rp) / polynomial(x2, kJ0Rq);
  near = select(hlo::lt(a, 1e-5), 1.0 - x2 * 0.25, near);
  return select(hlo::le(a, 5), near, wave0(a).j());
}
static Value j1(const Value& x) {
  Value a = hlo::abs(x);
  Value x2 = a * a;
  Value near = polynomial(x2, kJ1Rp) / polynomial(x2, kJ1Rq) * a * (x2 - 14.6819706421238932572) *
               (x2 - 49.2184563216946036703);
  Value y = select(hlo::le(a, 5), near, wave1(a).j());
  return select(hlo::lt(x, 0), -y, y);
}
static Value y_at(const Value& x, const Value& near, const Value& far) {
  Value edge = select(hlo::eq(x, 0), -infinity(x), nan(x));
  return select(hlo::gt(x, 0), select(hlo::le(x, 5), near, far), edge);
}
static Value y0(const Value& x) {
  Value x2 = x * x;
  Value near = polynomial(x2, kY0P) / polynomial(x2, kY0Q) + hlo::log(x) * j0(x) * (2 / kPi);
  return y_at(x, near, wave0(x).y());
}
static Value y1(const Value& x) {
  Value x2 = x * x;
  Value near = x * (polynomial(x2, kY1P) / polynomial(x2, kY1Q)) +
               (j1(x) * hlo::log(x) - 1.0 / x) * (2 / kPi);
  return y_at(x, near, wave1(x).y());
}
TPU_OP_FN("aten::special_bessel_j0(Tensor self) -> Tensor", Pointwise, real_unary<j0>);
TPU_OP_FN("aten::special_bessel_j1(Tensor self) -> Tensor", Pointwise, real_unary<j1>);
TPU_OP_FN("aten::special_bessel_y0(Tensor self) -> Tensor", Pointwise, real_unary<y0>);
TPU_OP_FN("aten::special_bessel_y1(Tensor self) -> Tensor", Pointwise, real_unary<y1>);

// sin(x) / x, by its series near 0.
static Value spherical_j0(const Value& x) {
  constexpr double kSeries[] = {1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040,
                                1.0 / 120,        -1.0 / 6,        1.0};
  Value y = select(hlo::lt(hlo::abs(x), 0.5), polynomial(x * x, kSeries), hlo::sine(x) / x);
  return select(hlo::eq(hlo::abs(x), infinity(x)), 0, y);
}
TPU_OP_FN("aten::special_spherical_bessel_j0(Tensor x) -> Tensor", Pointwise, of_x<spherical_j0>);

// Ai: its Taylor series near 0, decaying beyond 2.09, a wave below -2.09.
static Value airy_ai(const Value& x) {
  constexpr double kInvSqrtPi = 5.64189583547756286948e-01;
  constexpr int kTerms = 16;  // the last adds less than a float64's last digit at 2.09
  Value a = hlo::abs(x);
  Value root = hlo::sqrt(a);
  Value zeta = a * root * (2.0 / 3);
  Value quarter = hlo::sqrt(root);
  Value u = 1.0 / zeta;
  Value decay = polynomial(u, kAiryN) / polynomial(u, kAiryD) * kInvSqrtPi /
                (quarter * 2 * hlo::exponential(zeta));
  Value u2 = u * u;
  Value angle = zeta + kPi / 4;
  Value f = 1.0 + u2 * polynomial(u2, kAiryFn) / polynomial(u2, kAiryFd);
  Value g = u * polynomial(u2, kAiryGn) / polynomial(u2, kAiryGd);
  Value turning = (hlo::sine(angle) * f - hlo::cosine(angle) * g) * kInvSqrtPi / quarter;
  Value cube = x * x * x;
  Value even = hlo::full_like(x, 1), odd = x, even_term = even, odd_term = x;
  for (int i = 1; i <= kTerms; ++i) {
    even_term = even_term * cube / (3.0 * i * (3.0 * i - 1));
    odd_term = odd_term * cube / (3.0 * i * (3.0 * i + 1));
    even = even + even_term;
    odd = odd + odd_term;
  }
  Value near = even * 0.355028053887817239260 - odd * 0.258819403792806798405;
  Value y = select(hlo::lt(x, -2.09), turning, select(hlo::ge(x, 2.09), decay, near));
  y = select(hlo::gt(x, 103.892), 0, y);
  return select(hlo::eq(a, infinity(x)), nan(x), y);
}
TPU_OP_FN("aten::special_airy_ai(Tensor x) -> Tensor", Pointwise, of_x<airy_ai>);

}  // namespace torch_tpu::ops
