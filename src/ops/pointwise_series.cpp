// SPDX-License-Identifier: Apache-2.0 - Functions found by iteration: incomplete gamma, orthogonal polynomials.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

static Value any(const Value& p) {
  Dims all(p.rank());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  return hlo::reduce(p, all, hlo::Reduce::Or);
}

// ---- incomplete gamma function -----------------------------------------------------------------

static double epsilon(const Value& x) {
  return x.dtype() == DType::F64 ? 1.11022302462515654042e-16 : 5.9604644775390625e-8;
}
static constexpr double kMostTerms = 2000;

// x^a exp(-x) / gamma(a).
static Value gamma_weight(const Value& a, const Value& x) {
  return hlo::exponential(a * hlo::log(x) - x - hlo::lgamma(a));
}
// The lower function by its power series: weight / a * sum of x^n / ((a + 1) ... (a + n)).
static Value lower_series(const Value& a, const Value& x) {
  Value one = hlo::full_like(a, 1);
  Values v = hlo::while_loop(
      Values{hlo::scalar(a.builder(), a.dtype(), 0), one, one},
      [&](const Values& v) {
        return hlo::lt(v[0], kMostTerms) & any(hlo::gt(v[1], v[2] * epsilon(a)));
      },
      [&](const Values& v) -> Values {
        Value n = v[0] + 1;
        Value term = v[1] * x / (a + n);
        return {n, term, v[2] + term};
      });
  return v[2] * gamma_weight(a, x) / a;
}
// The upper function by its continued fraction, in Lentz's manner, scaled down when it grows.
static Value upper_fraction(const Value& a, const Value& x) {
  double big = a.dtype() == DType::F64 ? 4503599627370496.0 : 16777216.0;
  Value one = hlo::full_like(a, 1);
  Value z = x - a + 2;
  Value q = z * x;
  Value p = x + 1;
  // n, p before, q before, p, q, answer, still moving
  Values v = hlo::while_loop(
      Values{hlo::scalar(a.builder(), a.dtype(), 0), one, x, p, q, p / q,
             hlo::constant(a.builder(), {DType::Pred, a.dims()}, 1)},
      [&](const Values& v) { return hlo::lt(v[0], kMostTerms) & any(v[6]); },
      [&](const Values& v) -> Values {
        Value n = v[0] + 1;
        Value yc = (1.0 - a + n) * n;
        Value zn = z + n * 2;
        Value pn = v[3] * zn - v[1] * yc;
        Value qn = v[4] * zn - v[2] * yc;
        Value defined = hlo::ne(qn, 0);
        Value ratio = pn / select(defined, qn, 1);
        Value moving = ~defined | hlo::gt(hlo::abs((v[5] - ratio) / ratio), epsilon(a));
        Value answer = select(v[6] & defined, ratio, v[5]);
        Value down = select(hlo::gt(hlo::abs(pn), big), 1 / big, hlo::full_like(pn, 1));
        return {n, v[3] * down, v[4] * down, pn * down, qn * down, answer, v[6] & moving};
      });
  return v[5] * gamma_weight(a, x);
}
// The upper function for small x, without the cancellation of 1 - lower.
static Value upper_series(const Value& a, const Value& x) {
  Value factor = hlo::full_like(a, 1), sum = hlo::zeros_like(a);
  for (int n = 1; n <= 24; ++n) {
    factor = factor * x / static_cast<double>(-n);
    sum = sum + factor / (a + n);
  }
  Value log_x = hlo::log(x);
  Value first = -hlo::exponential_minus_one(a * log_x - hlo::lgamma(a + 1));
  return first - hlo::exponential(a * log_x - hlo::lgamma(a)) * sum;
}

// The regularized functions P and Q = 1 - P: of each element by the form that converges for it.
// Elements that a form is not for get harmless arguments in it.
static Values incomplete_gamma(Call& c, bool upper) {
  Operands o = float_operands(c);
  reject_complex(c, o.result);
  Dims dims = hlo::broadcast_dims(o.a.dims(), o.b.dims());
  Value a = broadcast_to(o.a, dims), x = broadcast_to(o.b, dims);
  Value inf = infinity_like(a);
  Value plain = hlo::gt(a, 0) & hlo::gt(x, 0) & hlo::lt(a, inf) & hlo::lt(x, inf);
  Value fraction = plain & hlo::gt(x, 1.1) & hlo::ge(x, a);
  Value tail = plain & hlo::le(x, 1.1) & hlo::ge(x * 1.1, a);
  Value series = plain & ~fraction & ~(upper ? tail : fraction);
  auto guarded = [&](const Value& which, double a_else, double x_else, auto form) {
    return form(select(which, a, a_else), select(which, x, x_else));
  };
  Value p = guarded(series, 1, 0.5, lower_series);
  Value q = guarded(fraction, 1, 2, upper_fraction);
  Value y;
  if (upper) {
    q = select(fraction, q, guarded(tail, 0.5, 0.5, upper_series));
    y = select(fraction | tail, q, 1.0 - p);
  } else {
    y = select(fraction, 1.0 - q, p);
  }
  // The edges: NaN below 0 and at (0, 0) and (inf, inf).
  Value lower_edge = select(hlo::eq(a, 0) | hlo::eq(x, inf), 1, hlo::zeros_like(y));
  Value edge = upper ? 1.0 - lower_edge : lower_edge;
  Value undefined = ~(hlo::ge(a, 0) & hlo::ge(x, 0)) | (hlo::eq(a, 0) & hlo::eq(x, 0)) |
                    (hlo::eq(a, inf) & hlo::eq(x, inf));
  Value nan = hlo::nan_of(y.builder(), y.dtype());
  return o.rounded(select(undefined, nan, select(plain, y, edge)));
}
TPU_POINTWISE("aten::igamma(Tensor self, Tensor other) -> Tensor") {
  return incomplete_gamma(c, false);
}
TPU_POINTWISE("aten::igammac(Tensor self, Tensor other) -> Tensor") {
  return incomplete_gamma(c, true);
}

// ---- orthogonal polynomials --------------------------------------------------------------------

// q(0) = 1, q(1) = first(x), q(k) = next(k, x, q(k-1), q(k-2)), each element up to its own n.
struct Recurrence {
  Value (*first)(const Value& x);
  Value (*next)(const Value& k, const Value& x, const Value& q, const Value& p);
};
static Value iterate(const Recurrence& r, const Value& x, const Value& n) {
  Values v = hlo::while_loop(
      Values{hlo::scalar(x.builder(), x.dtype(), 2), hlo::full_like(x, 1), r.first(x)},
      [&](const Values& v) { return any(hlo::le(v[0], n) & ~hlo::is_nan(v[2])); },
      [&](const Values& v) -> Values {
        Value active = hlo::le(v[0], n) & ~hlo::is_nan(v[2]);
        Value next = r.next(v[0], x, v[2], v[1]);
        return {v[0] + 1, select(active, v[2], v[1]), select(active, next, v[2])};
      });
  Value y = select(hlo::lt(n, 1), hlo::full_like(x, 1), v[2]);
  return select(hlo::lt(n, 0), 0, y);
}
static Value chebyshev_next(const Value&, const Value& x, const Value& q, const Value& p) {
  return x * 2 * q - p;
}

// Chebyshev's four kinds, by angle from degree `closed` on inside of (-1, 1).
enum class Kind { T, U, V, W };
template <Kind kind>
static Value chebyshev_first(const Value& x) {
  switch (kind) {
    case Kind::T:
      return x;
    case Kind::U:
      return x * 2;
    case Kind::V:
      return x * 2 - 1;
    case Kind::W:
      return x * 2 + 1;
  }
}
template <Kind kind>
static Value chebyshev_polynomial(const Value& x, const Value& n) {
  double closed = kind == Kind::T ? 6 : 8;
  Value by_angle = hlo::gt(n, closed) & hlo::lt(hlo::abs(x), 1);
  Value angle = hlo::acos(x);
  Value y;
  switch (kind) {
    case Kind::T:
      y = hlo::cosine(n * angle);
      break;
    case Kind::U:
      y = hlo::sine((n + 1) * angle) / hlo::sine(angle);
      break;
    case Kind::V:
      y = hlo::cosine((n + 0.5) * angle) / hlo::cosine(angle * 0.5);
      break;
    case Kind::W:
      y = hlo::sine((n + 0.5) * angle) / hlo::sine(angle * 0.5);
      break;
  }
  // At the ends the recurrence counts up to n exactly, but slowly.
  Value odd = hlo::ne(hlo::remainder(n, hlo::full_like(n, 2)), 0);
  Value sign = select(odd, -1, hlo::full_like(n, 1));
  Value one = hlo::full_like(n, 1);
  Value right, left;
  switch (kind) {
    case Kind::T:
      right = one, left = sign;
      break;
    case Kind::U:
      right = n + 1, left = sign * (n + 1);
      break;
    case Kind::V:
      right = one, left = sign * (n * 2 + 1);
      break;
    case Kind::W:
      right = n * 2 + 1, left = sign;
      break;
  }
  Value at_end = hlo::eq(hlo::abs(x), 1);
  Value steps = select(by_angle | at_end, hlo::zeros_like(n), n);
  Value looped = iterate({chebyshev_first<kind>, chebyshev_next}, x, steps);
  y = select(at_end, select(hlo::gt(x, 0), right, left), select(by_angle, y, looped));
  return select(hlo::lt(n, 0), 0, y);
}
template <Kind kind>
static Value shifted_chebyshev_polynomial(const Value& x, const Value& n) {
  return chebyshev_polynomial<kind>(x * 2 - 1, n);
}

// Beyond this degree PyTorch gives NaN rather than wait.
static Value up_to_limit(const Value& n, const Value& y) {
  double limit = n.dtype() == DType::F64 ? 512 : 128;
  return select(hlo::gt(n, limit), hlo::nan_of(y.builder(), y.dtype()), y);
}
static Value within_limit(const Value& n) { return select(hlo::gt(n, 512), 0, n); }
static Value hermite_h(const Value& x, const Value& n) {
  Recurrence r = {[](const Value& x) { return x * 2; },
                  [](const Value& k, const Value& x, const Value& q, const Value& p) {
                    return x * 2 * q - (k - 1) * 2 * p;
                  }};
  return up_to_limit(n, iterate(r, x, within_limit(n)));
}
static Value hermite_he(const Value& x, const Value& n) {
  Recurrence r = {[](const Value& x) { return x; },
                  [](const Value& k, const Value& x, const Value& q, const Value& p) {
                    return x * q - (k - 1) * p;
                  }};
  return up_to_limit(n, iterate(r, x, within_limit(n)));
}
static Value laguerre_l(const Value& x, const Value& n) {
  Recurrence r = {[](const Value& x) { return 1.0 - x; },
                  [](const Value& k, const Value& x, const Value& q, const Value& p) {
                    return ((k * 2 - 1 - x) * q - (k - 1) * p) / k;
                  }};
  return iterate(r, x, n);
}
static Value legendre_p(const Value& x, const Value& n) {
  Recurrence r = {[](const Value& x) { return x; },
                  [](const Value& k, const Value& x, const Value& q, const Value& p) {
                    return ((k * 2 - 1) * x * q - (k - 1) * p) / k;
                  }};
  return iterate(r, x, n);
}

// The degree counts towards zero; NaN and infinities have no polynomial.
template <BinaryFn fn>
static Values polynomial_of(Call& c) {
  Operands o = float_operands(c, "x", "n");
  reject_complex(c, o.result);
  Dims dims = hlo::broadcast_dims(o.a.dims(), o.b.dims());
  Value n = broadcast_to(trunc(o.b), dims);
  n = select(hlo::is_finite(n), n, -1);
  return o.rounded(fn(broadcast_to(o.a, dims), n));
}
#define TPU_POLYNOMIAL(name, fn)                                                                   \
  TPU_OP_FN("aten::special_" name "(Tensor x, Tensor n) -> Tensor", Pointwise, polynomial_of<fn>); \
  TPU_OP_FN("aten::special_" name ".n_scalar(Tensor x, Scalar n) -> Tensor", Pointwise,            \
            polynomial_of<fn>);                                                                    \
  TPU_OP_FN("aten::special_" name ".x_scalar(Scalar x, Tensor n) -> Tensor", Pointwise,            \
            polynomial_of<fn>)
TPU_POLYNOMIAL("chebyshev_polynomial_t", chebyshev_polynomial<Kind::T>);
TPU_POLYNOMIAL("chebyshev_polynomial_u", chebyshev_polynomial<Kind::U>);
TPU_POLYNOMIAL("chebyshev_polynomial_v", chebyshev_polynomial<Kind::V>);
TPU_POLYNOMIAL("chebyshev_polynomial_w", chebyshev_polynomial<Kind::W>);
TPU_POLYNOMIAL("shifted_chebyshev_polynomial_t", shifted_chebyshev_polynomial<Kind::T>);
TPU_POLYNOMIAL("shifted_chebyshev_polynomial_u", shifted_chebyshev_polynomial<Kind::U>);
TPU_POLYNOMIAL("shifted_chebyshev_polynomial_v", shifted_chebyshev_polynomial<Kind::V>);
TPU_POLYNOMIAL("shifted_chebyshev_polynomial_w", shifted_chebyshev_polynomial<Kind::W>);
TPU_POLYNOMIAL("hermite_polynomial_h", hermite_h);
TPU_POLYNOMIAL("hermite_polynomial_he", hermite_he);
TPU_POLYNOMIAL("laguerre_polynomial_l", laguerre_l);
TPU_POLYNOMIAL("legendre_polynomial_p", legendre_p);
#undef TPU_POLYNOMIAL

}  // namespace torch_tpu::ops
