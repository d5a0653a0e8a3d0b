// SPDX-License-Identifier: Apache-2.0 - Reductions: sums, means, products, logic, variances, norms.
#include "src/ops/reduce.h"

#include <cmath>
#include <limits>

namespace torch_tpu::ops {

int64_t reduced_count(const Value& x, const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= x.dims()[d];
  return n;
}

Value mean(const Value& x, const Dims& dims, bool keepdim) {
  return sum(x, dims, keepdim) / static_cast<double>(reduced_count(x, dims));
}

static Value square(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return x * x;
  Value re = hlo::real(x), im = hlo::imag(x);
  return re * re + im * im;
}

Moments moments(const Value& x, const Dims& dims) {
  Value m = mean(x, dims, true);
  return {m, sum(square(x - m), dims, true)};
}

Extreme extreme(const Value& x, int64_t dim, hlo::Reduce how, bool keepdim) {
  Value best = hlo::reduce(x, {dim}, how, true);
  Value hit = hlo::eq(x, best);
  if (hlo::is_floating(x.dtype())) hit = hit | hlo::is_nan(x);
  DType index = x.dim(dim) > std::numeric_limits<int32_t>::max() ? DType::S64 : DType::S32;
  hlo::Builder& b = x.builder();
  Value place = hlo::iota(b, {index, x.dims()}, dim);
  Value first = hlo::reduce(hlo::select(hit, place, hlo::highest(b, index)), {dim},
                            hlo::Reduce::Minimum, keepdim);
  if (!keepdim) best = hlo::reshape(best, first.dims());
  return {best, hlo::convert(first, DType::S64)};
}

Along along_dim(Call& c, const Value& x, std::string_view name) {
  return {at_least_1d(x), c.wrap(c.integer(name), x.rank()), x.rank() == 0};
}

void check_nonempty(Call& c, const Value& x, int64_t dim) {
  c.check_index(x.dim(dim) > 0, "Expected reduction dim ", dim, " to have non-zero size.");
}

namespace {

using hlo::Reduce;

bool whole(DType d) { return d == DType::Pred || hlo::is_integer(d); }
bool inexact(DType d) { return hlo::is_floating(d) || hlo::is_complex(d); }
Dims dims_of(Call& c, std::string_view name = "dim") {
  return c.reduce_dims(name, c.meta("self").rank());
}
Dims every(Call& c) { return all_dims(c.meta("self").rank()); }
Dims one(Call& c) {  // of `int dim`; none for a 0-dim tensor
  int64_t rank = c.meta("self").rank();
  c.check(rank <= 64, "only tensors with up to 64 dims are supported, got ", rank);
  int64_t dim = c.wrap(c.integer("dim"), rank);
  return rank == 0 ? Dims{} : Dims{dim};
}
bool keepdim(Call& c) { return c.flag("keepdim"); }

// ---- sums --------------------------------------------------------------------------------------
// dtype=None: integers and bool are summed in int64, the others in their own type. The elements are
// converted first; halves are accumulated in float32 and rounded once.
DType sum_dtype(Call& c) {
  if (std::optional<DType> given = c.dtype("dtype")) return *given;
  DType self = c.dtype_of("self");
  return whole(self) ? DType::S64 : self;
}
Value accumulate(Call& c, const Dims& dims, bool keep, Reduce how) {
  DType result = sum_dtype(c);
  Value x = hlo::convert(c.tensor("self", result), hlo::opmath(result));
  return hlo::convert(hlo::reduce(x, dims, how, keep), result);
}
TPU_OP("aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor") {
  return {accumulate(c, every(c), false, Reduce::Add)};
}
TPU_OP(
    "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? "
    "dtype=None) -> Tensor") {
  return {accumulate(c, dims_of(c), keepdim(c), Reduce::Add)};
}
TPU_OP("aten::prod(Tensor self, *, ScalarType? dtype=None) -> Tensor") {
  return {accumulate(c, every(c), false, Reduce::Multiply)};
}
TPU_OP(
    "aten::prod.dim_int(Tensor self, int dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
    "Tensor") {
  return {accumulate(c, one(c), keepdim(c), Reduce::Multiply)};
}

// Sum with NaN as 0.
TPU_OP(
    "aten::nansum(Tensor self, int[1]? dim=None, bool keepdim=False, *, ScalarType? dtype=None) "
    "-> Tensor") {
  c.check(!hlo::is_complex(c.dtype_of("self")), "does not support complex inputs");
  DType result = sum_dtype(c);
  Value x = hlo::convert(c.tensor("self", result), hlo::opmath(result));
  if (hlo::is_floating(x.dtype())) x = hlo::select(hlo::is_nan(x), 0, x);
  return {hlo::convert(sum(x, dims_of(c), keepdim(c)), result)};
}

// sum / n.
Value mean_of(Call& c, const Dims& dims, bool keep) {
  std::optional<DType> given = c.dtype("dtype");
  DType result = given.value_or(c.dtype_of("self"));
  c.check(inexact(result), "could not infer output dtype. ", given ? "Optional" : "Input",
          " dtype must be either a floating point or complex dtype. Got: ", result);
  Value x = hlo::convert(c.tensor("self", result), hlo::opmath(result));
  return hlo::convert(mean(x, dims, keep), result);
}
TPU_OP("aten::mean(Tensor self, *, ScalarType? dtype=None) -> Tensor") {
  return {mean_of(c, every(c), false)};
}
TPU_OP(
    "aten::mean.dim(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> "
    "Tensor") {
  return {mean_of(c, dims_of(c), keepdim(c))};
}

// How many are not 0 (NaN is not 0).
Value count_nonzero(Call& c, const Dims& dims) {
  Value x = c.tensor("self", DType::Pred);
  DType count = reduced_count(x, dims) > std::numeric_limits<int32_t>::max() ? DType::S64   // exact
                                                                             : DType::S32;  // fast
  return hlo::convert(sum(hlo::convert(x, count), dims), DType::S64);
}
TPU_OP("aten::count_nonzero(Tensor self, int? dim=None) -> Tensor") {
  return {count_nonzero(c, dims_of(c))};
}
TPU_OP("aten::count_nonzero.dim_IntList(Tensor self, int[] dim) -> Tensor") {
  return {count_nonzero(c, dims_of(c))};
}

// ---- logic -------------------------------------------------------------------------------------
// bool, but uint8 of uint8.
Value logic(Call& c, const Dims& dims, bool keep, Reduce how) {
  Value r = hlo::reduce(c.tensor("self", DType::Pred), dims, how, keep);
  return c.dtype_of("self") == DType::U8 ? hlo::convert(r, DType::U8) : r;
}
// dim=() reduces nothing here, unlike in sum.
Dims logic_dims(Call& c) { return c.has("dim") && c.ints("dim").empty() ? Dims{} : dims_of(c); }
TPU_OP("aten::any(Tensor self) -> Tensor") { return {logic(c, every(c), false, Reduce::Or)}; }
TPU_OP("aten::any.dim(Tensor self, int dim, bool keepdim=False) -> Tensor") {
  return {logic(c, one(c), keepdim(c), Reduce::Or)};
}
TPU_OP("aten::any.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor") {
  return {logic(c, logic_dims(c), keepdim(c), Reduce::Or)};
}
TPU_OP("aten::all(Tensor self) -> Tensor") { return {logic(c, every(c), false, Reduce::And)}; }
TPU_OP("aten::all.dim(Tensor self, int dim, bool keepdim=False) -> Tensor") {
  return {logic(c, one(c), keepdim(c), Reduce::And)};
}
TPU_OP("aten::all.dims(Tensor self, int[]? dim=None, bool keepdim=False) -> Tensor") {
  return {logic(c, logic_dims(c), keepdim(c), Reduce::And)};
}

// ---- extremes ----------------------------------------------------------------------------------
void check_ordered(Call& c) {
  c.check_supported(!hlo::is_complex(c.dtype_of("self")), "does not support complex input");
}
Value extreme_value(Call& c, const Dims& dims, bool keep, Reduce how) {
  check_ordered(c);
  Value x = c.tensor("self");
  if (x.elements() == 0) {
    c.check(!c.ints("dim").empty(),
            "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction "
            "dim with the 'dim' argument.");
    for (int64_t d : dims) check_nonempty(c, x, d);
  }
  return hlo::reduce(x, dims, how, keep);
}
TPU_OP("aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor") {
  return {extreme_value(c, dims_of(c), keepdim(c), Reduce::Maximum)};
}
TPU_OP("aten::amin(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor") {
  return {extreme_value(c, dims_of(c), keepdim(c), Reduce::Minimum)};
}

Value extreme_of_all(Call& c, Reduce how) {
  check_ordered(c);
  Value x = c.tensor("self");
  c.check(x.elements() > 0,
          "Expected reduction dim to be specified for input.numel() == 0. Specify the reduction "
          "dim with the 'dim' argument.");
  return hlo::reduce(x, all_dims(x.rank()), how);
}
TPU_OP("aten::max(Tensor self) -> Tensor") { return {extreme_of_all(c, Reduce::Maximum)}; }
TPU_OP("aten::min(Tensor self) -> Tensor") { return {extreme_of_all(c, Reduce::Minimum)}; }

Values extreme_dim(Call& c, Reduce how) {
  check_ordered(c);
  Along a = along_dim(c, c.tensor("self"));
  check_nonempty(c, a.x, a.dim);
  Extreme e = extreme(a.x, a.dim, how, keepdim(c) && !a.scalar);
  return {e.value, e.index};
}
TPU_OP(
    "aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)") {
  return extreme_dim(c, Reduce::Maximum);
}
TPU_OP(
    "aten::min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)") {
  return extreme_dim(c, Reduce::Minimum);
}

Value extreme_index(Call& c, Reduce how) {
  check_ordered(c);
  c.check(c.dtype_of("self") != DType::Pred, "does not support bool input");
  Value x = c.tensor("self");
  if (c.has("dim")) {
    Along a = along_dim(c, x);
    check_nonempty(c, a.x, a.dim);
    return extreme(a.x, a.dim, how, keepdim(c) && !a.scalar).index;
  }
  c.check_index(x.elements() > 0, "Expected reduction dim to be specified for input.numel() == 0.");
  Value index = extreme(hlo::reshape(x, {x.elements()}), 0, how, false).index;
  return keepdim(c) ? hlo::reshape(index, Dims(x.rank(), 1)) : index;
}
TPU_OP("aten::argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor") {
  return {extreme_index(c, Reduce::Maximum)};
}
TPU_OP("aten::argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor") {
  return {extreme_index(c, Reduce::Minimum)};
}

Values aminmax(Call& c, const Value& x, const Dims& dims, bool keep) {
  check_ordered(c);
  return {hlo::reduce(x, dims, Reduce::Minimum, keep), hlo::reduce(x, dims, Reduce::Maximum, keep)};
}
TPU_OP(
    "aten::aminmax(Tensor self, *, int? dim=None, bool keepdim=False) -> (Tensor min, Tensor "
    "max)") {
  c.exact_outs();
  Value x = c.tensor("self");
  if (!c.has("dim")) {
    c.check(x.elements() > 0,
            "cannot compute aminmax over an empty dimension as the operation has no identity.");
    return aminmax(c, x, every(c), keepdim(c));
  }
  Dims dims = one(c);
  for (int64_t d : dims) check_nonempty(c, x, d);
  return aminmax(c, x, dims, keepdim(c));
}
TPU_OP("aten::_aminmax(Tensor self) -> (Tensor, Tensor)") {
  return aminmax(c, c.tensor("self"), every(c), false);
}
TPU_OP("aten::_aminmax.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor, Tensor)") {
  return aminmax(c, c.tensor("self"), one(c), keepdim(c));
}

// ---- variance ----------------------------------------------------------------------------------
// var = sum |x - mean|^2 / max(0, n - correction), std its root; correction=None is 1.
struct Variance {
  Value var, mean;
};
Variance variance(Call& c, bool root) {
  DType self = c.dtype_of("self");
  c.check(inexact(self), "only supports floating point and complex dtypes, got ", self);
  Value x = c.tensor("self", hlo::opmath(self));
  Dims dims = dims_of(c);
  Moments m = moments(x, dims);
  double n = static_cast<double>(reduced_count(x, dims));
  Value var;
  if (!c.has("correction") || c.equals("correction", 1)) {
    var = m.squares / std::max(0.0, n - 1);
  } else if (c.equals("correction", 0)) {
    var = m.squares / n;
  } else {
    Value correction = c.scalar("correction", m.squares.dtype());
    var = m.squares / hlo::maximum(n - correction, 0);
  }
  if (root) var = hlo::sqrt(var);
  Value mean = m.mean;
  if (!keepdim(c)) {
    Dims kept;
    for (int64_t d = 0, i = 0; d < x.rank(); ++d) {
      if (i < static_cast<int64_t>(dims.size()) && dims[i] == d) {
        ++i;
      } else {
        kept.push_back(x.dims()[d]);
      }
    }
    var = hlo::reshape(var, kept);
    mean = hlo::reshape(mean, kept);
  }
  return {hlo::convert(var, hlo::real_of(self)), hlo::convert(mean, self)};
}
TPU_OP(
    "aten::var.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> Tensor") {
  return {variance(c, false).var};
}
TPU_OP(
    "aten::std.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> Tensor") {
  return {variance(c, true).var};
}
TPU_OP(
    "aten::var_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> (Tensor, Tensor)") {
  Variance v = variance(c, false);
  return {v.var, v.mean};
}
TPU_OP(
    "aten::std_mean.correction(Tensor self, int[1]? dim=None, *, Scalar? correction=None, bool "
    "keepdim=False) -> (Tensor, Tensor)") {
  Variance v = variance(c, true);
  return {v.var, v.mean};
}

// ---- logsumexp and norms -----------------------------------------------------------------------
// log sum exp(x - m) + m with m the largest (by real part), 0 where that is infinite.
TPU_OP("aten::logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor") {
  DType result = c.float_result_type({"self"});
  Value x = c.tensor("self", hlo::opmath(result));
  Dims dims = dims_of(c);
  bool keep = keepdim(c);
  if (x.elements() == 0) {
    return {hlo::convert(hlo::log(sum(hlo::exponential(x), dims, keep)), result)};
  }
  Value top =
      hlo::reduce(hlo::is_complex(x.dtype()) ? hlo::real(x) : x, dims, Reduce::Maximum, true);
  double infinity = std::numeric_limits<double>::infinity();
  top = hlo::convert(hlo::select(hlo::eq(hlo::abs(top), infinity), 0, top), x.dtype());
  Value total = hlo::log(sum(hlo::exponential(x - top), dims, keep));
  return {hlo::convert(total + hlo::reshape(top, total.dims()), result)};
}

// (sum |x|^p)^(1/p); p = 0 counts, +-inf are the extremes. Which p is 0, 1, 2 or +-inf is known
// when compiling; any other is a run-time input.
Value vector_norm(Call& c, std::string_view ord, DType in, const Dims& dims, bool keep) {
  Value x = hlo::convert(c.tensor("self", in), hlo::opmath(in));
  DType real = hlo::real_of(x.dtype());
  const double infinity = std::numeric_limits<double>::infinity();
  auto is = [&](double p) { return c.has(ord) ? c.equals(ord, p) : p == 2; };
  if (reduced_count(x, dims) == 0 && c.has(ord)) {
    double p = c.real(ord);
    c.check(p >= 0 && p != infinity, "cannot compute the ", p,
            " norm on an empty tensor because the operation does not have an identity");
  }
  if (is(2)) return hlo::sqrt(sum(square(x), dims, keep));
  if (is(0)) return sum(hlo::convert(hlo::convert(x, DType::Pred), real), dims, keep);
  Value size = hlo::abs(x);
  if (is(1)) return sum(size, dims, keep);
  if (is(infinity)) return hlo::reduce(size, dims, Reduce::Maximum, keep);
  if (is(-infinity)) return hlo::reduce(size, dims, Reduce::Minimum, keep);
  Value p = c.scalar(ord, real);
  return hlo::power(sum(hlo::power(size, p), dims, keep), 1.0 / p);
}
TPU_OP(
    "aten::linalg_vector_norm(Tensor self, Scalar ord=2, int[1]? dim=None, bool keepdim=False, *, "
    "ScalarType? dtype=None) -> Tensor") {
  DType self = c.dtype_of("self");
  c.check(inexact(self), "Expected a floating point or complex tensor as input. Got ", self);
  DType in = self;
  if (std::optional<DType> dtype = c.dtype("dtype")) {
    bool complex = hlo::is_complex(self);
    c.check(inexact(*dtype), "dtype should be floating point or complex. Got ", *dtype);
    c.check(complex == hlo::is_complex(*dtype), "dtype should be ", complex ? "complex" : "real",
            " for ", complex ? "complex" : "real", " inputs, but got ", *dtype);
    c.check(graph::promote(self, *dtype) == *dtype, "the dtype of the input (", self,
            ") should be convertible without narrowing to the specified dtype (", *dtype, ")");
    in = *dtype;
  }
  return {hlo::convert(vector_norm(c, "ord", in, dims_of(c), keepdim(c)), hlo::real_of(in))};
}

Value norm(Call& c, const Dims& dims, bool keep, std::optional<DType> dtype) {
  DType result = dtype.value_or(c.dtype_of("self"));
  c.check(inexact(result),
          "the desired output dtype should be either floating point or complex. Got ", result,
          " instead.");
  return hlo::convert(vector_norm(c, "p", result, dims, keep), hlo::real_of(result));
}
TPU_OP("aten::norm.Scalar(Tensor self, Scalar p=2) -> Tensor") {
  return {norm(c, every(c), false, {})};
}
TPU_OP("aten::norm.ScalarOpt_dtype(Tensor self, Scalar? p, *, ScalarType dtype) -> Tensor") {
  return {norm(c, every(c), false, c.dtype("dtype"))};
}
TPU_OP(
    "aten::norm.ScalarOpt_dim(Tensor self, Scalar? p, int[1] dim, bool keepdim=False) -> Tensor") {
  return {norm(c, dims_of(c), keepdim(c), {})};
}
TPU_OP(
    "aten::norm.ScalarOpt_dim_dtype(Tensor self, Scalar? p, int[1] dim, bool keepdim, *, "
    "ScalarType dtype) -> Tensor") {
  return {norm(c, dims_of(c), keepdim(c), c.dtype("dtype"))};
}

// ---- a hash ------------------------------------------------------------------------------------

// The bits of x as a float64. A TPU has no bits of float64: for narrower floats they are made.
Value double_bits(const Value& x) {
  if (x.dtype() == DType::F64) return hlo::bitcast_convert(x, DType::U64);
  const auto u64 = [&](int64_t v) { return hlo::constant_int(x.builder(), {DType::U64, {}}, v); };
  const auto left = [&](const Value& v, int64_t n) { return hlo::shift_left(v, u64(n)); };
  const auto right = [&](const Value& v, int64_t n) { return hlo::shift_right_logical(v, u64(n)); };
  Value bits =
      hlo::convert(hlo::bitcast_convert(hlo::convert(x, DType::F32), DType::U32), DType::U64);
  Value exponent = hlo::and_(right(bits, 23), u64(255)), mantissa = hlo::and_(bits, u64(0x7fffff));
  // A subnormal is its mantissa times 2^-149: moved up until its first bit is the hidden one.
  Value up =
      hlo::convert(hlo::count_leading_zeros(hlo::convert(mantissa, DType::U32)), DType::U64) -
      u64(8);
  Value small = hlo::eq(exponent, u64(0));
  Value wide = hlo::select(small, u64(897) - up, exponent + u64(896));
  wide = hlo::select(hlo::eq(exponent, u64(255)), u64(2047), wide);
  Value moved = hlo::and_(hlo::shift_left(mantissa, up), u64(0x7fffff));
  mantissa = hlo::select(small, moved, mantissa);
  Value number = hlo::or_(left(wide, 52), left(mantissa, 29));
  Value zero = hlo::eq(hlo::and_(bits, u64(0x7fffffff)), u64(0));
  return hlo::or_(left(right(bits, 31), 63), hlo::select(zero, u64(0), number));
}

// The exclusive or of the elements as 64-bit integers, or of their bits as float64.
TPU_OP(
    "aten::hash_tensor(Tensor self, int[1] dim=[], *, bool keepdim=False, int mode=0) -> Tensor") {
  const DType dtype = c.dtype_of("self");
  c.check_supported(!hlo::is_complex(dtype), "not implemented for '", dtype, "'");
  c.check(c.integer("mode") == 0, "Unknown hash mode: ", c.integer("mode"));
  Value x = c.tensor("self");
  Dims dims = dims_of(c);
  c.check_index(x.elements() > 0 || !c.ints("dim").empty(),
                "Expected reduction dim to be specified for input.numel() == 0. Specify the "
                "reduction dim with the 'dim' argument.");
  for (int64_t d : dims)
    if (x.rank() > 0) check_nonempty(c, x, d);
  Value bits = hlo::is_floating(dtype) ? double_bits(x) : hlo::convert(x, DType::U64);
  const Value xs[] = {bits};
  const Value inits[] = {hlo::scalar(c.builder(), DType::U64, 0)};
  if (dims.empty()) return {bits};
  Value y = hlo::reduce_general(xs, inits, dims, [](const Values& a, const Values& b) -> Values {
    return {hlo::xor_(a[0], b[0])};
  })[0];
  if (keepdim(c))
    for (int64_t d : dims) y = hlo::unsqueeze(y, d);
  return {y};
}

}  // namespace
}  // namespace torch_tpu::ops
