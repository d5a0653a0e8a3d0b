// SPDX-License-Identifier: Apache-2.0 - Tables of element types and the spelling of tensor types.
#include "src/hlo/type.h"

#include <array>
#include <stdexcept>

namespace torch_tpu::hlo {
namespace {

enum Kind : uint8_t { kPred, kSigned, kUnsigned, kFloat, kComplex };

struct Row {
  std::string_view mlir;
  std::string_view torch;
  std::string_view scalar_type;
  int bits;
  Kind kind;
};

constexpr std::array<Row, kDTypeCount> kRows = {{
    {"i1", "bool", "Bool", 1, kPred},
    {"i8", "int8", "Char", 8, kSigned},
    {"i16", "int16", "Short", 16, kSigned},
    {"i32", "int32", "Int", 32, kSigned},
    {"i64", "int64", "Long", 64, kSigned},
    {"ui8", "uint8", "Byte", 8, kUnsigned},
    {"ui16", "uint16", "UInt16", 16, kUnsigned},
    {"ui32", "uint32", "UInt32", 32, kUnsigned},
    {"ui64", "uint64", "UInt64", 64, kUnsigned},
    {"f16", "float16", "Half", 16, kFloat},
    {"bf16", "bfloat16", "BFloat16", 16, kFloat},
    {"f32", "float32", "Float", 32, kFloat},
    {"f64", "float64", "Double", 64, kFloat},
    {"complex<f32>", "complex64", "ComplexFloat", 64, kComplex},
    {"complex<f64>", "complex128", "ComplexDouble", 128, kComplex},
    {"f8E4M3FN", "float8_e4m3fn", "Float8_e4m3fn", 8, kFloat},
    {"f8E5M2", "float8_e5m2", "Float8_e5m2", 8, kFloat},
    {"f8E4M3FNUZ", "float8_e4m3fnuz", "Float8_e4m3fnuz", 8, kFloat},
    {"f8E5M2FNUZ", "float8_e5m2fnuz", "Float8_e5m2fnuz", 8, kFloat},
    {"f8E8M0FNU", "float8_e8m0fnu", "Float8_e8m0fnu", 8, kFloat},
    {"f4E2M1FN", "float4_e2m1fn_x2", "Float4_e2m1fn_x2", 4, kFloat},
    {"ui32", "complex32", "ComplexHalf", 32, kComplex},
}};

const Row& row(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view mlir_name(DType dtype) { return row(dtype).mlir; }
std::string_view torch_name(DType dtype) { return row(dtype).torch; }
std::string_view scalar_type_name(DType dtype) { return row(dtype).scalar_type; }
int bit_width(DType dtype) { return row(dtype).bits; }
int64_t byte_size(DType dtype) { return row(dtype).bits < 8 ? 1 : row(dtype).bits / 8; }
bool is_floating(DType dtype) { return row(dtype).kind == kFloat; }
bool is_complex(DType dtype) { return row(dtype).kind == kComplex; }
bool is_integer(DType dtype) { return row(dtype).kind == kSigned || row(dtype).kind == kUnsigned; }
bool is_signed_integer(DType dtype) { return row(dtype).kind == kSigned; }
bool is_unsigned_integer(DType dtype) { return row(dtype).kind == kUnsigned; }
bool is_float8(DType dtype) { return is_floating(dtype) && row(dtype).bits == 8; }

DType real_of(DType dtype) {
  if (dtype == DType::C32) return DType::F16;
  if (dtype == DType::C64) return DType::F32;
  if (dtype == DType::C128) return DType::F64;
  return dtype;
}

DType complex_of(DType dtype) {
  if (is_complex(dtype)) return dtype;
  if (dtype == DType::F16) return DType::C32;
  return dtype == DType::F64 ? DType::C128 : DType::C64;
}

DType opmath(DType dtype) {
  if (dtype == DType::C32) return DType::C64;
  return is_floating(dtype) && row(dtype).bits < 32 ? DType::F32 : dtype;
}

int64_t element_count(const Dims& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

Dims contiguous_strides(const Dims& dims) {
  Dims strides(dims.size());
  int64_t running = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = running;
    running *= dims[i] > 1 ? dims[i] : 1;
  }
  return strides;
}

std::string Type::str() const {
  std::string s = "tensor<";
  for (int64_t d : dims) {
    s += std::to_string(d);
    s += 'x';
  }
  s += mlir_name(dtype);
  s += '>';
  return s;
}

}  // namespace torch_tpu::hlo
