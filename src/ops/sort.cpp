// SPDX-License-Identifier: Apache-2.0 - sort and topk.
#include "src/ops/sort.h"

#include "src/ops/index.h"

namespace torch_tpu::ops {

using hlo::Type;

namespace {

// Bits of floats as signed integers of the same order: NaN after everything, both zeros the same.
Value float_key(const Value& x) {
  const DType bits = x.dtype() == DType::F64 ? DType::S64 : DType::S32;
  hlo::Builder& b = x.builder();
  Value most = hlo::constant_int(b, {bits, {}}, bits == DType::S64 ? INT64_MAX : INT32_MAX);
  Value k = hlo::bitcast_convert(x, bits);
  k = hlo::select(hlo::lt(k, 0), hlo::xor_(k, most), k);
  k = hlo::select(hlo::eq(x, 0), hlo::zeros(b, {bits, {}}), k);
  return hlo::select(hlo::is_nan(x), most, k);
}

bool fits_32(DType dtype) {
  return dtype == DType::Pred ||
         (hlo::bit_width(dtype) <= 32 && (hlo::is_integer(dtype) || hlo::is_floating(dtype)));
}

// Signed integers, S32 where all of dtype's values fit, S64 otherwise, in the order of x.
Value order_key(const Value& x) {
  if (x.dtype() == DType::F64) return float_key(x);
  if (hlo::is_floating(x.dtype())) return float_key(hlo::convert(x, DType::F32));
  hlo::Builder& b = x.builder();
  if (x.dtype() == DType::U64)
    return hlo::bitcast_convert(hlo::xor_(x, hlo::constant_int(b, {DType::U64, {}}, INT64_MIN)),
                                DType::S64);
  if (x.dtype() == DType::U32)
    return hlo::bitcast_convert(hlo::xor_(x, hlo::constant_int(b, {DType::U32, {}}, 0x80000000)),
                                DType::S32);
  return hlo::convert(x, x.dtype() == DType::S64 ? DType::S64 : DType::S32);
}

}  // namespace

// Keys of up to 32 bits travel with their place in one 64-bit word: XLA's CPU plugin sorts a single
// operand by a plain comparison 4 to 6 times faster than pairs by a comparator (2^18 elements: 10
// against 57 ms; PyTorch 26 ms), and places that differ make the order stable by themselves.
Value sorted_places(const Value& x, int64_t dim, bool descending) {
  hlo::Builder& b = x.builder();
  Value key = order_key(x);
  if (descending) key = hlo::not_(key);
  auto less = [](const Values& l, const Values& r) { return hlo::lt(l[0], r[0]); };
  if (fits_32(x.dtype()) && x.dim(dim) < INT32_MAX) {
    Value word =
        hlo::shift_left(hlo::convert(key, DType::S64), hlo::constant_int(b, {DType::S64, {}}, 32));
    Values operands = {hlo::or_(word, hlo::iota(b, {DType::S64, x.dims()}, dim))};
    Value sorted = hlo::sort(operands, dim, false, less)[0];
    // The low half: converting to a narrower integer keeps the low bits.
    return hlo::convert(sorted, DType::S32);
  }
  Values operands = {key, hlo::iota(b, {DType::S32, x.dims()}, dim)};
  return hlo::sort(operands, dim, true, less)[1];
}

namespace {

void check_sortable(Call& c, const char* what) {
  c.check(!hlo::is_complex(c.dtype_of("self")), what,
          " does not support complex dtypes on tpu, got ", c.dtype_of("self"));
}

}  // namespace

// Values along dim in order (NaN counts as largest), and where each stood; equal ones keep their
// order.
TPU_POINTWISE(
    "aten::sort.stable(Tensor self, *, bool? stable, int dim=-1, bool descending=False) -> (Tensor "
    "values, Tensor indices)") {
  check_sortable(c, "Sort");
  Value self = c.tensor("self");
  const int64_t dim = c.wrap(c.integer("dim"), self.rank());
  if (self.rank() == 0 || self.elements() == 0 || self.dim(dim) == 1)
    return {self, hlo::zeros(c.builder(), {DType::S64, self.dims()})};
  Value places = sorted_places(self, dim, c.flag("descending"));
  return {gather_along(self, places, dim), hlo::convert(places, DType::S64)};
}

// The k largest (smallest) values along dim in order, and where they stood. NaN counts as largest.
TPU_OP(
    "aten::topk(Tensor self, SymInt k, int dim=-1, bool largest=True, bool sorted=True) -> (Tensor "
    "values, Tensor indices)") {
  check_sortable(c, "topk");
  Value self = c.tensor("self");
  const int64_t rank = self.rank(), dim = c.wrap(c.integer("dim"), rank), k = c.integer("k");
  const int64_t size = rank == 0 ? 1 : self.dim(dim);
  c.check(k >= 0 && k <= size, "selected index k out of range: k is ", k, ", but dimension ", dim,
          " has size ", size);
  hlo::Builder& b = c.builder();
  if (rank == 0) {
    // PyTorch leaves k = 0 of a number undefined; it has one value in any case.
    return {self, hlo::zeros(b, {DType::S64, {}})};
  }
  Dims result = self.dims();
  result[dim] = k;
  if (hlo::element_count(result) == 0)
    return {hlo::zeros(b, {self.dtype(), result}), hlo::zeros(b, {DType::S64, result})};
  const bool largest = c.flag("largest");
  Value places;
  if (hlo::is_floating(self.dtype()) && self.dtype() != DType::F64) {
    // TopK compares bits in total order, in which the sign of a NaN decides its end.
    Value score = hlo::convert(self, DType::F32);
    Value nan = hlo::bitcast_convert(
        hlo::constant_int(b, {DType::U32, {}}, largest ? 0x7fc00000 : 0xffc00000), DType::F32);
    score = hlo::select(hlo::is_nan(score), nan, largest ? score : -score);
    Dims swap(rank);
    for (int64_t d = 0; d < rank; ++d) swap[d] = d;
    std::swap(swap[dim], swap[rank - 1]);
    if (dim != rank - 1) score = hlo::transpose(score, swap);
    places = hlo::top_k(score, k)[1];
    if (dim != rank - 1) places = hlo::transpose(places, swap);
  } else {
    places = hlo::slice_dim(sorted_places(self, dim, largest), dim, 0, k);
  }
  return {gather_along(self, places, dim), hlo::convert(places, DType::S64)};
}

}  // namespace torch_tpu::ops
