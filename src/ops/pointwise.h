// SPDX-License-Identifier: Apache-2.0 - Dtype rules that the elementwise operator families share.
#pragma once

#include <string_view>
#include <vector>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

using UnaryFn = Value (*)(const Value&);
using BinaryFn = Value (*)(const Value&, const Value&);

inline constexpr double kPi = 3.14159265358979323846;
inline constexpr double kLn2 = 0.693147180559945309417;
inline constexpr double kLn10 = 2.30258509299404568402;

// ---- what a family does not take ---------------------------------------------------------------
inline void reject(const Call& c, bool condition, DType dtype) {
  c.check_supported(!condition, "not implemented for '", dtype, "'");
}
inline void reject_bool(const Call& c, DType d) { reject(c, d == DType::Pred, d); }
inline void reject_complex(const Call& c, DType d) { reject(c, hlo::is_complex(d), d); }
inline void require_integral(const Call& c, DType d) {
  reject(c, d != DType::Pred && !hlo::is_integer(d), d);
}
inline void require_whole(const Call& c, DType d) { reject(c, !hlo::is_integer(d), d); }
inline void require_float(const Call& c, DType d) {
  reject(c, !hlo::is_floating(d) && !hlo::is_complex(d), d);
}
inline void require_real_float(const Call& c, DType d) { reject(c, !hlo::is_floating(d), d); }

// ---- one argument ------------------------------------------------------------------------------
// The dtype of the first argument, computed at opmath precision and rounded once.
template <UnaryFn fn>
Values same_unary(Call& c) {
  DType result = c.dtype_of("self");
  require_float(c, result);
  return {hlo::convert(fn(c.tensor("self", hlo::opmath(result))), result)};
}
// Integers and bool become the default float type first.
template <UnaryFn fn>
Values float_unary(Call& c) {
  DType result = c.float_result_type({"self"});
  return {hlo::convert(fn(c.tensor("self", hlo::opmath(result))), result)};
}
template <UnaryFn fn>
Values real_unary(Call& c) {
  reject_complex(c, c.dtype_of("self"));
  return float_unary<fn>(c);
}

// ---- two arguments -----------------------------------------------------------------------------
struct Operands {
  Value a, b;
  DType result;
  Values rounded(const Value& y) const { return {hlo::convert(y, result)}; }
};
// Both at the opmath type of their result type.
inline Operands operands(Call& c, std::string_view a = "self", std::string_view b = "other") {
  DType result = c.result_type({a, b});
  DType compute = hlo::opmath(result);
  return {c.tensor(a, compute), c.tensor(b, compute), result};
}
inline Operands float_operands(Call& c, std::string_view a = "self", std::string_view b = "other") {
  DType result = c.float_result_type({a, b});
  DType compute = hlo::opmath(result);
  return {c.tensor(a, compute), c.tensor(b, compute), result};
}
// No arithmetic happens, so halves stay as they are.
inline Operands exact_operands(Call& c, std::string_view a = "self", std::string_view b = "other") {
  DType result = c.result_type({a, b});
  return {c.tensor(a, result), c.tensor(b, result), result};
}

// ---- pieces ------------------------------------------------------------------------------------
// Towards zero; keeps the sign of zero, NaN and infinities.
inline Value trunc(const Value& x) {
  return hlo::select(hlo::lt(x, 0), hlo::ceil(x), hlo::floor(x));
}
// True for negative numbers, -0.0 and NaNs with the sign bit. Narrowing to F32 keeps the sign, and
// spares a TPU the bits of a float64, which it has not.
inline Value sign_bit(const Value& x) {
  Value narrow = hlo::convert(x, DType::F32);
  return hlo::lt(hlo::bitcast_convert(narrow, DType::S32), 0);
}
inline Value infinity_like(const Value& x) { return hlo::highest(x.builder(), x.dtype()); }
// c[0] x^(n-1) + ... + c[n-1].
template <size_t n>
Value polynomial(const Value& x, const double (&c)[n]) {
  Value y = hlo::full_like(x, c[0]);
  for (size_t i = 1; i < n; ++i) y = y * x + c[i];
  return y;
}
// The sum of a reduction argument: 0 none, 1 mean, 2 sum. `loss` is at opmath precision.
inline Value reduced(const Value& loss, int64_t reduction) {
  if (reduction == 0) return loss;
  Dims all(loss.rank());
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
  Value sum = hlo::reduce(loss, all, hlo::Reduce::Add);
  return reduction == 1 ? sum / static_cast<double>(loss.elements()) : sum;
}

}  // namespace torch_tpu::ops
