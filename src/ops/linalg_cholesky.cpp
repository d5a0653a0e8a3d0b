// SPDX-License-Identifier: Apache-2.0 - Cholesky factorization and triangular systems.
#include "src/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

// The order of the first leading minor that is not positive, 0 if all are. XLA's cholesky only says
// that there is one (NaN everywhere), so the elimination is run again when that happened.
Value failing_minor(Call& c, const Value& a, const Value& factor) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), n = a.dim(1);
  const hlo::Type type = {DType::S32, {batch}};
  Value diag = diagonal(factor);
  if (hlo::is_complex(diag.dtype())) diag = hlo::real(diag);
  Value failed = hlo::reduce(hlo::is_nan(diag), {0, 1}, hlo::Reduce::Or);
  return hlo::if_else(
      failed,
      [&] {
        Values state = {a, hlo::zeros(b, type)};
        state = repeat(b, n, state, [&](const Value& k, const Values& s) {
          Value column = column_at(s[0], k);
          Value pivot = row_at(column, k);
          if (hlo::is_complex(pivot.dtype())) pivot = hlo::real(pivot);
          Value bad = ~hlo::gt(pivot, 0);
          Value info = hlo::select(hlo::reshape(bad, {batch}) & hlo::eq(s[1], 0),
                                   hlo::broadcast_to(k + 1.0, {batch}), s[1]);
          Value root =
              promote_real(hlo::sqrt(hlo::select(bad, hlo::full_like(pivot, 1), pivot)), a.dtype());
          Value l = hlo::select(hlo::gt(index_along(column, 1), k), column / root,
                                hlo::zeros_like(column));
          return Values{s[0] - l * adjoint(l), info};
        });
        return Values{state[1]};
      },
      [&] { return Values{hlo::zeros(b, type)}; })[0];
}

Values cholesky(Call& c, bool upper) {
  check_matrix(c, "self", true);
  const Dims batch = batch_dims(c.meta("self").sizes);
  Value a = flat_batch(c.tensor("self"));
  if (a.elements() == 0) {
    return {c.tensor("self"), hlo::zeros(c.builder(), {DType::S32, batch})};
  }
  if (upper) a = adjoint(a);
  Value l = lower_triangle(hlo::cholesky(a, true));
  Value info = failing_minor(c, a, l);
  return {with_batch(upper ? adjoint(l) : l, batch), with_batch(info, batch)};
}

constexpr const char* kNotPositive =
    "The factorization could not be completed because the input is not positive-definite";

// A X = B (or its adjoint) with A = L L^H or U^H U given by the triangle.
Value cholesky_solve(const Value& triangle, const Value& rhs, bool upper) {
  if (upper) {
    Value y = hlo::triangular_solve(triangle, rhs, true, false, false, "ADJOINT");
    return hlo::triangular_solve(triangle, y, true, false, false, "NO_TRANSPOSE");
  }
  Value y = hlo::triangular_solve(triangle, rhs, true, true, false, "NO_TRANSPOSE");
  return hlo::triangular_solve(triangle, y, true, true, false, "ADJOINT");
}

Value solve_triangle(Call& c, const char* a, const char* b, bool upper, bool left, bool unit,
                     const char* transposition) {
  check_matrix(c, a, true);
  check_matrix(c, b, false);
  const TensorArg &x = c.meta(a), &y = c.meta(b);
  c.check(x.dtype == y.dtype, "Expected ", a, " and ", b, " to have the same dtype, but found ", a,
          " of type ", x.dtype, " and ", b, " of type ", y.dtype, " instead");
  c.check(y.sizes[y.rank() - (left ? 2 : 1)] == x.sizes.back(), "Incompatible shapes of ", a,
          " and ", b, " for the equation ", left ? "AX = B" : "XA = B", " (", x.sizes, " and ",
          y.sizes, ")");
  const Dims a_batch = batch_dims(x.sizes), b_batch = batch_dims(y.sizes);
  const Dims batch = c.broadcast({&a_batch, &b_batch});
  Value result = hlo::triangular_solve(flat_batch(broadcast_batch(c.tensor(a), batch)),
                                       flat_batch(broadcast_batch(c.tensor(b), batch)), left,
                                       !upper, unit, transposition);
  return with_batch(result, batch);
}

}  // namespace

// A = L L^H
TPU_OP(
    "aten::linalg_cholesky_ex(Tensor self, *, bool upper=False, bool check_errors=False) -> "
    "(Tensor L, Tensor info)") {
  Values results = cholesky(c, c.flag("upper"));
  if (c.flag("check_errors")) {
    c.fail_if(hlo::ne(results[1], 0), graph::CheckSpec::Runtime, kNotPositive);
  }
  return results;
}

TPU_OP("aten::cholesky(Tensor self, bool upper=False) -> Tensor") {
  Values results = cholesky(c, c.flag("upper"));
  c.fail_if(hlo::ne(results[1], 0), graph::CheckSpec::Runtime, kNotPositive);
  return {results[0]};
}

TPU_OP("aten::_cholesky_solve_helper(Tensor self, Tensor A, bool upper) -> Tensor") {
  check_matrix(c, "A", true);
  const Dims batch = batch_dims(c.meta("self").sizes);
  return {with_batch(
      cholesky_solve(flat_batch(c.tensor("A")), flat_batch(c.tensor("self")), c.flag("upper")),
      batch)};
}

TPU_OP("aten::cholesky_inverse(Tensor self, bool upper=False) -> Tensor") {
  check_matrix(c, "self", true);
  Value triangle = flat_batch(c.tensor("self"));
  Value one =
      identity(c.builder(), triangle.dtype(), triangle.dim(0), triangle.dim(1), triangle.dim(1));
  return {
      with_batch(cholesky_solve(triangle, one, c.flag("upper")), batch_dims(c.meta("self").sizes))};
}

TPU_OP(
    "aten::linalg_solve_triangular(Tensor self, Tensor B, *, bool upper, bool left=True, bool "
    "unitriangular=False) -> Tensor") {
  return {solve_triangle(c, "self", "B", c.flag("upper"), c.flag("left"), c.flag("unitriangular"),
                         "NO_TRANSPOSE")};
}

TPU_OP(
    "aten::triangular_solve(Tensor self, Tensor A, bool upper=True, bool transpose=False, bool "
    "unitriangular=False) -> (Tensor solution, Tensor cloned_coefficient)") {
  Value x = solve_triangle(c, "A", "self", c.flag("upper"), true, c.flag("unitriangular"),
                           c.flag("transpose") ? "TRANSPOSE" : "NO_TRANSPOSE");
  return {x, broadcast_batch(c.tensor("A"), batch_dims(x.dims()))};
}

}  // namespace torch_tpu::ops
