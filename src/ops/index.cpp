// SPDX-License-Identifier: Apache-2.0 - Reading and writing with index tensors: index, index_put, take, put, index_*.
#include "src/ops/index.h"

#include <algorithm>

#include "src/ops/scan.h"

namespace torch_tpu::ops {

using graph::CheckSpec;
using graph::UserError;
using hlo::Type;

// ---- shared
// --------------------------------------------------------------------------------------

Value trusted_index(const Value& index, int64_t size, Negative negative) {
  Value i = index;
  if (i.dtype() != DType::S32 && i.dtype() != DType::S64) i = hlo::convert(i, DType::S64);
  if (negative == Negative::Wrap) {
    hlo::Builder& b = i.builder();
    // S32 indices may be too narrow to count in when the dimension is larger than they reach.
    if (size > INT32_MAX) i = hlo::convert(i, DType::S64);
    i = hlo::select(hlo::lt(i, 0), i + hlo::constant_int(b, {i.dtype(), {}}, size), i);
  }
  return hlo::convert(i, size > INT32_MAX ? DType::S64 : DType::S32);
}

Value checked_index(Call& c, const Value& index, int64_t size, Negative negative,
                    CheckSpec::Error error, const std::string& message) {
  if (index.elements() == 0) return trusted_index(index, size, negative);
  if (size == 0) {  // no value is known yet
    const size_t at = message.find(" {}");
    c.fail(error == CheckSpec::Index     ? UserError::Index
           : error == CheckSpec::Runtime ? UserError::Runtime
                                         : UserError::Value,
           at == std::string::npos ? message : message.substr(0, at) + message.substr(at + 3));
  }
  Value i = index;
  if (i.dtype() != DType::S32 && i.dtype() != DType::S64) i = hlo::convert(i, DType::S64);
  if (size > INT32_MAX) i = hlo::convert(i, DType::S64);
  auto number = [&](int64_t v) { return hlo::constant_int(i.builder(), {i.dtype(), {}}, v); };
  if (negative == Negative::Wrap) i = hlo::select(hlo::lt(i, 0), i + number(size), i);
  c.fail_if(hlo::or_(hlo::lt(i, 0), hlo::ge(i, number(size))), error, message, index);
  i = hlo::clamp(number(0), i, number(size - 1));
  return hlo::convert(i, size > INT32_MAX ? DType::S64 : DType::S32);
}

std::string out_of_bounds(int64_t dim, int64_t size) {
  return "index {} is out of bounds for dimension " + std::to_string(dim) + " with size " +
         std::to_string(size);
}

Value at_least_1d(const Value& x) { return x.rank() == 0 ? hlo::reshape(x, {1}) : x; }

Dims dims_but(int64_t rank, int64_t except) {
  Dims dims;
  for (int64_t d = 0; d < rank; ++d)
    if (d != except) dims.push_back(d);
  return dims;
}

Value overwrite(const Value&, const Value& update) { return update; }

Value running_sum(const Call& c, const Value& x) {
  if (x.elements() == 0) return x;
  Values xs = {x}, zero = {hlo::zeros(x.builder(), {x.dtype(), {}})};
  return scan(c, xs, zero, 0, [](const Values& before, const Values& after) -> Values {
    return {before[0] + after[0]};
  })[0];
}

DType accumulate_type(DType dtype) { return hlo::opmath(dtype); }

Value scatter_rows(const Value& x, int64_t dim, const Value& index, const Value& updates,
                   const hlo::Combiner& combine) {
  if (updates.elements() == 0) return x;
  hlo::ScatterDims dims;
  dims.update_window_dims = dims_but(x.rank(), dim);
  dims.inserted_window_dims = {dim};
  dims.scatter_dims_to_operand_dims = {dim};
  dims.index_vector_dim = 1;
  return hlo::scatter(x, hlo::reshape(index, {index.elements(), 1}), updates, dims, combine);
}

// ---- index.Tensor and index_put
// ------------------------------------------------------------------

namespace {

enum class Bounds : uint8_t { Check, Trust };

// x[i0, i1, ...] as one gather (or, for writing, one scatter): the index tensors, broadcast
// together, become the coordinates of slices that span the dimensions without an index. Dimensions
// of the index stand where the index tensors stood if those were next to each other, else in front.
struct IndexPlan {
  Value starts;      // [index dims..., number of index tensors]
  Dims indexed;      // dimensions with an index tensor
  Dims offset_dims;  // dimensions of the result that are not the index's
  Dims slice_sizes;
  Dims result;
};

std::string shapes_text(const std::vector<const TensorArg*>& metas) {
  std::string text;
  for (const TensorArg* m : metas) {
    if (!m) continue;
    if (!text.empty()) text += ", ";
    text += "[";
    for (size_t i = 0; i < m->sizes.size(); ++i)
      text += (i ? ", " : "") + std::to_string(m->sizes[i]);
    text += "]";
  }
  return text;
}

IndexPlan plan_index(Call& c, const Dims& sizes, Bounds bounds) {
  IndexPlan plan;
  std::vector<const TensorArg*> metas = c.metas("indices");
  std::vector<std::optional<Value>> indices = c.optional_tensors("indices");
  const auto rank = static_cast<int64_t>(sizes.size());
  c.check_index(static_cast<int64_t>(indices.size()) <= rank,
                "too many indices for tensor of dimension ", rank, " (got ", indices.size(), ")");
  Dims shape;
  for (const auto& index : indices) {
    if (!index) continue;
    c.check_index(hlo::is_integer(index->dtype()),
                  "tensors used as indices must be long, int, byte or bool tensors, got ",
                  index->dtype());
    try {
      shape = hlo::broadcast_dims(shape, index->dims());
    } catch (const hlo::BuildError&) {
      c.fail(UserError::Index,
             "shape mismatch: indexing tensors could not be broadcast together with shapes " +
                 shapes_text(metas));
    }
  }
  Values columns;
  const auto vector_dim = static_cast<int64_t>(shape.size());
  for (size_t d = 0; d < indices.size(); ++d) {
    if (!indices[d]) continue;
    const int64_t size = sizes[d];
    // An index without elements reads nothing, also from a dimension without elements.
    Value i = hlo::element_count(shape) == 0 || bounds == Bounds::Trust
                  ? trusted_index(*indices[d], size, Negative::Wrap)
                  : checked_index(c, *indices[d], size, Negative::Wrap, CheckSpec::Index,
                                  out_of_bounds(static_cast<int64_t>(d), size));
    columns.push_back(i);
    plan.indexed.push_back(static_cast<int64_t>(d));
  }
  bool wide = std::any_of(columns.begin(), columns.end(),
                          [](const Value& v) { return v.dtype() == DType::S64; });
  for (Value& v : columns) {
    if (wide) v = hlo::convert(v, DType::S64);
    v = hlo::unsqueeze(hlo::broadcast_to(v, shape), vector_dim);
  }
  if (!columns.empty())
    plan.starts = columns.size() == 1 ? columns[0] : hlo::concatenate(columns, vector_dim);

  const auto count = static_cast<int64_t>(plan.indexed.size());
  bool adjacent = count > 0 && plan.indexed.back() - plan.indexed.front() == count - 1;
  const int64_t at = adjacent ? plan.indexed.front() : 0;
  plan.slice_sizes = sizes;
  for (int64_t d : plan.indexed) plan.slice_sizes[d] = 1;
  for (int64_t d = 0; d < rank; ++d) {
    if (static_cast<int64_t>(plan.result.size()) == at)
      plan.result.insert(plan.result.end(), shape.begin(), shape.end());
    if (std::find(plan.indexed.begin(), plan.indexed.end(), d) != plan.indexed.end()) continue;
    plan.offset_dims.push_back(static_cast<int64_t>(plan.result.size()));
    plan.result.push_back(sizes[d]);
  }
  return plan;
}

Values index_entry(Call& c, Bounds bounds) {
  Value self = c.tensor("self");
  IndexPlan plan = plan_index(c, self.dims(), bounds);
  if (plan.indexed.empty()) return {self};
  if (hlo::element_count(plan.result) == 0)
    return {hlo::zeros(c.builder(), {self.dtype(), plan.result})};
  hlo::GatherDims dims;
  dims.offset_dims = plan.offset_dims;
  dims.collapsed_slice_dims = plan.indexed;
  dims.start_index_map = plan.indexed;
  dims.index_vector_dim = plan.starts.rank() - 1;
  return {hlo::gather(self, plan.starts, dims, plan.slice_sizes)};
}

Values index_put_entry(Call& c, Bounds bounds) {
  Value self = c.tensor("self");
  c.check_index(c.dtype_of("values") == self.dtype(),
                "Index put requires the source and destination dtypes match, got ", self.dtype(),
                " for the destination and ", c.dtype_of("values"), " for the source.");
  const bool accumulate = c.flag("accumulate");
  IndexPlan plan = plan_index(c, self.dims(), bounds);
  Value values = c.tensor("values", self.dtype());
  Dims common;
  bool fits = true;
  try {
    common = hlo::broadcast_dims(values.dims(), plan.result);
    fits = common == plan.result;
  } catch (const hlo::BuildError&) {
    fits = false;
  }
  if (!fits) {
    c.check(false, "shape mismatch: value tensor of shape ", values.dims(),
            " cannot be broadcast to indexing result of shape ", plan.result);
  }
  if (hlo::element_count(plan.result) == 0) return {self};
  values = hlo::broadcast_to(values, plan.result);
  if (plan.indexed.empty()) return {accumulate ? self + values : values};
  hlo::ScatterDims dims;
  dims.update_window_dims = plan.offset_dims;
  dims.inserted_window_dims = plan.indexed;
  dims.scatter_dims_to_operand_dims = plan.indexed;
  dims.index_vector_dim = plan.starts.rank() - 1;
  if (!accumulate) return {hlo::scatter(self, plan.starts, values, dims, overwrite)};
  const DType sum = accumulate_type(self.dtype());
  Value y =
      hlo::scatter(hlo::convert(self, sum), plan.starts, hlo::convert(values, sum), dims, hlo::add);
  return {hlo::convert(y, self.dtype())};
}

Values checked_index_put(Call& c) { return index_put_entry(c, Bounds::Check); }

}  // namespace

// index(x, indices)[..., i, ...] = x[..., indices[0][i], indices[1][i], ...].
TPU_OP("aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor") {
  return index_entry(c, Bounds::Check);
}
TPU_OP("aten::_unsafe_index.Tensor(Tensor self, Tensor?[] indices) -> Tensor") {
  return index_entry(c, Bounds::Trust);
}

// x with x[indices] replaced by (accumulate: increased by, once per index) values.
TPU_OP_FN(
    "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> "
    "Tensor",
    Contiguous, checked_index_put);
TPU_OP_FN(
    "aten::_index_put_impl(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, "
    "bool unsafe=False) -> Tensor",
    Contiguous, checked_index_put);
TPU_OP(
    "aten::_unsafe_index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) "
    "-> Tensor") {
  return index_put_entry(c, Bounds::Trust);
}

// ---- take and put
// --------------------------------------------------------------------------------

namespace {

Value flat_index(Call& c, int64_t elements) {
  Value index = c.tensor("index");
  return checked_index(c, index, elements, Negative::Wrap, CheckSpec::Index,
                       "out of range: tried to access index {} on a tensor of " +
                           std::to_string(elements) + " elements.");
}

}  // namespace

// take(x, index)[i] = flat x[index[i]].
TPU_APART("aten::take(Tensor self, Tensor index) -> Tensor") {
  c.check(c.dtype_of("index") == DType::S64, "take(): Expected a long tensor for index, but got ",
          c.dtype_of("index"));
  Value self = c.tensor("self");
  c.check_index(self.elements() > 0 || c.meta("index").elements() == 0,
                "take(): tried to take from an empty tensor");
  Value index = flat_index(c, self.elements());
  if (index.elements() == 0) return {hlo::zeros(c.builder(), {self.dtype(), index.dims()})};
  return {hlo::take(hlo::reshape(self, {self.elements()}), index, 0)};
}

// x with flat x[index[i]] replaced by (accumulate: increased by) source[i].
TPU_OP("aten::put(Tensor self, Tensor index, Tensor source, bool accumulate=False) -> Tensor") {
  Value self = c.tensor("self");
  c.check(c.dtype_of("index") == DType::S64, "put_(): Expected a long tensor for index, but got ",
          c.dtype_of("index"));
  c.check(c.dtype_of("source") == self.dtype(),
          "put_(): self and source expected to have the same dtype, but got self.dtype = ",
          self.dtype(), " and source.dtype = ", c.dtype_of("source"));
  c.check(c.meta("index").elements() == c.meta("source").elements(),
          "put_(): Expected source and index to have the same number of elements, but got "
          "source.numel() = ",
          c.meta("source").elements(), ", index.numel() = ", c.meta("index").elements());
  Value index = flat_index(c, self.elements());
  if (index.elements() == 0) return {self};
  const bool accumulate = c.flag("accumulate");
  const DType compute = accumulate ? accumulate_type(self.dtype()) : self.dtype();
  Value flat = hlo::convert(hlo::reshape(self, {self.elements()}), compute);
  Value source = hlo::reshape(c.tensor("source", compute), {index.elements()});
  Value y = scatter_rows(flat, 0, hlo::reshape(index, {index.elements()}), source,
                         accumulate ? hlo::Combiner(hlo::add) : hlo::Combiner(overwrite));
  return {hlo::reshape(hlo::convert(y, self.dtype()), self.dims())};
}

// ---- along one dimension
// -------------------------------------------------------------------------

namespace {

// Tensor arguments of index_add, index_copy, index_fill and index_reduce, 0-dim ones made 1-dim.
struct Rows {
  Value self, index;
  int64_t dim;
  Dims sizes;  // of self as given
};

Rows rows(Call& c, Negative negative, const std::string& message = {},
          CheckSpec::Error error = CheckSpec::Index) {
  Rows r;
  r.self = c.tensor("self");
  r.sizes = r.self.dims();
  r.dim = c.wrap(c.integer("dim"), r.self.rank());
  r.self = at_least_1d(r.self);
  Value index = c.tensor("index");
  c.check_index(index.rank() <= 1, "Index is supposed to be 1-dimensional or a number, got ",
                index.rank(), " dimensions");
  c.check(index.dtype() == DType::S32 || index.dtype() == DType::S64,
          "Expected dtype int32/int64 for index but got ", index.dtype());
  const int64_t size = r.self.dim(r.dim);
  r.index = checked_index(c, at_least_1d(index), size, negative, error,
                          message.empty() ? out_of_bounds(r.dim, size) : message);
  return r;
}

// The source of index_add and its kin: its rows are as many as the index has elements, else as
// self.
Value source_rows(Call& c, const Rows& r, DType compute) {
  c.check(c.dtype_of("source") == r.self.dtype(),
          "self and source expected to have the same dtype, but got (self) ", r.self.dtype(),
          " and (source) ", c.dtype_of("source"));
  Value source = at_least_1d(c.tensor("source", compute));
  Dims want = r.self.dims();
  want[r.dim] = r.index.elements();
  if (source.rank() == 1 && source.elements() == 1 && r.self.rank() == 1 && r.index.elements() == 1)
    return source;
  c.check(source.dims() == want, "The source has shape ", source.dims(), ", but an index with ",
          r.index.elements(), " elements into dimension ", r.dim, " of a tensor of shape ", r.sizes,
          " needs ", want);
  return source;
}

constexpr const char* kOutOfRange = "index out of range in self: {}";

}  // namespace

// index_select(x, dim, index)[..., i, ...] = x[..., index[i], ...].
TPU_APART("aten::index_select(Tensor self, int dim, Tensor index) -> Tensor") {
  Rows r = rows(c, Negative::Reject, kOutOfRange);
  Dims result = r.self.dims();
  result[r.dim] = r.index.elements();
  if (hlo::element_count(result) == 0) return {hlo::zeros(c.builder(), {r.self.dtype(), result})};
  Value y = hlo::take(r.self, r.index, r.dim);
  return {r.sizes.empty() ? hlo::reshape(y, {}) : y};
}

// x with x[..., index[i], ...] += alpha * source[..., i, ...].
TPU_OP(
    "aten::index_add(Tensor self, int dim, Tensor index, Tensor source, *, Scalar alpha=1) -> "
    "Tensor") {
  const bool matrix = c.meta("self").rank() > 1;
  Rows r = matrix ? rows(c, Negative::Reject, {}, CheckSpec::Runtime)
                  : rows(c, Negative::Reject, kOutOfRange);
  const DType sum = accumulate_type(r.self.dtype());
  Value source = source_rows(c, r, sum);
  if (!c.equals("alpha", 1)) source = source * c.scalar("alpha", sum);
  Value y = scatter_rows(hlo::convert(r.self, sum), r.dim, r.index, source, hlo::add);
  return {hlo::reshape(hlo::convert(y, r.self.dtype()), r.sizes)};
}

namespace {

// One row is a window, which compilers write in place: a scatter would copy a whole cache for each
// new token. Without dimensions of size 1, as XLA would take them off for some readers of the
// result, and then make the result twice.
Value overwrite_row(const Rows& r, const Value& source) {
  Dims sizes, row;
  Values starts;
  for (int64_t d = 0; d < r.self.rank(); ++d) {
    if (d != r.dim && r.self.dim(d) == 1) continue;
    sizes.push_back(r.self.dim(d));
    row.push_back(source.dim(d));
    starts.push_back(d == r.dim ? hlo::reshape(r.index, {})
                                : hlo::scalar(r.self.builder(), r.index.dtype(), 0));
  }
  return hlo::dynamic_update_slice(hlo::reshape(r.self, sizes), hlo::reshape(source, row), starts);
}

}  // namespace

// x with x[..., index[i], ...] = source[..., i, ...].
TPU_OP("aten::index_copy(Tensor self, int dim, Tensor index, Tensor source) -> Tensor") {
  Rows r = rows(c, Negative::Reject);
  Value source = source_rows(c, r, r.self.dtype());
  if (r.index.elements() == 1 && source.elements() > 0)
    return {hlo::reshape(overwrite_row(r, source), r.sizes)};
  return {hlo::reshape(scatter_rows(r.self, r.dim, r.index, source, overwrite), r.sizes)};
}

namespace {

// x with x[..., index[i], ...] = value. The rows are marked first, so that the value is written in
// one pass over x.
Values index_fill(Call& c) {
  Rows r = rows(c, Negative::Wrap);
  const int64_t size = r.self.dim(r.dim);
  Value value = c.tensor("value", r.self.dtype());
  c.check(value.rank() == 0,
          "index_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
          value.rank(), " dimension(s).");
  if (r.index.elements() == 0 || r.self.elements() == 0) return {hlo::reshape(r.self, r.sizes)};
  Value none = hlo::zeros(c.builder(), {DType::Pred, {size}});
  Value all = hlo::constant_int(c.builder(), {DType::Pred, {r.index.elements()}}, 1);
  Value marked = scatter_rows(none, 0, r.index, all, overwrite);
  marked = hlo::broadcast_in_dim(marked, r.self.dims(), {r.dim});
  return {hlo::reshape(hlo::select(marked, value, r.self), r.sizes)};
}

}  // namespace

TPU_OP_FN("aten::index_fill.int_Scalar(Tensor self, int dim, Tensor index, Scalar value) -> Tensor",
          Contiguous, index_fill);
TPU_OP_FN("aten::index_fill.int_Tensor(Tensor self, int dim, Tensor index, Tensor value) -> Tensor",
          Contiguous, index_fill);

}  // namespace torch_tpu::ops
