// SPDX-License-Identifier: Apache-2.0 - PJRT's element types by number, without pjrt_c_api.h.
#pragma once

#include <cstddef>

namespace torch_tpu::pjrt {

// Same numbers as PJRT_Buffer_Type (element_type.cpp asserts it). Functions take a plain int, so
// that a number read from a plugin that is newer than this list passes through unharmed.
enum ElementType : int {
  kInvalid = 0,
  kPred,
  kS8,
  kS16,
  kS32,
  kS64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kF32,
  kF64,
  kBF16,
  kC64,
  kC128,
  kF8E5M2,
  kF8E4M3FN,
  kF8E4M3B11FNUZ,
  kF8E5M2FNUZ,
  kF8E4M3FNUZ,
  kS4,
  kU4,
  kToken,
  kS2,
  kU2,
  kF8E4M3,
  kF8E3M4,
  kF8E8M0FNU,
  kF4E2M1FN,
};

// Width of one element; 0 for kInvalid, kToken and numbers not listed above.
std::size_t element_bits(int type);

// StableHLO's spelling ("f32", "i1", "ui8", "complex<f32>", "f8E4M3FN", ...); "type<N>" when
// unknown.
const char* element_name(int type);

}  // namespace torch_tpu::pjrt
