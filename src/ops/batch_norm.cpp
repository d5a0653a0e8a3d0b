// SPDX-License-Identifier: Apache-2.0 - Batch normalization in all its spellings, SyncBatchNorm's pieces, and backwards.
#include <algorithm>

#include "src/ops/channels_last.h"
#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

// Channels are dimension 1; statistics run over the others. Everything is computed in float32 for
// halves. Statistics have the input's dtype, or float32 where half inputs meet float32 parameters.
Value channelwise(const Value& per_channel, int64_t rank) {
  Dims dims(rank, 1);
  dims[1] = per_channel.elements();
  return hlo::reshape(per_channel, dims);
}
Value per_channel(const Value& x) { return hlo::reshape(x, {x.elements()}); }
bool defined(Call& c, std::string_view name) {  // PyTorch passes undefined or empty ones too
  return c.has(name) && c.meta(name).elements() > 0;
}
// An optional parameter, ready to be multiplied or added; undefined if there is none.
Value parameter(Call& c, std::string_view name, DType compute, int64_t rank) {
  return c.has(name) ? channelwise(c.tensor(name, compute), rank) : Value{};
}
Value rounded(const Value& x, DType dtype) { return x ? hlo::convert(x, dtype) : Value{}; }

struct Input {
  Value x;
  DType result, compute;
  Dims over;     // the reduced dimensions
  double count;  // elements per channel
};
Input input_of(Call& c) {
  Input in;
  in.result = c.dtype_of("input");
  in.compute = hlo::opmath(in.result);
  in.x = c.tensor("input", in.compute);
  c.check(in.x.rank() >= 2, "Expected at least 2 dimensions (N, C, ...), got input of shape ",
          in.x.dims());
  in.over = dims_but(in.x.rank(), 1);
  in.count = static_cast<double>(reduced_count(in.x, in.over));
  return in;
}

DType statistics_dtype(Call& c, std::initializer_list<std::string_view> names) {
  DType input = c.dtype_of("input");
  for (std::string_view name : names) {
    if (c.has(name) && c.dtype_of(name) != input) return hlo::opmath(input);
  }
  return input;
}

// running = (1 - momentum) running + momentum new; the variance is the unbiased one.
Value updated(Call& c, std::string_view running, const Value& fresh) {
  Value momentum = c.scalar("momentum", fresh.dtype());
  Value old = c.tensor(running, fresh.dtype());
  return old * (1.0 - momentum) + per_channel(fresh) * momentum;
}

struct Normalized {
  Value y, mean, invstd;            // as the op returns them
  Value running_mean, running_var;  // new values; undefined where nothing is tracked
};
// Training: batch statistics (two-pass, biased variance) and new running ones.
// Otherwise: the running statistics, and empty saved ones.
// y = (x - mean) invstd w + b.
Normalized normalize(Call& c, bool training, bool tracks) {
  Input in = input_of(c);
  int64_t rank = in.x.rank();
  Normalized n;
  DType stats = tracks ? statistics_dtype(c, {"weight", "bias", "running_mean", "running_var"})
                       : statistics_dtype(c, {"weight", "bias"});
  bool has_mean = tracks && defined(c, "running_mean"),
       has_var = tracks && defined(c, "running_var");
  for (std::string_view name : {"weight", "bias", "running_mean", "running_var"}) {
    if (!tracks && name.starts_with("running")) continue;
    if (!c.has(name)) continue;
    c.check(c.meta(name).elements() == in.x.dim(1), name, " should contain ", in.x.dim(1),
            " elements not ", c.meta(name).elements());
  }
  Value center, invstd;
  Value eps = c.scalar("eps", in.compute);
  if (training) {
    Moments m = moments(in.x, in.over);
    center = m.mean;
    invstd = hlo::rsqrt(m.squares / in.count + eps);
    n.mean = hlo::convert(per_channel(center), stats);
    n.invstd = hlo::convert(per_channel(invstd), stats);
    if (has_mean) n.running_mean = updated(c, "running_mean", center);
    if (has_var) n.running_var = updated(c, "running_var", m.squares / (in.count - 1));
  } else {
    c.check(has_mean && has_var,
            "Expected running_mean and running_var to be defined in evaluation");
    center = channelwise(c.tensor("running_mean", in.compute), rank);
    invstd = hlo::rsqrt(channelwise(c.tensor("running_var", in.compute), rank) + eps);
    n.mean = n.invstd = hlo::zeros(c.builder(), {stats, {0}});
  }
  Value scale = invstd;
  if (Value w = parameter(c, "weight", in.compute, rank)) scale = invstd * w;
  Value y = (in.x - center) * scale;
  if (Value b = parameter(c, "bias", in.compute, rank)) y = y + b;
  n.y = hlo::convert(y, in.result);
  keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  return n;
}
void track(Call& c, const Normalized& n) {
  if (n.running_mean) c.write("running_mean", n.running_mean);
  if (n.running_var) c.write("running_var", n.running_var);
}
// New running statistics as results, for the functional forms.
Value tracked(Call& c, std::string_view name, const Value& fresh) {
  return fresh ? hlo::convert(fresh, c.dtype_of(name)) : c.tensor(name);
}
Value no_reserve(Call& c) { return hlo::zeros(c.builder(), {DType::U8, {0}}); }

TPU_OP(
    "aten::native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)") {
  Normalized n = normalize(c, c.flag("training"), true);
  track(c, n);
  return {n.y, n.mean, n.invstd};
}
TPU_OP(
    "aten::_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) "
    "running_mean, Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, "
    "Tensor, Tensor)") {
  Normalized n = normalize(c, c.flag("training"), true);
  track(c, n);
  return {n.y, n.mean, n.invstd};
}
TPU_OP(
    "aten::_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool "
    "training, float momentum, float eps) -> (Tensor, Tensor, Tensor)") {
  Normalized n = normalize(c, c.flag("training"), false);
  return {n.y, n.mean, n.invstd};
}
TPU_OP(
    "aten::_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor "
    "running_mean, Tensor running_var, bool training, float momentum, float eps) -> (Tensor, "
    "Tensor, Tensor, Tensor running_mean_out, Tensor running_var_out)") {
  Normalized n = normalize(c, c.flag("training"), true);
  return {n.y, n.mean, n.invstd, tracked(c, "running_mean", n.running_mean),
          tracked(c, "running_var", n.running_var)};
}
TPU_OP(
    "aten::_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, "
    "Tensor running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, "
    "Tensor)") {
  Normalized n = normalize(c, false, true);
  return {n.y, n.mean, n.invstd};
}
TPU_OP(
    "aten::_batch_norm_with_update(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) "
    "running_mean, Tensor(b!) running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, "
    "Tensor)") {
  Normalized n = normalize(c, true, true);
  track(c, n);
  return {n.y, n.mean, n.invstd, no_reserve(c)};
}
TPU_OP(
    "aten::_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor "
    "running_mean, Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, "
    "Tensor, Tensor running_mean_out, Tensor running_var_out)") {
  Normalized n = normalize(c, true, true);
  return {n.y,
          n.mean,
          n.invstd,
          no_reserve(c),
          tracked(c, "running_mean", n.running_mean),
          tracked(c, "running_var", n.running_var)};
}
TPU_OP(
    "aten::_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)") {
  Normalized n = normalize(c, false, true);
  return {n.y, n.mean, n.invstd, no_reserve(c)};
}

// With h = (x - mean) invstd and g w the gradient that reaches h: dw = sum(g h), db = sum(g),
// training: dx = invstd (g w - mean(g w) - h mean(g w h)); evaluation: dx = g w invstd.
Values backward(Call& c, bool train, std::string_view saved_invstd) {
  Input in = input_of(c);
  int64_t rank = in.x.rank();
  Dims mask = c.ints("output_mask");
  Value g = c.tensor("grad_out", in.compute);
  Value center, invstd;
  if (train) {
    center = channelwise(c.tensor("save_mean", in.compute), rank);
    invstd = channelwise(c.tensor(saved_invstd, in.compute), rank);
  } else {
    center = channelwise(c.tensor("running_mean", in.compute), rank);
    invstd = hlo::rsqrt(channelwise(c.tensor("running_var", in.compute), rank) +
                        c.scalar("eps", in.compute));
  }
  Value h = (in.x - center) * invstd;
  Value sum_g = sum(g, in.over, true), sum_gh = sum(g * h, in.over, true);
  Value dx;
  if (mask.at(0)) {
    Value scale = invstd;
    if (Value w = parameter(c, "weight", in.compute, rank)) scale = invstd * w;
    dx = train ? (g - sum_g / in.count - h * (sum_gh / in.count)) * scale : g * scale;
    keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  }
  DType weight = c.dtype_of(c.has("weight") ? "weight" : "input");
  return {rounded(dx, in.result), mask.at(1) ? hlo::convert(per_channel(sum_gh), weight) : Value{},
          mask.at(2) ? hlo::convert(per_channel(sum_g), weight) : Value{}};
}
TPU_OP(
    "aten::native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? "
    "running_mean, Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float "
    "eps, bool[3] output_mask) -> (Tensor, Tensor, Tensor)") {
  return backward(c, c.flag("train"), "save_invstd");
}
TPU_OP(
    "aten::batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, "
    "Tensor? running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] "
    "output_mask, Tensor reserve) -> (Tensor, Tensor, Tensor)") {
  return backward(c, c.flag("update"), "save_var");
}

// ---- SyncBatchNorm -----------------------------------------------------------------------------
// Statistics of one rank, of all ranks from theirs, and the normalization itself as separate ops.
// Statistics are float32 for halves.
TPU_OP("aten::batch_norm_stats(Tensor input, float eps) -> (Tensor, Tensor)") {
  Input in = input_of(c);
  Moments m = moments(in.x, in.over);
  Value invstd = hlo::rsqrt(m.squares / in.count + c.scalar("eps", in.compute));
  return {per_channel(m.mean), per_channel(invstd)};
}

// Mean and biased variance; new running statistics.
TPU_OP(
    "aten::batch_norm_update_stats(Tensor input, Tensor? running_mean, Tensor? running_var, float "
    "momentum) -> (Tensor, Tensor)") {
  Input in = input_of(c);
  DType stats = statistics_dtype(c, {"running_mean", "running_var"});
  Moments m = moments(in.x, in.over);
  if (defined(c, "running_mean")) c.write("running_mean", updated(c, "running_mean", m.mean));
  if (defined(c, "running_var")) {
    c.write("running_var", updated(c, "running_var", m.squares / (in.count - 1)));
  }
  return {hlo::convert(per_channel(m.mean), stats),
          hlo::convert(per_channel(m.squares / in.count), stats)};
}

TPU_OP(
    "aten::batch_norm_elemt(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor "
    "invstd, float eps) -> Tensor") {
  Input in = input_of(c);
  int64_t rank = in.x.rank();
  Value scale = channelwise(c.tensor("invstd", in.compute), rank);
  if (Value w = parameter(c, "weight", in.compute, rank)) scale = scale * w;
  Value y = (in.x - channelwise(c.tensor("mean", in.compute), rank)) * scale;
  if (Value b = parameter(c, "bias", in.compute, rank)) y = y + b;
  keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  return {hlo::convert(y, in.result)};
}

// From mean_r, invstd_r and n_r of every rank r ([ranks, C]) with N = sum n_r:
// mean = sum n_r mean_r / N, var = sum n_r (1/invstd_r^2 - eps + (mean_r - mean)^2) / N; the
// running variance takes var N / (N - 1).
Values gather_stats(Call& c, const Value& counts) {
  DType compute = hlo::opmath(c.dtype_of("mean"));
  Value means = c.tensor("mean", compute), invstds = c.tensor("invstd", compute);
  Value eps = c.scalar("eps", compute);
  Value n = hlo::broadcast_in_dim(counts, means.dims(), {0});
  Value total = sum(counts, {0});
  Value center = sum(n * means, {0}) / total;
  Value away = means - center;
  Value squares = sum(n * (1.0 / (invstds * invstds) - eps + away * away), {0});
  if (defined(c, "running_mean")) c.write("running_mean", updated(c, "running_mean", center));
  if (defined(c, "running_var")) {
    c.write("running_var", updated(c, "running_var", squares / (total - 1)));
  }
  return {center, hlo::rsqrt(squares / total + eps)};
}
TPU_OP(
    "aten::batch_norm_gather_stats_with_counts(Tensor input, Tensor mean, Tensor invstd, Tensor? "
    "running_mean, Tensor? running_var, float momentum, float eps, Tensor counts) -> (Tensor, "
    "Tensor)") {
  Value counts = c.tensor("counts", hlo::opmath(c.dtype_of("mean")));
  return gather_stats(c, hlo::reshape(counts, {counts.elements()}));
}
TPU_OP(
    "aten::batch_norm_gather_stats(Tensor input, Tensor mean, Tensor invstd, Tensor? running_mean, "
    "Tensor? running_var, float momentum, float eps, int count) -> (Tensor, Tensor)") {
  hlo::Type type{hlo::opmath(c.dtype_of("mean")), {c.meta("mean").sizes.at(0)}};
  return gather_stats(c, hlo::constant(c.builder(), type, static_cast<double>(c.integer("count"))));
}

// sum g, sum g (x - mean), dw = invstd sum g (x - mean), db = sum g.
TPU_OP(
    "aten::batch_norm_backward_reduce(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, "
    "Tensor? weight, bool input_g, bool weight_g, bool bias_g) -> (Tensor, Tensor, Tensor, "
    "Tensor)") {
  Input in = input_of(c);
  DType stats = c.dtype_of("mean");
  DType weight = c.has("weight") ? c.dtype_of("weight") : stats;
  Value g = c.tensor("grad_out", in.compute);
  Value away = in.x - channelwise(c.tensor("mean", in.compute), in.x.rank());
  Value sum_g = sum(g, in.over), sum_g_away = sum(g * away, in.over);
  Value dw = sum_g_away * c.tensor("invstd", in.compute);
  bool input_g = c.flag("input_g");
  return {input_g ? hlo::convert(sum_g, stats) : Value{},
          input_g ? hlo::convert(sum_g_away, stats) : Value{},
          c.flag("weight_g") ? hlo::convert(dw, weight) : Value{},
          c.flag("bias_g") ? hlo::convert(sum_g, weight) : Value{}};
}

// dx = invstd w (g - sum_dy / N - (x - mean) invstd^2 sum_dy_xmu / N), N = sum(count).
TPU_OP(
    "aten::batch_norm_backward_elemt(Tensor grad_out, Tensor input, Tensor mean, Tensor invstd, "
    "Tensor? weight, Tensor sum_dy, Tensor sum_dy_xmu, Tensor count) -> Tensor") {
  Input in = input_of(c);
  int64_t rank = in.x.rank();
  Value g = c.tensor("grad_out", in.compute), count = c.tensor("count", in.compute);
  Value n = sum(count, all_dims(count.rank()));
  Value invstd = c.tensor("invstd", in.compute);
  Value away = in.x - channelwise(c.tensor("mean", in.compute), rank);
  Value mean_g = c.tensor("sum_dy", in.compute) / n;
  Value slope = c.tensor("sum_dy_xmu", in.compute) / n * invstd * invstd;
  Value scale = channelwise(invstd, rank);
  if (Value w = parameter(c, "weight", in.compute, rank)) scale = scale * w;
  Value dx = (g - channelwise(mean_g, rank) - away * channelwise(slope, rank)) * scale;
  keep_channels_last(c, 0, c.meta("input").sizes, c.meta("input"));
  return {hlo::convert(dx, in.result)};
}

}  // namespace
}  // namespace torch_tpu::ops
