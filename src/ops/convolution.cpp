// SPDX-License-Identifier: Apache-2.0 - Convolutions of any rank, forward and backward, in a form for each platform.
//
// Everything is made of three functions of one geometry: forward, gradient of the input, gradient
// of the weight. A transposed convolution is the gradient of the input of an ordinary one.
//
// A TPU gets stablehlo.convolution. XLA's CPU plugin runs that well only in float32, with few
// channels on many pixels; elsewhere products of matrices are up to 80 times faster: the input's
// windows as columns (channels first, so that the weight is used as it lies in memory) times the
// weight; or, in float32, oneDNN as a host kernel.
#include <algorithm>
#include <numeric>

#include "src/ops/channels_last.h"
#include "src/ops/contraction.h"
#include "src/ops/host_kernels.h"
#include "src/ops/pointwise.h"
#include "src/ops/windows.h"

namespace torch_tpu::ops {
namespace {

// Weight [outputs, inputs / groups, kernel...] over input [batch, inputs, spatial...].
struct Geometry : Windows {
  int64_t groups = 1;
  int64_t batch = 0, inputs = 0, outputs = 0;

  int64_t pixels() const { return batch * hlo::element_count(out); }
  bool depthwise() const { return groups == inputs && groups > 1; }
};

Dims join(std::initializer_list<Dims> parts) {
  Dims all;
  for (const Dims& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// batch and channels swapped: [a, b, ...] -> [b, a, ...]
Value swapped(const Value& x) {
  Dims order = counting(x.rank());
  std::swap(order[0], order[1]);
  return hlo::transpose(x, order);
}

// ---- StableHLO's convolution --------------------------------------------------------------------

hlo::ConvDims plain_dims(int64_t axes) {
  const Dims spatial = counting(axes, 2);
  return {0, 1, spatial, 0, 1, spatial, 0, 1, spatial};
}

Value native_forward(Call& c, const Geometry& g, const Value& x, const Value& w) {
  hlo::ConvConfig config;
  config.window_strides = g.stride;
  config.rhs_dilation = g.dilation;
  config.pad_low = g.padding;
  for (int64_t i = 0; i < g.axes(); ++i) config.pad_high.push_back(g.end_padding(i));
  config.feature_group_count = g.groups;
  config.precision = contraction_precision(c, x.dtype());
  return hlo::convolution(x, w, plain_dims(g.axes()), config, hlo::opmath(x.dtype()));
}

// The output's gradient, spread out by the stride, under the reversed weight.
Value native_grad_input(Call& c, const Geometry& g, const Value& gy, const Value& w) {
  hlo::ConvConfig config;
  config.lhs_dilation = g.stride;
  config.rhs_dilation = g.dilation;
  for (int64_t i = 0; i < g.axes(); ++i) {
    const int64_t low = g.reach(i) - 1 - g.padding[i];
    config.pad_low.push_back(low);
    config.pad_high.push_back(g.in[i] + g.reach(i) - 1 - ((g.out[i] - 1) * g.stride[i] + 1) - low);
  }
  config.feature_group_count = g.groups;
  config.precision = contraction_precision(c, gy.dtype());
  const Dims spatial = counting(g.axes(), 2);
  Value flipped = hlo::reverse(w, spatial);
  hlo::ConvDims dims = plain_dims(g.axes());
  if (g.groups == 1) {
    dims.kernel_output_feature = 1;
    dims.kernel_input_feature = 0;
  } else {
    // [groups * og, ig, k...] -> [og, groups * ig, k...]
    const int64_t og = g.outputs / g.groups, ig = g.inputs / g.groups;
    flipped = hlo::reshape(flipped, join({{g.groups, og, ig}, g.kernel}));
    Dims order = counting(g.axes() + 3);
    std::swap(order[0], order[1]);
    flipped = hlo::reshape(hlo::transpose(flipped, order), join({{og, g.inputs}, g.kernel}));
    dims.kernel_output_feature = 1;
    dims.kernel_input_feature = 0;
  }
  return hlo::convolution(gy, flipped, dims, config, hlo::opmath(gy.dtype()));
}

// The input under the output's gradient as a window, summed over the batch.
Value native_grad_weight(Call& c, const Geometry& g, const Value& gy, const Value& x) {
  hlo::ConvConfig config;
  config.window_strides = g.dilation;
  config.rhs_dilation = g.stride;
  config.pad_low = g.padding;
  for (int64_t i = 0; i < g.axes(); ++i) config.pad_high.push_back(g.end_padding(i));
  config.batch_group_count = g.groups;
  config.precision = contraction_precision(c, x.dtype());
  const Dims spatial = counting(g.axes(), 2);
  const hlo::ConvDims dims = {1, 0, spatial, 1, 0, spatial, 1, 0, spatial};
  return hlo::convolution(x, gy, dims, config, hlo::opmath(x.dtype()));
}

// PyTorch gives a one-dimensional convolution a second axis, of one pixel under one tap. Without
// such axes programs are plainer, and libtpu does not split the other axis over them (0.0.52 aborts
// on some of what it makes of that).
template <typename Form>
Value natively(Call& c, Form form, const Geometry& g, const Value& a, const Value& b) {
  Dims kept;
  for (int64_t i = 0; i < g.axes(); ++i)
    if (g.in[i] != 1 || g.out[i] != 1 || g.kernel[i] != 1 || g.padding[i] != 0) kept.push_back(i);
  if (kept.empty()) kept.push_back(0);
  if (static_cast<int64_t>(kept.size()) == g.axes()) return form(c, g, a, b);
  Geometry fewer = g;
  for (Dims Geometry::* of : {&Geometry::in, &Geometry::out, &Geometry::kernel, &Geometry::stride,
                              &Geometry::padding, &Geometry::dilation}) {
    Dims chosen;
    for (int64_t i : kept) chosen.push_back((g.*of)[i]);
    fewer.*of = chosen;
  }
  const auto narrow = [&](const Value& x) {
    Dims dims = {x.dim(0), x.dim(1)};
    for (int64_t i : kept) dims.push_back(x.dim(2 + i));
    return hlo::reshape(x, dims);
  };
  const Value y = form(c, fewer, narrow(a), narrow(b));
  Dims dims(g.axes() + 2, 1);
  dims[0] = y.dim(0);
  dims[1] = y.dim(1);
  for (size_t i = 0; i < kept.size(); ++i) dims[2 + kept[i]] = y.dim(2 + i);
  return hlo::reshape(y, dims);
}

// ---- products of matrices -----------------------------------------------------------------------

// Positions in the tiled form [a, b, out1, k1, out2, k2...] ordered as [a, k..., b, out...].
Dims tile_order(int64_t axes) {
  Dims order = {0};
  for (int64_t i = 0; i < axes; ++i) order.push_back(3 + 2 * i);
  order.push_back(1);
  for (int64_t i = 0; i < axes; ++i) order.push_back(2 + 2 * i);
  return order;
}

Value padded(const Geometry& g, const Value& x) {
  return pad_for(g, x, hlo::scalar(x.builder(), x.dtype(), 0));
}

// The windows as columns: x [batch, inputs, spatial...] -> [groups, inputs/groups * taps, pixels].
Value columns(const Geometry& g, const Value& x) {
  Value channels_first = padded(g, swapped(x));
  Value all;
  if (g.tiles()) {
    Dims split = {g.inputs, g.batch};
    for (int64_t i = 0; i < g.axes(); ++i) {
      split.push_back(g.out[i]);
      split.push_back(g.kernel[i]);
    }
    all = hlo::transpose(hlo::reshape(channels_first, split), tile_order(g.axes()));
  } else {
    Values taps;
    for_each_tap(g, [&](int64_t, const Dims& at) {
      taps.push_back(hlo::unsqueeze(tap_slice(g, channels_first, at), 1));
    });
    all = taps.size() == 1 ? taps[0] : hlo::concatenate(taps, 1);
  }
  return hlo::reshape(all, {g.groups, g.inputs / g.groups * g.taps(), g.pixels()});
}

// The inverse, summing where windows overlap: [inputs * taps, pixels] as a value of dims
// [inputs, taps, batch, out...].
Value sum_columns(const Geometry& g, const Value& all) {
  Value sum;
  if (g.tiles()) {
    Dims split = join({{g.inputs}, g.kernel, {g.batch}, g.out});
    Dims order = tile_order(g.axes()), inverse(order.size()), covered = {g.inputs, g.batch};
    for (size_t i = 0; i < order.size(); ++i) inverse[order[i]] = static_cast<int64_t>(i);
    Dims low(2 + g.axes(), 0), high(2, 0);
    for (int64_t i = 0; i < g.axes(); ++i) {
      covered.push_back(g.out[i] * g.kernel[i]);
      high.push_back(g.in[i] - covered.back());
    }
    sum = hlo::reshape(hlo::transpose(hlo::reshape(all, split), inverse), covered);
    if (std::any_of(high.begin(), high.end(), [](int64_t d) { return d != 0; })) {
      sum = hlo::pad(sum, hlo::scalar(sum.builder(), sum.dtype(), 0), low, high);
    }
  } else {
    for_each_tap(g, [&](int64_t tap, const Dims& at) {
      Value placed = tap_place(g, hlo::squeeze(hlo::slice_dim(all, 1, tap, tap + 1), 1), at);
      sum = sum ? sum + placed : placed;
    });
  }
  return swapped(sum);
}

// [batch, outputs, out...] -> [groups, outputs/groups, pixels]
Value grouped_pixels(const Geometry& g, const Value& y) {
  return hlo::reshape(swapped(y), {g.groups, g.outputs / g.groups, g.pixels()});
}

Value grouped_weight(const Geometry& g, const Value& w) {
  return hlo::reshape(w, {g.groups, g.outputs / g.groups, g.inputs / g.groups * g.taps()});
}

// One product a group; without groups a product of two matrices, which XLA does best.
Value grouped_product(Call& c, const Value& a, const Value& b, int64_t contract_a,
                      int64_t contract_b) {
  if (a.dim(0) > 1) return contract(c, a, b, {0}, {0}, {contract_a}, {contract_b});
  return hlo::unsqueeze(contract(c, hlo::squeeze(a, 0), hlo::squeeze(b, 0), {}, {},
                                 {contract_a - 1}, {contract_b - 1}),
                        0);
}

// The weight of one tap for depthwise kernels, ready to multiply [batch, inputs, multiplier,
// out...].
Value tap_weight(const Geometry& g, const Value& w, int64_t tap) {
  const int64_t multiplier = g.outputs / g.inputs;
  Value column = hlo::slice_dim(hlo::reshape(w, {g.inputs, multiplier, g.taps()}), 2, tap, tap + 1);
  return hlo::reshape(column, join({{g.inputs, multiplier}, Dims(g.axes(), 1)}));
}

Value matrix_forward(Call& c, const Geometry& g, const Value& x, const Value& w) {
  if (g.depthwise()) {
    const int64_t multiplier = g.outputs / g.inputs;
    const DType compute = hlo::opmath(x.dtype());
    Value wide = padded(g, hlo::convert(x, compute)), weight = hlo::convert(w, compute), sum;
    for_each_tap(g, [&](int64_t tap, const Dims& at) {
      Value term = hlo::unsqueeze(tap_slice(g, wide, at), 2) * tap_weight(g, weight, tap);
      sum = sum ? sum + term : term;
    });
    return hlo::reshape(sum, join({{g.batch, g.inputs * multiplier}, g.out}));
  }
  Value y = grouped_product(c, grouped_weight(g, w), columns(g, x), 2, 1);
  return swapped(hlo::reshape(y, join({{g.outputs, g.batch}, g.out})));
}

Value matrix_grad_input(Call& c, const Geometry& g, const Value& gy, const Value& w) {
  if (g.depthwise()) {
    const int64_t multiplier = g.outputs / g.inputs;
    const DType compute = hlo::opmath(gy.dtype());
    Value wide =
        hlo::reshape(hlo::convert(gy, compute), join({{g.batch, g.inputs, multiplier}, g.out}));
    Value weight = hlo::convert(w, compute), sum;
    for_each_tap(g, [&](int64_t tap, const Dims& at) {
      Value term = hlo::reduce(wide * tap_weight(g, weight, tap), {2}, hlo::Reduce::Add);
      Value placed = tap_place(g, term, at);
      sum = sum ? sum + placed : placed;
    });
    return sum;
  }
  // The larger operand goes second: XLA's CPU plugin is slow where it must transpose the first.
  Value weight = grouped_weight(g, w), pixels = grouped_pixels(g, gy), all;
  if (g.pixels() < g.inputs / g.groups * g.taps()) {
    all = transposed(grouped_product(c, pixels, weight, 1, 1));
  } else {
    all = grouped_product(c, weight, pixels, 1, 1);
  }
  // Kept whole: otherwise the product would be formed anew for each of its uses below.
  if (g.taps() > 1) all = hlo::optimization_barrier(all);
  return sum_columns(g, hlo::reshape(all, join({{g.inputs, g.taps(), g.batch}, g.out})));
}

Value matrix_grad_weight(Call& c, const Geometry& g, const Value& gy, const Value& x) {
  if (g.depthwise()) {
    const int64_t multiplier = g.outputs / g.inputs;
    const DType compute = hlo::opmath(x.dtype());
    Value wide = padded(g, hlo::convert(x, compute));
    Value grad =
        hlo::reshape(hlo::convert(gy, compute), join({{g.batch, g.inputs, multiplier}, g.out}));
    Dims summed = {0};
    for (int64_t i = 0; i < g.axes(); ++i) summed.push_back(3 + i);
    Values taps;
    for_each_tap(g, [&](int64_t, const Dims& at) {
      Value product = hlo::unsqueeze(tap_slice(g, wide, at), 2) * grad;
      taps.push_back(hlo::unsqueeze(hlo::reduce(product, summed, hlo::Reduce::Add), 2));
    });
    return hlo::reshape(hlo::concatenate(taps, 2), join({{g.outputs, 1}, g.kernel}));
  }
  Value gw = grouped_product(c, grouped_pixels(g, gy), columns(g, x), 2, 2);
  return hlo::reshape(gw, join({{g.outputs, g.inputs / g.groups}, g.kernel}));
}

// ---- the choice ---------------------------------------------------------------------------------

constexpr int64_t kMostTaps = 128;     // beyond, one slice a tap makes programs too long
constexpr int64_t kManyPixels = 1024;  // from here on XLA's own float32 convolution is the faster

bool few_taps(const Geometry& g) { return (g.tiles() && !g.depthwise()) || g.taps() <= kMostTaps; }
bool as_matrices(const Call& c, const Geometry& g) {
  return c.platform() == Platform::Cpu && few_taps(g) && !c.open_sizes();
}
bool many_pixels(const Geometry& g, DType dtype) {
  return dtype == DType::F32 && g.groups == 1 && g.taps() > 1 && !g.tiles() &&
         g.pixels() >= kManyPixels;
}

// Where a host kernel is faster than both, as measured: groups and volumes, which XLA has no fast
// path for, and gradients over many pixels.
bool work_for_host(const Call& c, const Geometry& g) {
  constexpr int64_t kLeastProducts = 1 << 20;
  return c.host_kernels() && c.dtype_of("weight") == DType::F32 &&
         g.pixels() * g.outputs * (g.inputs / g.groups) * g.taps() >= kLeastProducts;
}
bool forward_on_host(const Call& c, const Geometry& g) {
  return work_for_host(c, g) && (g.groups > 1 || g.axes() == 3);
}
// Few pixels, and yet more of them than the weight has rows: below that the product alone counts.
bool columns_on_host(const Call& c, const Geometry& g) {
  return work_for_host(c, g) && g.groups == 1 && g.axes() == 2 && g.taps() > 1 && !g.tiles() &&
         g.pixels() >= g.outputs && g.pixels() < kManyPixels;
}
bool backward_on_host(const Call& c, const Geometry& g) {
  return forward_on_host(c, g) || (work_for_host(c, g) && g.axes() == 2 && g.taps() > 1 &&
                                   !g.tiles() && g.pixels() >= 2 * kManyPixels);
}

Value forward(Call& c, const Geometry& g, const Value& x, const Value& w) {
  const bool matrices = as_matrices(c, g) && !many_pixels(g, hlo::opmath(x.dtype()));
  return matrices ? matrix_forward(c, g, x, w) : natively(c, native_forward, g, x, w);
}
Value grad_input(Call& c, const Geometry& g, const Value& gy, const Value& w) {
  return as_matrices(c, g) ? matrix_grad_input(c, g, gy, w)
                           : natively(c, native_grad_input, g, gy, w);
}
Value grad_weight(Call& c, const Geometry& g, const Value& gy, const Value& x) {
  const bool matrices = as_matrices(c, g) && !many_pixels(g, hlo::opmath(x.dtype()));
  return matrices ? matrix_grad_weight(c, g, gy, x) : natively(c, native_grad_weight, g, gy, x);
}

// ---- arguments ----------------------------------------------------------------------------------

// What the operators of this family have in common, whatever they call it.
struct Form {
  const char* input = "input";
  Dims stride, padding, dilation, extra;  // extra: output_padding
  bool is_transposed = false;
  int64_t groups = 1;
};

Form form_of(const Call& c) {
  return {"input",
          c.ints("stride"),
          c.ints("padding"),
          c.ints("dilation"),
          c.ints("output_padding"),
          c.flag("transposed"),
          c.integer("groups")};
}

// The ordinary convolution behind the call: of the input if not transposed, else the one whose
// input's gradient the call computes.
Geometry geometry(const Call& c, const Form& f) {
  const graph::TensorArg &input = c.meta(f.input), &weight = c.meta("weight");
  const int64_t axes = input.rank() - 2;
  c.check(axes >= 1 && weight.rank() == input.rank(), "Expected ", weight.rank(),
          "D (batched) input to a convolution with a weight of shape ", weight.sizes,
          ", but got input of size: ", input.sizes);
  c.check(input.dtype == weight.dtype, "Input type (", input.dtype, ") and weight type (",
          weight.dtype, ") should be the same");
  Geometry g;
  g.stride = spread(f.stride, axes);
  g.padding = spread(f.padding, axes);
  g.dilation = spread(f.dilation, axes);
  g.groups = f.groups;
  g.batch = input.sizes[0];
  g.kernel.assign(weight.sizes.begin() + 2, weight.sizes.end());
  const Dims given(input.sizes.begin() + 2, input.sizes.end());
  const bool is_transposed = f.is_transposed;
  const int64_t channels = is_transposed ? weight.sizes[0] : weight.sizes[1] * g.groups;
  c.check(input.sizes[1] == channels, "Given groups=", g.groups, ", weight of size ", weight.sizes,
          ", expected input", input.sizes, " to have ", channels, " channels, but got ",
          input.sizes[1], " channels instead");
  c.check(weight.sizes[0] % g.groups == 0, "expected weight to be divisible by groups=", g.groups,
          " at dimension 0, but got weight of size ", weight.sizes);
  Dims other;
  const Dims extra = spread(f.extra, axes);
  for (int64_t i = 0; i < axes; ++i) {
    const int64_t reach = g.reach(i);
    other.push_back(is_transposed
                        ? (given[i] - 1) * g.stride[i] - 2 * g.padding[i] + reach + extra[i]
                        : (given[i] + 2 * g.padding[i] - reach) / g.stride[i] + 1);
    c.check(given[i] + 2 * g.padding[i] >= reach || is_transposed,
            "Calculated padded input size per channel: (", given[i] + 2 * g.padding[i],
            "). Kernel size: (", reach, "). Kernel size can't be greater than actual input size");
  }
  if (is_transposed) {
    g.out = given;
    g.in = other;
    g.outputs = weight.sizes[0];
    g.inputs = weight.sizes[1] * g.groups;
  } else {
    g.in = given;
    g.out = other;
    g.outputs = weight.sizes[0];
    g.inputs = weight.sizes[1] * g.groups;
  }
  return g;
}

// Products of halves are exact in float32, which is what XLA's CPU plugin is fast at.
Value operand(Call& c, const char* name) {
  const DType dtype = c.dtype_of("weight");
  return c.tensor(name, c.platform() == Platform::Cpu ? hlo::opmath(dtype) : dtype);
}

HostAttributes host_attributes(const Geometry& g, const Form& f) {
  return HostAttributes()
      .ints("stride", g.stride)
      .ints("padding", g.padding)
      .ints("dilation", g.dilation)
      .ints("output_padding", spread(f.extra, g.axes()))
      .integer("transposed", f.is_transposed)
      .integer("groups", g.groups);
}

Value host_forward(Call& c, const Geometry& g, const Form& f, const char* kernel) {
  const Dims y =
      f.is_transposed ? join({{g.batch, g.inputs}, g.in}) : join({{g.batch, g.outputs}, g.out});
  return host_call(c, kernel, {c.tensor(f.input), c.tensor("weight")}, {{c.dtype_of("weight"), y}},
                   host_attributes(g, f))[0];
}

// y[n, o] = bias[o] + sum over channels and taps of weight[o] * windows of x[n]
Values convolved(Call& c, const Form& f) {
  const Geometry g = geometry(c, f);
  const DType dtype = c.dtype_of("weight");
  reject_bool(c, dtype);
  c.check(!c.has("bias") || c.dtype_of("bias") == dtype, "Input type (", dtype, ") and bias type (",
          c.has("bias") ? c.dtype_of("bias") : dtype, ") should be the same");
  Value y;
  if (forward_on_host(c, g)) {
    y = host_forward(c, g, f, "convolution");
  } else if (!f.is_transposed && columns_on_host(c, g)) {
    y = host_forward(c, g, f, "convolution_by_columns");
  } else {
    Value x = operand(c, f.input), w = operand(c, "weight");
    y = f.is_transposed ? grad_input(c, g, x, w) : forward(c, g, x, w);
  }
  if (c.has("bias")) {
    y = y + hlo::reshape(c.tensor("bias", y.dtype()), join({{1, y.dim(1)}, Dims(g.axes(), 1)}));
  }
  if (is_channels_last(c.meta(f.input)) || is_channels_last(c.meta("weight"))) {
    make_channels_last(c, 0, y.dims());
  }
  return {hlo::convert(y, dtype)};
}

Values gradients(Call& c, const Form& f, const Dims& mask) {
  const Geometry g = geometry(c, f);
  const DType dtype = c.dtype_of("weight");
  Value gy = operand(c, "grad_output");
  Values results(3);
  const bool hosted = backward_on_host(c, g);
  const auto host_gradient = [&](const char* kernel, const char* of) {
    const hlo::Type type{dtype, c.meta(of).sizes};
    return host_call(c, kernel, {gy, c.tensor(f.input), c.tensor("weight")}, {type},
                     host_attributes(g, f))[0];
  };
  if (mask[0]) {
    Value gx;
    if (hosted) {
      gx = host_gradient("convolution_grad_input", f.input);
    } else {
      Value w = operand(c, "weight");
      gx = f.is_transposed ? forward(c, g, gy, w) : grad_input(c, g, gy, w);
    }
    if (is_channels_last(c.meta(f.input)) || is_channels_last(c.meta("weight"))) {
      make_channels_last(c, 0, gx.dims());
    }
    results[0] = hlo::convert(gx, dtype);
  }
  if (mask[1]) {
    Value gw;
    if (hosted) {
      gw = host_gradient("convolution_grad_weight", "weight");
    } else {
      Value x = operand(c, f.input);
      gw = f.is_transposed ? grad_weight(c, g, x, gy) : grad_weight(c, g, gy, x);
    }
    if (is_channels_last(c.meta("input")) || is_channels_last(c.meta("weight")))
      make_channels_last(c, 1, gw.dims());
    results[1] = hlo::convert(gw, dtype);
  }
  if (mask[2]) {
    Dims summed = {0};
    for (int64_t i = 0; i < g.axes(); ++i) summed.push_back(2 + i);
    results[2] = hlo::convert(
        hlo::reduce(hlo::convert(gy, hlo::opmath(dtype)), summed, hlo::Reduce::Add), dtype);
  }
  return results;
}

}  // namespace

TPU_OP(
    "aten::convolution_overrideable(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) "
    "-> Tensor") {
  return convolved(c, form_of(c));
}

TPU_OP(
    "aten::convolution_backward_overrideable(Tensor grad_output, Tensor input, Tensor weight, "
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] "
    "output_padding, SymInt groups, bool[3] output_mask) -> (Tensor grad_input, Tensor "
    "grad_weight, Tensor grad_bias)") {
  return gradients(c, form_of(c), c.ints("output_mask"));
}

// ---- the same under the names of PyTorch's own kernels ------------------------------------------
namespace {

Form plain_form(const Call& c) {
  return {"self", c.ints("stride"), c.ints("padding"), {1}, {0}, false, 1};
}
Form dilated_form(const Call& c) {
  Form f = plain_form(c);
  f.dilation = c.ints("dilation");
  return f;
}
Form depthwise_form(const Call& c) {
  Form f = dilated_form(c);
  const TensorArg& self = c.meta("self");
  f.groups = self.rank() > 1 ? self.sizes[1] : 1;
  return f;
}
Form transposed_form(const Call& c) {
  Form f = dilated_form(c);
  f.extra = c.ints("output_padding");
  f.is_transposed = true;
  return f;
}

}  // namespace

TPU_OP(
    "aten::_slow_conv2d_forward(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, "
    "SymInt[2] stride, SymInt[2] padding) -> Tensor") {
  return convolved(c, plain_form(c));
}
TPU_OP(
    "aten::slow_conv3d_forward(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, "
    "SymInt[3] stride, SymInt[3] padding) -> Tensor") {
  return convolved(c, plain_form(c));
}
TPU_OP(
    "aten::slow_conv_dilated2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? "
    "bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1) -> Tensor") {
  return convolved(c, dilated_form(c));
}
TPU_OP(
    "aten::slow_conv_dilated3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? "
    "bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] dilation=1) -> Tensor") {
  return convolved(c, dilated_form(c));
}
TPU_OP(
    "aten::slow_conv_transpose2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? "
    "bias=None, SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] output_padding=0, SymInt[2] "
    "dilation=1) -> Tensor") {
  return convolved(c, transposed_form(c));
}
TPU_OP(
    "aten::slow_conv_transpose3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? "
    "bias=None, SymInt[3] stride=1, SymInt[3] padding=0, SymInt[3] output_padding=0, SymInt[3] "
    "dilation=1) -> Tensor") {
  return convolved(c, transposed_form(c));
}
TPU_OP(
    "aten::_conv_depthwise2d(Tensor self, Tensor weight, SymInt[2] kernel_size, Tensor? bias, "
    "SymInt[2] stride, SymInt[2] padding, SymInt[2] dilation) -> Tensor") {
  return convolved(c, depthwise_form(c));
}
TPU_OP(
    "aten::conv_depthwise3d(Tensor self, Tensor weight, SymInt[3] kernel_size, Tensor? bias, "
    "SymInt[3] stride, SymInt[3] padding, SymInt[3] dilation) -> Tensor") {
  return convolved(c, depthwise_form(c));
}
TPU_OP(
    "aten::_slow_conv2d_backward.output_mask(Tensor grad_output, Tensor self, Tensor weight, "
    "SymInt[2] kernel_size, SymInt[2] stride, SymInt[2] padding, bool[3] output_mask) -> (Tensor "
    "grad_input, Tensor grad_weight, Tensor grad_bias)") {
  return gradients(c, plain_form(c), c.ints("output_mask"));
}
TPU_OP(
    "aten::_slow_conv2d_backward.grad_input(Tensor grad_output, Tensor self, Tensor weight, "
    "SymInt[2] kernel_size, SymInt[2] stride, SymInt[2] padding, *, Tensor(a!) grad_input, "
    "Tensor(b!) grad_weight, Tensor(c!) grad_bias) -> (Tensor(a!), Tensor(b!), Tensor(c!))") {
  const Values all = gradients(c, plain_form(c), {1, 1, 1});
  const char* names[] = {"grad_input", "grad_weight", "grad_bias"};
  for (int i = 0; i < 3; ++i) {
    c.check(c.meta(names[i]).sizes == all[i].dims(), names[i], " must have sizes ", all[i].dims(),
            ", got ", c.meta(names[i]).sizes);
    c.write(names[i], all[i]);
  }
  return Values(3);
}

}  // namespace torch_tpu::ops
