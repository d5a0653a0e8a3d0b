// SPDX-License-Identifier: Apache-2.0 - Maximum pooling with indices, its gradient, adaptive and unpooling forms.
#include <algorithm>
#include <limits>

#include "src/ops/channels_last.h"
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"
#include "src/ops/pooling.h"

namespace torch_tpu::ops {
namespace {

constexpr int64_t kMostTaps = 64;  // beyond, gradients are scattered

// Running maxima with their positions.
struct Best {
  Value value, index;
};

// PyTorch's order: larger wins, the first of equals, and the last NaN beats all. Positions that are
// padding carry the largest index, so that they lose to any equal.
Best better(const Best& a, const Best& b) {
  Value wins = hlo::gt(b.value, a.value) | (hlo::eq(b.value, a.value) & hlo::lt(b.index, a.index));
  if (hlo::is_floating(a.value.dtype())) wins = wins | hlo::is_nan(b.value);
  return {hlo::select(wins, b.value, a.value), hlo::select(wins, b.index, a.index)};
}

// Positions in a plane as S32, [1, 1, spatial...].
Value plane_positions(hlo::Builder& b, const Dims& spatial) {
  Dims dims = {1, 1};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return hlo::reshape(hlo::iota(b, {DType::S32, {hlo::element_count(spatial)}}, 0), dims);
}

// The windows restricted to one axis.
Windows along(const Windows& w, int64_t axis, const Dims& in) {
  Windows one = w;
  for (int64_t i = 0; i < w.axes(); ++i) {
    one.in[i] = in[i];
    if (i == axis) continue;
    one.kernel[i] = one.stride[i] = one.dilation[i] = 1;
    one.padding[i] = 0;
    one.out[i] = in[i];
  }
  return one;
}

// One axis after the other, so that a window of k x k costs 2 k steps and not k * k. Within a row
// the first of equals wins, then the first row: together the first in row-major order.
Best max_over_windows(const Windows& w, Best x) {
  Dims in = w.in;
  for (int64_t axis = w.axes(); axis-- > 0;) {
    const Windows one = along(w, axis, in);
    hlo::Builder& b = x.value.builder();
    Value values = pad_for(one, x.value, hlo::lowest(b, x.value.dtype()));
    Value index = pad_for(one, x.index, hlo::highest(b, DType::S32));
    Best best;
    for_each_tap(one, [&](int64_t tap, const Dims& at) {
      const Best seen = {tap_slice(one, values, at), tap_slice(one, index, at)};
      best = tap == 0 ? seen : better(best, seen);
    });
    x = best;
    in[axis] = w.out[axis];
  }
  return x;
}

Values max_pool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  reject_bool(c, self.dtype);
  reject_complex(c, self.dtype);
  const Windows w = pool_windows(c, self, axes, true);
  const Planes planes = planes_of(c, self, axes);
  Value x = planes.wrap(c.tensor("self"));
  Value index = hlo::broadcast_to(plane_positions(c.builder(), w.in), x.dims());
  const Best best = max_over_windows(w, {x, index});
  Value values = planes.unwrap(best.value);
  keep_channels_last(c, 0, values.dims(), self);
  keep_channels_last(c, 1, values.dims(), self);
  return {values, planes.unwrap(hlo::convert(best.index, DType::S64))};
}

// Each output's gradient goes to the position that won.
Values max_pool_backward(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  const Windows w = pool_windows(c, self, axes, true);
  const Planes planes = planes_of(c, self, axes);
  const DType compute = hlo::opmath(self.dtype);
  Value grad = planes.wrap(c.tensor("grad_output", compute));
  Value index = planes.wrap(hlo::convert(c.tensor("indices"), DType::S32));
  Value result;
  if (w.taps() <= kMostTaps) {
    Value positions = plane_positions(c.builder(), w.in);
    Windows padded = w;
    Value seen = pad_for(padded, positions, hlo::scalar(c.builder(), DType::S32, -1));
    for_each_tap(w, [&](int64_t, const Dims& at) {
      Value won = hlo::eq(index, hlo::broadcast_to(tap_slice(w, seen, at), index.dims()));
      Value placed = tap_place(w, hlo::select(won, grad, 0.0), at);
      result = result ? result + placed : placed;
    });
  } else {
    Dims sizes = {grad.dim(0), grad.dim(1)};
    sizes.insert(sizes.end(), w.in.begin(), w.in.end());
    result = scatter_planes(grad, index, sizes, true);
  }
  result = planes.unwrap(result);
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

// Scatters by index alone: adaptive and fractional pooling.
Values index_backward(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  const Planes planes = planes_of(c, self, axes);
  const DType compute = hlo::opmath(self.dtype);
  Dims sizes = self.sizes;
  if (!planes.batched) sizes.insert(sizes.begin(), 1);
  Value grad = planes.wrap(c.tensor("grad_output", compute));
  Value index = planes.wrap(hlo::convert(c.tensor("indices"), DType::S32));
  Value result = planes.unwrap(scatter_planes(grad, index, sizes, true));
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

// Windows of unequal sizes along one axis.
Best max_over_ranges(const Best& x, int64_t axis, const Ranges& r) {
  hlo::Builder& b = x.value.builder();
  const int64_t out = r.count(), longest = std::max<int64_t>(r.longest(), 1);
  Best best;
  for (int64_t t = 0; t < longest; ++t) {
    Dims at;  // beyond a window's end its last element is seen again, which changes nothing
    for (int64_t o = 0; o < out; ++o) at.push_back(std::min(r.begin[o] + t, r.end[o] - 1));
    Value where = hlo::constant_ints(b, {DType::S32, {out}}, at);
    const Best seen = {hlo::take(x.value, where, axis), hlo::take(x.index, where, axis)};
    best = t == 0 ? seen : better(best, seen);
  }
  return best;
}

Values adaptive_max_pool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  require_real_float(c, self.dtype);
  const Planes planes = planes_of(c, self, axes);
  const Dims in = spatial_sizes(self, axes), out = adaptive_output(c, self, axes);
  Value x = planes.wrap(c.tensor("self"));
  Best best = {x, hlo::broadcast_to(plane_positions(c.builder(), in), x.dims())};
  for (int64_t i = axes; i-- > 0;)
    best = max_over_ranges(best, 2 + i, adaptive_ranges(in[i], out[i]));
  Value values = planes.unwrap(best.value);
  keep_channels_last(c, 0, values.dims(), self);
  keep_channels_last(c, 1, values.dims(), self);
  return {values, planes.unwrap(hlo::convert(best.index, DType::S64))};
}

// Window starts come from random numbers: one element of a window at a time is gathered at
// positions known at run time only.
Values fractional_max_pool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  require_real_float(c, self.dtype);
  const Planes planes = planes_of(c, self, axes);
  const Dims in = spatial_sizes(self, axes), kernel = one_per_axis(c, "kernel_size", axes),
             out = one_per_axis(c, "output_size", axes);
  Value x = planes.wrap(c.tensor("self"));
  const int64_t n = x.dim(0), channels = x.dim(1);
  Value samples = c.tensor("random_samples", hlo::opmath(self.dtype));
  c.check(samples.rank() == 3 && samples.dim(0) >= n && samples.dim(1) == channels &&
              samples.dim(2) == axes,
          "Expect _random_samples to have shape [", n, ", ", channels, ", ", axes, "], got ",
          samples.dims());
  samples = hlo::slice_dim(samples, 0, 0, n);
  // starts[i]: [n, channels, out_i] = int((o + u) * alpha) - int(u * alpha), the last flush right.
  Values starts;
  for (int64_t i = 0; i < axes; ++i) {
    c.check(out[i] + kernel[i] - 1 <= in[i], "pool size ", kernel[i],
            " too large relative to input size ", in[i]);
    // The last sample belongs to the innermost axis... in PyTorch's order: width first.
    const int64_t which = axes == 2 ? (i == 0 ? 1 : 0) : i;
    Value u = hlo::slice_dim(samples, 2, which, which + 1);
    const Dims dims = {n, channels, out[i]};
    Value o = hlo::iota(c.builder(), {u.dtype(), dims}, 2);
    u = hlo::broadcast_to(u, dims);
    const double alpha = out[i] > 1 ? static_cast<double>(in[i] - kernel[i]) / (out[i] - 1) : 0;
    Value alpha_value = hlo::full_like(u, alpha);
    Value start =
        hlo::convert((o + u) * alpha_value, DType::S32) - hlo::convert(u * alpha_value, DType::S32);
    Value last = hlo::full_like(start, static_cast<double>(in[i] - kernel[i]));
    start = hlo::select(hlo::ge(o, static_cast<double>(out[i] - 1)), last, start);
    Dims place = {n, channels};
    for (int64_t j = 0; j < axes; ++j) place.push_back(j == i ? out[i] : 1);
    starts.push_back(hlo::reshape(start, place));
  }
  Dims result_dims = {n, channels};
  result_dims.insert(result_dims.end(), out.begin(), out.end());
  Value flat = hlo::reshape(x, {n * channels * hlo::element_count(in)});
  Windows w;
  w.kernel = kernel;
  w.in = in;
  Value plane = hlo::iota(c.builder(), {DType::S32, {n * channels}}, 0) *
                static_cast<double>(hlo::element_count(in));
  plane = hlo::broadcast_to(hlo::reshape(plane,
                                         [&] {
                                           Dims d(2 + axes, 1);
                                           d[0] = n;
                                           d[1] = channels;
                                           return d;
                                         }()),
                            result_dims);
  Best best;
  for_each_tap(w, [&](int64_t tap, const Dims& at) {
    Value position;
    for (int64_t i = 0; i < axes; ++i) {
      Value p = hlo::broadcast_to(starts[i] + static_cast<double>(at[i]), result_dims);
      position = position ? position * static_cast<double>(in[i]) + p : p;
    }
    const Best seen = {hlo::take(flat, plane + position, 0), position};
    best = tap == 0 ? seen : better(best, seen);
  });
  return {planes.unwrap(best.value), planes.unwrap(hlo::convert(best.index, DType::S64))};
}

Values max_unpool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  const Planes planes = planes_of(c, self, axes);
  const Dims out = c.ints("output_size");
  c.check(static_cast<int64_t>(out.size()) == axes, "There should be exactly ", axes,
          " elements in output_size, but got ", out.size());
  c.check(c.meta("indices").sizes == self.sizes,
          "Expected shape of indices to be same as that of the input tensor (", self.sizes,
          ") but got indices tensor with shape: ", c.meta("indices").sizes);
  c.check(c.dtype_of("indices") == DType::S64,
          "elements in indices should be type int64 but got: ", c.dtype_of("indices"));
  Value x = planes.wrap(c.tensor("self"));
  Value index = planes.wrap(c.tensor("indices"));
  const int64_t size = hlo::element_count(out);
  c.fail_if(hlo::lt(index, 0) | hlo::ge(index, static_cast<double>(size)),
            graph::CheckSpec::Runtime, "Found an invalid max index: {}", index);
  index = hlo::minimum(hlo::maximum(index, 0), static_cast<double>(std::max<int64_t>(size - 1, 0)));
  Dims sizes = {x.dim(0), x.dim(1)};
  sizes.insert(sizes.end(), out.begin(), out.end());
  Value result = planes.unwrap(scatter_planes(x, hlo::convert(index, DType::S32), sizes, false));
  keep_channels_last(c, 0, result.dims(), self);
  return {result};
}

}  // namespace

// max over a window, and where in its plane it was
TPU_OP(
    "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] "
    "padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)") {
  return max_pool(c, 2);
}

TPU_OP(
    "aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] "
    "padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)") {
  return max_pool(c, 3);
}

TPU_OP(
    "aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, "
    "int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor") {
  return max_pool_backward(c, 2);
}

TPU_OP(
    "aten::max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, "
    "int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor") {
  return max_pool_backward(c, 3);
}

// window o covers [floor(o in / out), ceil((o + 1) in / out))
TPU_OP("aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)") {
  return adaptive_max_pool(c, 2);
}

TPU_OP("aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)") {
  return adaptive_max_pool(c, 3);
}

TPU_OP(
    "aten::adaptive_max_pool2d_backward(Tensor grad_output, Tensor self, Tensor indices) -> "
    "Tensor") {
  return index_backward(c, 2);
}

TPU_OP(
    "aten::adaptive_max_pool3d_backward(Tensor grad_output, Tensor self, Tensor indices) -> "
    "Tensor") {
  return index_backward(c, 3);
}

TPU_OP(
    "aten::fractional_max_pool2d(Tensor self, int[2] kernel_size, int[2] output_size, Tensor "
    "random_samples) -> (Tensor, Tensor)") {
  return fractional_max_pool(c, 2);
}

TPU_OP(
    "aten::fractional_max_pool3d(Tensor self, int[3] kernel_size, int[3] output_size, Tensor "
    "random_samples) -> (Tensor, Tensor)") {
  return fractional_max_pool(c, 3);
}

TPU_OP(
    "aten::fractional_max_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, "
    "int[2] output_size, Tensor indices) -> Tensor") {
  return index_backward(c, 2);
}

TPU_OP(
    "aten::fractional_max_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, "
    "int[3] output_size, Tensor indices) -> Tensor") {
  return index_backward(c, 3);
}

// out[n, c, indices[n, c, ...]] = self[n, c, ...], zero elsewhere
TPU_OP("aten::max_unpool2d(Tensor self, Tensor indices, SymInt[2] output_size) -> Tensor") {
  return max_unpool(c, 2);
}

TPU_OP(
    "aten::max_unpool3d(Tensor self, Tensor indices, SymInt[3] output_size, int[3] stride, int[3] "
    "padding) -> Tensor") {
  return max_unpool(c, 3);
}

}  // namespace torch_tpu::ops
