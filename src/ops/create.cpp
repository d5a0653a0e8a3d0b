// SPDX-License-Identifier: Apache-2.0 - Tensors from numbers: arange, linspace, logspace, eye, triangle indices.
#include "src/ops/create.h"

#include <algorithm>
#include <cmath>

#include "src/ops/index.h"

namespace torch_tpu::ops {

using graph::Number;
using hlo::Type;

DType wanted_dtype(Call& c, DType otherwise) {
  if (const TensorArg* out = c.meta_or_null("dtype")) return out->dtype;
  return c.dtype("dtype").value_or(otherwise);
}

namespace {

// ---- arange -------------------------------------------------------------------------------------

// Number of elements, or what is wrong.
enum : int64_t { kStepIsZero = -1, kWrongSign = -2, kNotFinite = -3, kStepBecomesZero = -4 };

int64_t count_whole(int64_t start, int64_t end, int64_t step) {
  if (step == 0) return kStepIsZero;
  if (step > 0 ? end < start : end > start) return kWrongSign;
  const auto distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(start)
                                 : static_cast<uint64_t>(start) - static_cast<uint64_t>(end);
  const uint64_t by = step > 0 ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
  return static_cast<int64_t>(distance / by + (distance % by != 0));
}

int64_t count_real(double start, double end, double step, bool with_end) {
  if (step == 0) return kStepIsZero;
  if (!std::isfinite(start) || !std::isfinite(end)) return kNotFinite;
  if (step > 0 ? end < start : end > start) return kWrongSign;
  const double steps = (end - start) / step;
  return static_cast<int64_t>(with_end ? std::floor(steps) + 1 : std::ceil(steps));
}

int64_t count_arange_int64(const Number* a) {
  if (a[2].as_int() == 0 && a[2].as_double() != 0) return kStepBecomesZero;
  return count_whole(a[0].as_int(), a[1].as_int(), a[2].as_int());
}
int64_t count_arange(const Number* a) {
  const Number &start = a[0], &end = a[1], &step = a[2];
  if (std::max({start.kind, end.kind, step.kind}) <= Number::Int)
    return count_whole(start.i, end.i, step.i);
  return count_real(start.as_double(), end.as_double(), step.as_double(), false);
}
int64_t count_range(const Number* a) {
  return count_real(a[0].as_double(), a[1].as_double(), a[2].as_double(), true);
}

Values steps_from(Call& c, DType dtype, int64_t count) {
  c.check(count != kStepIsZero, "step must be nonzero");
  c.check_value(count != kStepBecomesZero, "step must be nonzero, also as a whole number");
  c.check(count != kNotFinite, "unsupported range: start and end must be finite");
  c.check(count != kWrongSign, "upper bound and lower bound inconsistent with step sign");
  // The counter of float types is exact as long as count is; integers wrap like PyTorch's.
  const DType compute = hlo::is_floating(dtype) ? hlo::opmath(dtype) : DType::S64;
  Value start = c.scalar("start", compute), step = c.scalar("step", compute);
  return {hlo::convert(hlo::iota(c.builder(), {compute, {count}}, 0) * step + start, dtype)};
}

DType arange_dtype(Call& c) {
  Number::Kind kind =
      std::max({c.number_kind("start"), c.number_kind("end"), c.number_kind("step")});
  return wanted_dtype(c, kind <= Number::Int ? DType::S64 : c.default_float());
}

}  // namespace

// start + i * step while that is before end.
TPU_OP(
    "aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, "
    "Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor") {
  const DType dtype = arange_dtype(c);
  return steps_from(c, dtype, c.derive(dtype == DType::S64 ? count_arange_int64 : count_arange));
}
TPU_OP(
    "aten::range.step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? "
    "layout=None, Device? device=None, bool? pin_memory=None) -> Tensor") {
  return steps_from(c, wanted_dtype(c, c.default_float()), c.derive(count_range));
}

// ---- linspace and logspace
// -----------------------------------------------------------------------

namespace {

DType spacing_dtype(Call& c) {
  auto is_complex = [&](std::string_view name) {
    const TensorArg* tensor = c.meta_or_null(name);
    return tensor ? hlo::is_complex(tensor->dtype) : c.number_kind(name) == Number::Complex;
  };
  const bool any = is_complex("start") || is_complex("end");
  return wanted_dtype(c, any ? hlo::complex_of(c.default_float()) : c.default_float());
}

// What spacings are computed in; integers in float64, so that they truncate as PyTorch's do.
DType spacing_type(DType dtype) {
  return hlo::is_floating(dtype) || hlo::is_complex(dtype) ? hlo::opmath(dtype) : DType::F64;
}

// start to end in equal steps, both exact: the second half is counted from the end.
Value spaced(Call& c, DType dtype, DType compute) {
  const int64_t steps = c.integer("steps");
  c.check(steps >= 0, "number of steps must be non-negative");
  hlo::Builder& b = c.builder();
  auto bound = [&](std::string_view name) {
    if (const TensorArg* tensor = c.meta_or_null(name)) {
      c.check(tensor->rank() == 0, "only supports 0-dimensional start and end tensors, but got ",
              name, " with ", tensor->rank(), " dimension(s).");
    }
    // Integer results take whole bounds.
    const bool whole = hlo::is_integer(dtype) || dtype == DType::Pred;
    return hlo::convert(c.tensor(name, whole ? DType::S64 : compute), compute);
  };
  Value start = bound("start"), end = bound("end");
  if (steps <= 1) return hlo::broadcast_to(start, {steps});
  const DType real = hlo::real_of(compute);
  Value step = (end - start) / hlo::constant(b, {compute, {}}, static_cast<double>(steps - 1));
  Value i = hlo::iota(b, {real, {steps}}, 0);
  Value from_end = static_cast<double>(steps - 1) - i;
  Value low = start + step * hlo::convert(i, compute);
  Value high = end - step * hlo::convert(from_end, compute);
  return hlo::select(hlo::lt(i, static_cast<double>(steps / 2)), low, high);
}

Values linspace(Call& c) {
  const DType dtype = spacing_dtype(c);
  return {hlo::convert(spaced(c, dtype, spacing_type(dtype)), dtype)};
}

// base to the power of linspace.
Values logspace(Call& c) {
  const DType dtype = spacing_dtype(c), compute = spacing_type(dtype);
  Value exponent = spaced(c, dtype, compute);
  return {hlo::convert(
      hlo::power(hlo::broadcast_to(c.scalar("base", compute), exponent.dims()), exponent), dtype)};
}

}  // namespace

#define TPU_SPACING(overload, start, end)                                                       \
  TPU_OP_FN("aten::linspace" overload "(" start " start, " end                                  \
            " end, int steps, *, ScalarType? dtype=None, Layout? layout=None, Device? "         \
            "device=None, bool? pin_memory=None) -> Tensor",                                    \
            Contiguous, linspace);                                                              \
  TPU_OP_FN("aten::logspace" overload "(" start " start, " end                                  \
            " end, int steps, float base=10., *, ScalarType? dtype=None, Layout? layout=None, " \
            "Device? device=None, bool? pin_memory=None) -> Tensor",                            \
            Contiguous, logspace)
TPU_SPACING("", "Scalar", "Scalar");
TPU_SPACING(".Tensor_Tensor", "Tensor", "Tensor");
TPU_SPACING(".Tensor_Scalar", "Tensor", "Scalar");
TPU_SPACING(".Scalar_Tensor", "Scalar", "Tensor");
#undef TPU_SPACING

// ---- eye and triangle indices
// --------------------------------------------------------------------

namespace {

Values eye(Call& c, int64_t n, int64_t m) {
  c.check(n >= 0, "n must be greater or equal to 0, got ", n);
  c.check(m >= 0, "m must be greater or equal to 0, got ", m);
  const DType dtype = wanted_dtype(c, c.default_float());
  hlo::Builder& b = c.builder();
  Value ones =
      hlo::eq(hlo::iota(b, {DType::S32, {n, m}}, 0), hlo::iota(b, {DType::S32, {n, m}}, 1));
  return {hlo::convert(ones, dtype)};
}

// Row and column of every element of a triangle, row by row: a 2 x count tensor. Where a row
// begins, the row number goes up by one (a running sum); the column counts on from the row's first.
Values triangle_indices(Call& c, bool lower) {
  const int64_t rows = c.integer("row"), columns = c.integer("col"), offset = c.integer("offset");
  c.check(rows >= 0, "row must be non-negative, got", rows);
  c.check(columns >= 0, "col must be non-negative, got", columns);
  const DType dtype = c.dtype("dtype").value_or(DType::S64);
  Dims begin, row, first;  // of every row that has elements
  int64_t count = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t from = lower ? 0 : std::max<int64_t>(0, r + offset);
    const int64_t to = lower ? std::min(columns, r + offset + 1) : columns;
    if (from >= to) continue;
    begin.push_back(count);
    row.push_back(r);
    first.push_back(from);
    count += to - from;
  }
  hlo::Builder& b = c.builder();
  if (count == 0) return {hlo::zeros(b, {dtype, {2, 0}})};
  const auto n = static_cast<int64_t>(row.size());
  const Type list{DType::S64, {n}};
  Value begins = hlo::constant_ints(b, list, begin);
  Value marks = scatter_rows(hlo::zeros(b, {DType::S64, {count}}), 0, begins,
                             hlo::constant_int(b, list, 1), overwrite);
  Value place = running_sum(c, marks) - 1.0;  // in the lists
  Value r = hlo::take(hlo::constant_ints(b, list, row), place, 0);
  for (size_t i = 0; i < first.size(); ++i) first[i] -= begin[i];
  Value column = hlo::iota(b, {DType::S64, {count}}, 0) +
                 hlo::take(hlo::constant_ints(b, list, first), place, 0);
  Values both = {hlo::unsqueeze(r, 0), hlo::unsqueeze(column, 0)};
  return {hlo::convert(hlo::concatenate(both, 0), dtype)};
}

}  // namespace

TPU_OP(
    "aten::eye(SymInt n, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? "
    "pin_memory=None) -> Tensor") {
  return eye(c, c.integer("n"), c.integer("n"));
}
TPU_OP(
    "aten::eye.m(SymInt n, SymInt m, *, ScalarType? dtype=None, Layout? layout=None, Device? "
    "device=None, bool? pin_memory=None) -> Tensor") {
  return eye(c, c.integer("n"), c.integer("m"));
}

TPU_OP(
    "aten::tril_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? "
    "layout=None, "
    "Device? device=None, bool? pin_memory=None) -> Tensor") {
  return triangle_indices(c, true);
}
TPU_OP(
    "aten::triu_indices(int row, int col, int offset=0, *, ScalarType? dtype=4, Layout? "
    "layout=None, "
    "Device? device=None, bool? pin_memory=None) -> Tensor") {
  return triangle_indices(c, false);
}

}  // namespace torch_tpu::ops
