// SPDX-License-Identifier: Apache-2.0 - Order statistics, histograms and binary search.
#include <limits>

#include "src/ops/reduce.h"
#include "src/ops/scan.h"

namespace torch_tpu::ops {
namespace {

using graph::CheckSpec;
using hlo::Reduce;

// ---- order statistics --------------------------------------------------------------------------
// Sorted along dim, NaN last, and where each element was (S32). Equal elements keep their order.
struct Sorted {
  Value value, place;
};
Sorted sorted(const Value& x, int64_t dim) {
  Value place = hlo::iota(x.builder(), {DType::S32, x.dims()}, dim);
  const Value xs[] = {x, place};
  bool floating = hlo::is_floating(x.dtype());
  Values s = hlo::sort(xs, dim, true, [&](const Values& a, const Values& b) {
    Value less = hlo::lt(a[0], b[0]);
    return floating ? less | (hlo::is_nan(b[0]) & ~hlo::is_nan(a[0])) : less;
  });
  return {s[0], s[1]};
}
// x at position k (S32, dim kept as 1) along dim.
Value at(const Value& x, const Value& k, int64_t dim, bool keepdim) {
  Value hit = hlo::eq(hlo::iota(x.builder(), {DType::S32, x.dims()}, dim), k);
  return sum(hlo::select(hit, x, 0), {dim}, keepdim);
}
Value fixed(const Value& x, int64_t k, int64_t dim, bool keepdim) {
  Value y = hlo::slice_dim(x, dim, k, k + 1);
  return keepdim ? y : hlo::squeeze(y, dim);
}
void check_ordered(Call& c) {
  c.check_supported(!hlo::is_complex(c.dtype_of("self")), "does not support complex input");
}

// The lower of the two in the middle. A NaN is the median of whatever contains it; nanmedian looks
// at the rest, and is NaN where there is none.
Value middle(const Value& x, int64_t dim, bool ignore_nan) {
  int64_t n = x.dim(dim);
  Dims dims = x.dims();
  dims[dim] = 1;
  hlo::Builder& b = x.builder();
  if (!hlo::is_floating(x.dtype())) {
    return hlo::constant_int(b, {DType::S32, dims}, (n - 1) / 2);
  }
  Value numbers = sum(hlo::convert(~hlo::is_nan(x), DType::S32), {dim}, true);
  if (ignore_nan) {
    return hlo::shift_right_arithmetic(hlo::maximum(numbers - 1, 0), hlo::full_like(numbers, 1));
  }
  // numbers is also where the first NaN is.
  return hlo::select(hlo::eq(numbers, static_cast<double>(n)),
                     hlo::full_like(numbers, static_cast<double>((n - 1) / 2)), numbers);
}
Value median(Call& c, bool ignore_nan) {
  check_ordered(c);
  Value x = c.tensor("self");
  if (x.elements() == 0) {
    return hlo::is_floating(x.dtype()) ? hlo::nan_of(c.builder(), x.dtype())
                                       : hlo::lowest(c.builder(), x.dtype());
  }
  x = hlo::reshape(x, {x.elements()});
  return at(sorted(x, 0).value, middle(x, 0, ignore_nan), 0, false);
}
Values median_dim(Call& c, bool ignore_nan) {
  check_ordered(c);
  Along a = along_dim(c, c.tensor("self"));
  check_nonempty(c, a.x, a.dim);
  bool keep = c.flag("keepdim") && !a.scalar;
  Sorted s = sorted(a.x, a.dim);
  Value k = middle(a.x, a.dim, ignore_nan);
  return {at(s.value, k, a.dim, keep), hlo::convert(at(s.place, k, a.dim, keep), DType::S64)};
}
TPU_OP("aten::median(Tensor self) -> Tensor") { return {median(c, false)}; }
TPU_OP("aten::nanmedian(Tensor self) -> Tensor") { return {median(c, true)}; }
TPU_OP(
    "aten::median.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
    "indices)") {
  return median_dim(c, false);
}
TPU_OP(
    "aten::nanmedian.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor "
    "indices)") {
  return median_dim(c, true);
}

// The k-th smallest, counted from 1.
TPU_OP(
    "aten::kthvalue(Tensor self, SymInt k, int dim=-1, bool keepdim=False) -> (Tensor values, "
    "Tensor indices)") {
  check_ordered(c);
  Along a = along_dim(c, c.tensor("self"));
  check_nonempty(c, a.x, a.dim);
  int64_t k = c.integer("k");
  c.check(k >= 1 && k <= a.x.dim(a.dim), "selected number k out of range for dimension ", a.dim,
          ": got ", k, ", expected 1 to ", a.x.dim(a.dim));
  bool keep = c.flag("keepdim") && !a.scalar;
  Sorted s = sorted(a.x, a.dim);
  return {fixed(s.value, k - 1, a.dim, keep),
          hlo::convert(fixed(s.place, k - 1, a.dim, keep), DType::S64)};
}

// The most frequent value, the smallest of those, and the last place it has: in sorted order the
// longest run of equal elements. NaN equals nothing.
TPU_OP(
    "aten::mode(Tensor self, int dim=-1, bool keepdim=False) -> (Tensor values, Tensor indices)") {
  check_ordered(c);
  Along a = along_dim(c, c.tensor("self"));
  check_nonempty(c, a.x, a.dim);
  bool keep = c.flag("keepdim") && !a.scalar;
  Sorted s = sorted(a.x, a.dim);
  int64_t n = a.x.dim(a.dim);
  hlo::Builder& b = c.builder();
  Value here = hlo::iota(b, {DType::S32, a.x.dims()}, a.dim);
  Value start = hlo::zeros_like(here);
  if (n > 1) {
    Value changes =
        hlo::ne(hlo::slice_dim(s.value, a.dim, 1, n), hlo::slice_dim(s.value, a.dim, 0, n - 1));
    Dims low(a.x.rank(), 0);
    low[a.dim] = 1;
    changes = hlo::pad(changes, hlo::scalar(b, DType::Pred, 0), low, Dims(a.x.rank(), 0));
    Value first = hlo::select(changes, here, 0), zero = hlo::scalar(b, DType::S32, 0);
    start = scan(c, {&first, 1}, {&zero, 1}, a.dim, [](const Values& p, const Values& q) -> Values {
      return {hlo::maximum(p[0], q[0])};
    })[0];
  }
  Value best = extreme(here - start, a.dim, Reduce::Maximum, true).index;
  best = hlo::convert(best, DType::S32);
  return {at(s.value, best, a.dim, keep), hlo::convert(at(s.place, best, a.dim, keep), DType::S64)};
}

// ---- binary search -----------------------------------------------------------------------------
// For every value the number of elements of its ascending row that are smaller (right: not larger);
// NaN comes after everything. rows [B, n], values [B, m]; result S32 [B, m].
Value search(const Value& rows, const Value& values, bool right) {
  hlo::Builder& b = rows.builder();
  int64_t n = rows.dim(1);
  hlo::Type result{DType::S32, values.dims()};
  if (n == 0 || result.elements() == 0) return hlo::zeros(b, result);
  auto before = [&](const Value& element, const Value& value) {
    return ~(right ? hlo::gt(element, value) : hlo::ge(element, value));
  };
  constexpr int64_t kCount = 64;  // so few are counted in one fused reduction
  if (n <= kCount) {
    Dims cube{values.dim(0), values.dim(1), n};
    Value hit = before(hlo::broadcast_in_dim(rows, cube, {0, 2}),
                       hlo::broadcast_in_dim(values, cube, {0, 1}));
    return sum(hlo::convert(hit, DType::S32), {2});
  }
  // Steps of halving powers of two: forward while the element just passed still comes before.
  int64_t step = 1;
  while (step * 2 <= n) step *= 2;
  hlo::GatherDims dims;
  dims.collapsed_slice_dims = {1};
  dims.start_index_map = {1};
  dims.operand_batching_dims = dims.start_indices_batching_dims = {0};
  dims.index_vector_dim = 2;
  const Value init[] = {hlo::zeros(b, result), hlo::scalar(b, DType::S32, double(step))};
  return hlo::while_loop(
      init, [](const Values& s) { return hlo::gt(s[1], 0); },
      [&](const Values& s) -> Values {
        Value next = s[0] + s[1];
        Value element = hlo::gather(rows, hlo::minimum(next, double(n)) - 1, dims, {1, 1});
        Value go = before(element, values) & hlo::le(next, double(n));
        return {hlo::select(go, next, s[0]),
                hlo::shift_right_arithmetic(s[1], hlo::scalar(b, DType::S32, 1))};
      })[0];
}

Values searchsorted(Call& c, std::string_view sequence, bool right, std::string_view sorter) {
  DType dtype = c.result_type({sequence, "self"});
  Value rows = c.tensor(sequence, dtype), values = c.tensor("self", dtype);
  c.check(rows.rank() > 0, "boundaries tensor should have positive dimension, but got 0 dimension");
  Dims dims = values.dims();
  Dims lead(rows.dims().begin(), rows.dims().end() - 1);
  if (!lead.empty()) {
    c.check(dims.size() == lead.size() + 1 && std::equal(lead.begin(), lead.end(), dims.begin()),
            "boundaries tensor should be 1 dimension or the first N-1 dimensions of boundaries "
            "tensor and input value tensor must match, but we got boundaries tensor ",
            rows.dims(), " and input value tensor ", dims);
  }
  int64_t batch = hlo::element_count(lead), n = rows.dim(-1);
  rows = hlo::reshape(rows, {batch, n});
  if (!sorter.empty() && c.has(sorter)) {
    c.check(c.meta(sorter).sizes == c.meta(sequence).sizes,
            "boundary and sorter must have the same size, but got boundary tensor ",
            c.meta(sequence).sizes, " and got sorter tensor ", c.meta(sorter).sizes);
    c.check(c.dtype_of(sorter) == DType::S64,
            "sorter must be a tensor of long dtype but got dtype ", c.dtype_of(sorter));
    Value order = checked_index(c, hlo::reshape(c.tensor(sorter), {batch, n}), n, Negative::Reject,
                                CheckSpec::Runtime, "sorter index out of range: {}");
    hlo::GatherDims g;
    g.collapsed_slice_dims = {1};
    g.start_index_map = {1};
    g.operand_batching_dims = g.start_indices_batching_dims = {0};
    g.index_vector_dim = 2;
    if (rows.elements() > 0) rows = hlo::gather(rows, order, g, {1, 1});
  }
  int64_t each = lead.empty() ? values.elements() : dims.back();
  Value found = search(rows, hlo::reshape(values, {batch, each}), right);
  return {hlo::convert(hlo::reshape(found, dims), c.flag("out_int32") ? DType::S32 : DType::S64)};
}
bool right_side(Call& c) {
  std::string side = c.has("side") ? c.text("side") : "";
  c.check(side.empty() || side == "left" || side == "right",
          "side can only be 'left' or 'right' but got ", side);
  c.check(side != "left" || !c.flag("right"),
          "side and right can't be set to opposites, got side of left while right was True");
  return c.flag("right") || side == "right";
}
TPU_OP(
    "aten::searchsorted.Tensor(Tensor sorted_sequence, Tensor self, *, bool out_int32=False, bool "
    "right=False, str? side=None, Tensor? sorter=None) -> Tensor") {
  return searchsorted(c, "sorted_sequence", right_side(c), "sorter");
}
TPU_OP(
    "aten::searchsorted.Scalar(Tensor sorted_sequence, Scalar self, *, bool out_int32=False, bool "
    "right=False, str? side=None, Tensor? sorter=None) -> Tensor") {
  c.check(c.meta("sorted_sequence").rank() == 1,
          "input value can be a scalar only when boundaries tensor dimension is 1, but we got ",
          "boundaries tensor dim(", c.meta("sorted_sequence").rank(), ")");
  return searchsorted(c, "sorted_sequence", right_side(c), "sorter");
}
void check_boundaries(Call& c) {
  c.check(c.meta("boundaries").rank() == 1, "boundaries tensor must be 1 dimension, but got dim(",
          c.meta("boundaries").rank(), ")");
}
TPU_OP(
    "aten::bucketize.Tensor(Tensor self, Tensor boundaries, *, bool out_int32=False, bool "
    "right=False) -> Tensor") {
  check_boundaries(c);
  return searchsorted(c, "boundaries", c.flag("right"), "");
}
TPU_OP(
    "aten::bucketize.Scalar(Scalar self, Tensor boundaries, *, bool out_int32=False, bool "
    "right=False) -> Tensor") {
  check_boundaries(c);
  return searchsorted(c, "boundaries", c.flag("right"), "");
}

// ---- histograms --------------------------------------------------------------------------------
struct Range {
  Value low, high;
};
// The data's own range, [0, 1] of no data.
Range data_range(const Value& x) {
  if (x.elements() == 0) {
    return {hlo::scalar(x.builder(), x.dtype(), 0), hlo::scalar(x.builder(), x.dtype(), 1)};
  }
  Dims all = all_dims(x.rank());
  return {hlo::reduce(x, all, Reduce::Minimum), hlo::reduce(x, all, Reduce::Maximum)};
}
// Both ends finite, and `by` further out where they are equal.
Range widened(Call& c, const Range& r, double by) {
  c.fail_if(~(hlo::is_finite(r.low) & hlo::is_finite(r.high)), CheckSpec::Runtime,
            c.op_name() + "(): the range of the data (or the one given) is not finite");
  Value same = hlo::eq(r.low, r.high);
  return {hlo::select(same, r.low - by, r.low), hlo::select(same, r.high + by, r.high)};
}
// linspace: from both ends to the middle.
Value even_edges(const Range& r, int64_t bins) {
  hlo::Builder& b = r.low.builder();
  Value i = hlo::convert(hlo::iota(b, {DType::S32, {bins + 1}}, 0), r.low.dtype());
  Value step = (r.high - r.low) / static_cast<double>(bins);
  return hlo::select(hlo::lt(i, static_cast<double>((bins + 1) / 2)), r.low + step * i,
                     r.high - step * (static_cast<double>(bins) - i));
}
// Adds weights (1 where undefined) of elements in bins [0, bins); others are left out.
Value tally(const Value& bin, int64_t bins, const Value& weights, DType result) {
  hlo::Builder& b = bin.builder();
  DType dtype = weights ? weights.dtype() : DType::S32;
  Value zero = hlo::zeros(b, {dtype, {bins + 1}});
  Value inside = hlo::ge(bin, 0) & hlo::lt(bin, static_cast<double>(bins));
  Value where = hlo::select(inside, bin, static_cast<double>(bins));
  Value what = weights ? weights : hlo::full_like(hlo::convert(bin, DType::S32), 1);
  if (bin.elements() == 0) return hlo::zeros(b, {result, {bins}});
  Value counts =
      scatter_rows(zero, 0, where, what, [](const Value& x, const Value& y) { return x + y; });
  return hlo::convert(hlo::slice_dim(counts, 0, 0, bins), result);
}

// bins of equal width over [min, max], the last one closed; what is outside does not count.
// Integers count too, as on CUDA: mixture-of-experts layers count their tokens so.
TPU_OP("aten::histc(Tensor self, int bins=100, Scalar min=0, Scalar max=0) -> Tensor") {
  DType result = c.dtype_of("self");
  c.check_supported(hlo::is_floating(result) || hlo::is_integer(result), "not implemented for '",
                    result, "'");
  int64_t bins = c.integer("bins");
  c.check(bins > 0, "bins must be > 0, but got ", bins, " for dimension 0");
  DType compute = hlo::is_floating(result) ? hlo::opmath(result) : DType::F64;
  Value x = c.tensor("self", compute);
  x = hlo::reshape(x, {x.elements()});
  Value low = c.scalar("min", compute), high = c.scalar("max", compute);
  c.fail_if(hlo::gt(low, high), CheckSpec::Runtime, "torch.histc: max must be larger than min");
  Value given = hlo::ne(low, high);
  Range data = x.elements() > 0 ? data_range(x) : Range{low, high};
  Range r = widened(c, {hlo::select(given, low, data.low), hlo::select(given, high, data.high)}, 1);
  Value bin = hlo::convert((x - r.low) * static_cast<double>(bins) / (r.high - r.low), DType::S32);
  Value last = hlo::minimum(bin, static_cast<double>(bins - 1));
  Value inside = hlo::ge(x, r.low) & hlo::le(x, r.high);  // false for NaN
  return {tally(hlo::select(inside, last, -1), bins, {}, result)};
}

// Counts (or sums of weights) between edges; density divides by the sum and the widths.
Value bin_of(const Value& x, const Value& edges) {  // x 1-dim; -1 or more than there are: in none
  int64_t n = edges.dim(0);
  Value row = hlo::reshape(edges, {1, n}), values = hlo::reshape(x, {1, x.elements()});
  Value bin = hlo::reshape(search(row, values, true), {x.elements()}) - 1;
  // The last bin is closed.
  Value right = hlo::squeeze(hlo::slice_dim(edges, 0, n - 1, n), 0);
  bin = hlo::select(hlo::eq(x, right), static_cast<double>(n - 2), bin);
  // Edges that do not ascend have no bins, but the outer ones still bound what counts; NaN is out.
  Value left = hlo::squeeze(hlo::slice_dim(edges, 0, 0, 1), 0);
  return hlo::select(hlo::ge(x, left) & hlo::le(x, right), bin, -1);
}
Values histogram(Call& c, const Value& x, const Value& edges) {
  DType result = c.dtype_of("self");
  int64_t n = edges.dim(0), bins = n - 1;
  Value bin = bin_of(x, edges);
  Value weights;
  if (c.has("weight")) {
    c.check(c.meta("weight").sizes == c.meta("self").sizes,
            "if weight tensor is provided it should have the same shape as the input tensor");
    weights = hlo::reshape(c.tensor("weight", x.dtype()), {x.elements()});
  }
  Value hist = tally(bin, bins, weights, x.dtype());
  if (c.flag("density")) {
    Value widths = hlo::slice_dim(edges, 0, 1, n) - hlo::slice_dim(edges, 0, 0, bins);
    hist = hist / (sum(hist, {0}) * widths);
  }
  return {hlo::convert(hist, result), hlo::convert(edges, result)};
}
Value histogram_input(Call& c) {
  DType self = c.dtype_of("self");
  c.check_supported(hlo::is_floating(self), "not implemented for '", self, "'");
  Value x = c.tensor("self", hlo::opmath(self));
  return hlo::reshape(x, {x.elements()});
}
TPU_OP(
    "aten::histogram.bins_tensor(Tensor self, Tensor bins, *, Tensor? weight=None, bool "
    "density=False) -> (Tensor hist, Tensor bin_edges)") {
  Value x = histogram_input(c);
  Value edges = c.tensor("bins", x.dtype());
  c.check(edges.rank() == 1 && edges.dim(0) > 1, "bins tensor should have one dimension and more ",
          "than one element, but got ", edges.dims());
  return histogram(c, x, edges);
}
TPU_OP(
    "aten::histogram.bin_ct(Tensor self, int bins=100, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> (Tensor hist, Tensor bin_edges)") {
  Value x = histogram_input(c);
  int64_t bins = c.integer("bins");
  c.check(bins > 0, "bins must be > 0, but got ", bins, " for dimension 0");
  Range r;
  if (c.has("range")) {
    Values ends = c.scalars("range", x.dtype());
    c.check(ends.size() == 2, "range should have 2 elements, but got ", ends.size());
    c.fail_if(hlo::gt(ends[0], ends[1]), CheckSpec::Runtime,
              "torch.histogramdd: min should not exceed max");
    r = {ends[0], ends[1]};
  } else {
    r = data_range(x);
  }
  return histogram(c, x, even_edges(widened(c, r, 0.5), bins));
}

// ---- in several dimensions ---------------------------------------------------------------------
Value points(Call& c) {  // self as [points, dimensions]
  DType self = c.dtype_of("self");
  c.check_supported(hlo::is_floating(self), "not implemented for '", self, "'");
  Value x = c.tensor("self", hlo::opmath(self));
  c.check(x.rank() >= 2, "input tensor should have at least 2 dimensions, but got ", x.rank());
  int64_t n = x.dim(-1);
  return hlo::reshape(x, {n == 0 ? 0 : x.elements() / n, n});
}
Value coordinate(const Value& x, int64_t i) {
  return hlo::squeeze(hlo::slice_dim(x, 1, i, i + 1), 1);
}
Values edges_of_counts(Call& c, const Value& x) {
  Dims bins = c.ints("bins");
  int64_t n = x.dim(1);
  c.check(static_cast<int64_t>(bins.size()) == n,
          "histogramdd: The size of bins must be equal to the innermost dimension of the input, "
          "got ",
          bins.size(), " and ", n);
  Values ends = c.has("range") ? c.scalars("range", x.dtype()) : Values{};
  c.check(ends.empty() || static_cast<int64_t>(ends.size()) == 2 * n, "range should have ", 2 * n,
          " elements, but got ", ends.size());
  Values edges;
  for (int64_t i = 0; i < n; ++i) {
    c.check(bins[i] > 0, "bins must be > 0, but got ", bins[i], " for dimension ", i);
    Range r = ends.empty() ? data_range(coordinate(x, i)) : Range{ends[2 * i], ends[2 * i + 1]};
    if (!ends.empty())
      c.fail_if(hlo::gt(r.low, r.high), CheckSpec::Runtime,
                "torch.histogramdd: min should not exceed max");
    edges.push_back(even_edges(widened(c, r, 0.5), bins[i]));
  }
  return edges;
}
Values histogram_of_points(Call& c, const Value& x, const Values& edges) {
  int64_t n = x.dim(1), all = 1;
  c.check(static_cast<int64_t>(edges.size()) == n,
          "histogramdd: The number of sequences of bin edges must be equal to the innermost "
          "dimension of the input, got ",
          edges.size(), " and ", n);
  hlo::Builder& b = c.builder();
  Dims dims;
  Value flat, inside;
  for (int64_t i = 0; i < n; ++i) {
    c.check(edges[i].rank() == 1 && edges[i].dim(0) > 1, "bins tensor should have one dimension ",
            "and more than one element, but got ", edges[i].dims());
    int64_t bins = edges[i].dim(0) - 1;
    Value bin = bin_of(coordinate(x, i), edges[i]);
    Value here = hlo::ge(bin, 0) & hlo::lt(bin, static_cast<double>(bins));
    flat = flat ? flat * static_cast<double>(bins) + bin : bin;
    inside = inside ? inside & here : here;
    dims.push_back(bins);
    all *= bins;
  }
  Value weights;
  if (c.has("weight")) {
    c.check(c.meta("weight").elements() == x.dim(0),
            "if weight tensor is provided it should have one element for each point");
    weights = hlo::reshape(c.tensor("weight", x.dtype()), {x.dim(0)});
  }
  if (n == 0) return {hlo::zeros(b, {c.dtype_of("self"), {}})};
  Value hist = hlo::reshape(tally(hlo::select(inside, flat, -1), all, weights, x.dtype()), dims);
  if (c.flag("density")) {
    hist = hist / sum(hist, all_dims(n));
    for (int64_t i = 0; i < n; ++i) {
      Value widths =
          hlo::slice_dim(edges[i], 0, 1, dims[i] + 1) - hlo::slice_dim(edges[i], 0, 0, dims[i]);
      hist = hist / hlo::broadcast_in_dim(widths, dims, {i});
    }
  }
  return {hlo::convert(hist, c.dtype_of("self"))};
}
TPU_OP(
    "aten::_histogramdd_bin_edges(Tensor self, int[] bins, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> Tensor[]") {
  Values edges = edges_of_counts(c, points(c));
  for (Value& e : edges) e = hlo::convert(e, c.dtype_of("self"));
  return edges;
}
TPU_OP(
    "aten::_histogramdd_from_bin_cts(Tensor self, int[] bins, *, float[]? range=None, Tensor? "
    "weight=None, bool density=False) -> Tensor") {
  Value x = points(c);
  return histogram_of_points(c, x, edges_of_counts(c, x));
}
TPU_OP(
    "aten::_histogramdd_from_bin_tensors(Tensor self, Tensor[] bins, *, Tensor? weight=None, bool "
    "density=False) -> Tensor") {
  Value x = points(c);
  return histogram_of_points(c, x, c.tensors("bins", x.dtype()));
}

}  // namespace
}  // namespace torch_tpu::ops
