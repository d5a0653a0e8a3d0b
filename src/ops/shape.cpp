// SPDX-License-Identifier: Apache-2.0 - Putting tensors together and rearranging them: cat, flip, roll, repeat, triangles, diagonals.
#include <algorithm>
#include <numeric>

#include "src/ops/channels_last.h"
#include "src/ops/index.h"

namespace torch_tpu::ops {

using graph::UserError;
using hlo::Type;

// ---- cat and stack
// -------------------------------------------------------------------------------

namespace {

DType promoted(const std::vector<const TensorArg*>& metas) {
  DType dtype = metas[0]->dtype;
  for (const TensorArg* m : metas) dtype = graph::promote(dtype, m->dtype);
  return dtype;
}

// All inputs in channels-last order: so is the result.
void follow_all(Call& c, const std::vector<const TensorArg*>& metas, const Dims& sizes) {
  if (std::all_of(metas.begin(), metas.end(), [](auto* m) { return is_channels_last(*m); }))
    make_channels_last(c, 0, sizes);
}

Values stack(Call& c) {
  std::vector<const TensorArg*> metas = c.metas("tensors");
  c.check(!metas.empty(), "stack expects a non-empty TensorList");
  const Dims& first = metas[0]->sizes;
  const int64_t dim = c.wrap(c.integer("dim"), static_cast<int64_t>(first.size()) + 1);
  for (size_t i = 1; i < metas.size(); ++i) {
    c.check(metas[i]->sizes == first, "stack expects each tensor to be equal size, but got ", first,
            " at entry 0 and ", metas[i]->sizes, " at entry ", i);
  }
  Values parts = c.tensors("tensors", promoted(metas));
  for (Value& v : parts) v = hlo::unsqueeze(v, dim);
  return {hlo::concatenate(parts, dim)};
}

}  // namespace

// Tensors side by side along dim; 1-dim tensors without elements are passed over.
TPU_APART("aten::cat(Tensor[] tensors, int dim=0) -> Tensor") {
  std::vector<const TensorArg*> metas = c.metas("tensors");
  c.check_value(!metas.empty(), "expected a non-empty list of Tensors");
  const DType dtype = promoted(metas);
  Values all = c.tensors("tensors", dtype), parts;
  std::vector<const TensorArg*> kept;
  const TensorArg* first = nullptr;
  for (size_t i = 0; i < metas.size(); ++i) {
    c.check(metas[i]->rank() > 0, "zero-dimensional tensor (at position ", i,
            ") cannot be concatenated");
    if (metas[i]->sizes == Dims{0}) continue;
    if (!first) first = metas[i];
  }
  const int64_t dim = c.wrap(c.integer("dim"), first ? first->rank() : 1);
  if (!first) return {hlo::zeros(c.builder(), {dtype, {0}})};
  for (size_t i = 0; i < metas.size(); ++i) {
    const Dims& sizes = metas[i]->sizes;
    if (sizes == Dims{0}) continue;
    c.check(sizes.size() == first->sizes.size(),
            "Tensors must have same number of dimensions: got ", first->sizes.size(), " and ",
            sizes.size());
    for (int64_t d = 0; d < first->rank(); ++d) {
      c.check(d == dim || sizes[d] == first->sizes[d],
              "Sizes of tensors must match except in dimension ", dim, ". Expected size ",
              first->sizes[d], " but got size ", sizes[d], " for tensor number ", i,
              " in the list.");
    }
    kept.push_back(metas[i]);
    if (sizes[dim] > 0 || static_cast<int64_t>(metas.size()) == 1) parts.push_back(all[i]);
  }
  if (parts.empty())
    parts.push_back(
        all[static_cast<size_t>(std::find(metas.begin(), metas.end(), first) - metas.begin())]);
  Value y = parts.size() == 1 ? parts[0] : hlo::concatenate(parts, dim);
  follow_all(c, kept, y.dims());
  return {y};
}

TPU_OP_FN("aten::stack(Tensor[] tensors, int dim=0) -> Tensor", Contiguous, stack);
TPU_OP_FN("aten::_stack(Tensor[] tensors, int dim=0) -> Tensor", Contiguous, stack);

// ---- flip, roll, repeat
// --------------------------------------------------------------------------

TPU_POINTWISE("aten::flip(Tensor self, int[] dims) -> Tensor") {
  Value self = c.tensor("self");
  if (c.ints("dims").empty() || self.rank() == 0) return {self};
  return {hlo::reverse(self, c.reduce_dims("dims", self.rank()))};
}

namespace {

// y[..., (i + shift) mod n, ...] = x[..., i, ...].
Value roll_dim(const Value& x, int64_t dim, int64_t shift) {
  const int64_t n = x.dim(dim);
  if (n == 0) return x;
  const int64_t cut = ((n - shift) % n + n) % n;  // the first element of the result
  if (cut == 0) return x;
  Values parts = {hlo::slice_dim(x, dim, cut, n), hlo::slice_dim(x, dim, 0, cut)};
  return hlo::concatenate(parts, dim);
}

}  // namespace

TPU_OP("aten::roll(Tensor self, SymInt[1] shifts, int[1] dims=[]) -> Tensor") {
  Dims shifts = c.ints("shifts"), dims = c.ints("dims");
  c.check(!shifts.empty(), "`shifts` required");
  Value self = c.tensor("self");
  if (dims.empty()) {
    c.check(shifts.size() == 1, "shifts and dimensions must align. shifts: ", shifts.size(),
            ", dims:0");
    return {
        hlo::reshape(roll_dim(hlo::reshape(self, {self.elements()}), 0, shifts[0]), self.dims())};
  }
  c.check(shifts.size() == dims.size(), "shifts and dimensions must align. shifts: ", shifts.size(),
          ", dims:", dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    c.check_index(self.rank() > 0, "Dimension specified as ", dims[i],
                  " but tensor has no dimensions");
    self = roll_dim(self, c.wrap(dims[i], self.rank()), shifts[i]);
  }
  return {self};
}

// Copies side by side: y[i] = x[i mod size] in every dimension; new dimensions come in front.
TPU_OP("aten::repeat(Tensor self, SymInt[] repeats) -> Tensor") {
  Value self = c.tensor("self");
  Dims repeats = c.ints("repeats");
  const auto rank = static_cast<int64_t>(repeats.size());
  c.check(
      rank >= self.rank(),
      "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  Dims blocks, result, kept;
  for (int64_t d = 0; d < rank; ++d) {
    c.check(repeats[d] >= 0, "Repeats cannot be negative, found ", repeats[d], " at index ", d);
    const int64_t from = d - (rank - self.rank());
    const int64_t size = from < 0 ? 1 : self.dim(from);
    blocks.push_back(repeats[d]);
    if (from >= 0) {
      kept.push_back(static_cast<int64_t>(blocks.size()));
      blocks.push_back(size);
    }
    result.push_back(repeats[d] * size);
  }
  if (hlo::element_count(result) == 0) return {hlo::zeros(c.builder(), {self.dtype(), result})};
  return {hlo::reshape(hlo::broadcast_in_dim(self, blocks, kept), result)};
}

// repeat_interleave(repeats): i, repeats[i] times, for every i. output_size is the sum of repeats.
TPU_OP("aten::repeat_interleave.Tensor(Tensor repeats, *, SymInt? output_size=None) -> Tensor") {
  Value repeats = c.tensor("repeats");
  c.check(repeats.rank() == 1, "repeat_interleave only accept 1D vector as repeat, got ",
          repeats.rank(), " dimensions");
  c.check(hlo::is_integer(repeats.dtype()), "repeats has to be Long or Int tensor, got ",
          repeats.dtype());
  c.check_supported(c.has("output_size"), "needs output_size here");
  const int64_t total = c.integer("output_size"), n = repeats.elements();
  hlo::Builder& b = c.builder();
  c.fail_if(hlo::lt(repeats, 0), graph::CheckSpec::Runtime, "repeats can not be negative, got {}",
            repeats);
  if (total == 0 || n == 0) return {hlo::zeros(b, {repeats.dtype(), {total}})};
  // Where a run ends, the next element begins; ends outside the result are dropped by scatter.
  Value ends = running_sum(c, repeats);
  c.fail_if(hlo::ne(hlo::slice_dim(ends, 0, n - 1, n), static_cast<double>(total)),
            graph::CheckSpec::Runtime, "allocated size does not match required size");
  Value steps = scatter_rows(hlo::zeros(b, {repeats.dtype(), {total}}), 0, ends,
                             hlo::constant_int(b, {repeats.dtype(), {n}}, 1), hlo::add);
  return {running_sum(c, steps)};
}

// channel_shuffle: channels [groups, channels / groups] transposed.
TPU_OP("aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor") {
  Value self = c.tensor("self");
  const int64_t groups = c.integer("groups");
  c.check(self.rank() > 2, "channel_shuffle expects input with > 2 dims, but got input with sizes ",
          self.dims());
  c.check(groups > 0,
          "Number of groups to divide channels in must be positive. Value of groups:", groups);
  const int64_t channels = self.dim(1);
  c.check(channels % groups == 0, "Number of channels must be divisible by groups. Got ", channels,
          " channels and ", groups, " groups.");
  keep_channels_last(c, 0, self.dims(), c.meta("self"));
  if (self.elements() == 0) return {self};
  Value x = hlo::reshape(
      self, {self.dim(0), groups, channels / groups, self.elements() / (self.dim(0) * channels)});
  return {hlo::reshape(hlo::transpose(x, {0, 2, 1, 3}), self.dims())};
}

// ---- triangles and diagonals
// ---------------------------------------------------------------------

namespace {

// Pred of these sizes: column - row compared with `diagonal`, rows and columns along two
// dimensions.
Value on_diagonal(hlo::Builder& b, const Dims& sizes, int64_t row_dim, int64_t column_dim,
                  int64_t diagonal, hlo::Compare how) {
  const bool wide = sizes[row_dim] + sizes[column_dim] + std::abs(diagonal) > INT32_MAX;
  const DType dtype = wide ? DType::S64 : DType::S32;
  Value distance = hlo::iota(b, {dtype, sizes}, column_dim) - hlo::iota(b, {dtype, sizes}, row_dim);
  return hlo::compare(distance, hlo::constant_int(b, {dtype, {}}, diagonal), how);
}

Values triangle(Call& c, hlo::Compare keep) {
  Value self = c.tensor("self");
  c.check(self.rank() >= 2, "input tensor must have at least 2 dimensions");
  const int64_t rank = self.rank();
  Value kept =
      on_diagonal(c.builder(), self.dims(), rank - 2, rank - 1, c.integer("diagonal"), keep);
  return {hlo::select(kept, self, hlo::zeros(c.builder(), {self.dtype(), {}}))};
}

// `onto` with its diagonal (of dim1 and dim2) replaced by `values`, whose last dimension runs along
// it. The values are spread over the rows (columns below the main diagonal) and a mask picks one
// each.
Value with_diagonal(const Value& onto, const Value& values, int64_t offset, int64_t dim1,
                    int64_t dim2) {
  if (values.elements() == 0) return onto;
  const int64_t along = offset >= 0 ? dim1 : dim2;
  const int64_t last = values.rank() - 1;
  Dims low(values.rank(), 0), high(values.rank(), 0), to;
  high[last] = onto.dim(along) - values.dim(last);
  Value padded = hlo::pad(values, hlo::zeros(onto.builder(), {values.dtype(), {}}), low, high);
  for (int64_t d = 0; d < onto.rank(); ++d)
    if (d != dim1 && d != dim2) to.push_back(d);
  to.push_back(along);
  // broadcast_in_dim wants its dimensions ascending only by convention; any order is a transpose.
  Value spread = hlo::broadcast_in_dim(padded, onto.dims(), to);
  Value mask = on_diagonal(onto.builder(), onto.dims(), dim1, dim2, offset, hlo::Compare::EQ);
  return hlo::select(mask, spread, onto);
}

// Sizes of x.diagonal(offset, dim1, dim2).
Dims diagonal_sizes(const Dims& sizes, int64_t offset, int64_t dim1, int64_t dim2) {
  Dims result;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d)
    if (d != dim1 && d != dim2) result.push_back(sizes[d]);
  const int64_t length = offset >= 0 ? std::min(sizes[dim1], sizes[dim2] - offset)
                                     : std::min(sizes[dim1] + offset, sizes[dim2]);
  result.push_back(std::max<int64_t>(length, 0));
  return result;
}

}  // namespace

// x[i, j] where j - i <= diagonal (triu: >=), else 0, in the last two dimensions.
TPU_OP("aten::tril(Tensor self, SymInt diagonal=0) -> Tensor") {
  return triangle(c, hlo::Compare::LE);
}
TPU_OP("aten::triu(Tensor self, SymInt diagonal=0) -> Tensor") {
  return triangle(c, hlo::Compare::GE);
}

// The sum of the main diagonal; integers sum in int64.
TPU_OP("aten::trace(Tensor self) -> Tensor") {
  Value self = c.tensor("self");
  c.check(self.rank() == 2, "expected a matrix, but got a ", self.rank(), "-D tensor");
  const DType dtype = self.dtype();
  const bool whole = hlo::is_integer(dtype) || dtype == DType::Pred;
  const DType sum = whole ? DType::S64 : hlo::opmath(dtype);
  Value mask = on_diagonal(c.builder(), self.dims(), 0, 1, 0, hlo::Compare::EQ);
  Value x = hlo::select(mask, hlo::convert(self, sum), hlo::zeros(c.builder(), {sum, {}}));
  return {hlo::convert(hlo::reduce(x, {0, 1}, hlo::Reduce::Add), whole ? DType::S64 : dtype)};
}

// The last dimension becomes the diagonal of two new ones.
TPU_OP("aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor") {
  Value self = c.tensor("self");
  const int64_t rank = self.rank() + 1, offset = c.integer("offset");
  const int64_t dim1 = c.wrap(c.integer("dim1"), rank), dim2 = c.wrap(c.integer("dim2"), rank);
  c.check(dim1 != dim2, "diagonal dimensions cannot be identical ", c.integer("dim1"), ", ",
          c.integer("dim2"));
  const int64_t n = self.dim(-1) + std::abs(offset);
  Dims sizes(self.dims().begin(), self.dims().end() - 1);
  sizes.insert(sizes.begin() + std::min(dim1, dim2), n);
  sizes.insert(sizes.begin() + std::max(dim1, dim2), n);
  return {with_diagonal(hlo::zeros(c.builder(), {self.dtype(), sizes}), self, offset, dim1, dim2)};
}

TPU_OP(
    "aten::diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int "
    "dim2) -> Tensor") {
  Value grad = c.tensor("grad_output");
  Dims sizes = c.ints("input_sizes");
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t dim1 = c.wrap(c.integer("dim1"), rank), dim2 = c.wrap(c.integer("dim2"), rank);
  return {with_diagonal(hlo::zeros(c.builder(), {grad.dtype(), sizes}), grad, c.integer("offset"),
                        dim1, dim2)};
}

TPU_OP(
    "aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> "
    "Tensor") {
  Value self = c.tensor("self");
  const int64_t rank = self.rank(), offset = c.integer("offset");
  const int64_t dim1 = c.wrap(c.integer("dim1"), rank), dim2 = c.wrap(c.integer("dim2"), rank);
  c.check(dim1 != dim2, "diagonal dimensions cannot be identical ", c.integer("dim1"), ", ",
          c.integer("dim2"));
  Dims want = diagonal_sizes(self.dims(), offset, dim1, dim2);
  Value src = c.tensor("src", self.dtype());
  c.check(src.dims() == want,
          "expected src to have a size equal to the slice of self. src size = ", src.dims(),
          ", slice size = ", want);
  return {with_diagonal(self, src, offset, dim1, dim2)};
}

// ---- slices put back
// -----------------------------------------------------------------------------

namespace {

struct Range {
  int64_t start, end, step, count;
};

// Bounds of x[start:end:step] as Python has them.
Range slice_range(Call& c, int64_t size, std::optional<int64_t> start, std::optional<int64_t> end,
                  int64_t step) {
  c.check(step > 0, "slice step must be positive, got ", step);
  auto bound = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + size : v, 0, size); };
  Range r{bound(start.value_or(0)), bound(end.value_or(size)), step, 0};
  r.end = std::max(r.start, r.end);
  r.count = (r.end - r.start + step - 1) / step;
  return r;
}

// `values` at the places of a slice in zeros of `size` along dim.
Value spread_slice(const Value& values, int64_t dim, const Range& r, int64_t size) {
  Dims low(values.rank(), 0), high(values.rank(), 0), interior(values.rank(), 0);
  low[dim] = r.start;
  interior[dim] = r.step - 1;
  high[dim] = size - r.start - (r.count > 0 ? (r.count - 1) * r.step + 1 : 0);
  return hlo::pad(values, hlo::zeros(values.builder(), {values.dtype(), {}}), low, high, interior);
}

// self with the elements of a slice replaced.
Value with_slice(const Value& self, const Value& src, int64_t dim, const Range& r) {
  if (r.count == 0 || self.elements() == 0) return self;
  hlo::Builder& b = self.builder();
  if (r.step == 1) {
    Values starts(self.rank(), hlo::zeros(b, {DType::S32, {}}));
    if (r.start > INT32_MAX) starts.assign(self.rank(), hlo::zeros(b, {DType::S64, {}}));
    starts[dim] = hlo::constant_int(b, starts[dim].type(), r.start);
    return hlo::dynamic_update_slice(self, src, starts);
  }
  Value here = spread_slice(hlo::constant_int(b, {DType::Pred, {r.count}}, 1), 0, r, self.dim(dim));
  return hlo::select(hlo::broadcast_in_dim(here, self.dims(), {dim}),
                     spread_slice(src, dim, r, self.dim(dim)), self);
}

int64_t wrap_select(Call& c, int64_t index, int64_t dim, const Dims& sizes) {
  const int64_t size = sizes[dim];
  c.check_index(index >= -size && index < size, "index ", index,
                " out of range for tensor of size ", sizes, " at dimension ", dim);
  return index < 0 ? index + size : index;
}

}  // namespace

TPU_OP(
    "aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt "
    "end, SymInt step) -> Tensor") {
  Value grad = c.tensor("grad_output");
  Dims sizes = c.ints("input_sizes");
  const int64_t dim = c.wrap(c.integer("dim"), static_cast<int64_t>(sizes.size()));
  Range r = slice_range(c, sizes[dim], c.integer("start"), c.integer("end"), c.integer("step"));
  return {spread_slice(grad, dim, r, sizes[dim])};
}

TPU_OP(
    "aten::select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> "
    "Tensor") {
  Value grad = c.tensor("grad_output");
  Dims sizes = c.ints("input_sizes");
  const int64_t dim = c.wrap(c.integer("dim"), static_cast<int64_t>(sizes.size()));
  const int64_t index = wrap_select(c, c.integer("index"), dim, sizes);
  return {spread_slice(hlo::unsqueeze(grad, dim), dim, {index, index + 1, 1, 1}, sizes[dim])};
}

TPU_OP(
    "aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, "
    "SymInt step=1) -> Tensor") {
  Value self = c.tensor("self");
  const int64_t dim = c.wrap(c.integer("dim"), self.rank());
  c.check(self.rank() > 0, "slice() cannot be applied to a 0-dim tensor.");
  Range r = slice_range(c, self.dim(dim), c.integer_or_none("start"), c.integer_or_none("end"),
                        c.integer("step"));
  Dims want = self.dims();
  want[dim] = r.count;
  Value src = c.tensor("src", self.dtype());
  c.check(src.dims() == want,
          "expected src to have a size equal to the slice of self. src size = ", src.dims(),
          ", slice size = ", want);
  return {with_slice(self, src, dim, r)};
}

TPU_OP("aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor") {
  Value self = c.tensor("self");
  const int64_t dim = c.wrap(c.integer("dim"), self.rank());
  c.check_index(self.rank() > 0, "select() cannot be applied to a 0-dim tensor.");
  const int64_t index = wrap_select(c, c.integer("index"), dim, self.dims());
  Dims want = self.dims();
  want.erase(want.begin() + dim);
  Value src = c.tensor("src", self.dtype());
  c.check(src.dims() == want,
          "expected src to have a size equal to the slice of self. src size = ", src.dims(),
          ", slice size = ", want);
  return {with_slice(self, hlo::unsqueeze(src, dim), dim, {index, index + 1, 1, 1})};
}

// Gradient of unfold: windows (last dimension) of `size` every `step` elements add up where they
// overlap. Pieces of `step` elements of neighbouring windows do not overlap, so the j-th pieces of
// all windows are one contiguous run that begins at j * step.
TPU_OP(
    "aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> "
    "Tensor") {
  const DType dtype = c.dtype_of("grad_in"), sum = accumulate_type(dtype);
  Value grad = c.tensor("grad_in", sum);
  Dims sizes = c.ints("input_sizes");
  const auto rank = static_cast<int64_t>(sizes.size());
  const int64_t size = c.integer("size"), step = c.integer("step");
  hlo::Builder& b = c.builder();
  if (rank == 0) return {hlo::convert(hlo::reshape(hlo::slice_dim(grad, 0, 0, 1), {}), dtype)};
  const int64_t dim = c.wrap(c.integer("dim"), rank);
  if (grad.elements() == 0) return {hlo::zeros(b, {dtype, sizes})};
  const int64_t windows = grad.dim(dim), length = sizes[dim];
  Value zero = hlo::zeros(b, {sum, {}});
  // The elements of a window next to the windows.
  Dims order(rank + 1);
  for (int64_t d = 0, from = 0; d <= rank; ++d) order[d] = d == dim + 1 ? rank : from++;
  Value x = hlo::transpose(grad, order);
  const int64_t pieces = (size + step - 1) / step;
  Dims none(rank + 1, 0), up = none;
  up[dim + 1] = pieces * step - size;
  x = hlo::pad(x, zero, none, up);
  Value y;
  for (int64_t j = 0; j < pieces; ++j) {
    Value piece = hlo::slice_dim(x, dim + 1, j * step, (j + 1) * step);
    Dims run = sizes;
    run[dim] = windows * step;
    Dims low(rank, 0), high(rank, 0);
    low[dim] = j * step;
    high[dim] = length - j * step - run[dim];
    piece = hlo::pad(hlo::reshape(piece, run), zero, low, high);
    y = y ? y + piece : piece;
  }
  return {hlo::convert(y, dtype)};
}

}  // namespace torch_tpu::ops
