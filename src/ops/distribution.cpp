// SPDX-License-Identifier: Apache-2.0 - poisson, binomial, gamma and dirichlet: draws by rejection, and gradients.
#include <array>
#include <functional>

#include "src/graph/philox.h"
#include "src/ops/random.h"

namespace torch_tpu::ops {

using graph::CheckSpec;
using graph::philox::ProgramWords;
using hlo::Type;

namespace {

// Random words for loops that go on until every element is served. They come from Philox with a key
// of the element's own and the turn of the loop as counter, so they do not depend on how many turns
// other elements need.
class Turns {
 public:
  Turns(Call& c, const Dims& dims) : dims_(dims) {
    const int64_t n = hlo::element_count(dims);
    Value bits = c.random_bits(2 * n);
    key_ = {hlo::reshape(hlo::slice_dim(bits, 0, 0, n), dims),
            hlo::reshape(hlo::slice_dim(bits, 0, n, 2 * n), dims)};
  }
  // Two words for every element, U64. turn: 0-dim, U32.
  std::array<Value, 2> words(const Value& turn) const {
    hlo::Builder& b = turn.builder();
    Value zero = hlo::zeros(b, {DType::U32, dims_});
    auto x = graph::philox::rounds<ProgramWords>({hlo::broadcast_to(turn, dims_), zero, zero, zero},
                                                 key_);
    auto join = [&](const Value& low, const Value& high) {
      Value wide = hlo::shift_left(hlo::convert(high, DType::U64),
                                   hlo::constant_int(b, {DType::U64, {}}, 32));
      return hlo::or_(wide, hlo::convert(low, DType::U64));
    };
    return {join(x[0], x[1]), join(x[2], x[3])};
  }

 private:
  Dims dims_;
  std::array<Value, 2> key_;
};

Value any(const Value& x) {
  Dims all(x.dims().size());
  for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int64_t>(d);
  return hlo::reduce(x, all, hlo::Reduce::Or);
}

// A proposal for every element, and whether it is taken.
struct Trial {
  Value candidate, accepted;  // F64, Pred
};
using Propose = std::function<Trial(const Value& words0, const Value& words1)>;

// Proposes until every element has taken a candidate. Parameters that no proposal satisfies (NaN)
// keep the last one.
Value until_accepted(Call& c, const Dims& dims, const Propose& propose) {
  constexpr double kMostTurns = 200;  // the acceptance rates here are above 1/5
  hlo::Builder& b = c.builder();
  if (hlo::element_count(dims) == 0) return hlo::zeros(b, {DType::F64, dims});
  Turns turns(c, dims);
  Values init = {hlo::zeros(b, {DType::U32, {}}), hlo::zeros(b, {DType::Pred, dims}),
                 hlo::zeros(b, {DType::F64, dims})};
  return hlo::while_loop(
      init, [&](const Values& s) { return any(~s[1]) & hlo::lt(s[0], kMostTurns); },
      [&](const Values& s) -> Values {
        auto words = turns.words(s[0]);
        Trial trial = propose(words[0], words[1]);
        return {s[0] + 1.0, s[1] | trial.accepted, hlo::select(s[1], s[2], trial.candidate)};
      })[2];
}

// Marsaglia and Tsang, "A simple method for generating gamma variables", 2000. For alpha < 1:
// Gamma(alpha + 1) * u^(1/alpha).
Value standard_gamma(Call& c, const Value& alpha) {
  Value small = hlo::lt(alpha, 1.0);
  Value d = hlo::select(small, alpha + 1.0, alpha) - 1.0 / 3;
  Value scale = 1.0 / hlo::sqrt(d * 9.0);
  Value y = until_accepted(c, alpha.dims(), [&](const Value& words0, const Value& words1) -> Trial {
    Value x = standard_normal_of(words0), u = open_unit_of(words1);
    Value root = scale * x + 1.0, v = root * root * root, xx = x * x;
    Value squeeze = hlo::lt(u, 1.0 - xx * xx * 0.0331);
    Value exact = hlo::lt(hlo::log(u), xx * 0.5 + d * (1.0 - v + hlo::log(v)));
    return {d * v, hlo::gt(v, 0.0) & (squeeze | exact)};
  });
  Value boost = hlo::power(open_unit(c, alpha.dims(), DType::F64), 1.0 / alpha);
  return hlo::select(small, y * boost, y);
}

// Gamma draws never are 0: the logarithm of one is taken.
Value positive(const Value& x, DType dtype) {
  Value least = hlo::scalar(x.builder(), DType::F64,
                            dtype == DType::F64   ? 0x1p-1022
                            : dtype == DType::F16 ? 0x1p-14
                                                  : 0x1p-126);
  return hlo::maximum(x, least);
}

}  // namespace

TPU_POINTWISE("aten::_standard_gamma(Tensor self, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("self");
  Value y = standard_gamma(c, c.tensor("self", DType::F64));
  return {hlo::convert(positive(y, dtype), dtype)};
}

// Independent gamma draws, divided by their sum over the last dimension.
TPU_POINTWISE("aten::_sample_dirichlet(Tensor self, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("self");
  Value y = positive(standard_gamma(c, c.tensor("self", DType::F64)), dtype);
  const int64_t last = y.rank() - 1;
  if (last < 0) return {hlo::convert(y / y, dtype)};
  return {hlo::convert(y / hlo::reduce(y, {last}, hlo::Reduce::Add, true), dtype)};
}

// Below 10: inversion, adding up probabilities until they pass a uniform draw. From 10: Hörmann,
// "The transformed rejection method for generating Poisson random variables" (PTRS), 1993.
TPU_POINTWISE("aten::poisson(Tensor self, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("self");
  hlo::Builder& b = c.builder();
  Value rate = c.tensor("self", DType::F64);
  c.fail_if(hlo::lt(rate, 0.0), CheckSpec::Runtime,
            "invalid Poisson rate, expected rate to be non-negative");
  if (rate.elements() == 0) return {hlo::convert(rate, dtype)};
  Value few = hlo::minimum(rate, 10.0), u = open_unit(c, rate.dims(), DType::F64);
  Value p0 = hlo::exponential(-few);
  // k, probability of k, probability of at most k.
  Values init = {hlo::zeros(b, {DType::F64, {}}), hlo::zeros_like(rate), p0, p0};
  Value small = hlo::while_loop(
      init, [&](const Values& s) { return any(hlo::gt(u, s[3])) & hlo::lt(s[0], 100.0); },
      [&](const Values& s) -> Values {
        Value k = s[0] + 1.0, p = s[2] * few / k;
        return {k, hlo::select(hlo::gt(u, s[3]), hlo::broadcast_to(k, rate.dims()), s[1]), p,
                s[3] + p};
      })[1];

  Value many = hlo::maximum(rate, 10.0), root = hlo::sqrt(many), log_rate = hlo::log(many);
  Value bb = root * 2.53 + 0.931, a = bb * 0.02483 - 0.059;
  Value inverse_alpha = 1.1328 / (bb - 3.4) + 1.1239, limit = 0.9277 - 3.6224 / (bb - 2.0);
  Value large =
      until_accepted(c, rate.dims(), [&](const Value& words0, const Value& words1) -> Trial {
        Value x = open_unit_of(words0) - 0.5, v = open_unit_of(words1);
        Value us = 0.5 - hlo::abs(x);
        Value k = hlo::floor((a * 2.0 / us + bb) * x + many + 0.43);
        Value box = hlo::ge(us, 0.07) & hlo::le(v, limit);
        Value outside = hlo::lt(k, 0.0) | (hlo::lt(us, 0.013) & hlo::gt(v, us));
        Value left = hlo::log(v) + hlo::log(inverse_alpha) - hlo::log(a / (us * us) + bb);
        Value right = k * log_rate - many - hlo::lgamma(k + 1.0);
        return {k, box | (~outside & hlo::le(left, right))};
      });
  Value y = hlo::select(hlo::lt(rate, 10.0), small, large);
  return {hlo::convert(hlo::select(hlo::is_nan(rate), rate, y), dtype)};
}

// With q = min(p, 1 - p), count q < 10: trials between successes are geometric, so their sums are
// counted until they pass `count`. Otherwise Hörmann, "The generation of binomial random variates"
// (BTRS), 1993.
TPU_POINTWISE("aten::binomial(Tensor count, Tensor prob, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("count");
  c.check(dtype == c.dtype_of("prob"), "Found dtype ", c.dtype_of("prob"), " but expected ", dtype);
  hlo::Builder& b = c.builder();
  Dims sizes = c.broadcast({&c.meta("count").sizes, &c.meta("prob").sizes});
  Value n = hlo::broadcast_to(c.tensor("count", DType::F64), sizes);
  Value prob = hlo::broadcast_to(c.tensor("prob", DType::F64), sizes);
  if (n.elements() == 0) return {hlo::convert(n, dtype)};
  Value q = hlo::minimum(prob, 1.0 - prob);
  Value usual = hlo::gt(q, 0.0) & hlo::gt(n, 0.0);  // the rest is not drawn
  Value is_small = hlo::lt(n * q, 10.0);

  // Turn, trials so far, successes so far.
  Value log_q = hlo::log_plus_one(-hlo::select(usual, q, 0.5));
  Turns turns(c, sizes);
  Value counting = usual & is_small;
  Values init = {hlo::zeros(b, {DType::U32, {}}), hlo::zeros_like(n), hlo::zeros_like(n)};
  Value small = hlo::while_loop(
      init,
      [&](const Values& s) { return any(counting & hlo::le(s[1], n)) & hlo::lt(s[0], 200.0); },
      [&](const Values& s) -> Values {
        Value trials = s[1] + hlo::ceil(hlo::log(open_unit_of(turns.words(s[0])[0])) / log_q);
        return {s[0] + 1.0, trials, s[2] + hlo::convert(hlo::le(trials, n), DType::F64)};
      })[2];

  // Parameters for which BTRS is defined stand in where it is not used.
  Value usable = usual & ~is_small;
  Value count = hlo::select(usable, n, 40.0), p = hlo::select(usable, q, 0.5);
  Value deviation = hlo::sqrt(count * p * (1.0 - p));
  Value bb = deviation * 2.53 + 1.15, a = bb * 0.0248 + p * 0.01 - 0.0873;
  Value centre = count * p + 0.5, limit = 0.92 - 4.2 / bb, alpha = (5.1 / bb + 2.83) * deviation;
  Value mode = hlo::floor((count + 1.0) * p), log_odds = hlo::log(p / (1.0 - p));
  Value height = hlo::lgamma(mode + 1.0) + hlo::lgamma(count - mode + 1.0);
  Value large = until_accepted(c, sizes, [&](const Value& words0, const Value& words1) -> Trial {
    Value x = open_unit_of(words0) - 0.5, v = open_unit_of(words1);
    Value us = 0.5 - hlo::abs(x);
    Value k = hlo::floor((a * 2.0 / us + bb) * x + centre);
    Value inside = hlo::ge(k, 0.0) & hlo::le(k, count);
    Value box = hlo::ge(us, 0.07) & hlo::le(v, limit);
    Value safe = hlo::clamp(hlo::zeros_like(k), k, count);
    Value left = hlo::log(v * alpha / (a / (us * us) + bb));
    Value right = height - hlo::lgamma(safe + 1.0) - hlo::lgamma(count - safe + 1.0) +
                  (safe - mode) * log_odds;
    return {k, inside & (box | hlo::le(left, right))};
  });
  Value y = hlo::select(is_small, small, large);
  y = hlo::select(hlo::gt(prob, 0.5), n - y, y);
  y = hlo::select(hlo::le(n, 0.0) | hlo::le(prob, 0.0), 0.0, hlo::select(hlo::ge(prob, 1.0), n, y));
  return {hlo::convert(hlo::select(hlo::is_nan(prob) | hlo::is_nan(n), n + prob, y), dtype)};
}

// ---- reparameterized gradients
// ------------------------------------------------------------------- The formulas and coefficients
// are PyTorch's (ATen/native/Distributions.h), in float64 throughout.

namespace {

Value nan_to_0(const Value& x) { return hlo::select(hlo::is_nan(x), 0.0, x); }
Value pow(const Value& x, double by) { return hlo::power(x, hlo::full_like(x, by)); }

// -(d cdf(x; alpha) / d alpha) / pdf(x; alpha) of a standard gamma.
Value gamma_grad(const Value& alpha, const Value& x) {
  // Taylor series for small x.
  Value numerator = hlo::full_like(x, 1), denominator = alpha;
  Value series1 = 1.0 / alpha, series2 = 1.0 / (alpha * alpha);
  for (int i = 1; i <= 5; ++i) {
    numerator = numerator * x * (-1.0 / i);
    denominator = denominator + 1.0;
    series1 = series1 + numerator / denominator;
    series2 = series2 + numerator / (denominator * denominator);
  }
  Value pow_x = hlo::power(x, alpha);
  Value pdf = hlo::power(x, alpha - 1.0) * hlo::exponential(-x);
  Value cdf_alpha = (hlo::log(x) - hlo::digamma(alpha)) * pow_x * series1 - pow_x * series2;
  Value small = nan_to_0(-cdf_alpha / pdf);

  // Rice saddle point expansion for large alpha, apart from its singularity at x = alpha.
  Value alpha2 = alpha * alpha;
  Value near = (1.0 + 24.0 * alpha * (1.0 + 12.0 * alpha)) *
               (1440.0 * alpha2 + 6.0 * x * (53.0 - 120.0 * x) - 65.0 * x * x / alpha +
                alpha * (107.0 + 3600.0 * x)) /
               (1244160.0 * alpha2 * alpha2);
  Value scale = hlo::sqrt(8.0 * alpha), log_ratio = hlo::log(x / alpha), gap = alpha - x;
  Value term2 = scale / gap;
  Value term3 = pow(x - alpha - alpha * log_ratio, -1.5);
  Value term23 = hlo::select(hlo::lt(x, alpha), term2 - term3, term2 + term3);
  Value term1 = log_ratio * term23 - hlo::sqrt(2.0 / alpha) * (alpha + x) / (gap * gap);
  Value stirling = 1.0 + 1.0 / (12.0 * alpha) * (1.0 + 1.0 / (24.0 * alpha));
  Value far = -stirling * (x * term1) / scale;
  Value large = hlo::select(hlo::le(0.9 * alpha, x) & hlo::le(x, 1.1 * alpha), near, far);

  // Bivariate rational approximation in between.
  static constexpr double kCoefficients[3][8] = {
      {0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1, 0.32668115, 0.10406089,
       0.0014179084},
      {0.53487893, 0.1298071, 0.065735949, -0.0015649758, 0.16639465, 0.020070113, -0.0035938915,
       -0.00058392623},
      {0.040121004, -0.0065914022, -0.0026286047, -0.0013441777, 0.017050642, -0.0021309326,
       0.00085092367, -1.5247877e-07},
  };
  Value u = log_ratio, v = hlo::log(alpha);
  std::array<Value, 8> k;
  for (size_t i = 0; i < 8; ++i)
    k[i] = kCoefficients[0][i] + u * (kCoefficients[1][i] + u * kCoefficients[2][i]);
  Value p = k[0] + v * (k[1] + v * (k[2] + v * k[3]));
  Value q = k[4] + v * (k[5] + v * (k[6] + v * k[7]));
  Value middle = hlo::exponential(p / q);
  return hlo::select(hlo::lt(x, 0.8), small, hlo::select(hlo::gt(alpha, 8.0), large, middle));
}

// Gradient of Beta(alpha, beta) wrt alpha, x close to 0: Taylor series.
Value beta_grad_alpha_small(const Value& x, const Value& alpha, const Value& beta) {
  Value factor = hlo::digamma(alpha) - hlo::digamma(alpha + beta) - hlo::log(x);
  Value numerator = hlo::full_like(x, 1), series = 1.0 / alpha * (factor + 1.0 / alpha);
  for (int i = 1; i <= 10; ++i) {
    numerator = numerator * (static_cast<double>(i) - beta) * x * (1.0 / i);
    Value denominator = alpha + static_cast<double>(i);
    series = series + numerator / denominator * (factor + 1.0 / denominator);
  }
  return nan_to_0(x * hlo::power(1.0 - x, -beta) * series);
}

// The same wrt beta.
Value beta_grad_beta_small(const Value& x, const Value& alpha, const Value& beta) {
  Value factor = hlo::digamma(alpha + beta) - hlo::digamma(beta);
  Value numerator = hlo::full_like(x, 1), betas = numerator, dbetas = hlo::zeros_like(x);
  Value series = factor / alpha;
  for (int i = 1; i <= 8; ++i) {
    numerator = numerator * x * (-1.0 / i);
    dbetas = dbetas * (beta - static_cast<double>(i)) + betas;
    betas = betas * (beta - static_cast<double>(i));
    series = series + numerator / (alpha + static_cast<double>(i)) * (dbetas + factor * betas);
  }
  return nan_to_0(-hlo::power(1.0 - x, 1.0 - beta) * series);
}

// Both parameters large: Rice saddle point expansion.
Value beta_grad_alpha_mid(const Value& x, const Value& alpha, const Value& beta) {
  Value total = alpha + beta, mean = alpha / total;
  Value deviation = hlo::sqrt(alpha * beta / (total + 1.0)) / total;
  Value beta2 = beta * beta;
  Value poly = 47.0 * x * beta2 * beta2 +
               alpha * ((43.0 + 20.0 * (16.0 + 27.0 * beta) * x) * beta2 * beta +
                        alpha * (3.0 * (59.0 + 180.0 * beta - 90.0 * x) * beta2 +
                                 alpha * ((453.0 + 1620.0 * beta * (1.0 - x) - 455.0 * x) * beta +
                                          alpha * (8.0 * (1.0 - x) * (135.0 * beta - 11.0)))));
  Value near = (1.0 + 12.0 * alpha) * (1.0 + 12.0 * beta) / (total * total) / (1.0 - x) * poly /
               (12960.0 * alpha * alpha * alpha * beta2 * (1.0 + 12.0 * total));
  auto stirling_of = [](const Value& v) { return 1.0 + 1.0 / (12.0 * v) + 1.0 / (288.0 * v * v); };
  Value prefactor = -x / hlo::sqrt(2.0 * alpha * beta / total);
  Value stirling = stirling_of(alpha) * stirling_of(beta) / stirling_of(total);
  Value axbx = alpha * (x - 1.0) + beta * x;
  Value term1 = (2.0 * alpha * alpha * (x - 1.0) + alpha * beta * (x - 1.0) - x * beta2) /
                (hlo::sqrt(2.0 * alpha / beta) * pow(total, 1.5) * axbx * axbx);
  Value log_alpha = hlo::log(alpha / (total * x));
  Value term3 = hlo::sqrt(8.0 * alpha * beta / total) / axbx;
  Value term4 = pow(beta * hlo::log(beta / (total * (1.0 - x))) + alpha * log_alpha, -1.5);
  Value sum = term1 + 0.5 * log_alpha * (term3 + hlo::select(hlo::lt(x, mean), term4, -term4));
  Value far = stirling * prefactor * sum;
  Value close = hlo::le(mean - 0.1 * deviation, x) & hlo::le(x, mean + 0.1 * deviation);
  return hlo::select(close, near, far);
}

// Rational correction to an analytic approximation.
Value beta_grad_rational(const Value& x, const Value& alpha, const Value& total) {
  static constexpr double kCoefficients[2][3][3][4] = {
      {{{1.003668233, -0.01061107488, -0.0657888334, 0.01201642863},
        {0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033},
        {-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013}},
       {{0.221950385, -0.3187676331, 0.01799915743, 0.01074823814},
        {-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057},
        {0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05}},
       {{-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565},
        {0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181},
        {0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05}}},
      {{{1, -0.02924021934, -0.04438342661, 0.007285809825},
        {0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521},
        {-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149}},
       {{0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273},
        {0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956},
        {-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05}},
       {{0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05},
        {0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05},
        {-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06}}},
  };
  Value u = hlo::log(x), a = hlo::log(alpha) - u, b = hlo::log(total) - a;
  Value one = hlo::full_like(x, 1);
  std::array<Value, 3> pow_u = {one, u, u * u}, pow_a = {one, a, a * a};
  std::array<Value, 2> sums;
  for (size_t s = 0; s < 2; ++s) {
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < 3; ++j) {
        const double* k = kCoefficients[s][i][j];
        Value term = pow_u[i] * pow_a[j] * (k[0] + b * (k[1] + b * (k[2] + b * k[3])));
        sums[s] = sums[s] ? sums[s] + term : term;
      }
    }
  }
  return sums[0] / sums[1] * x * (hlo::digamma(total) - hlo::digamma(alpha)) / (total - alpha);
}

}  // namespace

TPU_POINTWISE("aten::_standard_gamma_grad(Tensor self, Tensor output) -> Tensor") {
  Value y = gamma_grad(c.tensor("self", DType::F64), c.tensor("output", DType::F64));
  return {hlo::convert(y, c.dtype_of("self"))};
}

TPU_POINTWISE("aten::_dirichlet_grad(Tensor x, Tensor alpha, Tensor total) -> Tensor") {
  Dims sizes = c.broadcast({&c.meta("x").sizes, &c.meta("alpha").sizes, &c.meta("total").sizes});
  auto read = [&](std::string_view name) {
    return hlo::broadcast_to(c.tensor(name, DType::F64), sizes);
  };
  Value x = read("x"), alpha = read("alpha"), total = read("total");
  Value beta = total - alpha, boundary = total * x * (1.0 - x);
  Value y = hlo::select(hlo::gt(alpha, 6.0) & hlo::gt(beta, 6.0),
                        beta_grad_alpha_mid(x, alpha, beta), beta_grad_rational(x, alpha, total));
  y = hlo::select(hlo::ge(x, 0.5) & hlo::lt(boundary, 0.75),
                  -beta_grad_beta_small(1.0 - x, beta, alpha), y);
  y = hlo::select(hlo::le(x, 0.5) & hlo::lt(boundary, 2.5), beta_grad_alpha_small(x, alpha, beta),
                  y);
  return {hlo::convert(y, c.dtype_of("x"))};
}

}  // namespace torch_tpu::ops
