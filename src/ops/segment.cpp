// SPDX-License-Identifier: Apache-2.0 - Reductions of segments that follow one another along an axis.
//
// Everything is done on [outer, n, inner]; each of the n rows is scattered onto its segment, and
// those of none onto one more segment that is cut off.
#include <limits>

#include "src/ops/contraction.h"
#include "src/ops/index.h"
#include "src/ops/pointwise.h"
#include "src/ops/scan.h"

namespace torch_tpu::ops {

using graph::CheckSpec;

namespace {

struct Segments {
  int64_t outer = 1, n = 0, inner = 1, count = 0;
  Value row;      // S32 [outer * n]: which row of [outer * (count + 1)] it belongs to
  Value lengths;  // S32 [outer, count]
  Dims data, result;
};

Value prefix_sums(const Call& c, const Value& x) {  // along dimension 1
  Value zero = hlo::scalar(x.builder(), x.dtype(), 0);
  return scan(c, {&x, 1}, {&zero, 1}, 1,
              [](const Values& a, const Values& b) -> Values { return {a[0] + b[0]}; })[0];
}

Value plus(const Value& a, const Value& b) { return a + b; }

Segments segments(Call& c) {
  hlo::Builder& b = c.builder();
  Segments s;
  s.data = c.meta("data").sizes;
  const int64_t axis = c.wrap(c.integer("axis"), c.meta("data").rank());
  const bool by_length = c.has("lengths");
  c.check(by_length || c.has("offsets"),
          "segment_reduce(): Either lengths or offsets must be defined.");
  const char* name = by_length ? "lengths" : "offsets";
  const TensorArg& given = c.meta(name);
  c.check(hlo::is_integer(given.dtype), name, " must be an integer tensor, got ", given.dtype);
  c.check(given.rank() == axis + 1, name, " must have ", axis + 1, " dimensions, got sizes ",
          given.sizes);
  for (int64_t i = 0; i < axis; ++i) {
    c.check(given.sizes[i] == s.data[i], name,
            " and data must agree in the dimensions before axis ", axis, ", got ", given.sizes,
            " and ", s.data);
    s.outer *= s.data[i];
  }
  s.n = s.data[axis];
  for (size_t i = axis + 1; i < s.data.size(); ++i) s.inner *= s.data[i];
  s.count = given.sizes.back() - (by_length ? 0 : 1);
  c.check(s.count >= 0, "offsets must not be empty");
  s.result = s.data;
  s.result[axis] = s.count;
  Value x = hlo::reshape(c.tensor(name, DType::S32), {s.outer, given.sizes.back()});
  Value ends, first;  // [outer, count], [outer, 1]
  if (by_length) {
    s.lengths = x;
    ends = s.count == 0 ? x : prefix_sums(c, x);
    first = hlo::zeros(b, {DType::S32, {s.outer, 1}});
  } else {
    first = hlo::slice_dim(x, 1, 0, 1);
    ends = hlo::slice_dim(x, 1, 1, s.count + 1);
    s.lengths = ends - hlo::slice_dim(x, 1, 0, s.count);
  }
  // How many segments end at or before each place.
  const Dims places = {s.outer, s.n};
  Value segment = hlo::zeros(b, {DType::S32, places});
  if (s.count > 0 && s.outer > 0 && s.n > 0) {
    const auto last = static_cast<double>(s.n);
    Value at = hlo::minimum(hlo::maximum(ends, 0.0), last) +
               hlo::iota(b, {DType::S32, ends.dims()}, 0) * (last + 1);
    at = hlo::reshape(at, {s.outer * s.count});
    Value marks = scatter_rows(hlo::zeros(b, {DType::S32, {s.outer * (s.n + 1)}}), 0, at,
                               hlo::full_like(at, 1), plus);
    marks = hlo::slice_dim(hlo::reshape(marks, {s.outer, s.n + 1}), 1, 0, s.n);
    segment = prefix_sums(c, marks);
  }
  Value place = hlo::iota(b, {DType::S32, places}, 1);
  segment = hlo::select(hlo::lt(place, first), static_cast<double>(s.count), segment);
  segment = segment + hlo::iota(b, {DType::S32, places}, 0) * static_cast<double>(s.count + 1);
  s.row = hlo::reshape(segment, {s.outer * s.n});
  return s;
}

// x [outer * n, inner] combined into [outer * (count + 1), inner].
Value gathered_up(const Segments& s, const Value& x, const Value& init,
                  const hlo::Combiner& combine) {
  Value zero = hlo::broadcast_to(init, {s.outer * (s.count + 1), s.inner});
  if (x.elements() == 0) return zero;
  return scatter_rows(zero, 0, s.row, x, combine);
}
// The inverse: what each row's segment has.
Value spread_out(const Segments& s, const Value& x) {
  if (s.outer * s.n * s.inner == 0)
    return hlo::zeros(x.builder(), {x.dtype(), {s.outer * s.n, s.inner}});
  return hlo::take(x, s.row, 0);
}
Value without_rest(const Segments& s, const Value& x) {
  Value all = hlo::reshape(x, {s.outer, s.count + 1, s.inner});
  return hlo::slice_dim(all, 1, 0, s.count);
}
// x of the result's sizes as rows, zero where no segment is.
Value with_rest(const Segments& s, const Value& x) {
  Value rows = hlo::reshape(x, {s.outer, s.count, s.inner});
  rows = hlo::pad(rows, hlo::scalar(x.builder(), x.dtype(), 0), {0, 0, 0}, {0, 1, 0});
  return hlo::reshape(rows, {s.outer * (s.count + 1), s.inner});
}

Value of_lengths(const Segments& s, DType dtype) {
  return hlo::unsqueeze(hlo::convert(s.lengths, dtype), 2);
}

}  // namespace

// A segment of nothing gives `initial`, or what the reduction gives for nothing: 0, NaN (mean), 1,
// -inf or inf.
TPU_OP(
    "aten::segment_reduce(Tensor data, str reduce, *, Tensor? lengths=None, Tensor? indices=None, "
    "Tensor? offsets=None, int axis=0, bool unsafe=False, Scalar? initial=None) -> Tensor") {
  const DType dtype = c.dtype_of("data"), compute = hlo::opmath(dtype);
  require_real_float(c, dtype);
  c.check(!c.has("indices"), "segment_reduce(): indices based reduction is not supported yet.");
  const std::string how = c.text("reduce");
  const Segments s = segments(c);
  if (c.has("lengths") && !c.flag("unsafe") && s.count > 0 && s.outer > 0) {
    c.fail_if(hlo::lt(s.lengths, 0), CheckSpec::Runtime, "lengths contains negative value!");
    Value total = hlo::reduce(s.lengths, {1}, hlo::Reduce::Add);
    c.fail_if(hlo::ne(total, static_cast<double>(s.n)), CheckSpec::Runtime,
              "segment_reduce(): Expected all rows of lengths along axis to sum to "
              "data.size(lengths.dim()-1) when !unsafe.");
  }
  const bool mean = how == "mean";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double nothing = 0;
  hlo::Combiner combine = plus;
  if (how == "max") {
    nothing = -kInfinity;
    combine = [](const Value& a, const Value& b) { return hlo::maximum(a, b); };
  } else if (how == "min") {
    nothing = kInfinity;
    combine = [](const Value& a, const Value& b) { return hlo::minimum(a, b); };
  } else if (how == "prod") {
    nothing = 1;
    combine = [](const Value& a, const Value& b) { return a * b; };
  } else {
    c.check(mean || how == "sum", "segment_reduce(): unknown reduction '", how,
            "', expected one of sum, mean, max, min, prod");
  }
  Value init =
      c.has("initial") ? c.scalar("initial", compute) : hlo::scalar(c.builder(), compute, nothing);
  Value x = hlo::reshape(c.tensor("data", compute), {s.outer * s.n, s.inner});
  Value y = without_rest(s, gathered_up(s, x, init, combine));
  if (mean && y.elements() > 0) {
    Value length = of_lengths(s, compute);
    if (c.has("initial")) length = hlo::maximum(length, 1.0);  // the initial value itself
    y = y / length;
  }
  return {hlo::convert(hlo::reshape(y, s.result), dtype)};
}

// sum: g; mean: g / n; max and min: g shared by the elements that are the extreme; prod: g times
// the product of the others.
TPU_OP(
    "aten::_segment_reduce_backward(Tensor grad, Tensor output, Tensor data, str reduce, *, "
    "Tensor? lengths=None, Tensor? offsets=None, int axis=0, Scalar? initial=None) -> Tensor") {
  const DType dtype = c.dtype_of("data"), compute = hlo::opmath(dtype);
  const std::string how = c.text("reduce");
  const Segments s = segments(c);
  Value x = hlo::reshape(c.tensor("data", compute), {s.outer * s.n, s.inner});
  Value given = hlo::reshape(c.tensor("grad", compute), {s.outer, s.count, s.inner});
  if (how == "mean" && given.elements() > 0) given = given / of_lengths(s, compute);
  Value grad = spread_out(s, with_rest(s, given));
  const auto finish = [&](const Value& y) -> Values {
    return {hlo::convert(hlo::reshape(y, s.data), dtype)};
  };
  if (how == "sum" || how == "mean" || x.elements() == 0) return finish(grad);
  Value zero = hlo::scalar(c.builder(), compute, 0), one = hlo::scalar(c.builder(), compute, 1);
  Value output = spread_out(s, with_rest(s, c.tensor("output", compute)));
  const auto tally = [&](const Value& which) {
    return spread_out(s, gathered_up(s, hlo::convert(which, compute), zero, plus));
  };
  if (how == "max" || how == "min") {
    Value hit = hlo::eq(x, output) | hlo::is_nan(x);
    return finish(hlo::select(hit, grad / hlo::maximum(tally(hit), 1.0), 0.0));
  }
  // Where dividing the product by an element loses it, the product of the others is formed.
  const auto others = [&](const Value& which) {
    Value kept = hlo::select(which, 1.0, x);
    Value product = gathered_up(s, kept, c.has("initial") ? c.scalar("initial", compute) : one,
                                [](const Value& a, const Value& b) { return a * b; });
    return spread_out(s, product);
  };
  Value is_zero = hlo::eq(x, 0), is_nan = hlo::is_nan(x);
  Value without_zero = hlo::select(hlo::eq(tally(is_zero), 1), others(is_zero), 0.0);
  Value nan = hlo::nan_of(c.builder(), compute);
  Value without_nan = hlo::select(hlo::eq(tally(is_nan), 1), others(is_nan), nan);
  Value rest = hlo::select(is_zero, without_zero, hlo::select(is_nan, without_nan, output / x));
  return finish(grad * rest);
}

}  // namespace torch_tpu::ops
