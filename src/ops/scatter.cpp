// SPDX-License-Identifier: Apache-2.0 - gather, scatter and its reductions, index_reduce, masked_scatter.
#include <functional>
#include <string>

#include "src/ops/index.h"

namespace torch_tpu::ops {

using graph::CheckSpec;
using hlo::Type;

namespace {

// The arguments of gather and scatter: self and an index of the same rank that is nowhere larger
// than self except along dim. Element p of the index belongs to element (p with p[dim] replaced by
// index[p]) of self.
struct Along {
  Value self, index;
  int64_t dim;
  Dims sizes;        // of self as given
  Dims index_sizes;  // of index as given
};

Along along(Call& c, const char* what) {
  Along a;
  const TensorArg& index = c.meta("index");
  a.self = c.tensor("self");
  a.sizes = a.self.dims();
  a.index_sizes = index.sizes;
  a.dim = c.wrap(c.integer("dim"), a.self.rank());
  a.self = at_least_1d(a.self);
  a.index = at_least_1d(c.tensor("index"));
  if (a.index.elements() == 0) return a;
  c.check(index.dtype == DType::S64 || index.dtype == DType::S32,
          "Expected dtype int32/int64 for index, but got ", index.dtype);
  c.check(a.index.rank() == a.self.rank(),
          "Index tensor must have the same number of dimensions as ", what, " tensor, got ",
          a.index_sizes.size(), " for the index and ", a.sizes.size(), " for ", what);
  for (int64_t d = 0; d < a.self.rank(); ++d) {
    c.check(d == a.dim || a.index.dim(d) <= a.self.dim(d), "Size does not match at dimension ", d,
            ": expected index ", a.index_sizes, " to be no larger than ", what, " ", a.sizes,
            " apart from dimension ", a.dim);
  }
  const int64_t size = a.self.dim(a.dim);
  a.index = checked_index(c, a.index, size, Negative::Reject, CheckSpec::Runtime,
                          out_of_bounds(a.dim, size));
  return a;
}

// The part of x that an index of these sizes can reach: as large as the index, but whole along dim.
Value reachable(const Value& x, const Dims& index, int64_t dim) {
  Dims limit = index;
  limit[dim] = x.dim(dim);
  if (limit == x.dims()) return x;
  return hlo::slice(x, Dims(limit.size(), 0), limit, Dims(limit.size(), 1));
}

}  // namespace

Value gather_along(const Value& x, const Value& index, int64_t dim) {
  hlo::GatherDims dims;
  const int64_t rank = x.rank();
  dims.collapsed_slice_dims = dims.start_index_map = {dim};
  dims.operand_batching_dims = dims.start_indices_batching_dims = dims_but(rank, dim);
  dims.index_vector_dim = rank;
  return hlo::gather(reachable(x, index.dims(), dim), hlo::unsqueeze(index, rank), dims,
                     Dims(rank, 1));
}

namespace {

Value scatter_along(const Value& x, const Value& index, int64_t dim, const Value& updates,
                    const hlo::Combiner& combine) {
  hlo::ScatterDims dims;
  const int64_t rank = x.rank();
  dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {dim};
  dims.input_batching_dims = dims.scatter_indices_batching_dims = dims_but(rank, dim);
  dims.index_vector_dim = rank;
  Value part = reachable(x, index.dims(), dim);
  Value y = hlo::scatter(part, hlo::unsqueeze(index, rank), updates, dims, combine);
  if (part.dims() == x.dims()) return y;
  Values starts(rank, hlo::scalar(x.builder(), DType::S32, 0));
  return hlo::dynamic_update_slice(x, y, starts);
}

enum class Combine : uint8_t { Overwrite, Sum, Product, Mean, Maximum, Minimum };

// floor(a / b) of integers, b > 0; divide truncates.
Value floor_divide(const Value& a, const Value& b) {
  Value q = a / b;
  return hlo::select(hlo::lt(a, 0) & hlo::ne(hlo::remainder(a, b), 0), q - 1.0, q);
}

using Scatter = std::function<Value(const Value& x, const Value& updates, const hlo::Combiner&)>;

// Combines updates into x by `scatter`. Without include_self, what x held at the places that get an
// update does not count. A mean divides by the number of values that went into it.
Value combine_into(const Value& x, const Value& updates, Combine how, bool include_self,
                   const Scatter& scatter) {
  if (how == Combine::Overwrite) return scatter(x, updates, overwrite);
  const DType dtype = x.dtype();
  const bool sums = how == Combine::Sum || how == Combine::Product || how == Combine::Mean;
  const DType compute = sums ? accumulate_type(dtype) : dtype;
  hlo::Builder& b = x.builder();
  hlo::Reduce reduce = how == Combine::Product   ? hlo::Reduce::Multiply
                       : how == Combine::Maximum ? hlo::Reduce::Maximum
                       : how == Combine::Minimum ? hlo::Reduce::Minimum
                                                 : hlo::Reduce::Add;
  Value start = hlo::convert(x, compute);
  if (!include_self) {
    Value touched = scatter(hlo::zeros(b, {DType::Pred, x.dims()}),
                            hlo::constant_int(b, {DType::Pred, updates.dims()}, 1), overwrite);
    start = hlo::select(touched, hlo::reduce_identity(b, compute, reduce), start);
  }
  hlo::Combiner combiner =
      how == Combine::Product ? hlo::Combiner(hlo::multiply)
      : how == Combine::Maximum
          ? hlo::Combiner([](const Value& a, const Value& u) { return hlo::maximum(a, u); })
      : how == Combine::Minimum
          ? hlo::Combiner([](const Value& a, const Value& u) { return hlo::minimum(a, u); })
          : hlo::Combiner(hlo::add);
  Value y = scatter(start, hlo::convert(updates, compute), combiner);
  if (how == Combine::Mean) {
    const DType count_type =
        hlo::is_floating(compute) || hlo::is_complex(compute) ? hlo::real_of(compute) : DType::S64;
    Value count = scatter(hlo::constant(b, {count_type, x.dims()}, include_self ? 1 : 0),
                          hlo::constant(b, {count_type, updates.dims()}, 1), hlo::add);
    count = hlo::convert(hlo::maximum(count, 1.0), compute);
    y = hlo::is_integer(compute) ? floor_divide(y, count) : y / count;
    if (!include_self) return hlo::convert(y, dtype);
  }
  return hlo::convert(y, dtype);
}

Combine combine_of(Call& c, const std::string& name, bool old_names) {
  if (old_names) {
    if (name == "add") return Combine::Sum;
    if (name == "multiply") return Combine::Product;
    c.check(false, "reduce argument must be either add or multiply, got '", name, "'");
  }
  if (name == "sum") return Combine::Sum;
  if (name == "prod") return Combine::Product;
  if (name == "mean") return Combine::Mean;
  if (name == "amax") return Combine::Maximum;
  if (name == "amin") return Combine::Minimum;
  c.check(false, "reduce argument must be either sum, prod, mean, amax or amin, got '", name, "'");
  return Combine::Sum;
}

Values scatter_entry(Call& c, Combine how, bool include_self, const char* source) {
  const bool from_tensor = std::string_view(source) == "src";
  if (from_tensor)
    c.check(c.dtype_of(source) == c.dtype_of("self"),
            "Expected self.dtype to be equal to src.dtype, got ", c.dtype_of("self"), " and ",
            c.dtype_of(source));
  Along a = along(c, "self");
  if (a.index.elements() == 0) return {hlo::reshape(a.self, a.sizes)};
  Value updates = c.tensor(source, a.self.dtype());
  if (from_tensor) {
    updates = at_least_1d(updates);
    c.check(updates.rank() == a.index.rank(),
            "Index tensor must have the same number of dimensions as src tensor, got ",
            a.index_sizes.size(), " for the index and ", c.meta(source).rank(), " for src");
    for (int64_t d = 0; d < a.index.rank(); ++d) {
      c.check(a.index.dim(d) <= updates.dim(d), "Expected index ", a.index_sizes,
              " to be no larger than src ", c.meta(source).sizes);
    }
    updates = hlo::slice(updates, Dims(a.index.rank(), 0), a.index.dims(), Dims(a.index.rank(), 1));
  } else {
    updates = hlo::broadcast_to(updates, a.index.dims());
  }
  Value y = combine_into(a.self, updates, how, include_self,
                         [&](const Value& x, const Value& u, const hlo::Combiner& combine) {
                           return scatter_along(x, a.index, a.dim, u, combine);
                         });
  return {hlo::reshape(y, a.sizes)};
}

}  // namespace

// gather(x, dim, index)[p] = x[p with p[dim] = index[p]].
TPU_APART("aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor") {
  c.exact_outs();
  Along a = along(c, "input");
  if (a.index.elements() == 0) return {hlo::zeros(c.builder(), {a.self.dtype(), a.index_sizes})};
  return {hlo::reshape(gather_along(a.self, a.index, a.dim), a.index_sizes)};
}

// scatter(x, dim, index, src): x with x[p with p[dim] = index[p]] = src[p]; reduce combines
// instead.
TPU_OP("aten::scatter.src(Tensor self, int dim, Tensor index, Tensor src) -> Tensor") {
  return scatter_entry(c, Combine::Overwrite, true, "src");
}
TPU_OP("aten::scatter.value(Tensor self, int dim, Tensor index, Scalar value) -> Tensor") {
  return scatter_entry(c, Combine::Overwrite, true, "value");
}
TPU_OP(
    "aten::scatter.reduce(Tensor self, int dim, Tensor index, Tensor src, *, str reduce) -> "
    "Tensor") {
  return scatter_entry(c, combine_of(c, c.text("reduce"), true), true, "src");
}
TPU_OP(
    "aten::scatter.value_reduce(Tensor self, int dim, Tensor index, Scalar value, *, str reduce) "
    "-> "
    "Tensor") {
  return scatter_entry(c, combine_of(c, c.text("reduce"), true), true, "value");
}
TPU_OP("aten::scatter_add(Tensor self, int dim, Tensor index, Tensor src) -> Tensor") {
  return scatter_entry(c, Combine::Sum, true, "src");
}
TPU_OP(
    "aten::scatter_reduce.two(Tensor self, int dim, Tensor index, Tensor src, str reduce, *, bool "
    "include_self=True) -> Tensor") {
  return scatter_entry(c, combine_of(c, c.text("reduce"), false), c.flag("include_self"), "src");
}

// index_reduce(x, dim, index, source): x[..., index[i], ...] combined with source[..., i, ...].
TPU_OP(
    "aten::index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool "
    "include_self=True) -> Tensor") {
  Combine how = combine_of(c, c.text("reduce"), false);
  c.check(how != Combine::Sum,
          "reduce argument must be either prod, mean, amax or amin, got 'sum'");
  Value self = c.tensor("self");
  c.check(c.dtype_of("source") == self.dtype(),
          "self and source expected to have the same dtype, but got (self) ", self.dtype(),
          " and (source) ", c.dtype_of("source"));
  Dims sizes = self.dims();
  int64_t dim = c.wrap(c.integer("dim"), self.rank());
  self = at_least_1d(self);
  Value source = at_least_1d(c.tensor("source"));
  Value index = at_least_1d(c.tensor("index"));
  c.check_index(index.rank() == 1, "Index is supposed to be a vector, got ", index.rank(),
                " dimensions");
  Dims want = self.dims();
  want[dim] = index.elements();
  c.check(source.dims() == want, "The source has shape ", source.dims(), ", but an index with ",
          index.elements(), " elements into dimension ", dim, " of a tensor of shape ", sizes,
          " needs ", want);
  index = checked_index(c, index, self.dim(dim), Negative::Reject, CheckSpec::Index,
                        "index out of range in self: {}");
  if (source.elements() == 0) return {hlo::reshape(self, sizes)};
  Value y = combine_into(self, source, how, c.flag("include_self"),
                         [&](const Value& x, const Value& u, const hlo::Combiner& combine) {
                           return scatter_rows(x, dim, index, u, combine);
                         });
  return {hlo::reshape(y, sizes)};
}

namespace {

// For every element, how many trues precede it: S32 (S64) of mask's element count.
Value count_before(const Call& c, const Value& mask) {
  const int64_t n = mask.elements();
  const DType dtype = n > INT32_MAX ? DType::S64 : DType::S32;
  Value ones = hlo::convert(hlo::reshape(mask, {n}), dtype);
  return running_sum(c, ones) - ones;
}

}  // namespace

// masked_scatter(x, mask, source): the k-th element of x where mask is true becomes source[k].
TPU_OP("aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor") {
  c.check(c.dtype_of("mask") == DType::Pred,
          "masked_scatter_ only supports boolean masks, but got mask with dtype ",
          c.dtype_of("mask"));
  c.check(c.dtype_of("self") == c.dtype_of("source"),
          "masked_scatter: expected self and source to have same dtypes but got ",
          c.dtype_of("self"), " and ", c.dtype_of("source"));
  Dims sizes = c.broadcast({&c.meta("self").sizes, &c.meta("mask").sizes});
  Value self = hlo::broadcast_to(c.tensor("self"), sizes);
  Value mask = hlo::broadcast_to(c.tensor("mask"), sizes);
  if (self.elements() == 0) return {self};
  Value source = c.tensor("source");
  Value rank = count_before(c, mask);
  Value flat_mask = hlo::reshape(mask, {mask.elements()});
  constexpr const char* kShort =
      "masked_scatter: expected the number of elements of source to be at least the number of "
      "ones in mask";
  c.fail_if(flat_mask & hlo::ge(rank, static_cast<double>(source.elements())), CheckSpec::Runtime,
            kShort);
  if (source.elements() == 0) return {self};
  rank = hlo::minimum(rank, static_cast<double>(source.elements() - 1));
  Value picked = hlo::take(hlo::reshape(source, {source.elements()}), rank, 0);
  return {hlo::select(mask, hlo::reshape(picked, sizes), self)};
}

namespace {

// Positions of the trues of a 1-dim mask in order, then n = the mask's size: one ascending sort.
Value true_positions(const Value& mask) {
  const int64_t n = mask.elements();
  const DType dtype = n >= INT32_MAX ? DType::S64 : DType::S32;
  hlo::Builder& b = mask.builder();
  Value keys = hlo::select(mask, hlo::iota(b, {dtype, {n}}, 0),
                           hlo::broadcast_to(hlo::constant_int(b, {dtype, {}}, n), {n}));
  Values operands = {keys};
  return hlo::sort(operands, 0, false,
                   [](const Values& l, const Values& r) { return hlo::lt(l[0], r[0]); })[0];
}

}  // namespace

// The k-th true of mask gave its place to source[k]: source's gradient is grad at the trues, then
// 0.
TPU_OP("aten::masked_scatter_backward(Tensor grad_output, Tensor mask, SymInt[] sizes) -> Tensor") {
  Dims sizes = c.ints("sizes");
  const int64_t count = hlo::element_count(sizes);
  Value grad = c.tensor("grad_output");
  Dims common = c.broadcast({&c.meta("grad_output").sizes, &c.meta("mask").sizes});
  grad = hlo::broadcast_to(grad, common);
  Value mask = hlo::broadcast_to(c.tensor("mask"), common);
  const int64_t n = grad.elements();
  if (count == 0 || n == 0) return {hlo::zeros(c.builder(), {grad.dtype(), sizes})};
  Value at = true_positions(hlo::reshape(mask, {n}));
  const int64_t kept = std::min(n, count);
  at = hlo::slice_dim(at, 0, 0, kept);
  Value there = hlo::lt(at, static_cast<double>(n));
  Value picked =
      hlo::take(hlo::reshape(grad, {n}), hlo::minimum(at, static_cast<double>(n - 1)), 0);
  picked = hlo::select(there, picked, 0.0);
  if (kept < count)
    picked = hlo::pad(picked, hlo::scalar(c.builder(), grad.dtype(), 0), {0}, {count - kept});
  return {hlo::reshape(picked, sizes)};
}

// nonzero_static(x, size): coordinates of the first `size` elements that are not 0, one a row; rows
// that are left over hold fill_value. With size = count_nonzero(x) this is nonzero(x).
TPU_OP("aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor") {
  const int64_t size = c.integer("size"), fill = c.integer("fill_value");
  c.check(size >= 0, "nonzero_static: 'size' must be an non-negative integer, got ", size);
  Value self = c.tensor("self");
  const int64_t rank = self.rank(), n = self.elements();
  hlo::Builder& b = c.builder();
  Value filler = hlo::constant_int(b, {DType::S64, {size, rank}}, fill);
  if (size == 0 || rank == 0 || n == 0) return {filler};
  Value at = true_positions(hlo::reshape(hlo::convert(self, DType::Pred), {n}));
  const int64_t kept = std::min(n, size);
  at = hlo::slice_dim(at, 0, 0, kept);
  if (kept < size) at = hlo::pad(at, hlo::constant_int(b, {at.dtype(), {}}, n), {0}, {size - kept});
  Value there = hlo::lt(at, static_cast<double>(n));
  Values columns;
  Dims strides = hlo::contiguous_strides(self.dims());
  for (int64_t d = 0; d < rank; ++d) {
    auto number = [&](int64_t v) { return hlo::constant_int(b, {at.dtype(), {}}, v); };
    Value x = strides[d] == 1 ? at : hlo::divide(at, number(strides[d]));
    if (d > 0) x = hlo::remainder(x, number(self.dim(d)));
    columns.push_back(hlo::unsqueeze(hlo::convert(x, DType::S64), 1));
  }
  Value rows = hlo::concatenate(columns, 1);
  return {hlo::select(hlo::broadcast_in_dim(there, {size, rank}, {0}), rows, filler)};
}

}  // namespace torch_tpu::ops
