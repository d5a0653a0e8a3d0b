// SPDX-License-Identifier: Apache-2.0 - Comparisons, logic, bits and shifts of two arguments.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// ---- comparisons -------------------------------------------------------------------------------

template <hlo::Compare how>
static Values comparison(Call& c) {
  Operands o = exact_operands(c);
  if (how != hlo::Compare::EQ && how != hlo::Compare::NE) reject_complex(c, o.result);
  return {hlo::compare(o.a, o.b, how)};
}
#define TPU_COMPARISON(name, how)                                                    \
  TPU_OP_FN("aten::" name ".Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, \
            comparison<hlo::Compare::how>);                                          \
  TPU_OP_FN("aten::" name ".Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, \
            comparison<hlo::Compare::how>)
TPU_COMPARISON("eq", EQ);
TPU_COMPARISON("ne", NE);
TPU_COMPARISON("ge", GE);
TPU_COMPARISON("gt", GT);
TPU_COMPARISON("le", LE);
TPU_COMPARISON("lt", LT);
#undef TPU_COMPARISON

// ---- logic -------------------------------------------------------------------------------------

template <BinaryFn fn>
static Values logic(Call& c) {
  return {fn(c.tensor("self", DType::Pred), c.tensor("other", DType::Pred))};
}
TPU_OP_FN("aten::logical_and(Tensor self, Tensor other) -> Tensor", Pointwise, logic<hlo::and_>);
TPU_OP_FN("aten::logical_or(Tensor self, Tensor other) -> Tensor", Pointwise, logic<hlo::or_>);
TPU_OP_FN("aten::logical_xor(Tensor self, Tensor other) -> Tensor", Pointwise, logic<hlo::xor_>);

// ---- bits --------------------------------------------------------------------------------------

template <BinaryFn fn>
static Values bitwise(Call& c) {
  Operands o = exact_operands(c);
  require_integral(c, o.result);
  return {fn(o.a, o.b)};
}
#define TPU_BITWISE(name, fn)                                                                      \
  TPU_OP_FN("aten::" name ".Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, bitwise<fn>); \
  TPU_OP_FN("aten::" name ".Scalar(Tensor self, Scalar other) -> Tensor", Pointwise, bitwise<fn>); \
  TPU_OP_FN("aten::" name ".Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Pointwise,        \
            bitwise<fn>)
TPU_BITWISE("bitwise_and", hlo::and_);
TPU_BITWISE("bitwise_or", hlo::or_);
TPU_BITWISE("bitwise_xor", hlo::xor_);
#undef TPU_BITWISE

// Shifts by less than 0 or more than the width move every bit out: 0, or the sign to the right.
static Value in_width(const Value& by) {
  double width = hlo::bit_width(by.dtype());
  Value below = hlo::lt(by, width);
  return hlo::is_unsigned_integer(by.dtype()) ? below : below & hlo::ge(by, 0);
}
template <BinaryFn fn>
static Values shift(Call& c) {
  Operands o = exact_operands(c);
  require_whole(c, o.result);
  return {fn(o.a, o.b)};
}
static Value shift_left(const Value& x, const Value& by) {
  return select(in_width(by), hlo::shift_left(x, by), 0);
}
static Value shift_right(const Value& x, const Value& by) {
  if (hlo::is_unsigned_integer(x.dtype())) {
    return select(in_width(by), hlo::shift_right_logical(x, by), 0);
  }
  double most = hlo::bit_width(x.dtype()) - 1;
  return hlo::shift_right_arithmetic(x, select(in_width(by), by, most));
}
#define TPU_SHIFT(name, fn, tensor_scalar)                                                       \
  TPU_OP_FN("aten::" name ".Tensor(Tensor self, Tensor other) -> Tensor", Pointwise, shift<fn>); \
  TPU_OP_FN("aten::" name "." tensor_scalar "(Tensor self, Scalar other) -> Tensor", Pointwise,  \
            shift<fn>)
TPU_SHIFT("bitwise_left_shift", shift_left, "Tensor_Scalar");
TPU_SHIFT("bitwise_right_shift", shift_right, "Tensor_Scalar");
TPU_SHIFT("__lshift__", shift_left, "Scalar");
TPU_SHIFT("__rshift__", shift_right, "Scalar");
#undef TPU_SHIFT
TPU_OP_FN("aten::bitwise_left_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Pointwise,
          shift<shift_left>);
TPU_OP_FN("aten::bitwise_right_shift.Scalar_Tensor(Scalar self, Tensor other) -> Tensor", Pointwise,
          shift<shift_right>);

// ---- membership --------------------------------------------------------------------------------

// Whether each element is among the test elements. A few tests: compare with each. Many: sort them,
// and look for the first that is not smaller, one halving step after the other.
static Value is_member(const Value& elements, const Value& tests) {
  constexpr int64_t kFew = 64;
  Value flat = reshape(tests, {tests.elements()});
  int64_t n = flat.elements();
  if (n == 0) return hlo::zeros(elements.builder(), {DType::Pred, elements.dims()});
  if (n <= kFew) {
    int64_t rank = elements.rank();
    return hlo::reduce(hlo::eq(unsqueeze(elements, rank), flat), {rank}, hlo::Reduce::Or);
  }
  if (hlo::is_floating(flat.dtype())) {
    // One NaN for all, so that they sort behind everything and end the search.
    flat = select(hlo::is_nan(flat), hlo::nan_of(flat.builder(), flat.dtype()), flat);
  }
  Values keys = {flat};
  Value sorted = hlo::sort(keys, 0, false, [](const Values& a, const Values& b) {
    return hlo::compare_total(a[0], b[0], hlo::Compare::LT);
  })[0];
  Value found = hlo::zeros(elements.builder(), {DType::S32, elements.dims()});
  int64_t step = 1;
  while (step * 2 <= n - 1) step *= 2;
  for (; step > 0; step /= 2) {
    Value next = hlo::minimum(found + static_cast<double>(step), static_cast<double>(n - 1));
    found = select(hlo::le(take(sorted, next, 0), elements), next, found);
  }
  return hlo::eq(take(sorted, found, 0), elements);
}
static Values isin(Call& c, std::string_view elements, std::string_view tests) {
  DType dtype = c.result_type({elements, tests});
  reject_complex(c, dtype);
  Value found = is_member(c.tensor(elements, dtype), c.tensor(tests, dtype));
  return {c.flag("invert") ? ~found : found};
}
TPU_POINTWISE(
    "aten::isin.Tensor_Tensor(Tensor elements, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor") {
  return isin(c, "elements", "test_elements");
}
TPU_POINTWISE(
    "aten::isin.Tensor_Scalar(Tensor elements, Scalar test_element, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor") {
  return isin(c, "elements", "test_element");
}
TPU_POINTWISE(
    "aten::isin.Scalar_Tensor(Scalar element, Tensor test_elements, *, bool assume_unique=False, "
    "bool invert=False) -> Tensor") {
  return isin(c, "element", "test_elements");
}

}  // namespace torch_tpu::ops
