// SPDX-License-Identifier: Apache-2.0 - Sliding windows over spatial dimensions, for convolution, pooling and im2col.
#pragma once

#include "src/ops/entry.h"

namespace torch_tpu::ops {

struct Windows {
  Dims stride, padding, dilation;  // one an axis
  Dims kernel, in, out;            // spatial sizes

  int64_t axes() const { return static_cast<int64_t>(in.size()); }
  int64_t taps() const { return hlo::element_count(kernel); }
  int64_t reach(int64_t i) const { return dilation[i] * (kernel[i] - 1) + 1; }
  // What the input must be padded with at the end so that the windows just fit (may be negative).
  int64_t end_padding(int64_t i) const {
    return (out[i] - 1) * stride[i] + reach(i) - in[i] - padding[i];
  }
  // Windows that tile the input are a matter of reshaping.
  bool tiles() const {
    for (int64_t i = 0; i < axes(); ++i) {
      if (stride[i] != kernel[i] || padding[i] != 0 || dilation[i] != 1) return false;
    }
    return true;
  }
};

// x [a, b, spatial...] padded with `value` so that all windows fit.
Value pad_for(const Windows& w, const Value& x, const Value& value);
// What one position `at` of the kernel sees: padded [a, b, spatial...] -> [a, b, out...].
Value tap_slice(const Windows& w, const Value& padded, const Dims& at);
// The inverse: [a, b, out...] put where the position sees it in [a, b, in...], zero elsewhere.
Value tap_place(const Windows& w, const Value& x, const Dims& at);

// Calls fn(tap number, position in the kernel), row major.
template <typename Fn>
void for_each_tap(const Windows& w, const Fn& fn) {
  Dims at(w.axes(), 0);
  for (int64_t tap = 0; tap < w.taps(); ++tap) {
    fn(tap, at);
    for (int64_t i = w.axes(); i-- > 0 && ++at[i] == w.kernel[i];) at[i] = 0;
  }
}

// An argument that PyTorch lets callers give once for all axes.
inline Dims spread(Dims list, int64_t n) {
  return static_cast<int64_t>(list.size()) == 1 ? Dims(n, list[0]) : list;
}

// The same, with PyTorch's error where it is neither one number nor n.
inline Dims one_per_axis(const Call& c, const char* name, int64_t n) {
  const Dims list = c.ints(name);
  const auto size = static_cast<int64_t>(list.size());
  c.check(size == 1 || size == n, name, " must be one number or ", n, ", but got ", list);
  return spread(list, n);
}

}  // namespace torch_tpu::ops
