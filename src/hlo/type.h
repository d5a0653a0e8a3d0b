// SPDX-License-Identifier: Apache-2.0 - Element types, shapes and tensor types of StableHLO.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch_tpu::hlo {

// Element types, in no particular order; names follow XLA's PrimitiveType.
enum class DType : uint8_t {
  Pred,
  S8,
  S16,
  S32,
  S64,
  U8,
  U16,
  U32,
  U64,
  F16,
  BF16,
  F32,
  F64,
  C64,
  C128,
  F8E4M3FN,
  F8E5M2,
  F8E4M3FNUZ,
  F8E5M2FNUZ,
  F8E8M0FNU,
  F4E2M1FN,
  // complex<f16>, which neither StableHLO nor XLA has: one ui32, the real part in its low half. The
  // builders of elementwise.cpp compute with it in C64.
  C32,
};
inline constexpr int kDTypeCount = 22;

using Dims = std::vector<int64_t>;

// Spelling in MLIR, for instance "bf16", "complex<f32>", "i1".
std::string_view mlir_name(DType dtype);
// Spelling users know from PyTorch, for instance "bfloat16", "bool".
std::string_view torch_name(DType dtype);
// Spelling of PyTorch's error messages, for instance "BFloat16", "Bool".
std::string_view scalar_type_name(DType dtype);
// Bytes of one element in a host buffer (F4E2M1FN, two to a byte in PyTorch, counts as 1).
int64_t byte_size(DType dtype);
int bit_width(DType dtype);

bool is_floating(DType dtype);  // all float kinds, not complex
bool is_complex(DType dtype);
bool is_integer(DType dtype);  // signed and unsigned, not Pred
bool is_signed_integer(DType dtype);
bool is_unsigned_integer(DType dtype);
bool is_float8(DType dtype);
// C32 -> F16, C64 -> F32, C128 -> F64, everything else itself.
DType real_of(DType dtype);
// F16 -> C32, F32 (and BF16) -> C64, F64 -> C128.
DType complex_of(DType dtype);
// The type sums and transcendental functions are computed in: halves and float8 -> F32, C32 -> C64,
// else itself (PyTorch: at::opmath_type).
DType opmath(DType dtype);

int64_t element_count(const Dims& dims);
// Row-major strides, in elements.
Dims contiguous_strides(const Dims& dims);

struct Type {
  DType dtype = DType::F32;
  Dims dims;
  bool operator==(const Type&) const = default;
  int64_t elements() const { return element_count(dims); }
  int64_t bytes() const { return elements() * byte_size(dtype); }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  std::string str() const;  // "tensor<2x3xf32>"
};

}  // namespace torch_tpu::hlo
