// SPDX-License-Identifier: Apache-2.0 - Fourier transforms: _fft_c2c, _fft_r2c, _fft_c2r.
#include <algorithm>
#include <cmath>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

using hlo::Type;

namespace {

enum Normalization : int64_t { kNone = 0, kByRootN = 1, kByN = 2 };

// Applies `fn` with dim moved to the end.
template <typename Fn>
Value at_end(const Value& x, int64_t dim, const Fn& fn) {
  const int64_t rank = x.rank();
  if (dim == rank - 1) return fn(x);
  Dims swap(rank);
  for (int64_t d = 0; d < rank; ++d) swap[d] = d;
  std::swap(swap[dim], swap[rank - 1]);
  return hlo::transpose(fn(hlo::transpose(x, swap)), swap);
}

// Complex transform along dims, not scaled in either direction (XLA divides the inverse by its
// length).
Value transform(Value x, const Dims& dims, bool forward) {
  for (int64_t dim : dims) {
    const int64_t n = x.dim(dim);
    x = at_end(x, dim, [&](const Value& v) {
      return hlo::fft(v, forward ? hlo::Fft::FFT : hlo::Fft::IFFT, {n});
    });
    if (!forward && n > 1)
      x = x * hlo::constant_complex(x.builder(), {x.dtype(), {}}, static_cast<double>(n), 0);
  }
  return x;
}

Dims wrapped_dims(Call& c, int64_t rank) {
  Dims dims = c.ints("dim");
  for (int64_t& d : dims) d = c.wrap(d, rank);
  return dims;
}

// The factor that a normalization of `count` points means.
double factor(Call& c, double count) {
  switch (c.integer("normalization")) {
    case kByRootN:
      return 1 / std::sqrt(count);
    case kByN:
      return 1 / count;
    default:
      return 1;
  }
}

double points(const Dims& sizes, const Dims& dims) {
  double count = 1;
  for (int64_t d : dims) count *= static_cast<double>(sizes[d]);
  return count;
}

Value scaled(const Value& x, double by) {
  if (by == 1) return x;
  if (hlo::is_complex(x.dtype()))
    return x * hlo::constant_complex(x.builder(), {x.dtype(), {}}, by, 0);
  return x * by;
}

void check_type(Call& c, bool wants_complex) {
  DType dtype = c.dtype_of("self");
  bool fits = wants_complex ? hlo::is_complex(dtype)
                            : dtype == DType::F16 || dtype == DType::F32 || dtype == DType::F64;
  c.check(fits, "Unsupported dtype ", dtype, ": expected ",
          wants_complex ? "a complex type" : "float16, float32 or float64");
}

}  // namespace

// X[k] = sum of x[j] exp(-+2 pi i j k / n) along every dim, times the normalization's factor.
TPU_OP("aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor") {
  check_type(c, true);
  const DType result = c.dtype_of("self");
  Value self = c.tensor("self", hlo::opmath(result));
  Dims dims = wrapped_dims(c, self.rank());
  if (dims.empty() || self.elements() == 0) return {hlo::convert(self, result)};
  Value y = transform(self, dims, c.flag("forward"));
  return {hlo::convert(scaled(y, factor(c, points(self.dims(), dims))), result)};
}

// Of real input; onesided keeps the half of the last dim that determines the rest.
TPU_OP("aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor") {
  check_type(c, false);
  const DType given = c.dtype_of("self"), wanted = hlo::complex_of(given);
  Value self = c.tensor("self", hlo::opmath(given));
  Dims dims = wrapped_dims(c, self.rank());
  const DType dtype = hlo::complex_of(self.dtype());
  const bool onesided = c.flag("onesided");
  if (dims.empty()) return {hlo::convert(self, wanted)};
  const int64_t last = dims.back(), n = self.dim(last);
  Dims result = self.dims();
  if (onesided) result[last] = n / 2 + 1;
  if (self.elements() == 0) return {hlo::zeros(c.builder(), {wanted, result})};
  const double by = factor(c, points(self.dims(), dims));
  if (!onesided) {
    Value y = transform(hlo::convert(self, dtype), dims, true);
    return {hlo::convert(scaled(y, by), wanted)};
  }
  Value y = at_end(self, last, [&](const Value& v) { return hlo::fft(v, hlo::Fft::RFFT, {n}); });
  dims.pop_back();
  return {hlo::convert(scaled(transform(y, dims, true), by), wanted)};
}

// The inverse of the onesided transform: real output of last_dim_size in the last dim.
TPU_OP(
    "aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor") {
  check_type(c, true);
  const DType given = c.dtype_of("self"), dtype = hlo::real_of(given);
  Value self = c.tensor("self", hlo::opmath(given));
  Dims dims = wrapped_dims(c, self.rank());
  const int64_t n = c.integer("last_dim_size");
  c.check(!dims.empty(), "needs at least one dim");
  c.check(n >= 1, "Invalid number of data points (", n, ") specified");
  const int64_t last = dims.back();
  Dims result = self.dims();
  result[last] = n;
  if (self.elements() == 0) return {hlo::zeros(c.builder(), {dtype, result})};
  const double by = factor(c, points(result, dims));
  dims.pop_back();
  Value x = transform(self, dims, false);
  // Exactly the half that is looked at.
  const int64_t half = n / 2 + 1, have = x.dim(last);
  if (have != half) {
    Dims low(x.rank(), 0), high(x.rank(), 0);
    high[last] = half - have;
    x = hlo::pad(x, hlo::zeros(c.builder(), {x.dtype(), {}}), low, high);
  }
  Value y = at_end(x, last, [&](const Value& v) { return hlo::fft(v, hlo::Fft::IRFFT, {n}); });
  return {hlo::convert(scaled(y, by * static_cast<double>(n)), dtype)};
}

}  // namespace torch_tpu::ops
