// SPDX-License-Identifier: Apache-2.0 - QR by Householder reflections, in LAPACK's conventions.
#include <algorithm>

#include "src/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

// v^H x for columns v [batch, m, 1]: [batch, 1, n].
Value inner(Call& c, const Value& v, const Value& x) {
  return contract(c, conjugate(v), x, {0}, {0}, {1}, {1});
}

// The reflector kept below the diagonal of column k: 1 at row k, 0 above.
Value reflector(const Value& packed, const Value& k) {
  Value column = column_at(packed, k);
  Value row = index_along(column, 1);
  Value one = promote_real(hlo::full_like(hlo::abs(column), 1), packed.dtype());
  return hlo::select(hlo::gt(row, k), column,
                     hlo::select(hlo::eq(row, k), one, hlo::zeros_like(column)));
}

Value tau_at(const Value& tau, const Value& k) {  // [batch, 1, 1]
  return column_at(hlo::unsqueeze(tau, 1), k);
}

}  // namespace

// H = 1 - tau v v^H with v_k = 1 takes column k to beta e_k.
Reflectors householder(Call& c, const Value& a) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), steps = std::min(a.dim(1), a.dim(2));
  const DType dtype = a.dtype();
  Value column = index_along(a, 2);
  Values state = {a, hlo::zeros(b, {dtype, {batch, steps}})};
  state = repeat(b, steps, state, [&](const Value& k, const Values& s) {
    Value x = column_at(s[0], k);
    Value at = index_along(x, 1);
    Value below = hlo::select(hlo::gt(at, k), x, hlo::zeros_like(x));
    Value alpha = row_at(x, k);  // [batch, 1, 1]
    Value rest = hlo::select(hlo::ge(at, k), x, hlo::zeros_like(x));
    // Scaled, so that squares neither overflow nor vanish.
    Value largest = hlo::reduce(hlo::abs(rest), {1}, hlo::Reduce::Maximum, true);
    Value scale = hlo::select(hlo::eq(largest, 0), hlo::full_like(largest, 1), largest);
    Value norm = scale * hlo::sqrt(hlo::reduce(squared_magnitude(rest / promote_real(scale, dtype)),
                                               {1}, hlo::Reduce::Add, true));
    Value real_alpha = hlo::is_complex(dtype) ? hlo::real(alpha) : alpha;
    Value beta = hlo::select(hlo::lt(real_alpha, 0), norm, -norm);
    Value nothing = hlo::eq(hlo::reduce(hlo::abs(below), {1}, hlo::Reduce::Maximum, true), 0);
    if (hlo::is_complex(dtype)) nothing = nothing & hlo::eq(hlo::imag(alpha), 0);
    beta = hlo::select(nothing, real_alpha, beta);
    Value wide_beta = promote_real(beta, dtype);
    Value safe_beta = promote_real(hlo::select(nothing, hlo::full_like(beta, 1), beta), dtype);
    Value tau = hlo::select(nothing, hlo::zeros_like(alpha), (wide_beta - alpha) / safe_beta);
    Value one = promote_real(hlo::full_like(beta, 1), dtype);
    Value v = below / hlo::select(nothing, one, alpha - wide_beta);
    Value full = hlo::select(hlo::eq(at, k), hlo::broadcast_to(one, v.dims()), v);
    Value reflected = s[0] - conjugate(tau) * full * inner(c, full, s[0]);
    Value next = hlo::select(hlo::gt(column, k), reflected, s[0]);
    Value packed = hlo::select(
        hlo::gt(at, k), v, hlo::select(hlo::eq(at, k), hlo::broadcast_to(wide_beta, v.dims()), x));
    next = hlo::select(hlo::eq(column, k), hlo::broadcast_to(packed, next.dims()), next);
    Value zero = hlo::scalar(b, DType::S32, 0);
    const Value starts[] = {zero, k};
    return Values{next, hlo::dynamic_update_slice(s[1], hlo::reshape(tau, {batch, 1}), starts)};
  });
  return {state[0], state[1]};
}

Value orthogonal_columns(Call& c, const Value& packed, const Value& tau, int64_t columns) {
  Value q = identity(c.builder(), packed.dtype(), packed.dim(0), packed.dim(1), columns);
  return apply_reflectors(c, packed, tau, q, false);
}

Value apply_reflectors(Call& c, const Value& packed, const Value& tau, const Value& x,
                       bool adjoint_q) {
  return repeat(
      c.builder(), tau.dim(1), {x},
      [&](const Value& k, const Values& s) {
        Value v = reflector(packed, k), t = tau_at(tau, k);
        return Values{s[0] - (adjoint_q ? conjugate(t) : t) * v * inner(c, v, s[0])};
      },
      !adjoint_q)[0];
}

// R above the diagonal, reflectors below.
TPU_OP("aten::geqrf(Tensor self) -> (Tensor a, Tensor tau)") {
  check_matrix(c, "self", false);
  const Dims batch = batch_dims(c.meta("self").sizes);
  const Reflectors r = householder(c, flat_batch(c.tensor("self")));
  return {with_batch(r.packed, batch), with_batch(r.tau, batch)};
}

TPU_OP("aten::linalg_qr(Tensor A, str mode=\"reduced\") -> (Tensor Q, Tensor R)") {
  check_matrix(c, "A", false);
  const std::string mode = c.text("mode");
  c.check(mode == "reduced" || mode == "complete" || mode == "r", "qr received unrecognized mode '",
          mode, "' but expected one of 'reduced' (default), 'r', or 'complete'");
  const Dims batch = batch_dims(c.meta("A").sizes);
  const Reflectors r = householder(c, flat_batch(c.tensor("A")));
  const int64_t m = r.packed.dim(1), n = r.packed.dim(2);
  const int64_t rows = mode == "complete" ? m : std::min(m, n);
  Value upper = upper_triangle(r.packed);
  upper = hlo::slice(upper, {0, 0, 0}, {upper.dim(0), rows, n}, {1, 1, 1});
  Value q = mode == "r" ? hlo::zeros(c.builder(), {upper.dtype(), {0}})
                        : with_batch(orthogonal_columns(c, r.packed, r.tau, rows), batch);
  return {q, with_batch(upper, batch)};
}

TPU_OP("aten::linalg_householder_product(Tensor input, Tensor tau) -> Tensor") {
  check_matrix(c, "input", false);
  const TensorArg &x = c.meta("input"), &tau = c.meta("tau");
  const int64_t m = x.sizes[x.rank() - 2], n = x.sizes[x.rank() - 1];
  c.check(m >= n,
          "torch.linalg.householder_product: input.shape[-2] must be greater than or equal "
          "to input.shape[-1]");
  c.check(tau.rank() == x.rank() - 1 && n >= tau.sizes.back(),
          "torch.linalg.householder_product: Expected tau to have one dimension less than input, "
          "and input.shape[-1] to be greater than or equal to tau.shape[-1], but got ",
          x.sizes, " and ", tau.sizes);
  c.check(x.dtype == tau.dtype, "torch.linalg.householder_product: tau dtype ", tau.dtype,
          " does not match input dtype ", x.dtype);
  const Dims batch = batch_dims(x.sizes);
  Value t = c.tensor("tau");
  t = hlo::reshape(t, {hlo::element_count(batch), t.dim(-1)});
  return {with_batch(orthogonal_columns(c, flat_batch(c.tensor("input")), t, n), batch)};
}

// Q C, Q^H C, C Q or C Q^H with Q in reflectors.
TPU_OP(
    "aten::ormqr(Tensor self, Tensor input2, Tensor input3, bool left=True, bool transpose=False) "
    "-> Tensor") {
  check_matrix(c, "self", false);
  check_matrix(c, "input3", false);
  const Dims batch = batch_dims(c.meta("self").sizes);
  Value packed = flat_batch(c.tensor("self")), x = flat_batch(c.tensor("input3"));
  Value tau = c.tensor("input2");
  tau = hlo::reshape(tau, {packed.dim(0), tau.dim(-1)});
  const bool left = c.flag("left"), adjoint_q = c.flag("transpose");
  c.check(x.dim(0) == packed.dim(0) && x.dim(left ? 1 : 2) == packed.dim(1) &&
              packed.dim(1) >= tau.dim(1),
          "torch.ormqr: shapes ", c.meta("self").sizes, ", ", c.meta("input2").sizes, " and ",
          c.meta("input3").sizes, " do not fit");
  Value result = left ? apply_reflectors(c, packed, tau, x, adjoint_q)
                      : adjoint(apply_reflectors(c, packed, tau, adjoint(x), !adjoint_q));
  return {with_batch(result, batch)};
}

}  // namespace torch_tpu::ops
