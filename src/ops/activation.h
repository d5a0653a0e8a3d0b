// SPDX-License-Identifier: Apache-2.0 - What activation functions and their derivatives share.
#pragma once

#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// A float argument at opmath precision, and the way back.
struct Float {
  Call& c;
  DType result;
  Value x;
  explicit Float(Call& call, std::string_view name = "self", bool complex = false)
      : c(call), result(call.dtype_of(name)) {
    require_float(c, result);
    if (!complex) reject_complex(c, result);
    x = c.tensor(name, hlo::opmath(result));
  }
  Value scalar(std::string_view name) { return c.scalar(name, x.dtype()); }
  Value tensor(std::string_view name) { return c.tensor(name, x.dtype()); }
  Values rounded(const Value& y) const { return {convert(y, result)}; }
};

// The halves of a tensor along the argument "dim".
struct Halves {
  int64_t dim;
  Value a, b;
  Halves(const Call& c, const Value& x, std::string_view name) {
    c.check(x.rank() > 0, "glu does not support 0-dimensional tensors");
    dim = c.wrap(c.integer("dim"), x.rank());
    int64_t n = x.dim(dim);
    c.check(n % 2 == 0, "Halving dimension must be even, but dimension ", dim, " of ", name,
            " is size ", n);
    a = hlo::slice_dim(x, dim, 0, n / 2);
    b = hlo::slice_dim(x, dim, n / 2, n);
  }
};

inline bool is_tanh(const Call& c) {
  std::string how = c.text("approximate");
  c.check(how == "none" || how == "tanh", "approximate argument must be either none or tanh, got '",
          how, "'.");
  return how == "tanh";
}

inline constexpr double kSqrtHalf = 0.70710678118654752440;
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;
inline constexpr double kGeluCubic = 0.044715;
// P(N < x), N standard normal.
inline Value normal_cdf(const Value& x) { return (hlo::erf(x * kSqrtHalf) + 1) * 0.5; }
// Its approximation by tanh, and the argument of that tanh.
inline Value gelu_inner(const Value& x) { return (x + x * x * x * kGeluCubic) * kSqrt2OverPi; }
inline Value tanh_cdf(const Value& x) { return (hlo::tanh(gelu_inner(x)) + 1) * 0.5; }

// -bound <= x <= bound; false for NaN.
inline Value inside(const Value& x, const Value& bound) {
  return hlo::ge(x, -bound) & hlo::le(x, bound);
}

}  // namespace torch_tpu::ops
