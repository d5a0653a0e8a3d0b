// SPDX-License-Identifier: Apache-2.0 - Losses of class indices: negative log likelihood and the multi-class margins.
#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

using graph::CheckSpec;

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

// ---- negative log likelihood -------------------------------------------------------------------
// self [N, C, ...] or [C], target [N, ...] or 0-dim, weight [C]; class t counts unless it is
// ignore_index. Here self is [N, C, ...] and target [N, 1, ...].
struct Nll {
  Value target;  // S32, in range (0 where ignored)
  Value valid;   // whether the target counts
  Value weight;  // of the target's class, 0 where ignored, in the compute dtype
  Dims self;
};
Nll nll(Call& c, DType compute) {
  const TensorArg &self = c.meta("self"), &target = c.meta("target");
  c.check(target.dtype == DType::S64 || target.dtype == DType::U8,
          "expected target dtype to be Long or Byte, but got ", target.dtype);
  Nll r;
  r.self = self.sizes;
  Dims expected = self.sizes;
  if (self.rank() <= 1) {
    c.check(self.rank() == 1, "input tensor should be 1D or 2D");
    c.check(target.elements() == 1 && target.rank() <= 1,
            "0D or 1D target tensor expected, multi-target not supported");
    r.self.insert(r.self.begin(), 1);
  } else {
    expected.erase(expected.begin() + 1);
    c.check(target.sizes == expected, "size mismatch (got input: ", self.sizes,
            ", target: ", target.sizes, ")");
  }
  int64_t classes = r.self[1];
  c.check(!c.has("weight") || c.meta("weight").elements() == classes,
          "weight tensor should be defined either for all ", classes,
          " classes or no classes but got weight tensor of shape: ",
          c.has("weight") ? c.meta("weight").sizes : Dims{});
  Dims dims = r.self;
  dims[1] = 1;
  Value t = hlo::reshape(c.tensor("target", DType::S64), dims);
  hlo::Builder& b = c.builder();
  Value ignored = hlo::constant_int(b, {DType::S64, {}}, c.integer("ignore_index"));
  r.valid = hlo::ne(t, ignored);
  Value safe = hlo::select(r.valid, t, 0);
  r.target = checked_index(
      c, safe, classes, Negative::Reject, CheckSpec::Index,
      "Target {} is out of bounds: a class index must be in [0, " + std::to_string(classes) +
          ") or be ignore_index = " + std::to_string(c.integer("ignore_index")));
  Value weight = hlo::full_like(hlo::convert(r.valid, compute), 1);
  if (c.has("weight")) {
    Value w = hlo::reshape(c.tensor("weight", compute), {classes});
    weight = classes > 0 ? hlo::take(w, r.target, 0) : weight;
  }
  r.weight = hlo::select(r.valid, weight, 0);
  return r;
}

// x[n, target[n], ...], with the class dimension kept as 1.
Value pick(const Value& x, const Value& target) {
  hlo::GatherDims dims;
  dims.collapsed_slice_dims = {1};
  dims.start_index_map = {1};
  dims.operand_batching_dims = dims.start_indices_batching_dims = dims_but(x.rank(), 1);
  dims.index_vector_dim = x.rank();
  if (target.elements() == 0 || x.dim(1) == 0)
    return hlo::zeros(x.builder(), {x.dtype(), target.dims()});
  return hlo::gather(x, target, dims, Dims(x.rank(), 1));
}

// l = -w[t] x[t]; sum l, or sum l / sum w[t], or each. total_weight is sum w[t] (0 for each).
Values nll_forward(Call& c) {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Nll r = nll(c, compute);
  Value x = hlo::reshape(c.tensor("self", compute), r.self);
  // What is ignored must not count even if it is infinite.
  Value loss = hlo::select(r.valid, -r.weight * pick(x, r.target), 0);
  int64_t reduction = c.integer("reduction");
  hlo::Type none{result, {}};
  if (reduction == kNone && c.meta("self").rank() > 1) {
    return {hlo::convert(hlo::reshape(loss, c.meta("target").sizes), result),
            hlo::zeros(c.builder(), none)};
  }
  Dims all = all_dims(loss.rank());
  Value total = sum(r.weight, all), out = sum(loss, all);
  if (reduction == kMean) out = out / total;
  if (reduction == kNone) total = hlo::zeros_like(total);
  Value shaped = hlo::convert(out, result);
  return {shaped, hlo::convert(total, result)};
}

// dx[n, t] = -w[t] g (/ total_weight for the mean), 0 elsewhere.
Values nll_backward(Call& c) {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Nll r = nll(c, compute);
  Value g = c.tensor("grad_output", compute);
  int64_t reduction = c.integer("reduction");
  if (reduction == kMean) g = g / c.tensor("total_weight", compute);
  g = g.elements() == r.valid.elements() ? hlo::reshape(g, r.valid.dims()) : g;
  Value slope = hlo::select(r.valid, -r.weight * g, 0);
  Value classes = hlo::iota(c.builder(), {r.target.dtype(), r.self}, 1);
  Value dx = hlo::select(hlo::eq(classes, r.target), slope, 0);
  return {hlo::convert(hlo::reshape(dx, c.meta("self").sizes), result)};
}

TPU_OP(
    "aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt "
    "ignore_index) -> (Tensor output, Tensor total_weight)") {
  c.check(c.meta("self").rank() > 0 && c.meta("self").rank() <= 2,
          "input tensor should be 1D or 2D");
  return nll_forward(c);
}
TPU_OP(
    "aten::nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int "
    "reduction, SymInt ignore_index, Tensor total_weight) -> Tensor") {
  return nll_backward(c);
}
TPU_OP(
    "aten::nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt "
    "ignore_index) -> (Tensor output, Tensor total_weight)") {
  c.check(c.meta("self").rank() == 4, "only batches of spatial inputs supported (4D tensors), but ",
          "got input of dimension: ", c.meta("self").rank());
  return nll_forward(c);
}
TPU_OP(
    "aten::nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int "
    "reduction, SymInt ignore_index, Tensor total_weight) -> Tensor") {
  return nll_backward(c);
}

// ---- margins -----------------------------------------------------------------------------------
// [N, C], whatever the number of dimensions.
Dims as_rows(Call& c) {
  const Dims& sizes = c.meta("self").sizes;
  c.check(sizes.size() <= 2 && (sizes.empty() || sizes.back() > 0),
          "Expected non-empty vector or matrix with optional 0-dim batch size, but got: ", sizes);
  c.check(c.dtype_of("target") == DType::S64, "expected target dtype to be Long, but got ",
          c.dtype_of("target"));
  if (sizes.empty()) return {1, 1};
  if (sizes.size() == 1) return {1, sizes[0]};
  return sizes;
}
// Per-row losses [N, 1] as the op returns them.
Value reduced(Call& c, const Value& rows, DType result) {
  Value out;
  switch (c.integer("reduction")) {
    case kMean:
      out = mean(rows, all_dims(rows.rank()));
      break;
    case kSum:
      out = sum(rows, all_dims(rows.rank()));
      break;
    default:
      out = c.meta("self").rank() == 2 ? hlo::reshape(rows, {rows.elements()})
                                       : hlo::reshape(rows, {});
  }
  return hlo::convert(out, result);
}
// The gradient that reaches each row, [N, 1] or 0-dim.
Value row_gradient(Call& c, int64_t rows, DType compute) {
  Value g = c.tensor("grad_output", compute);
  switch (c.integer("reduction")) {
    case kMean:
      return hlo::reshape(g, {}) / static_cast<double>(rows);
    case kSum:
      return hlo::reshape(g, {});
    default:
      return hlo::reshape(g, {rows, 1});
  }
}

// l[n] = sum_{j != t} max(0, margin - x[t] + x[j])^p w[t] / C.
struct MultiMargin {
  Value z;      // margin - x[t] + x[j], 0 where it is negative and at j = t
  Value other;  // j != t
  Value weight;
  bool squared;
};
MultiMargin multi_margin(Call& c, const Dims& dims, DType compute) {
  bool squared = c.equals("p", 2);
  c.check_value(squared || c.equals("p", 1), "only p == 1 and p == 2 supported");
  const TensorArg& target = c.meta("target");
  c.check(target.elements() == dims[0] && target.rank() <= 1, "inconsistent target size, expected ",
          dims[0], " but got ", target.sizes);
  c.check(!c.has("weight") || c.meta("weight").sizes == Dims{dims[1]},
          "inconsistent weight size, expected ", dims[1], " but got ",
          c.has("weight") ? c.meta("weight").sizes : Dims{});
  Value x = hlo::reshape(c.tensor("self", compute), dims);
  Value t = checked_index(c, hlo::reshape(c.tensor("target"), {dims[0], 1}), dims[1],
                          Negative::Reject, CheckSpec::Runtime, "target out of range: {}");
  MultiMargin m;
  m.squared = squared;
  m.other = hlo::ne(hlo::iota(c.builder(), {t.dtype(), dims}, 1), t);
  Value z = c.scalar("margin", compute) - pick(x, t) + x;
  m.z = hlo::select(m.other, hlo::maximum(z, 0), 0);
  if (c.has("weight")) m.weight = hlo::take(c.tensor("weight", compute), t, 0);
  return m;
}
TPU_OP(
    "aten::multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? "
    "weight=None, int reduction=1) -> Tensor") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Dims dims = as_rows(c);
  MultiMargin m = multi_margin(c, dims, compute);
  Value loss = mean(m.squared ? m.z * m.z : m.z, {1}, true);
  if (m.weight) loss = loss * m.weight;
  return {reduced(c, loss, result)};
}
// dx[j] = w[t] / C (or 2 z w[t] / C) where z > 0, dx[t] = -sum of those.
TPU_OP(
    "aten::multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p, "
    "Scalar margin, Tensor? weight=None, int reduction=1) -> Tensor") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Dims dims = as_rows(c);
  MultiMargin m = multi_margin(c, dims, compute);
  Value slope = (m.squared ? m.z * 2.0 : hlo::convert(hlo::gt(m.z, 0), compute)) /
                static_cast<double>(dims[1]);
  if (m.weight) slope = slope * m.weight;
  Value dx = hlo::select(m.other, slope, -sum(slope, {1}, true));
  return {hlo::convert(hlo::reshape(dx * row_gradient(c, dims[0], compute), c.meta("self").sizes),
                       result)};
}

// Targets are the classes in each row before the first -1:
// l[n] = sum_{t target} sum_{j not target} max(0, 1 - x[t] + x[j]) / C.
struct MultiLabel {
  Value listed;     // [N, C] S32, in range
  Value counts;     // [N, C] whether listed[n, k] is before the first -1
  Value is_target;  // [N, C] whether class j is among them
};
MultiLabel multi_label(Call& c, const Dims& dims) {
  hlo::Builder& b = c.builder();
  c.check(c.meta("target").elements() == dims[0] * dims[1],
          "inconsistent target size: ", c.meta("target").sizes,
          " for input of size: ", c.meta("self").sizes);
  Value t = hlo::reshape(c.tensor("target", DType::S64), dims);
  hlo::Type places{DType::S32, dims};
  Value k = hlo::iota(b, places, 1);
  Value end = hlo::reduce(hlo::select(hlo::lt(t, 0), k, static_cast<double>(dims[1])), {1},
                          hlo::Reduce::Minimum, true);
  MultiLabel m;
  m.counts = hlo::lt(k, end);
  m.listed = checked_index(c, hlo::select(m.counts, t, 0), dims[1], Negative::Reject,
                           CheckSpec::Runtime, "argument #2 'target' is out of range: {}");
  Dims cube{dims[0], dims[1], dims[1]};  // n, place in the list, class
  Value same = hlo::eq(hlo::broadcast_in_dim(m.listed, cube, {0, 1}),
                       hlo::iota(b, {m.listed.dtype(), cube}, 2));
  m.is_target =
      hlo::reduce(same & hlo::broadcast_in_dim(m.counts, cube, {0, 1}), {1}, hlo::Reduce::Or);
  return m;
}
// 1 - x[t_k] + x[j] where t_k is a target, j is not, and it is positive; else 0. [N, k, j].
Value label_margins(const Value& x, const MultiLabel& m) {
  Dims cube{x.dim(0), x.dim(1), x.dim(1)};
  auto over = [&](const Value& v, int64_t dim) { return hlo::broadcast_in_dim(v, cube, {0, dim}); };
  hlo::GatherDims dims;
  dims.collapsed_slice_dims = {1};
  dims.start_index_map = {1};
  dims.operand_batching_dims = dims.start_indices_batching_dims = {0};
  dims.index_vector_dim = 2;
  Value xt = x.elements() == 0 ? x : hlo::gather(x, m.listed, dims, {1, 1});
  Value z = 1.0 - over(xt, 1) + over(x, 2);
  return hlo::select(over(m.counts, 1) & ~over(m.is_target, 2), hlo::maximum(z, 0), 0);
}
TPU_OP(
    "aten::multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor "
    "output, Tensor is_target)") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Dims dims = as_rows(c);
  MultiLabel m = multi_label(c, dims);
  Value z = label_margins(hlo::reshape(c.tensor("self", compute), dims), m);
  Value loss = sum(z, {1, 2}) / static_cast<double>(dims[1]);
  return {reduced(c, hlo::reshape(loss, {dims[0], 1}), result),
          hlo::convert(hlo::reshape(m.is_target, c.meta("target").sizes), result)};
}
// Each pair with a positive margin gives dx[j] += 1 / C, dx[t] -= 1 / C.
TPU_OP(
    "aten::multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int "
    "reduction, Tensor is_target) -> Tensor") {
  DType result = c.dtype_of("self"), compute = hlo::opmath(result);
  Dims dims = as_rows(c);
  MultiLabel m = multi_label(c, dims);
  Value z = label_margins(hlo::reshape(c.tensor("self", compute), dims), m);
  Value hit = hlo::convert(hlo::gt(z, 0), compute);  // [N, k, j]
  Value up = sum(hit, {1}), down = sum(hit, {2});    // by class, by place in the list
  Dims cube{dims[0], dims[1], dims[1]};
  Value same = hlo::eq(hlo::broadcast_in_dim(m.listed, cube, {0, 1}),
                       hlo::iota(c.builder(), {m.listed.dtype(), cube}, 2));
  Value by_class = sum(hlo::select(same, hlo::broadcast_in_dim(down, cube, {0, 1}), 0), {1});
  Value dx = (up - by_class) / static_cast<double>(dims[1]) * row_gradient(c, dims[0], compute);
  return {hlo::convert(hlo::reshape(dx, c.meta("self").sizes), result)};
}

}  // namespace
}  // namespace torch_tpu::ops
