// SPDX-License-Identifier: Apache-2.0 - Constants: exact literals of every element type.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

constexpr std::string_view kConstant = "stablehlo.constant";

void append_hex(std::string& out, uint64_t bits, int width) {
  out += "0x";
  for (int shift = (width - 1) / 4 * 4; shift >= 0; shift -= 4) {
    out += "0123456789ABCDEF"[(bits >> shift) & 15];
  }
}

// What PyTorch's cast of a NaN or an infinity gives. Types without infinities turn them into NaN;
// F4E2M1FN has neither, so infinities saturate.
uint64_t nonfinite_bits(DType dtype, double v) {
  const bool nan = std::isnan(v);
  const bool negative = std::signbit(v);
  switch (dtype) {
    case DType::F64:
      return std::bit_cast<uint64_t>(v);
    case DType::F32:
      return std::bit_cast<uint32_t>(static_cast<float>(v));
    case DType::F16:
      return (negative ? 0x8000 : 0) | (nan ? 0x7E00 : 0x7C00);
    case DType::BF16:
      return (negative ? 0x8000 : 0) | (nan ? 0x7FC0 : 0x7F80);
    case DType::F8E4M3FN:
      return negative ? 0xFF : 0x7F;
    case DType::F8E5M2:
      return (negative ? 0x80 : 0) | (nan ? 0x7F : 0x7C);
    case DType::F8E4M3FNUZ:
    case DType::F8E5M2FNUZ:
      return 0x80;
    case DType::F8E8M0FNU:
      return 0xFF;
    case DType::F4E2M1FN:
      if (nan) fail(kConstant, "float4_e2m1fn_x2 has no NaN");
      return negative ? 0xF : 0x7;
    default:
      fail(kConstant, "not a float type");
  }
}

void append_float(std::string& out, DType dtype, double v) {
  if (!std::isfinite(v)) return append_hex(out, nonfinite_bits(dtype, v), bit_width(dtype));
  // No zero and no sign: everything below the smallest power of two is that power.
  if (dtype == DType::F8E8M0FNU && v < std::ldexp(1.0, -127)) return append_hex(out, 0, 8);
  // The shortest decimal that reads back as the same double; the reader rounds it to the type.
  char buffer[32];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, v).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.find('.') != std::string_view::npos) {
    out += text;
    return;
  }
  const size_t exponent = text.find('e');  // literals need a point: "1e+30" -> "1.0e+30"
  out += text.substr(0, exponent);
  out += ".0";
  if (exponent != std::string_view::npos) out += text.substr(exponent);
}

// Like a cast on x86: what does not fit 64 bits is the smallest integer.
int64_t to_int(double v, DType dtype) {
  constexpr double kTwo63 = 9223372036854775808.0;
  if (dtype == DType::U64 && v >= kTwo63 && v < 2 * kTwo63) {
    return static_cast<int64_t>(static_cast<uint64_t>(v));
  }
  if (!(v >= -kTwo63 && v < kTwo63)) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(v);
}

void append_integer(std::string& out, DType dtype, int64_t v) {
  switch (dtype) {
    case DType::Pred:
      out += v != 0 ? "true" : "false";
      return;
    case DType::S8:
      return append_int(out, static_cast<int>(static_cast<int8_t>(v)));
    case DType::S16:
      return append_int(out, static_cast<int16_t>(v));
    case DType::S32:
      return append_int(out, static_cast<int32_t>(v));
    case DType::U8:
      return append_int(out, static_cast<unsigned>(static_cast<uint8_t>(v)));
    case DType::U16:
      return append_int(out, static_cast<uint16_t>(v));
    case DType::U32:
      return append_int(out, static_cast<uint32_t>(v));
    case DType::U64:
      return append_int(out, static_cast<uint64_t>(v));
    default:
      return append_int(out, v);
  }
}

void append_complex(std::string& out, DType dtype, double re, double im) {
  out += '(';
  append_float(out, real_of(dtype), re);
  out += ", ";
  append_float(out, real_of(dtype), im);
  out += ')';
}

void append_element(std::string& out, DType dtype, double v) {
  if (is_complex(dtype)) return append_complex(out, dtype, v, 0);
  if (is_floating(dtype)) return append_float(out, dtype, v);
  if (dtype == DType::Pred) {
    out += v != 0 ? "true" : "false";  // NaN is true
    return;
  }
  append_integer(out, dtype, to_int(v, dtype));
}

void append_element(std::string& out, DType dtype, int64_t v) {
  if (is_complex(dtype) || is_floating(dtype)) {
    return append_element(out, dtype, static_cast<double>(v));
  }
  append_integer(out, dtype, v);
}

Value make(Builder& b, const Type& type, std::string_view literal) {
  std::string attributes = "value = dense<";
  if (type.elements() > 0) attributes += literal;
  attributes += "> : ";
  append_type(attributes, type);
  return b.append1(std::string(kConstant), {}, std::move(attributes), type);
}

template <class T>
Value splat(Builder& b, const Type& type, T value) {
  std::string literal;
  append_element(literal, type.dtype, value);
  return make(b, type, literal);
}

template <class T>
void append_nested(std::string& out, const Type& type, const T*& next, size_t dim) {
  if (dim == type.dims.size()) return append_element(out, type.dtype, *next++);
  out += '[';
  for (int64_t i = 0; i < type.dims[dim]; ++i) {
    if (i > 0) out += ", ";
    append_nested(out, type, next, dim + 1);
  }
  out += ']';
}

template <class T>
Value dense(Builder& b, const Type& type, std::span<const T> values) {
  check_size(kConstant, "the list of values of " + type.str(), values.size(),
             static_cast<size_t>(type.elements()));
  std::string literal;
  if (!values.empty()) {
    const T* next = values.data();
    auto same = [&](T v) {
      return std::bit_cast<uint64_t>(v) == std::bit_cast<uint64_t>(values[0]);
    };
    if (std::all_of(values.begin(), values.end(), same)) {
      append_element(literal, type.dtype, *next);
    } else {
      append_nested(literal, type, next, 0);
    }
  }
  return make(b, type, literal);
}

double largest(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return std::numeric_limits<double>::max();
    case DType::F32:
      return std::numeric_limits<float>::max();
    case DType::F16:
      return 65504;
    case DType::BF16:
      return std::ldexp(255.0, 120);
    case DType::F8E4M3FN:
      return 448;
    case DType::F8E5M2:
    case DType::F8E5M2FNUZ:
      return 57344;
    case DType::F8E4M3FNUZ:
      return 240;
    case DType::F8E8M0FNU:
      return std::ldexp(1.0, 127);
    case DType::F4E2M1FN:
      return 6;
    default:
      fail("max_finite", std::string(torch_name(dtype)) + " is not ordered");
  }
}

bool has_infinity(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || dtype == DType::F16 ||
         dtype == DType::BF16 || dtype == DType::F8E5M2;
}

}  // namespace

// complex32 has no literals: the compiler folds the conversion.
Value constant(Builder& b, const Type& type, double value) {
  if (type.dtype == DType::C32) return constant_complex(b, type, value, 0);
  return splat(b, type, value);
}

Value constant_int(Builder& b, const Type& type, int64_t value) {
  if (type.dtype == DType::C32) return constant_complex(b, type, static_cast<double>(value), 0);
  return splat(b, type, value);
}

Value constant_complex(Builder& b, const Type& type, double re, double im) {
  if (!is_complex(type.dtype)) fail("constant_complex", type.str() + " is not complex");
  if (type.dtype == DType::C32)
    return convert(constant_complex(b, {DType::C64, type.dims}, re, im), DType::C32);
  std::string literal;
  append_complex(literal, type.dtype, re, im);
  return make(b, type, literal);
}

Value constant_ints(Builder& b, const Type& type, std::span<const int64_t> values) {
  if (type.dtype == DType::C32)
    return convert(constant_ints(b, {DType::C64, type.dims}, values), DType::C32);
  return dense(b, type, values);
}

Value constant_doubles(Builder& b, const Type& type, std::span<const double> values) {
  if (type.dtype == DType::C32)
    return convert(constant_doubles(b, {DType::C64, type.dims}, values), DType::C32);
  return dense(b, type, values);
}

Value full_like(const Value& x, double value) {
  return constant(builder_of("full_like", x), x.type(), value);
}

Value scalar(Builder& b, DType dtype, double value) { return constant(b, {dtype, {}}, value); }

Value zeros(Builder& b, const Type& type) { return constant(b, type, 0); }

Value max_finite(Builder& b, DType dtype) {
  if (dtype == DType::Pred || is_integer(dtype)) {
    const int64_t ones = is_signed_integer(dtype)
                             ? std::numeric_limits<int64_t>::max() >> (64 - bit_width(dtype))
                             : -1;
    return constant_int(b, {dtype, {}}, ones);
  }
  return scalar(b, dtype, largest(dtype));
}

Value min_finite(Builder& b, DType dtype) {
  if (dtype == DType::Pred || is_integer(dtype)) {
    const int64_t least = is_signed_integer(dtype)
                              ? std::numeric_limits<int64_t>::min() >> (64 - bit_width(dtype))
                              : 0;
    return constant_int(b, {dtype, {}}, least);
  }
  if (dtype == DType::F8E8M0FNU) return scalar(b, dtype, std::ldexp(1.0, -127));
  return scalar(b, dtype, -largest(dtype));
}

Value highest(Builder& b, DType dtype) {
  if (has_infinity(dtype)) return scalar(b, dtype, std::numeric_limits<double>::infinity());
  return max_finite(b, dtype);
}

Value lowest(Builder& b, DType dtype) {
  if (has_infinity(dtype)) return scalar(b, dtype, -std::numeric_limits<double>::infinity());
  return min_finite(b, dtype);
}

Value nan_of(Builder& b, DType dtype) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (is_complex(dtype)) return constant_complex(b, {dtype, {}}, nan, nan);
  if (!is_floating(dtype)) fail("nan_of", std::string(torch_name(dtype)) + " has no NaN");
  return scalar(b, dtype, nan);
}

Value iota(Builder& b, const Type& type, int64_t dim) {
  const int64_t d = check_dim("stablehlo.iota", dim, type.rank());
  if (type.dtype == DType::Pred) fail("stablehlo.iota", "cannot count in bool");
  if (type.dtype == DType::C32) return convert(iota(b, {DType::C64, type.dims}, d), DType::C32);
  return b.append1("stablehlo.iota", {}, Attributes().i64("iota_dimension", d).take(), type);
}

}  // namespace torch_tpu::hlo
