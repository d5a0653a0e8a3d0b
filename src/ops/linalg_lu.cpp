// SPDX-License-Identifier: Apache-2.0 - LU factorization with partial pivoting, and what is made of it: solve, inverse, determinants.
#include <algorithm>

#include "src/ops/linalg.h"

namespace torch_tpu::ops {

// Right-looking elimination, one column a step, on the whole batch.
Lu lu_factor(Call& c, const Value& a, bool pivot) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2), steps = std::min(m, n);
  const hlo::Type rows_type = {DType::S32, {batch, m}};
  Value rows = hlo::iota(b, rows_type, 1);
  Value row = index_along(a, 1), column = index_along(a, 2);
  const auto wide = [&](const Value& per_batch) {
    return hlo::broadcast_in_dim(per_batch, a.dims(), {0});
  };
  Values state = {a, hlo::zeros(b, {DType::S32, {batch, steps}}), rows,
                  hlo::zeros(b, {DType::S32, {batch}})};
  state = repeat(b, steps, state, [&](const Value& k, const Values& s) {
    const Value &lu = s[0], &order = s[2], &info = s[3];
    Value at_k = hlo::eq(rows, k);
    Value p = hlo::broadcast_to(k, {batch});
    if (pivot) {
      // The first of the largest; complex numbers by |re| + |im|, as LAPACK has it.
      Value x = hlo::reshape(column_at(lu, k), {batch, m});
      Value size = hlo::is_complex(x.dtype()) ? hlo::abs(hlo::real(x)) + hlo::abs(hlo::imag(x))
                                              : hlo::abs(x);
      size = hlo::select(hlo::ge(rows, k), size, -1.0);
      Value largest = hlo::reduce(size, {1}, hlo::Reduce::Maximum, true);
      Value where =
          hlo::select(hlo::eq(size, largest), rows, hlo::full_like(rows, static_cast<double>(m)));
      Value first = hlo::reduce(where, {1}, hlo::Reduce::Minimum);
      p = hlo::select(hlo::lt(first, static_cast<double>(m)), first, p);  // NaN equals nothing
    }
    Value at_p = hlo::eq(rows, hlo::reshape(p, {batch, 1}));
    Value row_k = row_at(lu, k);
    Value row_p = hlo::reduce(hlo::select(hlo::eq(row, wide(p)), lu, hlo::zeros_like(lu)), {1},
                              hlo::Reduce::Add, true);
    Value swapped = hlo::select(hlo::eq(row, wide(p)), hlo::broadcast_to(row_k, lu.dims()), lu);
    swapped = hlo::select(hlo::eq(row, k), hlo::broadcast_to(row_p, lu.dims()), swapped);
    Value order_k =
        hlo::reduce(hlo::select(at_k, order, hlo::zeros_like(order)), {1}, hlo::Reduce::Add, true);
    Value order_p =
        hlo::reduce(hlo::select(at_p, order, hlo::zeros_like(order)), {1}, hlo::Reduce::Add, true);
    Value new_order = hlo::select(at_k, order_p, hlo::select(at_p, order_k, order));

    Value value = column_at(row_p, k);  // [batch, 1, 1]
    Value is_zero = hlo::eq(value, hlo::zeros_like(value));
    Value below = column_at(swapped, k);
    Value factors =
        below / hlo::select(is_zero,
                            promote_real(hlo::full_like(hlo::abs(value), 1), value.dtype()), value);
    Value under = hlo::gt(row, k);
    Value next = hlo::select(under & hlo::gt(column, k), swapped - factors * row_p, swapped);
    next = hlo::select(under & hlo::eq(column, k), hlo::broadcast_to(factors, lu.dims()), next);

    Value zero = hlo::scalar(b, DType::S32, 0);
    const Value starts[] = {zero, k};
    Value pivots = hlo::dynamic_update_slice(s[1], hlo::reshape(p, {batch, 1}) + 1.0, starts);
    Value failed = hlo::reshape(is_zero, {batch}) & hlo::eq(info, 0);
    return Values{next, pivots, new_order,
                  hlo::select(failed, hlo::broadcast_to(k + 1.0, {batch}), info)};
  });
  return {state[0], state[1], state[2], state[3]};
}

Value order_of_pivots(const Value& pivots, int64_t rows) {
  hlo::Builder& b = pivots.builder();
  const int64_t batch = pivots.dim(0);
  Value index = hlo::iota(b, {DType::S32, {batch, rows}}, 1);
  return repeat(b, pivots.dim(1), {index}, [&](const Value& k, const Values& s) {
    Value zero = hlo::scalar(b, DType::S32, 0);
    const Value starts[] = {zero, k};
    Value p = hlo::dynamic_slice(pivots, starts, {batch, 1}) - 1.0;
    Value at_k = hlo::eq(index, k), at_p = hlo::eq(index, p);
    const auto pick = [&](const Value& where) {
      return hlo::reduce(hlo::select(where, s[0], hlo::zeros_like(s[0])), {1}, hlo::Reduce::Add,
                         true);
    };
    return Values{hlo::select(at_k, pick(at_p), hlo::select(at_p, pick(at_k), s[0]))};
  })[0];
}

Value inverse_order(const Value& order) {
  const int64_t batch = order.dim(0), n = order.dim(1);
  const Dims dims = {batch, n, n};
  Value from = hlo::iota(order.builder(), {DType::S32, dims}, 1);
  Value hit = hlo::eq(hlo::broadcast_in_dim(order, dims, {0, 2}), from);
  Value at = hlo::iota(order.builder(), {DType::S32, dims}, 2);
  return hlo::reduce(hlo::select(hit, at, hlo::zeros_like(at)), {2}, hlo::Reduce::Add);
}

Value lu_solve(Call&, const Value& lu, const Value& order, const Value& rhs, bool adjoint_a) {
  if (!adjoint_a) {
    Value y = hlo::triangular_solve(lu, take_rows(rhs, order), true, true, true, "NO_TRANSPOSE");
    return hlo::triangular_solve(lu, y, true, false, false, "NO_TRANSPOSE");
  }
  // A^H = U^H L^H P'
  Value y = hlo::triangular_solve(lu, rhs, true, false, false, "ADJOINT");
  y = hlo::triangular_solve(lu, y, true, true, true, "ADJOINT");
  return take_rows(y, inverse_order(order));
}

namespace {

constexpr const char* kSingular =
    "The factorization could not be completed because the input is singular: a diagonal element is "
    "zero";

void check_info(Call& c, const Value& info) {
  if (c.flag("check_errors")) {
    c.fail_if(hlo::ne(info, 0), graph::CheckSpec::Runtime, kSingular);
  }
}

// X A = B is A^H X^H = B^H.
Value solve(Call& c, const Value& lu, const Value& order, const Value& rhs, bool left,
            bool adjoint_a) {
  if (left) return lu_solve(c, lu, order, rhs, adjoint_a);
  return adjoint(lu_solve(c, lu, order, adjoint(rhs), !adjoint_a));
}

// Number of row exchanges, as the sign of the permutation; [batch].
Value permutation_sign(const Value& pivots, DType dtype) {
  Value own = hlo::iota(pivots.builder(), {DType::S32, pivots.dims()}, 1) + 1.0;
  Value swaps = hlo::reduce(hlo::convert(hlo::ne(pivots, own), DType::S32), {1}, hlo::Reduce::Add);
  Value odd = swaps - swaps / 2.0 * 2.0;
  return promote_real(hlo::convert(1.0 - odd * 2.0, hlo::real_of(dtype)), dtype);
}

// The matrix [batch, m, m] with A = P L U.
Value permutation_matrix(const Value& order, DType dtype) {
  const Dims dims = {order.dim(0), order.dim(1), order.dim(1)};
  Value row = hlo::iota(order.builder(), {DType::S32, dims}, 1);
  return hlo::convert(hlo::eq(hlo::broadcast_in_dim(order, dims, {0, 2}), row), dtype);
}

Values lower_upper(const Value& lu) {
  const int64_t batch = lu.dim(0), m = lu.dim(1), n = lu.dim(2), k = std::min(m, n);
  Value l = hlo::slice(lu, {0, 0, 0}, {batch, m, k}, {1, 1, 1});
  Value u = hlo::slice(lu, {0, 0, 0}, {batch, k, n}, {1, 1, 1});
  l = lower_triangle(l, true) + identity(lu.builder(), lu.dtype(), batch, m, k);
  return {l, upper_triangle(u)};
}

struct Matrices {
  Value a;     // [batch, m, n]
  Dims batch;  // given batch dimensions
};
Matrices matrices(Call& c, const char* name, bool square) {
  check_matrix(c, name, square);
  return {flat_batch(c.tensor(name)), batch_dims(c.meta(name).sizes)};
}

Lu factor_for_gradient(Call& c, const Matrices& x) {
  return lu_factor(c, factors_transpose(c.meta("A")) ? transposed(x.a) : x.a);
}

}  // namespace

// P' A = L U
TPU_OP(
    "aten::linalg_lu_factor_ex(Tensor A, *, bool pivot=True, bool check_errors=False) -> (Tensor "
    "LU, Tensor pivots, Tensor info)") {
  const Matrices x = matrices(c, "A", false);
  const Lu f = lu_factor(c, x.a, c.flag("pivot"));
  check_info(c, f.info);
  return {with_batch(f.lu, x.batch), with_batch(f.pivots, x.batch), with_batch(f.info, x.batch)};
}

TPU_OP("aten::linalg_lu(Tensor A, *, bool pivot=True) -> (Tensor P, Tensor L, Tensor U)") {
  const Matrices x = matrices(c, "A", false);
  const bool pivot = c.flag("pivot");
  const Lu f = lu_factor(c, x.a, pivot);
  const Values parts = lower_upper(f.lu);
  Value p = pivot ? with_batch(permutation_matrix(f.order, x.a.dtype()), x.batch)
                  : hlo::zeros(c.builder(), {x.a.dtype(), {0}});
  return {p, with_batch(parts[0], x.batch), with_batch(parts[1], x.batch)};
}

TPU_OP(
    "aten::lu_unpack(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool "
    "unpack_pivots=True) -> (Tensor P, Tensor L, Tensor U)") {
  const TensorArg& lu = c.meta("LU_data");
  c.check(lu.rank() >= 2, "torch.lu_unpack: LU_data must have at least 2 dimensions.");
  const Dims batch = batch_dims(lu.sizes);
  Value none = hlo::zeros(c.builder(), {lu.dtype, {0}});
  Values results = {none, none, none};
  if (c.flag("unpack_pivots")) {
    c.check(c.dtype_of("LU_pivots") == DType::S32,
            "torch.lu_unpack: LU_pivots is expected to be a contiguous tensor of torch.int32 "
            "dtype. Note: this function is intended to be used with the output produced by "
            "torch.linalg.lu_factor");
    Value pivots = c.tensor("LU_pivots");
    pivots = hlo::reshape(pivots, {hlo::element_count(batch), pivots.dim(-1)});
    Value order = order_of_pivots(pivots, lu.sizes[lu.rank() - 2]);
    results[0] = with_batch(permutation_matrix(order, lu.dtype), batch);
  }
  if (c.flag("unpack_data")) {
    const Values parts = lower_upper(flat_batch(c.tensor("LU_data")));
    results[1] = with_batch(parts[0], batch);
    results[2] = with_batch(parts[1], batch);
  }
  return results;
}

// A X = B, A^H X = B, X A = B or X A^H = B from the factors of A.
TPU_OP(
    "aten::linalg_lu_solve(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool "
    "adjoint=False) -> Tensor") {
  check_matrix(c, "LU", true);
  check_matrix(c, "B", false);
  const TensorArg &lu = c.meta("LU"), &rhs = c.meta("B");
  c.check(c.dtype_of("pivots") == DType::S32,
          "linalg.lu_solve: pivots should be a Tensor of scalar "
          "type torch.int32. Got ",
          c.dtype_of("pivots"));
  c.check(lu.dtype == rhs.dtype, "linalg.lu_solve: LU and B should have the same scalar type. Got ",
          lu.dtype, " and ", rhs.dtype);
  const bool left = c.flag("left");
  c.check(rhs.sizes[rhs.rank() - (left ? 2 : 1)] == lu.sizes.back(),
          "linalg.lu_solve: Incompatible shapes of LU and B for the equation ",
          left ? "AX = B" : "XA = B", " (", lu.sizes, " and ", rhs.sizes, ")");
  const Dims lu_batch = batch_dims(lu.sizes), rhs_batch = batch_dims(rhs.sizes);
  const Dims batch = c.broadcast({&lu_batch, &rhs_batch});
  Value pivots = hlo::broadcast_to(c.tensor("pivots"), batch | Dims{lu.sizes.back()});
  pivots = hlo::reshape(pivots, {hlo::element_count(batch), lu.sizes.back()});
  Value order = order_of_pivots(pivots, lu.sizes.back());
  Value x = solve(c, flat_batch(broadcast_batch(c.tensor("LU"), batch)), order,
                  flat_batch(broadcast_batch(c.tensor("B"), batch)), left, c.flag("adjoint"));
  return {with_batch(x, batch)};
}

TPU_OP(
    "aten::linalg_inv_ex(Tensor A, *, bool check_errors=False) -> (Tensor inverse, Tensor info)") {
  const Matrices x = matrices(c, "A", true);
  const Lu f = lu_factor(c, x.a);
  check_info(c, f.info);
  Value one = identity(c.builder(), x.a.dtype(), x.a.dim(0), x.a.dim(1), x.a.dim(1));
  return {with_batch(lu_solve(c, f.lu, f.order, one, false), x.batch), with_batch(f.info, x.batch)};
}

// The product of U's diagonal, and the permutation's sign.
TPU_OP("aten::_linalg_det(Tensor A) -> (Tensor result, Tensor LU, Tensor pivots)") {
  const Matrices x = matrices(c, "A", true);
  const Lu f = factor_for_gradient(c, x);
  Value det = hlo::reduce(diagonal(f.lu), {1}, hlo::Reduce::Multiply) *
              permutation_sign(f.pivots, x.a.dtype());
  return {with_batch(det, x.batch), with_batch(f.lu, x.batch), with_batch(f.pivots, x.batch)};
}

TPU_OP(
    "aten::_linalg_slogdet(Tensor A) -> (Tensor sign, Tensor logabsdet, Tensor LU, Tensor "
    "pivots)") {
  const Matrices x = matrices(c, "A", true);
  const Lu f = factor_for_gradient(c, x);
  Value d = diagonal(f.lu);
  Value sign = hlo::reduce(hlo::sign(d), {1}, hlo::Reduce::Multiply) *
               permutation_sign(f.pivots, x.a.dtype());
  Value logarithm = hlo::reduce(hlo::log(hlo::abs(d)), {1}, hlo::Reduce::Add);
  return {with_batch(sign, x.batch), with_batch(logarithm, x.batch), with_batch(f.lu, x.batch),
          with_batch(f.pivots, x.batch)};
}

// A X = B or X A = B
TPU_OP(
    "aten::_linalg_solve_ex(Tensor A, Tensor B, *, bool left=True, bool check_errors=False) -> "
    "(Tensor result, Tensor LU, Tensor pivots, Tensor info)") {
  const Matrices x = matrices(c, "A", true);
  const TensorArg &a = c.meta("A"), &rhs = c.meta("B");
  c.check(a.dtype == rhs.dtype,
          "linalg.solve: Expected A and B to have the same dtype, but found A "
          "of type ",
          a.dtype, " and B of type ", rhs.dtype, " instead");
  const bool left = c.flag("left"), vector = is_vector_rhs(a.sizes, rhs.sizes);
  c.check(left || !vector,
          "linalg.solve: Vector broadcasting of the left hand side is not "
          "supported for left=False. In this case linalg.solve is equivalent to B / "
          "A.squeeze(-1)");
  Value b = c.tensor("B");
  if (vector) b = hlo::unsqueeze(b, b.rank());
  c.check(b.rank() >= 2 && b.dim(left ? -2 : -1) == a.sizes.back(),
          "linalg.solve: Incompatible shapes of A and B for the equation ",
          left ? "AX = B" : "XA = B", " (", a.sizes, " and ", rhs.sizes, ")");
  const Lu f = lu_factor(c, x.a);
  check_info(c, f.info);
  const Dims b_batch = batch_dims(b.dims());
  const Dims batch = c.broadcast({&x.batch, &b_batch});
  const auto spread_over = [&](const Value& v) {
    return flat_batch(broadcast_batch(with_batch(v, x.batch), batch));
  };
  Value order = hlo::squeeze(spread_over(hlo::unsqueeze(f.order, 1)), 1);
  Value result =
      solve(c, spread_over(f.lu), order, flat_batch(broadcast_batch(b, batch)), left, false);
  result = with_batch(result, batch);
  if (vector) result = hlo::squeeze(result, result.rank() - 1);
  return {result, with_batch(f.lu, x.batch), with_batch(f.pivots, x.batch),
          with_batch(f.info, x.batch)};
}

}  // namespace torch_tpu::ops
