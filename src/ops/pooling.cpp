// SPDX-License-Identifier: Apache-2.0 - Average pooling and adaptive average pooling, with their gradients.
#include "src/ops/pooling.h"

#include <algorithm>

#include "src/ops/channels_last.h"
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

Planes planes_of(const Call& c, const TensorArg& self, int64_t axes) {
  c.check(self.rank() == axes + 1 || self.rank() == axes + 2, "Expected ", axes + 1, "D or ",
          axes + 2,
          "D (batch mode) tensor with optional 0 dim batch size for input, but got: ", self.sizes);
  return {self.rank() == axes + 2};
}

Dims spatial_sizes(const TensorArg& self, int64_t axes) {
  return {self.sizes.end() - axes, self.sizes.end()};
}

Windows pool_windows(const Call& c, const TensorArg& self, int64_t axes, bool has_dilation) {
  const int64_t first = planes_of(c, self, axes).batched ? 1 : 0;
  for (int64_t i = first; i < self.rank(); ++i)
    c.check(self.sizes[i] > 0,
            "Expected input's non-batch dimensions to have positive length, but ",
            "input has a shape of ", self.sizes);
  Windows w;
  w.kernel = one_per_axis(c, "kernel_size", axes);
  const Dims stride = c.ints("stride");
  w.stride = stride.empty() ? w.kernel : one_per_axis(c, "stride", axes);
  w.padding = one_per_axis(c, "padding", axes);
  w.dilation = has_dilation ? one_per_axis(c, "dilation", axes) : Dims(axes, 1);
  w.in = spatial_sizes(self, axes);
  const bool ceil_mode = c.flag("ceil_mode");
  for (int64_t i = 0; i < axes; ++i) {
    const int64_t p = w.padding[i], s = w.stride[i];
    c.check(w.kernel[i] > 0 && s > 0 && w.dilation[i] > 0,
            "kernel size, stride and dilation should be greater than zero, but got kernel ",
            w.kernel, ", stride ", w.stride, ", dilation ", w.dilation);
    c.check(p >= 0, "pad must be non-negative, but got pad: ", p);
    c.check(p <= w.reach(i) / 2,
            "pad should be at most half of effective kernel size, but got pad=", p,
            ", kernel_size=", w.kernel[i], " and dilation=", w.dilation[i]);
    const int64_t room = w.in[i] + 2 * p - w.reach(i) + (ceil_mode ? s - 1 : 0);
    int64_t out = (room >= 0 ? room / s : -((-room + s - 1) / s)) + 1;
    // The last window must start inside the input or its left padding.
    if (ceil_mode && (out - 1) * s >= w.in[i] + p) --out;
    w.out.push_back(out);
  }
  const bool fits = std::all_of(w.out.begin(), w.out.end(), [](int64_t d) { return d >= 1; });
  c.check(fits, "Given input size: ", self.sizes, ". Calculated output size: ", w.out,
          ". Output size is too small");
  return w;
}

int64_t Ranges::longest() const {
  int64_t most = 0;
  for (int64_t o = 0; o < count(); ++o) most = std::max(most, size(o));
  return most;
}

Ranges adaptive_ranges(int64_t in, int64_t out) {
  Ranges r;
  for (int64_t o = 0; o < out; ++o) {
    r.begin.push_back(adaptive_begin(o, in, out));
    r.end.push_back(adaptive_end(o, in, out));
  }
  return r;
}

Dims adaptive_output(const Call& c, const TensorArg& self, int64_t axes) {
  const Dims in = spatial_sizes(self, axes), out = one_per_axis(c, "output_size", axes);
  for (int64_t i = 0; i < axes; ++i)
    c.check(in[i] > 0 && out[i] >= 0,
            "Expected input to have non-zero size for non-batch dimensions and output_size to be "
            "non-negative, but input has sizes ",
            self.sizes, " and output_size is ", out);
  return out;
}

Value scatter_planes(const Value& updates, const Value& index, const Dims& sizes, bool add) {
  hlo::Builder& b = updates.builder();
  const int64_t planes = sizes[0] * sizes[1], size = hlo::element_count(sizes);
  const int64_t plane_size = planes == 0 ? 0 : size / planes;
  const int64_t count = planes == 0 ? 0 : updates.elements() / planes;
  const DType type = size > INT32_MAX ? DType::S64 : DType::S32;
  Value first =
      hlo::iota(b, {type, {planes, 1}}, 0) * hlo::constant_int(b, {type, {planes, 1}}, plane_size);
  Value flat = hlo::reshape(hlo::convert(index, type), {planes, count}) + first;
  hlo::ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  const hlo::Combiner combine = [add](const Value& old_value, const Value& update) {
    return add ? old_value + update : update;
  };
  Value result = hlo::scatter(hlo::zeros(b, {updates.dtype(), {size}}),
                              hlo::reshape(flat, {planes * count, 1}),
                              hlo::reshape(updates, {planes * count}), dims, combine);
  return hlo::reshape(result, sizes);
}

namespace {

hlo::Window reduce_window_of(const Windows& w) {
  hlo::Window window;
  window.size = {1, 1};
  window.strides = {1, 1};
  window.pad_low = {0, 0};
  window.pad_high = {0, 0};
  for (int64_t i = 0; i < w.axes(); ++i) {
    window.size.push_back(w.kernel[i]);
    window.strides.push_back(w.stride[i]);
    window.pad_low.push_back(w.padding[i]);
    window.pad_high.push_back(w.end_padding(i));
  }
  return window;
}

// 1 / (number of elements averaged), [1, 1, out...]; divisor_override counts instead.
Value divisors(Call& c, const Windows& w) {
  hlo::Builder& b = c.builder();
  const DType compute = hlo::opmath(c.dtype_of("self"));
  if (auto fixed = c.integer_or_none("divisor_override")) {
    c.check(*fixed != 0, "divisor must be not zero");
    return hlo::scalar(b, compute, static_cast<double>(*fixed));
  }
  const bool with_padding = c.flag("count_include_pad");
  Value all;
  for (int64_t i = 0; i < w.axes(); ++i) {
    std::vector<double> counts;
    for (int64_t o = 0; o < w.out[i]; ++o) {
      int64_t begin = o * w.stride[i] - w.padding[i];
      int64_t end = std::min(begin + w.kernel[i], w.in[i] + w.padding[i]);
      if (!with_padding) {
        begin = std::max<int64_t>(begin, 0);
        end = std::min(end, w.in[i]);
      }
      counts.push_back(static_cast<double>(end - begin));
    }
    Dims dims(2 + w.axes(), 1);
    dims[2 + i] = w.out[i];
    Value axis = hlo::constant_doubles(b, {compute, dims}, counts);
    all = all ? all * axis : axis;
  }
  return all;
}

Values avg_pool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  reject_bool(c, self.dtype);
  reject_complex(c, self.dtype);
  const Windows w = pool_windows(c, self, axes, false);
  const Planes planes = planes_of(c, self, axes);
  Value x = planes.wrap(c.tensor("self", hlo::opmath(self.dtype)));
  Value sum = hlo::reduce_window(x, hlo::scalar(c.builder(), x.dtype(), 0), reduce_window_of(w),
                                 hlo::Reduce::Add);
  Value result = planes.unwrap(sum / divisors(c, w));
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

// Every input gets the sum of grad / divisor over the windows that saw it.
Values avg_pool_backward(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  const Windows w = pool_windows(c, self, axes, false);
  const Planes planes = planes_of(c, self, axes);
  Value grad = planes.wrap(c.tensor("grad_output", hlo::opmath(self.dtype)));
  grad = grad / divisors(c, w);
  hlo::Window window;
  window.size = {1, 1};
  window.base_dilation = {1, 1};
  window.pad_low = {0, 0};
  window.pad_high = {0, 0};
  for (int64_t i = 0; i < axes; ++i) {
    window.size.push_back(w.kernel[i]);
    window.base_dilation.push_back(w.stride[i]);
    const int64_t low = w.kernel[i] - 1 - w.padding[i];
    window.pad_low.push_back(low);
    window.pad_high.push_back(w.in[i] + w.kernel[i] - 1 - ((w.out[i] - 1) * w.stride[i] + 1) - low);
  }
  Value sum =
      hlo::reduce_window(grad, hlo::scalar(c.builder(), grad.dtype(), 0), window, hlo::Reduce::Add);
  Value result = planes.unwrap(sum);
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

// ---- adaptive -----------------------------------------------------------------------------------

// Sums over ranges along one axis.
Value sum_ranges(const Value& x, int64_t axis, const Ranges& r) {
  hlo::Builder& b = x.builder();
  const int64_t out = r.count(), longest = r.longest();
  Dims dims = x.dims();
  dims[axis] = out;
  Value sum;
  for (int64_t t = 0; t < longest; ++t) {
    Dims at, valid;
    bool all_valid = true;
    for (int64_t o = 0; o < out; ++o) {
      valid.push_back(t < r.size(o));
      all_valid &= valid.back() != 0;
      at.push_back(std::max<int64_t>(std::min(r.begin[o] + t, r.end[o] - 1), 0));
    }
    Value seen = hlo::take(x, hlo::constant_ints(b, {DType::S32, {out}}, at), axis);
    if (!all_valid) {
      Value mask =
          hlo::broadcast_in_dim(hlo::constant_ints(b, {DType::Pred, {out}}, valid), dims, {axis});
      seen = hlo::select(mask, seen, 0.0);
    }
    sum = sum ? sum + seen : seen;
  }
  return sum ? sum : hlo::zeros(b, {x.dtype(), dims});
}

Value adaptive_counts(hlo::Builder& b, DType dtype, const Dims& in, const Dims& out) {
  Value all;
  for (size_t i = 0; i < in.size(); ++i) {
    const Ranges r = adaptive_ranges(in[i], out[i]);
    std::vector<double> counts;
    for (int64_t o = 0; o < out[i]; ++o) counts.push_back(static_cast<double>(r.size(o)));
    Dims dims(2 + in.size(), 1);
    dims[2 + i] = out[i];
    Value axis = hlo::constant_doubles(b, {dtype, dims}, counts);
    all = all ? all * axis : axis;
  }
  return all;
}

Values adaptive_avg_pool(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  reject_bool(c, self.dtype);
  const Planes planes = planes_of(c, self, axes);
  const Dims in = spatial_sizes(self, axes), out = adaptive_output(c, self, axes);
  Value x = planes.wrap(c.tensor("self", hlo::opmath(self.dtype)));
  Dims uneven;  // axes whose windows differ
  Dims split = {x.dim(0), x.dim(1)}, summed, kept = split;
  for (int64_t i = 0; i < axes; ++i) {
    const bool even = out[i] > 0 && in[i] % out[i] == 0;
    if (!even) uneven.push_back(i);
    split.push_back(even ? out[i] : in[i]);
    kept.push_back(split.back());
    if (even) {
      summed.push_back(static_cast<int64_t>(split.size()));
      split.push_back(in[i] / out[i]);
    }
  }
  Value sum = hlo::reshape(hlo::reduce(hlo::reshape(x, split), summed, hlo::Reduce::Add), kept);
  for (int64_t i : uneven) sum = sum_ranges(sum, 2 + i, adaptive_ranges(in[i], out[i]));
  Value result = planes.unwrap(sum / adaptive_counts(c.builder(), x.dtype(), in, out));
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

Values adaptive_avg_pool_backward(Call& c, int64_t axes) {
  const TensorArg& self = c.meta("self");
  const Planes planes = planes_of(c, self, axes);
  const Dims in = spatial_sizes(self, axes), out = spatial_sizes(c.meta("grad_output"), axes);
  Value grad = planes.wrap(c.tensor("grad_output", hlo::opmath(self.dtype)));
  grad = grad / adaptive_counts(c.builder(), grad.dtype(), in, out);
  for (int64_t i = 0; i < axes; ++i) {
    // Which windows saw element k: a range again, as begins and ends never decrease.
    Ranges seen;
    for (int64_t k = 0; k < in[i]; ++k) {
      int64_t first = 0;
      while (first < out[i] && adaptive_end(first, in[i], out[i]) <= k) ++first;
      int64_t last = first;
      while (last < out[i] && adaptive_begin(last, in[i], out[i]) <= k) ++last;
      seen.begin.push_back(first);
      seen.end.push_back(last);
    }
    grad = sum_ranges(grad, 2 + i, seen);
  }
  Value result = planes.unwrap(grad);
  keep_channels_last(c, 0, result.dims(), self);
  return {hlo::convert(result, self.dtype)};
}

}  // namespace

// sum over the window / number of elements (with or without padding), or / divisor_override
TPU_OP(
    "aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool "
    "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor") {
  return avg_pool(c, 2);
}

TPU_OP(
    "aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool "
    "ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor") {
  return avg_pool(c, 3);
}

TPU_OP(
    "aten::avg_pool2d_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, "
    "int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor") {
  return avg_pool_backward(c, 2);
}

TPU_OP(
    "aten::avg_pool3d_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, "
    "int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override) -> Tensor") {
  return avg_pool_backward(c, 3);
}

// window o covers [floor(o in / out), ceil((o + 1) in / out))
TPU_OP("aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor") {
  return adaptive_avg_pool(c, 2);
}

TPU_OP("aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor") {
  return adaptive_avg_pool(c, 3);
}

TPU_OP("aten::_adaptive_avg_pool2d_backward(Tensor grad_output, Tensor self) -> Tensor") {
  return adaptive_avg_pool_backward(c, 2);
}

TPU_OP("aten::_adaptive_avg_pool3d_backward(Tensor grad_output, Tensor self) -> Tensor") {
  return adaptive_avg_pool_backward(c, 3);
}

}  // namespace torch_tpu::ops
