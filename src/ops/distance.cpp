// SPDX-License-Identifier: Apache-2.0 - Distances between rows: cdist, pdist, dist, and renorm.
#include <limits>

#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

using hlo::Reduce;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// p-norms by what of p is known when compiling; any other p is a run-time input.
enum class Norm : uint8_t { Zero, One, Two, Infinite, Any };
Norm norm_of(Call& c) {
  if (c.equals("p", 2)) return Norm::Two;
  if (c.equals("p", 1)) return Norm::One;
  if (c.equals("p", 0)) return Norm::Zero;
  if (c.equals("p", kInfinity)) return Norm::Infinite;
  return Norm::Any;
}

// (sum |d|^p)^(1/p) over dims.
Value norm(Call& c, Norm how, const Value& d, const Dims& dims, bool keepdim = false) {
  switch (how) {
    case Norm::Zero:
      return sum(hlo::convert(hlo::ne(d, 0), d.dtype()), dims, keepdim);
    case Norm::One:
      return sum(hlo::abs(d), dims, keepdim);
    case Norm::Two:
      return hlo::sqrt(sum(d * d, dims, keepdim));
    case Norm::Infinite:
      return hlo::reduce(hlo::abs(d), dims, Reduce::Maximum, keepdim);
    case Norm::Any:
      break;
  }
  Value p = c.scalar("p", d.dtype());
  return hlo::power(sum(hlo::power(hlo::abs(d), p), dims, keepdim), 1.0 / p);
}

// d norm / d d for a norm n of d (broadcast): sign(d) (|d| / n)^(p - 1), 0 where the norm is 0.
Value norm_slope(Call& c, Norm how, const Value& d, const Value& n) {
  Value zero = hlo::zeros_like(d);
  switch (how) {
    case Norm::Zero:
      return zero;
    case Norm::One:
      return hlo::sign(d);
    case Norm::Two:
      return hlo::select(hlo::eq(n, 0), zero, d / n);
    case Norm::Infinite:
      return hlo::select(hlo::eq(hlo::abs(d), n), hlo::sign(d), zero);
    case Norm::Any:
      break;
  }
  Value q = c.scalar("p", d.dtype()) - 1;
  Value slope = hlo::sign(d) * hlo::power(hlo::abs(d), q) / hlo::power(n, q);
  return hlo::select(hlo::eq(n, 0) | hlo::eq(d, 0), zero, slope);
}

// ---- cdist -------------------------------------------------------------------------------------
// x1 [.., P, M], x2 [.., R, M] -> [.., P, R].
struct Pairs {
  Value x1, x2;  // of one batch shape
  Dims cube;     // [.., P, R, M]
  int64_t rank;
};
Pairs pairs(Call& c, DType compute) {
  const Dims &s1 = c.meta("x1").sizes, &s2 = c.meta("x2").sizes;
  c.check(s1.size() >= 2 && s2.size() >= 2,
          "cdist only supports at least 2D tensors, X1 got: ", s1.size(), "D, X2 got: ", s2.size(),
          "D");
  c.check(s1.back() == s2.back(), "X1 and X2 must have the same number of columns. X1: ", s1.back(),
          " X2: ", s2.back());
  Dims b1(s1.begin(), s1.end() - 2), b2(s2.begin(), s2.end() - 2);
  Dims batch = c.broadcast({&b1, &b2});
  auto with = [&](std::initializer_list<int64_t> tail) {
    Dims d = batch;
    d.insert(d.end(), tail);
    return d;
  };
  int64_t p = s1[s1.size() - 2], r = s2[s2.size() - 2], m = s1.back();
  Pairs out{hlo::broadcast_to(c.tensor("x1", compute), with({p, m})),
            hlo::broadcast_to(c.tensor("x2", compute), with({r, m})), with({p, r, m}), 0};
  out.rank = static_cast<int64_t>(out.cube.size());
  return out;
}
Value difference(const Pairs& p) {
  return hlo::unsqueeze(p.x1, p.rank - 2) - hlo::unsqueeze(p.x2, p.rank - 3);
}
// |x1|^2 - 2 x1 x2 + |x2|^2: one matmul, at the price of cancellation.
Value euclidean_by_matmul(Call& c, const Pairs& p) {
  int64_t last = p.rank - 2;
  Dims batch;
  for (int64_t d = 0; d < last - 1; ++d) batch.push_back(d);
  Value product = hlo::dot_general(p.x1, p.x2, batch, batch, {last}, {last}, {}, c.precision());
  Value n1 = hlo::unsqueeze(sum(p.x1 * p.x1, {last}), last);
  Value n2 = hlo::unsqueeze(sum(p.x2 * p.x2, {last}), last - 1);
  return hlo::sqrt(hlo::maximum(n1 + n2 - product * 2.0, 0));
}
TPU_OP("aten::_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor") {
  DType result = c.result_type({"x1", "x2"});
  c.check(hlo::is_floating(result), "cdist only supports floating-point dtypes, got ", result);
  Pairs p = pairs(c, hlo::opmath(result));
  Norm how = norm_of(c);
  int64_t mode = c.integer_or_none("compute_mode").value_or(0);
  c.check(mode >= 0 && mode <= 2, "possible modes: 0, 1, 2, but was: ", mode);
  int64_t rows = p.cube[p.rank - 3], columns = p.cube[p.rank - 2];
  bool matmul = how == Norm::Two && (mode == 1 || (mode == 0 && (rows > 25 || columns > 25)));
  if (p.cube.back() == 0) {
    p.cube.pop_back();
    return {hlo::zeros(c.builder(), {result, p.cube})};
  }
  Value d = matmul ? euclidean_by_matmul(c, p) : norm(c, how, difference(p), {p.rank - 1});
  return {hlo::convert(d, result)};
}
TPU_OP("aten::_euclidean_dist(Tensor x1, Tensor x2) -> Tensor") {
  DType result = c.result_type({"x1", "x2"});
  return {hlo::convert(euclidean_by_matmul(c, pairs(c, hlo::opmath(result))), result)};
}
// dx1 = sum over R of g slope(x1 - x2).
TPU_OP(
    "aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor") {
  DType result = c.dtype_of("x1"), compute = hlo::opmath(result);
  Pairs p = pairs(c, compute);
  Dims flat = p.cube;
  flat.back() = 1;
  Value g = hlo::reshape(c.tensor("grad", compute), flat);
  Value n = hlo::reshape(c.tensor("cdist", compute), flat);
  Value dx = sum(g * norm_slope(c, norm_of(c), difference(p), n), {p.rank - 2});
  return {hlo::convert(dx, result)};
}

// ---- pdist -------------------------------------------------------------------------------------
// The pairs i < j of n rows in order, computed from their number k: i is the largest with
// i (2 n - i - 1) / 2 <= k. The root is corrected in integers.
struct PairIndex {
  Value i, j;  // S32 [n (n - 1) / 2]
};
PairIndex pair_index(Call& c, int64_t n) {
  hlo::Type type{DType::S64, {n * (n - 1) / 2}};
  Value k = hlo::iota(c.builder(), type, 0);
  Value one = hlo::constant_int(c.builder(), type, 1);
  double b = 2.0 * static_cast<double>(n) - 1;
  Value root = hlo::sqrt(hlo::maximum(b * b - hlo::convert(k, DType::F64) * 8.0, 0));
  Value i = hlo::convert(hlo::floor((b - root) * 0.5), DType::S64);
  auto first = [&](const Value& row) {  // the number of the first pair of a row
    return hlo::shift_right_arithmetic(row * (2.0 * static_cast<double>(n) - 1 - row), one);
  };
  i = hlo::select(hlo::gt(first(i), k), i - one, i);
  i = hlo::select(hlo::le(first(i + one), k), i + one, i);
  Value j = k - first(i) + i + one;
  return {hlo::convert(i, DType::S32), hlo::convert(j, DType::S32)};
}
TPU_OP("aten::_pdist_forward(Tensor self, float p=2.) -> Tensor") {
  DType result = c.dtype_of("self");
  c.check(c.meta("self").rank() == 2,
          "pdist only supports 2D tensors, got: ", c.meta("self").rank(), "D");
  Value x = c.tensor("self", hlo::opmath(result));
  if (x.dim(0) <= 1) return {hlo::zeros(c.builder(), {result, {0}})};
  PairIndex at = pair_index(c, x.dim(0));
  if (x.dim(1) == 0) return {hlo::zeros(c.builder(), {result, at.i.dims()})};
  Value d = hlo::take(x, at.i, 0) - hlo::take(x, at.j, 0);
  return {hlo::convert(norm(c, norm_of(c), d, {1}), result)};
}
TPU_OP("aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Value x = c.tensor("self", compute);
  if (x.dim(0) <= 1 || x.dim(1) == 0) return {hlo::zeros(c.builder(), {result, x.dims()})};
  PairIndex at = pair_index(c, x.dim(0));
  Value d = hlo::take(x, at.i, 0) - hlo::take(x, at.j, 0);
  Dims column{at.i.dim(0), 1};
  Value g = hlo::reshape(c.tensor("grad", compute), column);
  Value v = g * norm_slope(c, norm_of(c), d, hlo::reshape(c.tensor("pdist", compute), column));
  auto add = [](const Value& a, const Value& b) { return a + b; };
  Value dx = scatter_rows(hlo::zeros_like(x), 0, at.i, v, add);
  return {hlo::convert(scatter_rows(dx, 0, at.j, -v, add), result)};
}

// |self - other|_p.
TPU_OP("aten::dist(Tensor self, Tensor other, Scalar p=2) -> Tensor") {
  DType result = c.result_type({"self", "other"});
  c.check(hlo::is_floating(result) || hlo::is_complex(result),
          "only supports floating-point dtypes, got ", result);
  DType compute = hlo::opmath(result);
  Value d = c.tensor("self", compute) - c.tensor("other", compute);
  if (hlo::is_complex(compute)) d = hlo::abs(d);
  Dims all = all_dims(d.rank());
  bool least = c.equals("p", -kInfinity);
  Value n = least ? hlo::reduce(hlo::abs(d), all, Reduce::Minimum) : norm(c, norm_of(c), d, all);
  return {hlo::convert(n, hlo::real_of(result))};
}

// Slices along dim whose norm is over maxnorm are scaled by maxnorm / (norm + 1e-7).
TPU_OP("aten::renorm(Tensor self, Scalar p, int dim, Scalar maxnorm) -> Tensor") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Value x = c.tensor("self", compute);
  c.check(x.rank() > 1, "input needs at least 2 dimensions, got ", x.rank(), " dimensions");
  Dims others = dims_but(x.rank(), c.wrap(c.integer("dim"), x.rank()));
  Value size = hlo::is_complex(compute) ? hlo::abs(x) : x;
  Norm how = norm_of(c);
  c.check(how != Norm::Zero, "non-positive-norm not supported");
  if (how == Norm::Any) {
    c.fail_if(hlo::le(c.scalar("p", size.dtype()), 0), graph::CheckSpec::Runtime,
              "renorm: non-positive-norm not supported");
  }
  Value n = norm(c, how, size, others, true);
  Value limit = c.scalar("maxnorm", size.dtype());
  Value factor = hlo::select(hlo::gt(n, limit), limit / (n + 1e-7), hlo::full_like(n, 1));
  return {hlo::convert(x * hlo::convert(factor, compute), result)};
}

}  // namespace
}  // namespace torch_tpu::ops
