// SPDX-License-Identifier: Apache-2.0 - width and name of PJRT's element types.
#include "src/pjrt/element_type.h"

#include <array>

#include "src/pjrt/api.h"

namespace torch_tpu::pjrt {

static_assert(int{kPred} == PJRT_Buffer_Type_PRED && int{kS64} == PJRT_Buffer_Type_S64 &&
              int{kU64} == PJRT_Buffer_Type_U64 && int{kF16} == PJRT_Buffer_Type_F16 &&
              int{kF64} == PJRT_Buffer_Type_F64 && int{kBF16} == PJRT_Buffer_Type_BF16 &&
              int{kC64} == PJRT_Buffer_Type_C64 && int{kC128} == PJRT_Buffer_Type_C128 &&
              int{kF8E4M3FNUZ} == PJRT_Buffer_Type_F8E4M3FNUZ && int{kU4} == PJRT_Buffer_Type_U4 &&
              int{kToken} == PJRT_Buffer_Type_TOKEN && int{kU2} == PJRT_Buffer_Type_U2 &&
              int{kF8E8M0FNU} == PJRT_Buffer_Type_F8E8M0FNU &&
              int{kF4E2M1FN} == PJRT_Buffer_Type_F4E2M1FN);

namespace {

struct TypeFacts {
  int bits;
  const char* name;
};

constexpr std::array<TypeFacts, 30> kFacts = {{
    {0, "invalid"},
    {8, "i1"},
    {8, "i8"},
    {16, "i16"},
    {32, "i32"},
    {64, "i64"},
    {8, "ui8"},
    {16, "ui16"},
    {32, "ui32"},
    {64, "ui64"},
    {16, "f16"},
    {32, "f32"},
    {64, "f64"},
    {16, "bf16"},
    {64, "complex<f32>"},
    {128, "complex<f64>"},
    {8, "f8E5M2"},
    {8, "f8E4M3FN"},
    {8, "f8E4M3B11FNUZ"},
    {8, "f8E5M2FNUZ"},
    {8, "f8E4M3FNUZ"},
    {4, "i4"},
    {4, "ui4"},
    {0, "token"},
    {2, "i2"},
    {2, "ui2"},
    {8, "f8E4M3"},
    {8, "f8E3M4"},
    {8, "f8E8M0FNU"},
    {4, "f4E2M1FN"},
}};

}  // namespace

std::size_t element_bits(int type) {
  return type >= 0 && type < static_cast<int>(kFacts.size()) ? kFacts[type].bits : 0;
}

const char* element_name(int type) {
  return type >= 0 && type < static_cast<int>(kFacts.size()) ? kFacts[type].name : "unknown";
}

}  // namespace torch_tpu::pjrt
