// SPDX-License-Identifier: Apache-2.0 - Random fills: uniform, normal, bernoulli, integers, permutations, dropout, multinomial.
#include "src/ops/random.h"

#include <array>
#include <bit>
#include <limits>
#include <numbers>

#include "src/graph/args.h"
#include "src/ops/create.h"
#include "src/ops/scan.h"

namespace torch_tpu::ops {

using graph::CheckSpec;
using graph::Number;
using hlo::Type;

// ---- draws
// ---------------------------------------------------------------------------------------

namespace {

Value u32(hlo::Builder& b, int64_t v) { return hlo::constant_int(b, {DType::U32, {}}, v); }
Value u64(hlo::Builder& b, int64_t v) { return hlo::constant_int(b, {DType::U64, {}}, v); }
// Words for draws of dtype: U32 words for F32, U64 for F64.
Value words_for(Call& c, const Dims& dims, DType dtype) {
  if (dtype == DType::F64) return random_words(c, dims);
  return hlo::reshape(c.random_bits(hlo::element_count(dims)), dims);
}

}  // namespace

Value random_words(Call& c, const Dims& dims) {
  const int64_t n = hlo::element_count(dims);
  Value bits = hlo::convert(c.random_bits(2 * n), DType::U64);
  Value low = hlo::slice_dim(bits, 0, 0, n), high = hlo::slice_dim(bits, 0, n, 2 * n);
  return hlo::reshape(hlo::or_(hlo::shift_left(high, u64(c.builder(), 32)), low), dims);
}

Value unit(Call& c, const Dims& dims, DType dtype) {
  Value w = words_for(c, dims, dtype);
  hlo::Builder& b = c.builder();
  if (dtype == DType::F64)
    return hlo::convert(hlo::shift_right_logical(w, u64(b, 11)), dtype) * 0x1p-53;
  return hlo::convert(hlo::shift_right_logical(w, u32(b, 8)), dtype) * 0x1p-24;
}

Value open_unit_of(const Value& words) {
  hlo::Builder& b = words.builder();
  if (words.dtype() == DType::U64) {
    return (hlo::convert(hlo::shift_right_logical(words, u64(b, 12)), DType::F64) + 0.5) * 0x1p-52;
  }
  // Large words round up to 2^32: not 1, but the number before it.
  return hlo::minimum((hlo::convert(words, DType::F32) + 0.5) * 0x1p-32, 1 - 0x1p-24);
}

Value open_unit(Call& c, const Dims& dims, DType dtype) {
  return open_unit_of(words_for(c, dims, dtype));
}

// F32: M. Giles, "Approximating the erfinv function", 2010: sqrt(2) erfinv(x), with the sign of x
// in one bit of the word and 1 - |x| = u in the others, so that the tails are as fine as the
// middle: w = -log((1 - x)(1 + x)) = -log(u (2 - u)). Within 4e-4 of the quantile at 2^-32, 4e-6 at
// 2^-26. Cheaper than Box-Muller, which makes two numbers of two words and has to interleave them
// (on the CPU plugin, 2^20 numbers: 2 against 22 ms).
Value standard_normal_of(const Value& words) {
  hlo::Builder& b = words.builder();
  if (words.dtype() == DType::U64) {
    return hlo::erf_inv(open_unit_of(words) * 2.0 - 1.0) * std::numbers::sqrt2;
  }
  Value sign = hlo::ge(words, u32(b, 0x80000000u));
  Value u = (hlo::convert(hlo::and_(words, u32(b, 0x7fffffff)), DType::F32) + 0.5) * 0x1p-31;
  Value w = -hlo::log(u * (2.0 - u));
  static constexpr std::array<double, 9> kMiddle = {2.81022636e-08,  3.43273939e-07, -3.5233877e-06,
                                                    -4.39150654e-06, 0.00021858087,  -0.00125372503,
                                                    -0.00417768164,  0.246640727,    1.50140941};
  static constexpr std::array<double, 9> kTail = {-0.000200214257, 0.000100950558, 0.00134934322,
                                                  -0.00367342844,  0.00573950773,  -0.0076224613,
                                                  0.00943887047,   1.00167406,     2.83297682};
  Value tail = hlo::ge(w, 5.0);
  Value t = hlo::select(tail, hlo::sqrt(w) - 3.0, w - 2.5);
  Value p = hlo::select(tail, hlo::full_like(w, kTail[0]), kMiddle[0]);
  for (size_t i = 1; i < kMiddle.size(); ++i)
    p = hlo::select(tail, hlo::full_like(w, kTail[i]), kMiddle[i]) + p * t;
  Value z = p * (1.0 - u) * std::numbers::sqrt2;
  return hlo::select(sign, -z, z);
}

Value standard_normal(Call& c, const Dims& dims, DType dtype) {
  return standard_normal_of(words_for(c, dims, dtype));
}

// ---- uniform
// -------------------------------------------------------------------------------------

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double number(const Number* args, int i) { return args[i].as_double(); }

void check_floating(Call& c, const char* op) {
  DType dtype = c.dtype_of("self");
  c.check_supported(hlo::is_floating(dtype) || hlo::is_complex(dtype), "\"", op,
                    "\" not implemented for '", dtype, "'");
}

// Converts to a narrower float without going above x, so that an open upper end stays open.
Value round_down(const Value& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Value y = hlo::convert(x, dtype);
  Value below = hlo::next_after(y, hlo::full_like(y, -kInfinity));
  return hlo::select(hlo::gt(hlo::convert(y, x.dtype()), x), below, y);
}

Value uniform_real(Call& c, const Dims& dims, DType dtype) {
  const DType compute = hlo::opmath(dtype);
  Value from = c.scalar("from", compute), to = c.scalar("to", compute);
  Value y = unit(c, dims, compute) * (to - from) + from;
  // Rounding can reach `to`, which does not belong to the range.
  y = hlo::select(hlo::lt(y, to), y, hlo::broadcast_to(from, y.dims()));
  return round_down(y, dtype);
}

}  // namespace

// Uniform in [from, to).
TPU_POINTWISE(
    "aten::uniform(Tensor self, float from=0., float to=1., *, Generator? generator=None) -> "
    "Tensor") {
  check_floating(c, "uniform");
  c.check(c.derive([](const Number* a) -> int64_t { return number(a, 1) <= number(a, 2); }) != 0,
          "uniform_ expects to return a [from, to) range, but found from > to");
  const TensorArg& self = c.meta("self");
  if (!hlo::is_complex(self.dtype)) return {uniform_real(c, self.sizes, self.dtype)};
  const DType part = hlo::real_of(self.dtype);
  Value re = uniform_real(c, self.sizes, part);
  return {hlo::complex(re, uniform_real(c, self.sizes, part))};
}

// ---- normal
// --------------------------------------------------------------------------------------

namespace {

// std * z + mean; complex numbers share the variance between their parts.
Value normal(Call& c, const Dims& dims, DType dtype, const Value& mean, const Value& std) {
  const DType compute = hlo::opmath(dtype);
  if (!hlo::is_complex(dtype))
    return hlo::convert(standard_normal(c, dims, compute) * std + mean, dtype);
  const DType part = hlo::real_of(compute);
  Value scale = std * std::numbers::sqrt2 * 0.5;
  Value re = standard_normal(c, dims, part) * scale;
  Value im = standard_normal(c, dims, part) * scale;
  return hlo::convert(hlo::complex(re, im) + mean, dtype);
}

void check_std(Call& c, graph::Derivation valid) {
  c.check(c.derive(valid) != 0, "normal expects std >= 0.0, but found a negative std");
}

Value std_tensor(Call& c, DType compute) {
  c.check(!hlo::is_complex(c.dtype_of("std")),
          "normal expects standard deviation to be non-complex");
  Value std = c.tensor("std", compute);
  c.fail_if(hlo::lt(std, 0.0), CheckSpec::Runtime, "normal expects all elements of std >= 0.0");
  return std;
}

}  // namespace

TPU_POINTWISE(
    "aten::normal_functional(Tensor self, float mean=0., float std=1., *, Generator? "
    "generator=None) "
    "-> Tensor") {
  check_floating(c, "normal");
  check_std(c, [](const Number* a) -> int64_t { return number(a, 2) >= 0; });
  const TensorArg& self = c.meta("self");
  const DType compute = hlo::opmath(self.dtype);
  return {normal(c, self.sizes, self.dtype, c.scalar("mean", compute),
                 c.scalar("std", hlo::real_of(compute)))};
}
TPU_POINTWISE(
    "aten::normal.Tensor_float(Tensor mean, float std=1., *, Generator? generator=None) -> "
    "Tensor") {
  check_std(c, [](const Number* a) -> int64_t { return number(a, 1) >= 0; });
  const TensorArg& mean = c.meta("mean");
  const DType compute = hlo::opmath(mean.dtype);
  return {normal(c, mean.sizes, mean.dtype, c.tensor("mean", compute),
                 c.scalar("std", hlo::real_of(compute)))};
}
TPU_POINTWISE(
    "aten::normal.float_Tensor(float mean, Tensor std, *, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("std"), compute = hlo::opmath(dtype);
  return {normal(c, c.meta("std").sizes, dtype, c.scalar("mean", compute), std_tensor(c, compute))};
}
TPU_POINTWISE(
    "aten::normal.Tensor_Tensor(Tensor mean, Tensor std, *, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("mean"), compute = hlo::opmath(dtype);
  Dims sizes = c.broadcast({&c.meta("mean").sizes, &c.meta("std").sizes});
  return {normal(c, sizes, dtype, c.tensor("mean", compute), std_tensor(c, hlo::real_of(compute)))};
}

TPU_POINTWISE(
    "aten::log_normal(Tensor self, float mean=1., float std=2., *, Generator? generator=None) -> "
    "Tensor") {
  check_floating(c, "log_normal");
  c.check(c.derive([](const Number* a) -> int64_t { return number(a, 2) > 0; }) != 0,
          "log_normal_ expects std > 0.0, but found a std that is not");
  const TensorArg& self = c.meta("self");
  const DType compute = hlo::opmath(self.dtype);
  Value z = standard_normal(c, self.sizes, compute) * c.scalar("std", compute);
  return {hlo::convert(hlo::exponential(z + c.scalar("mean", compute)), self.dtype)};
}

// ---- other continuous distributions
// --------------------------------------------------------------

// -log(u) / lambda, never 0.
TPU_POINTWISE(
    "aten::exponential(Tensor self, float lambd=1., *, Generator? generator=None) -> Tensor") {
  check_floating(c, "exponential");
  c.check(c.derive([](const Number* a) -> int64_t { return number(a, 1) > 0; }) != 0,
          "exponential_ expects lambda > 0.0, but found a lambda that is not");
  const TensorArg& self = c.meta("self");
  const DType compute = hlo::opmath(self.dtype);
  Value y = -hlo::log(open_unit(c, self.sizes, compute)) / c.scalar("lambd", compute);
  return {hlo::convert(y, self.dtype)};
}

// median + sigma * tan(pi (u - 1/2)).
TPU_POINTWISE(
    "aten::cauchy(Tensor self, float median=0., float sigma=1., *, Generator? generator=None) -> "
    "Tensor") {
  check_floating(c, "cauchy");
  c.check(c.derive([](const Number* a) -> int64_t { return number(a, 2) > 0; }) != 0,
          "cauchy_ expects sigma > 0.0, but found a sigma that is not");
  const TensorArg& self = c.meta("self");
  const DType compute = hlo::opmath(self.dtype);
  Value t = hlo::tan((open_unit(c, self.sizes, compute) - 0.5) * std::numbers::pi);
  return {hlo::convert(t * c.scalar("sigma", compute) + c.scalar("median", compute), self.dtype)};
}

// The number of trials up to the first success: ceil(log(u) / log(1 - p)).
TPU_POINTWISE("aten::geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor") {
  c.check(c.derive(
              [](const Number* a) -> int64_t { return number(a, 1) > 0 && number(a, 1) < 1; }) != 0,
          "geometric_ expects p to be in (0, 1), but got a p that is not");
  const TensorArg& self = c.meta("self");
  const DType compute = hlo::is_floating(self.dtype) ? hlo::opmath(self.dtype) : DType::F32;
  Value trials =
      hlo::log(open_unit(c, self.sizes, compute)) / hlo::log_plus_one(-c.scalar("p", compute));
  return {hlo::convert(hlo::maximum(hlo::ceil(trials), 1.0), self.dtype)};
}

// ---- bernoulli and dropout
// -----------------------------------------------------------------------

namespace {

Value bernoulli(Call& c, const Value& p, const Dims& sizes) {
  return hlo::lt(unit(c, sizes, p.dtype()), hlo::broadcast_to(p, sizes));
}

Value probabilities(Call& c, std::string_view name) {
  const DType dtype = c.dtype_of(name);
  c.check_supported(hlo::is_floating(dtype), "\"bernoulli_tensor\" not implemented for '", dtype,
                    "'");
  Value p = c.tensor(name, hlo::opmath(dtype));
  c.fail_if(~(hlo::ge(p, 0.0) & hlo::le(p, 1.0)), CheckSpec::Runtime,
            "Expected p_in >= 0 && p_in <= 1 to be true, but got false.");
  return p;
}

int64_t probability_at_1(const Number* a) { return number(a, 1) >= 0 && number(a, 1) <= 1; }

}  // namespace

TPU_OP("aten::bernoulli(Tensor self, *, Generator? generator=None) -> Tensor") {
  Value p = probabilities(c, "self");
  return {hlo::convert(bernoulli(c, p, p.dims()), c.dtype_of("self"))};
}
TPU_OP("aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor") {
  c.check(c.derive(probability_at_1) != 0,
          "bernoulli_ expects p to be in [0, 1], but got a p that is not");
  const TensorArg& self = c.meta("self");
  const DType compute = self.dtype == DType::F64 ? DType::F64 : DType::F32;
  return {hlo::convert(bernoulli(c, c.scalar("p", compute), self.sizes), self.dtype)};
}
TPU_OP("aten::bernoulli.Tensor(Tensor self, Tensor p, *, Generator? generator=None) -> Tensor") {
  const TensorArg& self = c.meta("self");
  Dims sizes = c.broadcast({&self.sizes, &c.meta("p").sizes});
  c.check(sizes == self.sizes, "output with shape ", self.sizes,
          " doesn't match the broadcast shape ", sizes);
  return {hlo::convert(bernoulli(c, probabilities(c, "p"), self.sizes), self.dtype)};
}

// (x * mask / (1 - p), mask): mask is false with probability p; p = 1 drops all.
TPU_POINTWISE("aten::native_dropout(Tensor input, float p, bool? train) -> (Tensor, Tensor)") {
  c.check(c.derive(probability_at_1) != 0,
          "dropout probability has to be between 0 and 1, but got one that is not");
  Value x = c.tensor("input");
  if (c.has("train") && !c.flag("train"))
    return {x, hlo::constant_int(c.builder(), {DType::Pred, x.dims()}, 1)};
  const DType dtype = x.dtype(), compute = hlo::opmath(dtype), real = hlo::real_of(compute);
  Value keep = 1.0 - c.scalar("p", real);
  Value mask = bernoulli(c, keep, x.dims());
  Value scale = c.equals("p", 1) ? hlo::zeros(c.builder(), {real, {}}) : 1.0 / keep;
  Value y = hlo::convert(x, compute) * (hlo::convert(mask, compute) * hlo::convert(scale, compute));
  return {hlo::convert(y, dtype), mask};
}
TPU_POINTWISE(
    "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor") {
  const DType dtype = c.float_result_type({"grad_output"}), compute = hlo::opmath(dtype);
  Value y = c.tensor("grad_output", compute) * c.scalar("scale", compute);
  return {hlo::convert(y * c.tensor("mask", compute), dtype)};
}
TPU_POINTWISE("aten::_masked_scale(Tensor self, Tensor mask, float scale) -> Tensor") {
  const DType dtype = c.dtype_of("self"), compute = hlo::opmath(dtype);
  Value y = c.tensor("self", compute) * c.tensor("mask", compute);
  return {hlo::convert(y * c.scalar("scale", compute), dtype)};
}

// Leaky ReLU whose slope below zero is random while training; noise keeps the slopes.
TPU_POINTWISE(
    "aten::rrelu_with_noise(Tensor self, Tensor(b!) noise, Scalar lower=0.125, Scalar "
    "upper=0.33333333333333331, bool training=False, Generator? generator=None) -> Tensor") {
  const DType dtype = c.dtype_of("self"), compute = hlo::opmath(dtype);
  Value x = c.tensor("self", compute);
  Value lower = c.scalar("lower", compute), upper = c.scalar("upper", compute);
  if (!c.flag("training")) {
    Value slope = (lower + upper) * 0.5;
    return {hlo::convert(hlo::select(hlo::gt(x, 0.0), x, x * slope), dtype)};
  }
  c.check(c.meta("noise").sizes == x.dims(),
          "noise tensor shape must match self tensor shape. Got self.shape = ", x.dims(),
          " noise.shape = ", c.meta("noise").sizes);
  Value slope = unit(c, x.dims(), compute) * (upper - lower) + lower;
  slope = hlo::select(hlo::gt(x, 0.0), hlo::full_like(x, 1), slope);
  c.write("noise", slope);
  return {hlo::convert(x * slope, dtype)};
}

// ---- integers
// ------------------------------------------------------------------------------------

namespace {

// Uniform whole numbers low, ..., low + range - 1; range 0 stands for 2^64.
Value random_integers(Call& c, const Dims& dims, uint64_t range, int64_t low, DType dtype) {
  hlo::Builder& b = c.builder();
  Value y;
  if (range != 0 && range <= (uint64_t{1} << 28)) {
    // The high half of word * range: as even as a remainder, and no division.
    Value w = hlo::convert(hlo::reshape(c.random_bits(hlo::element_count(dims)), dims), DType::U64);
    y = hlo::shift_right_logical(w * u64(b, static_cast<int64_t>(range)), u64(b, 32));
  } else {
    y = random_words(c, dims);
    if (range != 0 && std::has_single_bit(range)) {
      y = hlo::and_(y, u64(b, static_cast<int64_t>(range - 1)));
    } else if (range != 0) {
      y = hlo::remainder(y, u64(b, static_cast<int64_t>(range)));
    }
  }
  y = hlo::bitcast_convert(y, DType::S64);
  if (low != 0) y = y + hlo::constant_int(b, {DType::S64, {}}, low);
  return hlo::convert(y, dtype);
}

// The largest whole number a type is filled up to: all integers up to it are in the type.
int64_t largest(DType dtype) {
  switch (dtype) {
    case DType::Pred:
      return 1;
    case DType::F16:
      return int64_t{1} << 11;
    case DType::BF16:
      return int64_t{1} << 8;
    case DType::F32:
      return int64_t{1} << 24;
    case DType::F64:
      return int64_t{1} << 53;
    case DType::U64:
      return std::numeric_limits<int64_t>::max();
    default:
      break;
  }
  const int bits = hlo::bit_width(dtype) - (hlo::is_signed_integer(dtype) ? 1 : 0);
  return bits >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
}

int64_t smallest(DType dtype) {
  if (hlo::is_floating(dtype)) return -largest(dtype);
  return hlo::is_signed_integer(dtype) ? -largest(dtype) - 1 : 0;
}

Values random_between(Call& c, int64_t from, int64_t to) {  // to excluded
  const TensorArg& self = c.meta("self");
  c.check(from < to, "random_ expects 'from' to be less than 'to', but got from=", from,
          " >= to=", to);
  const bool whole = hlo::is_integer(self.dtype) || self.dtype == DType::Pred;
  if (whole) {
    c.check(from >= smallest(self.dtype) && from <= largest(self.dtype),
            "from is out of bounds for ", self.dtype);
    c.check(to - 1 >= smallest(self.dtype) && to - 1 <= largest(self.dtype),
            "to - 1 is out of bounds for ", self.dtype);
  }
  return {random_integers(c, self.sizes, static_cast<uint64_t>(to) - static_cast<uint64_t>(from),
                          from, self.dtype)};
}

}  // namespace

TPU_POINTWISE("aten::random(Tensor self, *, Generator? generator=None) -> Tensor") {
  const TensorArg& self = c.meta("self");
  return {random_integers(c, self.sizes, static_cast<uint64_t>(largest(self.dtype)) + 1, 0,
                          self.dtype)};
}
TPU_POINTWISE("aten::random.to(Tensor self, int to, *, Generator? generator=None) -> Tensor") {
  return random_between(c, 0, c.integer("to"));
}
TPU_POINTWISE(
    "aten::random.from(Tensor self, int from, int? to, *, Generator? generator=None) -> Tensor") {
  const int64_t from = c.integer("from");
  if (c.has("to")) return random_between(c, from, c.integer("to"));
  const TensorArg& self = c.meta("self");
  const int64_t most = largest(self.dtype);
  c.check(from <= most, "from is out of bounds for ", self.dtype);
  // Up to and with the largest; for int64 from its smallest value that is all 2^64 words.
  return {random_integers(c, self.sizes,
                          static_cast<uint64_t>(most) - static_cast<uint64_t>(from) + 1, from,
                          self.dtype)};
}

// A random order of 0, ..., n-1: the order of random keys, whose low bits carry the number itself.
TPU_OP(
    "aten::randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=4, Layout? "
    "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor") {
  const int64_t n = c.integer("n");
  const DType dtype = wanted_dtype(c, DType::S64);
  c.check(n >= 0, "n must be non-negative, got", n);
  hlo::Builder& b = c.builder();
  if (n <= 1) return {hlo::zeros(b, {dtype, {n}})};
  c.check(hlo::is_floating(dtype) ? n <= largest(dtype) + 1 : n - 1 <= largest(dtype),
          "n is too large for result tensor type: '", dtype, "'");
  const int bits = std::bit_width(static_cast<uint64_t>(n - 1));
  Value keys = hlo::or_(hlo::shift_left(random_words(c, {n}), u64(b, bits)),
                        hlo::iota(b, {DType::U64, {n}}, 0));
  Values operands = {keys};
  Value sorted = hlo::sort(operands, 0, false,
                           [](const Values& l, const Values& r) { return hlo::lt(l[0], r[0]); })[0];
  Value y = hlo::and_(sorted, u64(b, (int64_t{1} << bits) - 1));
  return {hlo::convert(hlo::bitcast_convert(y, DType::S64), dtype)};
}

// ---- multinomial
// ---------------------------------------------------------------------------------

namespace {

// For every row of a running sum (rows, n), the first place whose value exceeds each of x (rows,
// k).
Value first_above(const Value& sums, const Value& x) {
  const int64_t n = sums.dim(1);
  hlo::Builder& b = x.builder();
  Value at = hlo::zeros(b, {DType::S32, x.dims()});
  hlo::GatherDims dims;
  dims.operand_batching_dims = dims.start_indices_batching_dims = {0};
  dims.collapsed_slice_dims = dims.start_index_map = {1};
  dims.index_vector_dim = 2;
  // `at` counts the values known to be no more than x, built from the largest power of two down.
  for (int64_t step = std::bit_floor(static_cast<uint64_t>(n)); step > 0; step /= 2) {
    Value probe = at + static_cast<double>(step - 1);
    Value inside = hlo::lt(probe, static_cast<double>(n));
    Value safe = hlo::minimum(probe, static_cast<double>(n - 1));
    Value value = hlo::gather(sums, hlo::unsqueeze(safe, 2), dims, {1, 1});
    at = hlo::select(inside & hlo::le(value, x), at + static_cast<double>(step), at);
  }
  return hlo::minimum(at, static_cast<double>(n - 1));
}

}  // namespace

// num_samples draws of every row's categories in proportion to their weights. Without replacement:
// the largest of log(weight) + Gumbel noise (Efraimidis and Spirakis). With: inversion of the
// running sum.
TPU_OP(
    "aten::multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? "
    "generator=None) -> Tensor") {
  const TensorArg& self = c.meta("self");
  const int64_t k = c.integer("num_samples");
  c.check(hlo::is_floating(self.dtype),
          "multinomial only supports floating-point dtypes for input, got: ", self.dtype);
  c.check(k > 0, "cannot sample num_samples <= 0 samples");
  c.check(self.rank() == 1 || self.rank() == 2, "prob_dist must be 1 or 2 dim");
  const int64_t n = self.sizes.back(), rows = self.rank() == 2 ? self.sizes[0] : 1;
  c.check(n > 0 && n <= (int64_t{1} << 24), "number of categories must be between 1 and 2^24, got ",
          n);
  const bool replacement = c.flag("replacement");
  c.check(replacement || k <= n,
          "cannot sample num_samples > prob_dist.size(-1) samples without replacement");
  Dims result = self.sizes;
  result.back() = k;
  hlo::Builder& b = c.builder();
  if (rows == 0) return {hlo::zeros(b, {DType::S64, result})};
  const DType compute = hlo::opmath(self.dtype);
  Value p = hlo::reshape(c.tensor("self", compute), {rows, n});
  c.fail_if(~(hlo::ge(p, 0.0) & hlo::is_finite(p)), CheckSpec::Runtime,
            "probability tensor contains either `inf`, `nan` or element < 0");
  Value total = hlo::reduce(p, {1}, hlo::Reduce::Add);
  c.fail_if(hlo::le(total, 0.0), CheckSpec::Runtime,
            "invalid multinomial distribution (sum of probabilities <= 0)");
  Value y;
  if (!replacement || k == 1) {
    Value noise = -hlo::log(-hlo::log(open_unit(c, {rows, n}, compute)));
    Value score = hlo::convert(hlo::log(p) + noise, DType::F32);
    y = hlo::top_k(score, k)[1];
  } else {
    Values xs = {p}, zero = {hlo::zeros(b, {compute, {}})};
    xs = scan(c, xs, zero, 1, [](const Values& before, const Values& after) -> Values {
      return {before[0] + after[0]};
    });
    // Rounding may let a sum fall behind the one before it, which would make room for weights of 0.
    Value sums = scan(c, xs, zero, 1, [](const Values& before, const Values& after) -> Values {
      return {hlo::maximum(before[0], after[0])};
    })[0];
    // Always less than the last sum, so that the place found has a weight.
    Value last = hlo::slice_dim(sums, 1, n - 1, n);
    Value below = hlo::next_after(last, hlo::zeros_like(last));
    Value x = hlo::minimum(unit(c, {rows, k}, compute) * last, below);
    y = first_above(sums, x);
  }
  return {hlo::reshape(hlo::convert(y, DType::S64), result)};
}

}  // namespace torch_tpu::ops
