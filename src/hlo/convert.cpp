// SPDX-License-Identifier: Apache-2.0 - Conversions of value (PyTorch's meaning) and of bits.
#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

Value plain(const Value& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return x.builder().append1("stablehlo.convert", {&x, 1}, "", {dtype, x.dims()});
}

bool is_narrow(DType dtype) { return is_floating(dtype) && bit_width(dtype) <= 8; }

// Negative numbers wrap as in a C++ cast on x86 (-1.0 -> uint8 is 255), where converting directly
// would saturate. Narrow types keep the low bits of a wider one.
Value float_to_integer(const Value& x, DType dtype) {
  switch (dtype) {
    case DType::S8:
    case DType::S16:
    case DType::U8:
    case DType::U16:
      return plain(plain(x, DType::S32), dtype);
    case DType::U32:
    case DType::U64: {
      // Not through a signed integer: LLVM in some CPU plugins takes float -> signed -> unsigned ->
      // float for a truncation, and the sign comes back.
      const Value magnitude = plain(plain(abs(x), DType::U64), dtype);
      return select(lt(x, 0), negate(magnitude), magnitude);
    }
    default:
      return plain(x, dtype);
  }
}

Value bits(const Value& x, DType dtype, Dims dims) {
  return x.builder().append1("stablehlo.bitcast_convert", {&x, 1}, "", {dtype, std::move(dims)});
}

}  // namespace

Value convert(const Value& x, DType dtype) {
  builder_of("stablehlo.convert", x);
  const DType from = x.dtype();
  if (from == dtype) return x;
  if (is_complex(dtype)) {
    if (is_complex(from))
      return complex(convert(real(x), real_of(dtype)), convert(imag(x), real_of(dtype)));
    const Value re = convert(x, real_of(dtype));
    return complex(re, zeros_like(re));
  }
  if (is_complex(from)) {
    if (dtype == DType::Pred) return ne(x, 0);
    return convert(real(x), dtype);
  }
  // 8-bit and narrower floats are computed with nowhere; float32 holds them all exactly.
  if (is_narrow(from) && dtype != DType::F32) return convert(plain(x, DType::F32), dtype);
  if (dtype == DType::Pred) return ne(x, 0);
  if (is_floating(dtype) && bit_width(dtype) < 32) {
    // PyTorch rounds to float32 first; the second rounding is visible.
    const bool wide = from == DType::F64 || (is_integer(from) && bit_width(from) >= 32);
    if (wide || (is_narrow(dtype) && from != DType::F32)) return plain(plain(x, DType::F32), dtype);
    return plain(x, dtype);
  }
  if (is_floating(from) && is_integer(dtype)) return float_to_integer(x, dtype);
  return plain(x, dtype);
}

Value bitcast_convert(const Value& x, DType dtype) {
  constexpr const char* kOp = "stablehlo.bitcast_convert";
  builder_of(kOp, x);
  const DType from = x.dtype();
  if (from == dtype) return x;
  // bool lives in bytes of 0 and 1; complex numbers are pairs. StableHLO casts neither.
  if (from == DType::Pred) return bitcast_convert(convert(x, DType::U8), dtype);
  if (dtype == DType::Pred) return ne(bitcast_convert(x, DType::U8), 0);
  if (is_complex(from)) {
    Dims dims = x.dims();
    const Value parts[] = {unsqueeze(real(x), -1), unsqueeze(imag(x), -1)};
    const Value pairs = concatenate(parts, -1);
    if (dims.empty()) dims.push_back(1);
    dims.back() *= 2;
    Value flat = bitcast_convert(reshape(pairs, dims), dtype);
    // A complex scalar seen as another type of the same width stays a scalar.
    if (x.rank() == 0 && flat.elements() == 1) flat = reshape(flat, {});
    return flat;
  }
  if (is_complex(dtype)) {
    if (x.rank() == 0 && bit_width(from) == bit_width(dtype)) {
      return reshape(bitcast_convert(reshape(x, {1}), dtype), {});
    }
    const Value parts = bitcast_convert(x, real_of(dtype));
    Dims dims = parts.dims();
    if (dims.empty() || dims.back() % 2 != 0) {
      fail(kOp, "the last dimension of " + x.type().str() + " does not divide into " +
                    std::string(torch_name(dtype)));
    }
    const int64_t last = parts.rank() - 1;
    const int64_t size = dims.back();
    dims.back() /= 2;
    return complex(reshape(slice_dim(parts, last, 0, size, 2), dims),
                   reshape(slice_dim(parts, last, 1, size, 2), dims));
  }
  const int from_bits = bit_width(from);
  const int to_bits = bit_width(dtype);
  Dims dims = x.dims();
  if (from_bits == to_bits) return bits(x, dtype, dims);
  if (from_bits > to_bits) {
    const int64_t ratio = from_bits / to_bits;
    Dims split = dims;
    split.push_back(ratio);
    if (dims.empty()) dims.push_back(1);
    dims.back() *= ratio;
    return reshape(bits(x, dtype, split), dims);
  }
  const int64_t ratio = to_bits / from_bits;
  if (dims.empty() || dims.back() % ratio != 0) {
    fail(kOp, "the last dimension of " + x.type().str() + " does not divide into " +
                  std::string(torch_name(dtype)));
  }
  dims.back() /= ratio;
  Dims split = dims;
  split.push_back(ratio);
  return bits(reshape(x, split), dtype, dims);
}

Value reduce_precision(const Value& x, int exponent_bits, int mantissa_bits) {
  constexpr const char* kOp = "stablehlo.reduce_precision";
  Builder& b = builder_of(kOp, x);
  if (!is_floating(x.dtype())) fail(kOp, "got " + x.type().str() + ", takes float");
  if (exponent_bits < 1 || mantissa_bits < 0) {
    fail(kOp, "a float needs at least 1 exponent bit and 0 mantissa bits");
  }
  return b.append1(
      kOp, {&x, 1},
      Attributes().i32("exponent_bits", exponent_bits).i32("mantissa_bits", mantissa_bits).take(),
      x.type());
}

}  // namespace torch_tpu::hlo
