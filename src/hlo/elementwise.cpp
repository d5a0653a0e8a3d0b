// SPDX-License-Identifier: Apache-2.0 - Elementwise instructions: one table of what each op takes.
#include <array>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

// Kinds of element type an operation takes, as bits.
enum Takes : uint8_t {
  kPred = 1,
  kSigned = 2,
  kUnsigned = 4,
  kFloat = 8,
  kComplex = 16,
  kInt = kSigned | kUnsigned,
  kReal = kInt | kFloat,
  kBits = kPred | kInt,
  kFloatComplex = kFloat | kComplex,
  kNumber = kReal | kComplex,
  kAny = kPred | kNumber,
};

Takes kind_of(DType dtype) {
  if (dtype == DType::Pred) return kPred;
  if (is_complex(dtype)) return kComplex;
  if (is_floating(dtype)) return kFloat;
  return is_signed_integer(dtype) ? kSigned : kUnsigned;
}

void check_kind(std::string_view op, const Value& x, Takes takes) {
  if (kind_of(x.dtype()) & takes) return;
  std::string kinds;
  constexpr std::array<std::string_view, 5> kNames = {"bool", "signed integer", "unsigned integer",
                                                      "float", "complex"};
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (!(takes & (1 << i))) continue;
    if (!kinds.empty()) kinds += ", ";
    kinds += kNames[i];
  }
  fail(op, "got " + x.type().str() + ", takes " + kinds);
}

Value unary(const char* op, const Value& x, Takes takes, std::optional<DType> result = {}) {
  Builder& b = builder_of(op, x);
  check_kind(op, x, takes);
  if (x.dtype() == DType::C32) {
    const bool to_real = result && !is_complex(*result);
    const DType wide = to_real ? DType::F32 : DType::C64;
    return convert(unary(op, convert(x, DType::C64), takes, wide), result.value_or(x.dtype()));
  }
  return b.append1(op, {&x, 1}, "", {result.value_or(x.dtype()), x.dims()});
}

void check_same_dtype(std::string_view op, const Value& a, const Value& b) {
  if (builder_of(op, a).type(a.id()).dtype == builder_of(op, b).type(b.id()).dtype) return;
  fail(op, "operands " + a.type().str() + " and " + b.type().str() +
               " have different element types; convert one of them first");
}

Dims common_dims(std::string_view op, const Value& a, const Value& b) {
  try {
    return broadcast_dims(a.dims(), b.dims());
  } catch (const BuildError&) {
    fail(op, "operands " + a.type().str() + " and " + b.type().str() +
                 " do not broadcast to a common shape");
  }
}

// Operands at their common shape.
std::array<Value, 2> align(const char* op, const Value& a, const Value& b) {
  check_same_dtype(op, a, b);
  if (&a.builder() != &b.builder()) fail(op, "an operand belongs to another Builder");
  if (a.dims() == b.dims()) return {a, b};
  const Dims dims = common_dims(op, a, b);
  return {broadcast_to(a, dims), broadcast_to(b, dims)};
}

Value binary(const char* op, const Value& a, const Value& b, Takes takes) {
  const std::array<Value, 2> xs = align(op, a, b);
  check_kind(op, a, takes);
  if (a.dtype() == DType::C32) {
    return convert(binary(op, convert(a, DType::C64), convert(b, DType::C64), takes), DType::C32);
  }
  return xs[0].builder().append1(op, xs, "", xs[0].type());
}

Value compare_as(const char* type, const Value& a, const Value& b, Compare how) {
  constexpr const char* kOp = "stablehlo.compare";
  constexpr std::array<std::string_view, 6> kDirections = {"EQ", "NE", "GE", "GT", "LE", "LT"};
  const std::array<Value, 2> xs = align(kOp, a, b);
  if (is_complex(a.dtype()) && how != Compare::EQ && how != Compare::NE) {
    fail(kOp, "complex numbers have no order");
  }
  if (a.dtype() == DType::C32) {
    return compare_as(type, convert(a, DType::C64), convert(b, DType::C64), how);
  }
  return xs[0].builder().append1(kOp, xs,
                                 Attributes()
                                     .enumeration("compare_type", "comparison_type", type)
                                     .enumeration("comparison_direction", "comparison_direction",
                                                  kDirections[static_cast<size_t>(how)])
                                     .take(),
                                 {DType::Pred, xs[0].dims()});
}

const char* compare_type(const Value& a) {
  switch (kind_of(builder_of("stablehlo.compare", a).type(a.id()).dtype)) {
    case kFloat:
    case kComplex:
      return "FLOAT";
    case kSigned:
      return "SIGNED";
    default:
      return "UNSIGNED";
  }
}

// The parts of complex32 are the halves of a 32-bit integer.
Value half_of(const Value& x, int64_t shift) {
  Builder& b = x.builder();
  Value word = b.append1("stablehlo.bitcast_convert", {&x, 1}, "", {DType::U32, x.dims()});
  if (shift > 0) word = shift_right_logical(word, constant_int(b, {DType::U32, {}}, shift));
  word = and_(word, constant_int(b, {DType::U32, {}}, 0xFFFF));
  return bitcast_convert(convert(word, DType::U16), DType::F16);
}
Value from_halves(const Value& re, const Value& im) {
  auto word = [](const Value& x) { return convert(bitcast_convert(x, DType::U16), DType::U32); };
  Builder& b = re.builder();
  const Value high = shift_left(word(im), constant_int(b, {DType::U32, {}}, 16));
  const Value both = or_(high, word(re));
  return b.append1("stablehlo.bitcast_convert", {&both, 1}, "", {DType::C32, both.dims()});
}

}  // namespace

#define UNARY(name, text, takes) \
  Value name(const Value& x) { return unary(text, x, takes); }
UNARY(cbrt, "stablehlo.cbrt", kFloatComplex)
UNARY(ceil, "stablehlo.ceil", kFloat)
UNARY(cosine, "stablehlo.cosine", kFloatComplex)
UNARY(count_leading_zeros, "stablehlo.count_leading_zeros", kInt)
UNARY(exponential, "stablehlo.exponential", kFloatComplex)
UNARY(exponential_minus_one, "stablehlo.exponential_minus_one", kFloatComplex)
UNARY(floor, "stablehlo.floor", kFloat)
UNARY(log, "stablehlo.log", kFloatComplex)
UNARY(log_plus_one, "stablehlo.log_plus_one", kFloatComplex)
UNARY(logistic, "stablehlo.logistic", kFloatComplex)
UNARY(negate, "stablehlo.negate", kNumber)
UNARY(not_, "stablehlo.not", kBits)
UNARY(popcnt, "stablehlo.popcnt", kInt)
UNARY(round_nearest_afz, "stablehlo.round_nearest_afz", kFloat)
UNARY(round_nearest_even, "stablehlo.round_nearest_even", kFloat)
UNARY(rsqrt, "stablehlo.rsqrt", kFloatComplex)
UNARY(sine, "stablehlo.sine", kFloatComplex)
UNARY(sqrt, "stablehlo.sqrt", kFloatComplex)
UNARY(tan, "stablehlo.tan", kFloatComplex)
UNARY(tanh, "stablehlo.tanh", kFloatComplex)
UNARY(acos, "chlo.acos", kFloatComplex)
UNARY(acosh, "chlo.acosh", kFloatComplex)
UNARY(asin, "chlo.asin", kFloatComplex)
UNARY(asinh, "chlo.asinh", kFloatComplex)
UNARY(atanh, "chlo.atanh", kFloatComplex)
UNARY(bessel_i1e, "chlo.bessel_i1e", kFloat)
UNARY(cosh, "chlo.cosh", kFloatComplex)
UNARY(digamma, "chlo.digamma", kFloat)
UNARY(erf, "chlo.erf", kFloat)
UNARY(erf_inv, "chlo.erf_inv", kFloat)
UNARY(erfc, "chlo.erfc", kFloat)
UNARY(lgamma, "chlo.lgamma", kFloat)
UNARY(sinh, "chlo.sinh", kFloatComplex)
#undef UNARY

Value is_finite(const Value& x) { return unary("stablehlo.is_finite", x, kFloat, DType::Pred); }
Value is_inf(const Value& x) { return unary("chlo.is_inf", x, kFloat, DType::Pred); }
Value is_neg_inf(const Value& x) { return unary("chlo.is_neg_inf", x, kFloat, DType::Pred); }
Value is_pos_inf(const Value& x) { return unary("chlo.is_pos_inf", x, kFloat, DType::Pred); }

Value abs(const Value& x) {
  builder_of("stablehlo.abs", x);
  if (is_unsigned_integer(x.dtype())) return x;
  return unary("stablehlo.abs", x, kNumber, real_of(x.dtype()));
}

Value sign(const Value& x) {
  builder_of("stablehlo.sign", x);
  if (is_unsigned_integer(x.dtype())) return convert(ne(x, 0), x.dtype());
  return unary("stablehlo.sign", x, kNumber);
}

Value real(const Value& x) {
  builder_of("stablehlo.real", x);
  if (!is_complex(x.dtype())) return x;
  if (x.dtype() == DType::C32) return half_of(x, 0);
  return unary("stablehlo.real", x, kComplex, real_of(x.dtype()));
}

Value imag(const Value& x) {
  builder_of("stablehlo.imag", x);
  if (!is_complex(x.dtype())) return zeros_like(x);
  if (x.dtype() == DType::C32) return half_of(x, 16);
  return unary("stablehlo.imag", x, kComplex, real_of(x.dtype()));
}

#define BINARY(name, text, takes) \
  Value name(const Value& a, const Value& b) { return binary(text, a, b, takes); }
BINARY(add, "stablehlo.add", kAny)
BINARY(and_, "stablehlo.and", kBits)
BINARY(atan2, "stablehlo.atan2", kFloatComplex)
BINARY(divide, "stablehlo.divide", kNumber)
BINARY(maximum, "stablehlo.maximum", static_cast<Takes>(kPred | kReal))
BINARY(minimum, "stablehlo.minimum", static_cast<Takes>(kPred | kReal))
BINARY(multiply, "stablehlo.multiply", kAny)
BINARY(or_, "stablehlo.or", kBits)
BINARY(power, "stablehlo.power", kNumber)
BINARY(remainder, "stablehlo.remainder", kReal)
BINARY(shift_left, "stablehlo.shift_left", kInt)
BINARY(shift_right_arithmetic, "stablehlo.shift_right_arithmetic", kInt)
BINARY(shift_right_logical, "stablehlo.shift_right_logical", kInt)
BINARY(subtract, "stablehlo.subtract", kNumber)
BINARY(xor_, "stablehlo.xor", kBits)
BINARY(next_after, "chlo.next_after", kFloat)
BINARY(polygamma, "chlo.polygamma", kFloat)
BINARY(zeta, "chlo.zeta", kFloat)
#undef BINARY

// For real numbers not chlo.atan, nor atan2(x, 1), which is the same: an XLA of 2026 vectorizes it
// wrongly on CPUs (C API 0.115).
Value atan(const Value& x) {
  if (is_complex(x.dtype())) return unary("chlo.atan", x, kFloatComplex);
  return atan2(x * 2, full_like(x, 2));
}

Value operator+(const Value& a, double b) { return add(a, full_like(a, b)); }
Value operator-(const Value& a, double b) { return subtract(a, full_like(a, b)); }
Value operator*(const Value& a, double b) { return multiply(a, full_like(a, b)); }
Value operator/(const Value& a, double b) { return divide(a, full_like(a, b)); }
Value operator+(double a, const Value& b) { return add(full_like(b, a), b); }
Value operator-(double a, const Value& b) { return subtract(full_like(b, a), b); }
Value operator*(double a, const Value& b) { return multiply(full_like(b, a), b); }
Value operator/(double a, const Value& b) { return divide(full_like(b, a), b); }
Value maximum(const Value& a, double b) { return maximum(a, full_like(a, b)); }
Value minimum(const Value& a, double b) { return minimum(a, full_like(a, b)); }

Value compare(const Value& a, const Value& b, Compare how) {
  return compare_as(compare_type(a), a, b, how);
}

Value compare_total(const Value& a, const Value& b, Compare how) {
  const bool floating = is_floating(builder_of("stablehlo.compare", a).type(a.id()).dtype);
  return compare_as(floating ? "TOTALORDER" : compare_type(a), a, b, how);
}

Value eq(const Value& a, double b) { return eq(a, full_like(a, b)); }
Value ne(const Value& a, double b) { return ne(a, full_like(a, b)); }
Value ge(const Value& a, double b) { return ge(a, full_like(a, b)); }
Value gt(const Value& a, double b) { return gt(a, full_like(a, b)); }
Value le(const Value& a, double b) { return le(a, full_like(a, b)); }
Value lt(const Value& a, double b) { return lt(a, full_like(a, b)); }

Value is_nan(const Value& x) { return ne(x, x); }

Value select(const Value& pred, const Value& on_true, const Value& on_false) {
  constexpr const char* kOp = "stablehlo.select";
  Builder& b = builder_of(kOp, pred);
  check_kind(kOp, pred, kPred);
  std::array<Value, 2> xs = align(kOp, on_true, on_false);
  Value p = pred;
  if (p.rank() > 0 && p.dims() != xs[0].dims()) {  // a 0-dim predicate serves every shape
    const Dims dims = common_dims(kOp, p, xs[0]);
    p = broadcast_to(p, dims);
    for (Value& x : xs) x = broadcast_to(x, dims);
  }
  const Value operands[] = {p, xs[0], xs[1]};
  return b.append1(kOp, operands, "", xs[0].type());
}

Value select(const Value& pred, const Value& on_true, double on_false) {
  return select(pred, on_true, full_like(on_true, on_false));
}

Value select(const Value& pred, double on_true, const Value& on_false) {
  return select(pred, full_like(on_false, on_true), on_false);
}

Value clamp(const Value& low, const Value& x, const Value& high) {
  constexpr const char* kOp = "stablehlo.clamp";
  Builder& b = builder_of(kOp, x);
  for (const Value* bound : {&low, &high}) {
    check_same_dtype(kOp, *bound, x);
    if (bound->rank() > 0 && bound->dims() != x.dims()) {
      fail(kOp, "the bound " + bound->type().str() + " is neither 0-dim nor shaped like " +
                    x.type().str());
    }
  }
  check_kind(kOp, x, static_cast<Takes>(kPred | kReal));
  const Value operands[] = {low, x, high};
  return b.append1(kOp, operands, "", x.type());
}

Value complex(const Value& re, const Value& im) {
  constexpr const char* kOp = "stablehlo.complex";
  const std::array<Value, 2> xs = align(kOp, re, im);
  if (re.dtype() == DType::F16) return from_halves(xs[0], xs[1]);
  if (re.dtype() != DType::F32 && re.dtype() != DType::F64) {
    fail(kOp, "parts are " + re.type().str() + ", expected float16, float32 or float64");
  }
  return xs[0].builder().append1(kOp, xs, "", {complex_of(re.dtype()), xs[0].dims()});
}

Value optimization_barrier(const Value& x) {
  constexpr const char* kOp = "stablehlo.optimization_barrier";
  return builder_of(kOp, x).append1(kOp, {&x, 1}, "", x.type());
}

}  // namespace torch_tpu::hlo
