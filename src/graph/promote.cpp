// SPDX-License-Identifier: Apache-2.0 - PyTorch's type promotion (torch.promote_types, torch.result_type, torch.can_cast).
#include "src/graph/call.h"

namespace torch_tpu::graph {
namespace {

int int_rank(DType d) {
  switch (d) {
    case DType::Pred:
      return 0;
    case DType::S8:
    case DType::U8:
      return 1;
    case DType::S16:
    case DType::U16:
      return 2;
    case DType::S32:
    case DType::U32:
      return 3;
    default:
      return 4;
  }
}

}  // namespace

// c10/core/ScalarType.h, promoteTypes.
DType promote(DType a, DType b) {
  if (a == b) return a;
  auto integral = [](DType d) { return hlo::is_integer(d) || d == DType::Pred; };
  if (integral(a) && integral(b)) {
    if (a == DType::Pred) return b;
    if (b == DType::Pred) return a;
    auto wide_unsigned = [](DType d) { return hlo::is_unsigned_integer(d) && d != DType::U8; };
    if (wide_unsigned(a) || wide_unsigned(b)) {
      throw UserError(UserError::Runtime,
                      "Promotion for uint16, uint32, uint64 types is not supported, attempted to "
                      "promote " +
                          std::string(hlo::torch_name(a)) + " and " +
                          std::string(hlo::torch_name(b)));
    }
    if (a == DType::U8 && b == DType::S8) return DType::S16;
    if (b == DType::U8 && a == DType::S8) return DType::S16;
    return int_rank(a) >= int_rank(b) ? a : b;
  }
  if (integral(a)) return b;
  if (integral(b)) return a;
  if (hlo::is_complex(a) || hlo::is_complex(b)) {
    const DType x = hlo::real_of(a), y = hlo::real_of(b);
    return hlo::complex_of(x == y ? x : promote(x, y));
  }
  if (hlo::is_float8(a) || hlo::is_float8(b)) {
    throw UserError(UserError::Runtime,
                    "Promotion for Float8 types is not supported, attempted to promote " +
                        std::string(hlo::torch_name(a)) + " and " +
                        std::string(hlo::torch_name(b)));
  }
  if (a == DType::F64 || b == DType::F64) return DType::F64;
  return DType::F32;  // F32 with a half, or the two halves together
}

// c10/core/ScalarType.h, canCast.
bool can_cast(DType from, DType to) {
  if (hlo::is_complex(from) && !hlo::is_complex(to)) return false;
  auto integral = [](DType d) { return hlo::is_integer(d) || d == DType::Pred; };
  if ((hlo::is_floating(from) || hlo::is_complex(from)) && integral(to)) return false;
  if (from != DType::Pred && to == DType::Pred) return false;
  return true;
}

namespace {

// at::native::ResultTypeState (ATen/native/TypeProperties.cpp).
struct ResultType {
  std::optional<DType> dim, zero, wrapped;

  static std::optional<DType> join(std::optional<DType> a, std::optional<DType> b) {
    if (!a) return b;
    if (!b) return a;
    return promote(*a, *b);
  }
  static std::optional<DType> combine(std::optional<DType> higher, std::optional<DType> lower) {
    if (!higher) return lower;
    if (!lower) return higher;
    if (hlo::is_complex(*higher)) return higher;
    if (hlo::is_floating(*higher)) {
      if (hlo::is_complex(*lower)) return hlo::complex_of(*higher);
      return higher;
    }
    if (*higher == DType::Pred || hlo::is_floating(*lower) || hlo::is_complex(*lower))
      return promote(*higher, *lower);
    return higher;
  }
  void tensor(const TensorArg& t, DType default_float) {
    if (t.wrapped) {
      number(t.number.kind, default_float);
      return;
    }
    auto& slot = t.rank() > 0 ? dim : zero;
    slot = join(slot, t.dtype);
  }
  void number(Number::Kind kind, DType default_float) {
    DType d = DType::S64;
    if (kind == Number::Bool) d = DType::Pred;
    if (kind == Number::Float) d = default_float;
    if (kind == Number::Complex) d = hlo::complex_of(default_float);
    wrapped = join(wrapped, d);
  }
  DType get() const { return combine(dim, combine(zero, wrapped)).value_or(DType::F32); }
};

void add(ResultType& state, const Arg& a, DType default_float) {
  switch (a.kind) {
    case Arg::Tensor:
      state.tensor(a.tensor, default_float);
      break;
    case Arg::TensorList:
      for (const Arg& e : a.list) add(state, e, default_float);
      break;
    case Arg::Scalar:
      state.number(a.number.kind, default_float);
      break;
    default:
      break;
  }
}

}  // namespace

DType Call::result_type(const std::vector<std::string_view>& names) const {
  ResultType state;
  for (std::string_view name : names) add(state, arg(name), default_float_);
  return state.get();
}
DType Call::result_type(std::initializer_list<std::string_view> names) const {
  return result_type(std::vector<std::string_view>(names));
}
DType Call::float_result_type(std::initializer_list<std::string_view> names) const {
  DType d = result_type(names);
  return hlo::is_integer(d) || d == DType::Pred ? default_float_ : d;
}

}  // namespace torch_tpu::graph
