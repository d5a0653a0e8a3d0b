// SPDX-License-Identifier: Apache-2.0 - LDL' factorization of symmetric and Hermitian matrices, and solving with it.
//
// Bunch and Kaufman's diagonal pivoting, with LAPACK's choices (sytf2, lower triangle), so that the
// factors and pivots are those of CPU: P A P' = L D L' with blocks of one or two rows in D. A pivot
// p > 0: rows k and p were exchanged; p < 0 twice: rows k + 1 and -p, with a block of two.
#include <cmath>

#include "src/ops/linalg.h"

namespace torch_tpu::ops {

using graph::CheckSpec;

namespace {

// LAPACK measures complex numbers by |re| + |im|.
Value measure(const Value& x) {
  return hlo::is_complex(x.dtype()) ? hlo::abs(hlo::real(x)) + hlo::abs(hlo::imag(x)) : hlo::abs(x);
}

// Scalars of each matrix, [batch], ready to meet its columns [batch, n].
Value beside(const Value& per_batch) { return hlo::unsqueeze(per_batch, 1); }

Value real_part(const Value& x, bool hermitian) {
  if (!hermitian || !hlo::is_complex(x.dtype())) return x;
  return promote_real(hlo::real(x), x.dtype());
}

Value column(const Value& x, const Value& k) {
  return hlo::reshape(column_at(x, k), {x.dim(0), x.dim(1)});
}
// The element of each row of a [batch, n] value at k, [batch].
Value pick(const Value& x, const Value& where) {
  return hlo::reduce(hlo::select(where, x, hlo::zeros_like(x)), {1}, hlo::Reduce::Add);
}

struct Ldl {
  Value packed, pivots, info;
};

// Both triangles of the part that is left are kept, so that an exchange is one of rows and columns.
Ldl factor(const Value& given, bool hermitian) {
  hlo::Builder& b = given.builder();
  const int64_t batch = given.dim(0), n = given.dim(1);
  const double alpha = (1 + std::sqrt(17.0)) / 8;
  Value below = lower_triangle(given, true);
  Value full = lower_triangle(given) + (hermitian ? adjoint(below) : transposed(below));
  const hlo::Type list = {DType::S32, {batch, n}};
  Value rows = hlo::iota(b, list, 1);
  const auto turned = [&](const Value& x) { return hermitian ? conjugate(x) : x; };
  const Values init = {full, hlo::zeros(b, given.type()), hlo::zeros(b, list),
                       hlo::zeros(b, {DType::S32, {batch}}), hlo::zeros(b, {DType::Pred, {batch}})};
  const Values done = repeat(b, n, init, [&](const Value& k, const Values& v) -> Values {
    const Value &s = v[0], &skip = v[4];
    Value at_k = hlo::eq(rows, k), under = hlo::gt(rows, k), left = hlo::ge(rows, k);
    Value next = k + 1.0;
    // ---- the pivot
    Value now = column(s, k);
    Value size = measure(now);
    Value here = hlo::abs(pick(measure(real_part(now, hermitian)), at_k));
    Value others = hlo::select(under, size, -1.0);
    Value colmax = hlo::maximum(hlo::reduce(others, {1}, hlo::Reduce::Maximum), 0.0);
    Value where = hlo::select(under & hlo::eq(size, beside(colmax)), rows, static_cast<double>(n));
    Value imax = hlo::reduce(where, {1}, hlo::Reduce::Minimum);
    imax = hlo::select(hlo::lt(imax, static_cast<double>(n)), imax, k);
    Value at_imax = hlo::eq(rows, beside(imax));
    Value row = measure(hlo::reshape(take_rows(s, beside(imax)), {batch, n}));
    Value rowmax = hlo::reduce(hlo::select(left & ~at_imax, row, 0.0), {1}, hlo::Reduce::Maximum);
    Value corner =
        measure(real_part(hlo::reshape(take_rows(s, beside(imax)), {batch, n}), hermitian));
    corner = pick(corner, at_imax);
    Value null = hlo::eq(hlo::maximum(here, colmax), 0) | hlo::is_nan(here);
    Value keep =
        null | hlo::ge(here, colmax * alpha) | hlo::ge(here * rowmax, colmax * colmax * alpha);
    Value one = keep | hlo::ge(corner, rowmax * alpha);
    Value two = ~one & ~skip;
    Value kp = hlo::select(keep, k, imax);
    Value kk = hlo::select(two, next, k);
    // ---- exchange rows and columns kk and kp
    Value at_kk = hlo::eq(rows, beside(kk)), at_kp = hlo::eq(rows, beside(kp));
    Value order = hlo::select(at_kk, beside(kp), hlo::select(at_kp, beside(kk), rows));
    order = hlo::select(beside(skip), rows, order);
    Value m = transposed(take_rows(transposed(take_rows(s, order)), order));
    // ---- a block of one
    Value x = column(m, k);
    Value d = pick(real_part(x, hermitian), at_k);
    x = hlo::select(under, x, hlo::zeros_like(x));
    Value usable = ~null;
    Value unit = promote_real(hlo::full_like(here, 1), d.dtype());
    Value reciprocal = unit / hlo::select(usable, d, unit);
    Value l = hlo::select(beside(usable), x * beside(reciprocal), x);
    const auto outer = [&](const Value& p, const Value& q) {
      return hlo::unsqueeze(p, 2) * hlo::unsqueeze(q, 1);
    };
    Value m_one = m - outer(l, turned(x));
    Value l_one = hlo::select(at_k, hlo::broadcast_to(beside(d), l.dims()), l);
    // ---- a block of two
    Value y = column(m, next), at_next = hlo::eq(rows, next), rest = hlo::gt(rows, next);
    Value d00 = d, d10 = pick(column(m, k), at_next), d11 = pick(real_part(y, hermitian), at_next);
    Value x2 = hlo::select(rest, x, hlo::zeros_like(x)),
          y2 = hlo::select(rest, y, hlo::zeros_like(y));
    // Divided by the off-diagonal element, which is the largest.
    Value off = hermitian && hlo::is_complex(d10.dtype())
                    ? promote_real(hlo::sqrt(squared_magnitude(d10)), d10.dtype())
                    : d10;
    off = hlo::select(two, off, hlo::broadcast_to(unit, off.dims()));
    Value e11 = d11 / off, e00 = d00 / off, e10 = d10 / off;
    Value t = unit / hlo::select(two, e11 * e00 - unit, unit) / off;
    Value cross = hermitian ? e10 : unit;
    Value w0 = beside(t) * (beside(e11) * x2 - beside(cross) * y2);
    Value w1 = beside(t) * (beside(e00) * y2 - beside(turned(cross)) * x2);
    Value m_two = m - outer(w0, turned(x2)) - outer(w1, turned(y2));
    Value l0 = hlo::select(at_k, hlo::broadcast_to(beside(d00), w0.dims()), w0);
    l0 = hlo::select(at_next, hlo::broadcast_to(beside(d10), w0.dims()), l0);
    Value l1 = hlo::select(at_next, hlo::broadcast_to(beside(d11), w1.dims()), w1);
    // ---- all of it
    const auto wide = [&](const Value& pred) { return hlo::broadcast_in_dim(pred, m.dims(), {0}); };
    Value new_s = hlo::select(wide(skip), s, hlo::select(wide(two), m_two, m_one));
    Value columns = index_along(s, 2);
    Value first = hlo::unsqueeze(hlo::select(beside(two), l0, l_one), 2);
    Value packed =
        hlo::select(hlo::eq(columns, k) & ~wide(skip), hlo::broadcast_to(first, m.dims()), v[1]);
    packed = hlo::select(hlo::eq(columns, next) & wide(two),
                         hlo::broadcast_to(hlo::unsqueeze(l1, 2), m.dims()), packed);
    Value pivot = hlo::select(two, -(kp + 1.0), kp + 1.0);
    Value writes = (at_k & beside(~skip)) | (at_next & beside(two));
    Value pivots = hlo::select(writes, hlo::broadcast_to(beside(pivot), rows.dims()), v[2]);
    Value failed = null & ~skip & hlo::eq(v[3], 0);
    Value info = hlo::select(failed, hlo::broadcast_to(next, {batch}), v[3]);
    return {new_s, packed, pivots, info, two};
  });
  return {lower_triangle(done[1]), done[2], done[3]};
}

// A X = B from the factors, as LAPACK's sytrs goes about it.
Value solve(const Value& packed, const Value& pivots, const Value& rhs, bool hermitian) {
  hlo::Builder& b = packed.builder();
  const int64_t batch = packed.dim(0), n = packed.dim(1);
  const hlo::Type list = {DType::S32, {batch, n}};
  Value rows = hlo::iota(b, list, 1), strict = lower_triangle(packed, true);
  const auto turned = [&](const Value& x) { return hermitian ? conjugate(x) : x; };
  // Which rows begin a block of two: every other one of a run of negative pivots.
  Value begins =
      repeat(b, n, {hlo::zeros(b, {DType::Pred, list.dims}), hlo::zeros(b, {DType::Pred, {batch}})},
             [&](const Value& k, const Values& v) -> Values {
               Value at_k = hlo::eq(rows, k);
               Value two = hlo::lt(pick(pivots, at_k), 0) & ~v[1];
               return {hlo::select(at_k & beside(two), hlo::full_like(v[0], 1), v[0]), two};
             })[0];
  const auto at = [&](const Value& list_value, const Value& k) {
    return pick(list_value, hlo::eq(rows, k));
  };
  const auto begins_at = [&](const Value& k) {
    return hlo::gt(at(hlo::convert(begins, DType::S32), k), 0);
  };
  const auto swapped = [&](const Value& x, const Value& i, const Value& j, const Value& doit) {
    Value at_i = hlo::eq(rows, beside(i)), at_j = hlo::eq(rows, beside(j));
    Value order = hlo::select(at_i, beside(j), hlo::select(at_j, beside(i), rows));
    return take_rows(x, hlo::select(beside(doit), order, rows));
  };
  const auto spread = [&](const Value& k) { return hlo::broadcast_to(k, {batch}); };
  const auto set_row = [&](const Value& x, const Value& k, const Value& row, const Value& doit) {
    Value here = hlo::eq(index_along(x, 1), k) & hlo::broadcast_in_dim(doit, x.dims(), {0});
    return hlo::select(here, hlo::broadcast_to(row, x.dims()), x);
  };
  const auto per_matrix = [&](const Value& v) { return hlo::reshape(v, {batch, 1, 1}); };
  Value unit = promote_real(
      hlo::full_like(hlo::zeros(b, {hlo::real_of(packed.dtype()), {batch}}), 1), packed.dtype());
  // L D Y = P B
  Value y = repeat(b, n, {rhs}, [&](const Value& k, const Values& v) -> Values {
    Value next = k + 1.0;
    Value pivot = at(pivots, k), two = begins_at(k), one = hlo::gt(pivot, 0);
    Value x = swapped(v[0], hlo::select(two, next, spread(k)), hlo::abs(pivot) - 1.0, one | two);
    Value col = column(strict, k), under = hlo::gt(rows, k), rest = hlo::gt(rows, next);
    Value row_k = row_at(x, k), row_next = row_at(x, next);
    Value d00 = real_part(at(column(packed, k), k), hermitian);
    Value d10 = at(column(packed, k), next);
    Value d11 = real_part(at(column(packed, next), next), hermitian);
    const auto used = [&](const Value& list_value, const Value& which) {
      return hlo::unsqueeze(hlo::select(which, list_value, hlo::zeros_like(list_value)), 2);
    };
    Value after_one = x - used(col, under & beside(one)) * row_k;
    after_one = set_row(after_one, k, row_k / per_matrix(hlo::select(one, d00, unit)), one);
    Value after_two = x - used(col, rest & beside(two)) * row_k -
                      used(column(strict, next), rest & beside(two)) * row_next;
    // [d00, conj(d10); d10, d11] (p, q) = (row_k, row_next), divided by the off-diagonal element.
    Value off = hlo::select(two, d10, unit), across = turned(off);
    Value akm1 = d00 / across, ak = d11 / off;
    Value denominator = hlo::select(two, akm1 * ak - unit, unit);
    Value p = row_k / per_matrix(across), q = row_next / per_matrix(off);
    Value solved_k = (per_matrix(ak) * p - q) / per_matrix(denominator);
    Value solved_next = (per_matrix(akm1) * q - p) / per_matrix(denominator);
    after_two = set_row(set_row(after_two, k, solved_k, two), next, solved_next, two);
    return {hlo::select(hlo::broadcast_in_dim(two, x.dims(), {0}), after_two, after_one)};
  })[0];
  // L' P X = Y, from the last row; a block of two is done with its second row.
  return repeat(
      b, n, {y},
      [&](const Value& k, const Values& v) -> Values {
        Value before = hlo::maximum(k - 1.0, 0.0);
        Value pivot = at(pivots, k), one = hlo::gt(pivot, 0);
        Value second = begins_at(before) & hlo::gt(spread(k), 0) & hlo::lt(pivot, 0);
        Value under = hlo::gt(rows, k), any = one | second;
        const auto product = [&](const Value& which) {  // (part of a column below row k)' x
          Value col = column(strict, which);
          col = turned(hlo::select(under, col, hlo::zeros_like(col)));
          return hlo::reduce(hlo::unsqueeze(col, 2) * v[0], {1}, hlo::Reduce::Add, true);
        };
        Value x = set_row(v[0], k, row_at(v[0], k) - product(k), any);
        x = set_row(x, before, row_at(v[0], before) - product(before), second);
        return {swapped(x, spread(k), hlo::abs(pivot) - 1.0, any)};
      },
      /*downwards=*/true)[0];
}

}  // namespace

TPU_OP(
    "aten::linalg_ldl_factor_ex(Tensor self, *, bool hermitian=False, bool check_errors=False) -> "
    "(Tensor LD, Tensor pivots, Tensor info)") {
  check_matrix(c, "self", true);
  const TensorArg& self = c.meta("self");
  const Dims batch = batch_dims(self.sizes);
  Dims list = self.sizes;
  list.pop_back();
  Value a = c.tensor("self");
  if (a.elements() == 0) {
    return {a, hlo::zeros(c.builder(), {DType::S32, list}),
            hlo::zeros(c.builder(), {DType::S32, batch})};
  }
  const Ldl f = factor(flat_batch(a), c.flag("hermitian"));
  if (c.flag("check_errors")) {
    c.fail_if(hlo::ne(f.info, 0), CheckSpec::Runtime,
              "torch.linalg.ldl_factor_ex: the factorization could not be completed because the "
              "input is singular");
  }
  return {with_batch(f.packed, batch), hlo::reshape(f.pivots, list), hlo::reshape(f.info, batch)};
}

TPU_OP(
    "aten::linalg_ldl_solve(Tensor LD, Tensor pivots, Tensor B, *, bool hermitian=False) -> "
    "Tensor") {
  check_matrix(c, "LD", true);
  check_matrix(c, "B", false);
  const TensorArg &ld = c.meta("LD"), &rhs = c.meta("B"), &pivots = c.meta("pivots");
  Dims list = ld.sizes;
  list.pop_back();
  c.check(rhs.sizes[rhs.rank() - 2] == ld.sizes.back(),
          "linalg.ldl_solve: Incompatible shapes of LD and B: ", ld.sizes, " and ", rhs.sizes);
  c.check(pivots.sizes == list, "torch.linalg.ldl_solve: Expected LD.shape[:-1] and pivots.shape ",
          "to be the same, but got pivots with shape ", pivots.sizes, " instead");
  c.check(hlo::is_integer(pivots.dtype),
          "torch.linalg.ldl_solve: Expected pivots to be integers. Got ", pivots.dtype);
  c.check(ld.dtype == rhs.dtype,
          "torch.linalg.ldl_solve: LD and B should have the same dtype. Got ", ld.dtype, " and ",
          rhs.dtype);
  const Dims ld_batch = batch_dims(ld.sizes), rhs_batch = batch_dims(rhs.sizes);
  const Dims batch = c.broadcast({&ld_batch, &rhs_batch});
  Value b = broadcast_batch(c.tensor("B"), batch);
  if (b.elements() == 0) return {b};
  Value p = hlo::broadcast_to(c.tensor("pivots", DType::S32), batch | Dims{ld.sizes.back()});
  p = hlo::reshape(p, {hlo::element_count(batch), ld.sizes.back()});
  Value x = solve(flat_batch(broadcast_batch(c.tensor("LD"), batch)), p, flat_batch(b),
                  c.flag("hermitian"));
  return {with_batch(x, batch)};
}

}  // namespace torch_tpu::ops
