// SPDX-License-Identifier: Apache-2.0 - Layer, group, RMS and weight normalization and their backwards.
#include <algorithm>
#include <limits>

#include "src/ops/channels_last.h"
#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

// Everything is computed in float32 for halves. Statistics have the input's dtype, or float32 where
// half inputs meet float32 weights, as on CPU.
DType statistics_dtype(Call& c, std::initializer_list<std::string_view> weights) {
  DType input = c.dtype_of("input");
  for (std::string_view w : weights) {
    if (c.has(w) && c.dtype_of(w) != input) return hlo::opmath(input);
  }
  return input;
}
Value optional(Call& c, std::string_view name, DType dtype) {
  return c.has(name) ? c.tensor(name, dtype) : Value{};
}
Value rounded(const Value& x, DType dtype) { return x ? hlo::convert(x, dtype) : Value{}; }
DType weight_dtype(Call& c) { return c.dtype_of(c.has("weight") ? "weight" : "input"); }
bool wanted(Call& c, size_t i) { return c.ints("output_mask").at(i) != 0; }

// The trailing dimensions that normalized_shape names.
struct Normalized {
  Dims outer, inner;
};
Normalized normalized(Call& c, std::initializer_list<std::string_view> weights) {
  const Dims& sizes = c.meta("input").sizes;
  Dims shape = c.ints("normalized_shape");
  c.check(!shape.empty(), "Expected normalized_shape to be at least 1-dimensional");
  for (std::string_view name : weights) {
    c.check(!c.has(name) || c.meta(name).sizes == shape, "Expected ", name,
            " to be of same shape as normalized_shape, but got ", name, " of shape ",
            c.has(name) ? c.meta(name).sizes : shape, " and normalized_shape = ", shape);
  }
  std::string expected = "[*";
  for (int64_t d : shape) expected += ", " + std::to_string(d);
  c.check(sizes.size() >= shape.size() && std::equal(shape.rbegin(), shape.rend(), sizes.rbegin()),
          "Given normalized_shape=", shape, ", expected input with shape ", expected,
          "], but got input of size", sizes);
  Normalized n;
  int64_t axis = static_cast<int64_t>(sizes.size() - shape.size());
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    (d < axis ? n.outer : n.inner).push_back(d);
  }
  return n;
}

// y = (x - mean) rstd w + b with rstd = 1/sqrt(var + eps), var the biased variance.
TPU_OP(
    "aten::native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? "
    "bias, float eps) -> (Tensor, Tensor, Tensor)") {
  DType result = c.dtype_of("input"), compute = hlo::opmath(result);
  DType stats = statistics_dtype(c, {"weight", "bias"});
  Normalized n = normalized(c, {"weight", "bias"});
  Value x = c.tensor("input", compute);
  Moments m = moments(x, n.inner);
  Value var = m.squares / static_cast<double>(reduced_count(x, n.inner));
  Value rstd = hlo::rsqrt(var + c.scalar("eps", compute));
  Value y = (x - m.mean) * rstd;
  if (Value w = optional(c, "weight", compute)) y = y * w;
  if (Value b = optional(c, "bias", compute)) y = y + b;
  return {hlo::convert(y, result), hlo::convert(m.mean, stats), hlo::convert(rstd, stats)};
}

// With h = (x - mean) rstd and g w the gradient that reaches h:
// dx = rstd (g w - mean(g w) - h mean(g w h)), dw = sum(g h), db = sum(g), means over the
// normalized dimensions and sums over the others.
TPU_OP(
    "aten::native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, "
    "Tensor mean, Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, "
    "Tensor, Tensor)") {
  DType result = c.dtype_of("input"), compute = hlo::opmath(result);
  Normalized n = normalized(c, {"weight"});
  Value x = c.tensor("input", compute), g = c.tensor("grad_out", compute);
  Dims stat_dims = x.dims();
  for (int64_t d : n.inner) stat_dims[d] = 1;
  Value center = hlo::reshape(c.tensor("mean", compute), stat_dims);
  Value rstd = hlo::reshape(c.tensor("rstd", compute), stat_dims);
  Value h = (x - center) * rstd;
  Value dx, dw, db;
  if (wanted(c, 0)) {
    Value gw = g;
    if (Value w = optional(c, "weight", compute)) gw = g * w;
    dx = rstd * (gw - mean(gw, n.inner, true) - h * mean(gw * h, n.inner, true));
  }
  if (wanted(c, 1)) dw = sum(g * h, n.outer);
  if (wanted(c, 2)) db = sum(g, n.outer);
  return {rounded(dx, result), rounded(dw, weight_dtype(c)),
          rounded(db, c.has("bias") ? c.dtype_of("bias") : weight_dtype(c))};
}

// y = x rstd w with rstd = 1/sqrt(mean(x^2) + eps); rstd stays in float32 for halves.
TPU_OP(
    "aten::_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> "
    "(Tensor, Tensor)") {
  DType result = c.result_type(c.has("weight") ? std::vector<std::string_view>{"input", "weight"}
                                               : std::vector<std::string_view>{"input"});
  DType compute = hlo::opmath(c.dtype_of("input"));
  Normalized n = normalized(c, {"weight"});
  Value x = c.tensor("input", compute);
  DType real = hlo::real_of(compute);
  double smallest = real == DType::F64 ? std::numeric_limits<double>::epsilon()
                                       : std::numeric_limits<float>::epsilon();
  Value eps = c.has("eps") ? c.scalar("eps", compute) : hlo::scalar(c.builder(), compute, smallest);
  Value rstd = hlo::rsqrt(mean(x * x, n.inner, true) + eps);
  Value y = x * rstd;
  if (Value w = optional(c, "weight", compute)) y = y * w;
  return {hlo::convert(y, result), rstd};
}

// With h = x rstd: dx = rstd (g w - h mean(g w h)), dw = sum(g h).
TPU_OP(
    "aten::_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor "
    "rstd, Tensor? weight, bool[2] output_mask) -> (Tensor, Tensor)") {
  DType result = c.dtype_of("input"), compute = hlo::opmath(result);
  Normalized n = normalized(c, {"weight"});
  Value x = c.tensor("input", compute), g = c.tensor("grad_out", compute);
  Dims stat_dims = x.dims();
  for (int64_t d : n.inner) stat_dims[d] = 1;
  Value rstd = hlo::reshape(c.tensor("rstd", compute), stat_dims);
  Value h = x * rstd;
  Value dx, dw;
  if (wanted(c, 0)) {
    Value gw = g;
    if (Value w = optional(c, "weight", compute)) gw = g * w;
    dx = rstd * (gw - h * mean(gw * h, n.inner, true));
  }
  if (wanted(c, 1)) dw = sum(g * h, n.outer);
  return {rounded(dx, result), rounded(dw, weight_dtype(c))};
}

// ---- group norm --------------------------------------------------------------------------------
// Seen as [N, group, C / group, HxW], normalized over the last two.
struct Groups {
  Dims grouped, weight, stats;
};
Groups groups(Call& c) {
  int64_t n = c.integer("N"), channels = c.integer("C"), pixels = c.integer("HxW");
  int64_t group = c.integer("group");
  c.check(group > 0, "Expected num groups to be greater than 0, got ", group);
  c.check(channels % group == 0, "Expected number of channels in input to be divisible by ",
          "num_groups, but got input of shape ", c.meta("input").sizes, " and num_groups=", group);
  c.check(c.meta("input").elements() == n * channels * pixels, "Expected ", n, " x ", channels,
          " x ", pixels, " elements, but got input of shape ", c.meta("input").sizes);
  return {{n, group, channels / group, pixels}, {1, group, channels / group, 1}, {n, group, 1, 1}};
}

// y = (x - mean) rstd w + b, statistics over each group.
TPU_OP(
    "aten::native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, "
    "SymInt HxW, int group, float eps) -> (Tensor, Tensor, Tensor)") {
  DType result = c.dtype_of("input"), compute = hlo::opmath(result);
  DType stats = statistics_dtype(c, {"weight", "bias"});
  Groups s = groups(c);
  Value x = c.tensor("input", compute);
  Dims dims = x.dims();
  x = hlo::reshape(x, s.grouped);
  Moments m = moments(x, {2, 3});
  Value var = m.squares / static_cast<double>(s.grouped[2] * s.grouped[3]);
  Value rstd = hlo::rsqrt(var + c.scalar("eps", compute));
  Value y = (x - m.mean) * rstd;
  if (Value w = optional(c, "weight", compute)) y = y * hlo::reshape(w, s.weight);
  if (Value b = optional(c, "bias", compute)) y = y + hlo::reshape(b, s.weight);
  keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  Dims pair{s.grouped[0], s.grouped[1]};
  return {hlo::convert(hlo::reshape(y, dims), result),
          hlo::convert(hlo::reshape(m.mean, pair), stats),
          hlo::convert(hlo::reshape(rstd, pair), stats)};
}

// As layer norm's, with the means over each group and the sums over N and HxW.
TPU_OP(
    "aten::native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, "
    "Tensor? weight, SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, "
    "Tensor, Tensor)") {
  DType result = c.dtype_of("input"), compute = hlo::opmath(result);
  Groups s = groups(c);
  Dims dims = c.meta("input").sizes;
  Value x = hlo::reshape(c.tensor("input", compute), s.grouped);
  Value g = hlo::reshape(c.tensor("grad_out", compute), s.grouped);
  Value center = hlo::reshape(c.tensor("mean", compute), s.stats);
  Value rstd = hlo::reshape(c.tensor("rstd", compute), s.stats);
  Value h = (x - center) * rstd;
  Value dx, dw, db;
  Dims channels{s.grouped[1] * s.grouped[2]};
  if (wanted(c, 0)) {
    Value gw = g;
    if (Value w = optional(c, "weight", compute)) gw = g * hlo::reshape(w, s.weight);
    dx = rstd * (gw - mean(gw, {2, 3}, true) - h * mean(gw * h, {2, 3}, true));
    dx = hlo::reshape(dx, dims);
    keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  }
  if (wanted(c, 1)) dw = hlo::reshape(sum(g * h, {0, 3}), channels);
  if (wanted(c, 2)) db = hlo::reshape(sum(g, {0, 3}), channels);
  return {rounded(dx, result), rounded(dw, weight_dtype(c)), rounded(db, weight_dtype(c))};
}

// ---- weight norm -------------------------------------------------------------------------------
// w = v g / |v|, |v| over all dimensions but dim.
Dims weight_norm_dims(Call& c, std::string_view v) {
  int64_t rank = c.meta(v).rank();
  return dims_but(rank, c.wrap(c.integer("dim"), rank));
}
TPU_OP("aten::_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)") {
  DType result = c.dtype_of("v"), compute = hlo::opmath(result);
  Value v = c.tensor("v", compute), g = c.tensor("g", compute);
  Value norm = hlo::sqrt(sum(v * v, weight_norm_dims(c, "v"), true));
  return {hlo::convert(v * (hlo::reshape(g, norm.dims()) / norm), result),
          hlo::convert(hlo::reshape(norm, g.dims()), c.dtype_of("g"))};
}

// With s = sum(dw v): dv = g/|v| (dw - v s / |v|^2), dg = s / |v|.
TPU_OP(
    "aten::_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor "
    "saved_norms, int dim) -> (Tensor, Tensor)") {
  DType result = c.dtype_of("saved_v"), compute = hlo::opmath(result);
  Dims dims = weight_norm_dims(c, "saved_v");
  Value dw = c.tensor("grad_w", compute), v = c.tensor("saved_v", compute);
  Value s = sum(dw * v, dims, true);
  Value g = hlo::reshape(c.tensor("saved_g", compute), s.dims());
  Value norm = hlo::reshape(c.tensor("saved_norms", compute), s.dims());
  Value dv = (g / norm) * (dw - v * (s / (norm * norm)));
  return {hlo::convert(dv, result),
          hlo::convert(hlo::reshape(s / norm, c.meta("saved_g").sizes), c.dtype_of("saved_g"))};
}

}  // namespace
}  // namespace torch_tpu::ops
