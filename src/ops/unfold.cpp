// SPDX-License-Identifier: Apache-2.0 - im2col and col2im: windows as columns, and columns summed back into an image.
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"
#include "src/ops/pooling.h"

namespace torch_tpu::ops {
namespace {

Windows unfold_windows(const Call& c, const Dims& image) {
  Windows w;
  w.kernel = one_per_axis(c, "kernel_size", 2);
  w.dilation = one_per_axis(c, "dilation", 2);
  w.padding = one_per_axis(c, "padding", 2);
  w.stride = one_per_axis(c, "stride", 2);
  w.in = image;
  for (int64_t i = 0; i < 2; ++i) {
    c.check(w.kernel[i] > 0 && w.dilation[i] > 0 && w.stride[i] > 0,
            "kernel size, dilation and stride should be greater than zero, but got kernel_size: ",
            w.kernel, ", dilation: ", w.dilation, ", stride: ", w.stride);
    c.check(w.padding[i] >= 0, "padding should be non-negative, but got padding: ", w.padding);
    const int64_t room = w.in[i] + 2 * w.padding[i] - w.reach(i);
    c.check(room >= 0, "Given input with spatial size ", image, ", kernel_size=", w.kernel,
            ", dilation=", w.dilation, ", padding=", w.padding,
            ", calculated shape of the array of sliding blocks is too small: it must be at least "
            "one");
    w.out.push_back(room / w.stride[i] + 1);
  }
  return w;
}

}  // namespace

// [n, c, h, w] -> [n, c * taps, windows]
TPU_OP(
    "aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) "
    "-> Tensor") {
  const TensorArg& self = c.meta("self");
  const Planes planes = planes_of(c, self, 2);
  const Windows w = unfold_windows(c, spatial_sizes(self, 2));
  Value x = planes.wrap(c.tensor("self"));
  x = pad_for(w, x, hlo::scalar(c.builder(), x.dtype(), 0));
  Values taps;
  for_each_tap(
      w, [&](int64_t, const Dims& at) { taps.push_back(hlo::unsqueeze(tap_slice(w, x, at), 2)); });
  Value all = hlo::concatenate(taps, 2);
  return {
      planes.unwrap(hlo::reshape(all, {x.dim(0), x.dim(1) * w.taps(), hlo::element_count(w.out)}))};
}

// The transposed map: what im2col read from one pixel is summed into it.
TPU_OP(
    "aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] "
    "padding, int[2] stride) -> Tensor") {
  const TensorArg& self = c.meta("self");
  const Planes planes = planes_of(c, self, 1);
  const Windows w = unfold_windows(c, one_per_axis(c, "output_size", 2));
  reject_bool(c, self.dtype);
  Value x = planes.wrap(c.tensor("self", hlo::opmath(self.dtype)));
  c.check(x.dim(1) % w.taps() == 0,
          "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but "
          "got input.size(1)=",
          x.dim(1), " and kernel_size=", w.kernel);
  c.check(
      x.dim(2) == hlo::element_count(w.out), "Given output_size=", w.in, ", kernel_size=", w.kernel,
      ", dilation=", w.dilation, ", padding=", w.padding, ", stride=", w.stride,
      ", expected size of input's dimension 2 to match the calculated number of sliding blocks ",
      w.out, " = ", hlo::element_count(w.out), ", but got input.size(2)=", x.dim(2), ".");
  x = hlo::reshape(x, {x.dim(0), x.dim(1) / w.taps(), w.taps(), w.out[0], w.out[1]});
  Value sum;
  for_each_tap(w, [&](int64_t tap, const Dims& at) {
    Value placed = tap_place(w, hlo::squeeze(hlo::slice_dim(x, 2, tap, tap + 1), 2), at);
    sum = sum ? sum + placed : placed;
  });
  return {hlo::convert(planes.unwrap(sum), self.dtype)};
}

}  // namespace torch_tpu::ops
