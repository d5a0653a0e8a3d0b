// SPDX-License-Identifier: Apache-2.0 - Slices and placements of sliding windows.
#include "src/ops/windows.h"

namespace torch_tpu::ops {

Value pad_for(const Windows& w, const Value& x, const Value& value) {
  Dims low(2, 0), high(2, 0);
  bool any = false;
  for (int64_t i = 0; i < w.axes(); ++i) {
    low.push_back(w.padding[i]);
    high.push_back(w.end_padding(i));
    any |= low.back() != 0 || high.back() != 0;
  }
  return any ? hlo::pad(x, value, low, high) : x;
}

Value tap_slice(const Windows& w, const Value& padded, const Dims& at) {
  Dims start(2, 0), limit = {padded.dim(0), padded.dim(1)}, step(2, 1);
  for (int64_t i = 0; i < w.axes(); ++i) {
    start.push_back(at[i] * w.dilation[i]);
    limit.push_back(start.back() + (w.out[i] - 1) * w.stride[i] + 1);
    step.push_back(w.stride[i]);
  }
  return hlo::slice(padded, start, limit, step);
}

Value tap_place(const Windows& w, const Value& x, const Dims& at) {
  Dims low(2, 0), high(2, 0), interior(2, 0);
  for (int64_t i = 0; i < w.axes(); ++i) {
    low.push_back(at[i] * w.dilation[i] - w.padding[i]);
    high.push_back(w.in[i] - (low.back() + (w.out[i] - 1) * w.stride[i] + 1));
    interior.push_back(w.stride[i] - 1);
  }
  return hlo::pad(x, hlo::scalar(x.builder(), x.dtype(), 0), low, high, interior);
}

}  // namespace torch_tpu::ops
