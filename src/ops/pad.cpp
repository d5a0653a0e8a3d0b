// SPDX-License-Identifier: Apache-2.0 - Padding by a constant, by reflection, by replication, and their gradients.
#include <algorithm>

#include "src/ops/channels_last.h"
#include "src/ops/index.h"

namespace torch_tpu::ops {

using hlo::Type;

// Elements of `value` before and after the last dimensions, last dimension first; negative amounts
// crop.
TPU_OP("aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor") {
  Dims pad = c.ints("pad");
  Value self = c.tensor("self");
  const int64_t rank = self.rank(), padded = static_cast<int64_t>(pad.size()) / 2;
  c.check(pad.size() % 2 == 0, "Length of pad must be even but instead it equals ", pad.size());
  c.check(padded <= rank,
          "Length of pad should be no more than twice the number of dimensions of the input. Pad "
          "length is ",
          pad.size(), " while the input has ", rank, " dimensions.");
  Dims low(rank, 0), high(rank, 0), result = self.dims();
  for (int64_t i = 0; i < padded; ++i) {
    const int64_t d = rank - 1 - i;
    low[d] = pad[2 * i];
    high[d] = pad[2 * i + 1];
    result[d] += low[d] + high[d];
    c.check(result[d] >= 0, "The input size ", self.dim(d), ", plus negative padding ", low[d],
            " and ", high[d],
            " resulted in a negative output size, which is invalid. Check dimension ", d,
            " of your input.");
  }
  keep_channels_last(c, 0, result, c.meta("self"));
  Value value = c.scalar("value", self.dtype());
  if (self.elements() == 0) return {hlo::broadcast_to(value, result)};
  return {hlo::pad(self, value, low, high)};
}

namespace {

enum class Edge : uint8_t { Reflect, Replicate };

// Padding of one dimension. Negative amounts crop.
struct Amount {
  int64_t low, high;
};

// Reflect: x[2] x[1] | x[0] x[1] x[2] ... ; replicate: x[0] x[0] | x[0] x[1] x[2] ...
Value pad_edge(const Value& x, int64_t dim, Amount amount, Edge edge) {
  const int64_t n = x.dim(dim);
  auto side = [&](int64_t count, bool first) {
    Value part;
    if (edge == Edge::Reflect) {
      part = first ? hlo::slice_dim(x, dim, 1, 1 + count)
                   : hlo::slice_dim(x, dim, n - 1 - count, n - 1);
      return hlo::reverse(part, {dim});
    }
    part = first ? hlo::slice_dim(x, dim, 0, 1) : hlo::slice_dim(x, dim, n - 1, n);
    Dims dims = x.dims();
    dims[dim] = count;
    Dims squeezed = x.dims();
    squeezed.erase(squeezed.begin() + dim);
    return hlo::broadcast_in_dim(hlo::reshape(part, squeezed), dims, dims_but(x.rank(), dim));
  };
  Values parts;
  if (amount.low > 0) parts.push_back(side(amount.low, true));
  parts.push_back(hlo::slice_dim(x, dim, std::max<int64_t>(0, -amount.low),
                                 n - std::max<int64_t>(0, -amount.high)));
  if (amount.high > 0) parts.push_back(side(amount.high, false));
  return parts.size() == 1 ? parts[0] : hlo::concatenate(parts, dim);
}

// The adjoint: what came from x's edges goes back there.
Value pad_edge_backward(const Value& grad, int64_t dim, int64_t n, Amount amount, Edge edge) {
  const int64_t rank = grad.rank(), low = std::max<int64_t>(0, amount.low),
                high = std::max<int64_t>(0, amount.high), total = grad.dim(dim);
  Value zero = hlo::zeros(grad.builder(), {grad.dtype(), {}});
  auto placed = [&](const Value& part, int64_t at) {
    Dims before(rank, 0), after(rank, 0);
    before[dim] = at;
    after[dim] = n - at - part.dim(dim);
    return hlo::pad(part, zero, before, after);
  };
  auto side = [&](const Value& part, bool first) {
    if (edge == Edge::Reflect)
      return placed(hlo::reverse(part, {dim}), first ? 1 : n - 1 - part.dim(dim));
    return placed(hlo::reduce(part, {dim}, hlo::Reduce::Add, true), first ? 0 : n - 1);
  };
  Value y = placed(hlo::slice_dim(grad, dim, low, total - high), std::max<int64_t>(0, -amount.low));
  if (low > 0) y = y + side(hlo::slice_dim(grad, dim, 0, low), true);
  if (high > 0) y = y + side(hlo::slice_dim(grad, dim, total - high, total), false);
  return y;
}

// Checks of F.pad's modes; spatial: the number of padded dimensions.
void check_pad(Call& c, const Dims& sizes, const Dims& padding, int64_t spatial, Edge edge) {
  const auto rank = static_cast<int64_t>(sizes.size());
  const char* mode = edge == Edge::Reflect ? "reflection" : "replication";
  c.check(static_cast<int64_t>(padding.size()) == 2 * spatial, "padding size is expected to be ",
          2 * spatial, ", but got: ", padding.size());
  bool sized = rank == spatial + 1 || rank == spatial + 2;
  for (int64_t d = rank - spatial - 1; sized && d < rank; ++d) sized = sized && sizes[d] > 0;
  c.check(
      sized, "Expected ", spatial + 1, "D or ", spatial + 2,
      "D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for input, "
      "but got: ",
      sizes);
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t d = rank - 1 - i, low = padding[2 * i], high = padding[2 * i + 1], n = sizes[d];
    if (edge == Edge::Reflect) {
      c.check(
          low < n && high < n,
          "Argument #4: Padding size should be less than the corresponding input dimension, but "
          "got: padding (",
          low, ", ", high, ") at dimension ", d, " of input ", sizes);
    }
    c.check(n + low + high >= 1, mode, " padding: input of size ", n, " at dimension ", d,
            " is too small for padding (", low, ", ", high, "); the output would have size ",
            n + low + high);
  }
}

template <int64_t spatial, Edge edge>
Values pad_entry(Call& c) {
  Value x = c.tensor("self");
  Dims padding = c.ints("padding");
  check_pad(c, x.dims(), padding, spatial, edge);
  const int64_t rank = x.rank();
  for (int64_t i = 0; i < spatial; ++i)
    x = pad_edge(x, rank - 1 - i, {padding[2 * i], padding[2 * i + 1]}, edge);
  keep_channels_last(c, 0, x.dims(), c.meta("self"));
  return {x};
}

template <int64_t spatial, Edge edge>
Values pad_backward_entry(Call& c) {
  const TensorArg& self = c.meta("self");
  Dims padding = c.ints("padding");
  check_pad(c, self.sizes, padding, spatial, edge);
  Value grad = c.tensor("grad_output", hlo::opmath(self.dtype));
  const int64_t rank = grad.rank();
  Dims want = self.sizes;
  for (int64_t i = 0; i < spatial; ++i) want[rank - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  c.check(grad.dims() == want, "grad_output has shape ", grad.dims(), ", expected ", want);
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t d = rank - 1 - i;
    grad = pad_edge_backward(grad, d, self.sizes[d], {padding[2 * i], padding[2 * i + 1]}, edge);
  }
  keep_channels_last(c, 0, self.sizes, self);
  return {hlo::convert(grad, self.dtype)};
}

constexpr Edge kReflect = Edge::Reflect, kReplicate = Edge::Replicate;

}  // namespace

#define TPU_PAD(mode, edge, spatial, count)                                                       \
  TPU_OP_FN("aten::" mode "_pad" #spatial "d(Tensor self, SymInt[" #count "] padding) -> Tensor", \
            Contiguous, (pad_entry<spatial, edge>));                                              \
  TPU_OP_FN("aten::" mode "_pad" #spatial                                                         \
            "d_backward(Tensor grad_output, Tensor self, SymInt[" #count "] padding) -> Tensor",  \
            Contiguous, (pad_backward_entry<spatial, edge>))
TPU_PAD("reflection", kReflect, 1, 2);
TPU_PAD("reflection", kReflect, 2, 4);
TPU_PAD("reflection", kReflect, 3, 6);
TPU_PAD("replication", kReplicate, 1, 2);
TPU_PAD("replication", kReplicate, 2, 4);
TPU_PAD("replication", kReplicate, 3, 6);
#undef TPU_PAD

}  // namespace torch_tpu::ops
