// SPDX-License-Identifier: Apache-2.0 - Eigenvalues of Hermitian matrices and singular values, by Jacobi rotations.
//
// Columns are rotated in disjoint pairs: the first half against the second, all pairs at once. A
// round-robin tournament brings every pair together once a sweep, after which the columns are in
// their first order again. An odd number of columns gets one more that meets only zeros.
#include <algorithm>

#include "src/ops/linalg.h"

namespace torch_tpu::ops {
namespace {

constexpr double kMostSweeps = 40;

Value front(const Value& x, int64_t dim, int64_t n) { return hlo::slice_dim(x, dim, 0, n); }
Value back(const Value& x, int64_t dim, int64_t n) {
  return hlo::slice_dim(x, dim, x.dim(dim) - n, x.dim(dim));
}

// first = [t0, b0, t1, ..., t(h-2)], second = [b1, ..., b(h-1), t(h-1)].
Value next_round(const Value& x, int64_t dim) {
  const int64_t h = x.dim(dim) / 2;
  if (h < 2) return x;
  Value top = front(x, dim, h), bottom = back(x, dim, h);
  Values parts = {front(top, dim, 1), front(bottom, dim, 1)};
  if (h > 2) parts.push_back(hlo::slice_dim(top, dim, 1, h - 1));
  parts.push_back(hlo::slice_dim(bottom, dim, 1, h));
  parts.push_back(back(top, dim, 1));
  return hlo::concatenate(parts, dim);
}

Value padded_square(const Value& x, int64_t rows, int64_t columns) {
  if (rows == x.dim(1) && columns == x.dim(2)) return x;
  return hlo::pad(x, promote_real(hlo::scalar(x.builder(), hlo::real_of(x.dtype()), 0), x.dtype()),
                  {0, 0, 0}, {0, rows - x.dim(1), columns - x.dim(2)});
}

// The rotation that makes a pair's off-diagonal element zero:
// columns (p, q) become (c p - s conj(e) q, s p + c conj(e) q), with e the element's phase.
struct Rotation {
  Value c, s;        // real, [batch, pairs]
  Value conj_phase;  // in the matrix's dtype
};

Rotation rotation(const Value& app, const Value& aqq, const Value& apq) {
  Value r = hlo::abs(apq);
  Value zero = hlo::eq(r, 0);
  Value safe = hlo::select(zero, hlo::full_like(r, 1), r);
  Value tau = (aqq - app) / (2.0 * safe);
  // 1 / (|tau| + sqrt(1 + tau^2)); an overflowing square gives 0, which is right.
  Value t = hlo::full_like(tau, 1) / (hlo::abs(tau) + hlo::sqrt(tau * tau + 1.0));
  t = hlo::select(hlo::lt(tau, 0), -t, t);
  t = hlo::select(zero, hlo::zeros_like(t), t);
  Value cosine = hlo::full_like(t, 1) / hlo::sqrt(t * t + 1.0);
  Rotation result;
  result.c = cosine;
  result.s = t * cosine;
  Value one = promote_real(hlo::full_like(r, 1), apq.dtype());
  result.conj_phase = hlo::select(zero, one, conjugate(apq) / promote_real(safe, apq.dtype()));
  return result;
}

// Rotates columns (dim 2) or, conjugated, rows (dim 1).
Value rotate(const Value& x, const Rotation& r, int64_t dim) {
  const int64_t h = x.dim(dim) / 2;
  Dims place = {x.dim(0), 1, 1};
  place[dim] = h;
  const auto shaped = [&](const Value& v) { return hlo::reshape(v, place); };
  Value cosine = promote_real(shaped(r.c), x.dtype()), sine = promote_real(shaped(r.s), x.dtype());
  Value phase = shaped(dim == 2 ? r.conj_phase : conjugate(r.conj_phase));
  Value p = front(x, dim, h), q = back(x, dim, h) * phase;
  const Value parts[] = {cosine * p - sine * q, sine * p + cosine * q};
  return hlo::concatenate(parts, dim);
}

// `order` sorts by `keys`, [batch, n].
Value sorting_order(const Value& keys, bool descending) {
  Value position = hlo::iota(keys.builder(), {DType::S32, keys.dims()}, 1);
  const Value operands[] = {keys, position};
  return hlo::sort(operands, 1, true, [&](const Values& lhs, const Values& rhs) {
    return descending ? hlo::gt(lhs[0], rhs[0]) : hlo::lt(lhs[0], rhs[0]);
  })[1];
}

Value reorder(const Value& vector, const Value& order) {  // [batch, n]
  return hlo::squeeze(take_rows(hlo::unsqueeze(vector, 2), order), 2);
}
Value reorder_columns(const Value& x, const Value& order) {
  return transposed(take_rows(transposed(x), order));
}

// Sweeps until `measure` (a 0-dim real, of the state after a sweep) is at most `tolerance`.
Values sweeps(hlo::Builder& b, int64_t rounds, Values state, double tolerance,
              const std::function<Values(const Values&)>& round,
              const std::function<Value(const Values&)>& measure) {
  const size_t n = state.size();
  state.push_back(hlo::scalar(b, DType::S32, 0));
  state.push_back(measure(state));
  const DType real = state.back().dtype();
  Values result = hlo::while_loop(
      state,
      [&](const Values& v) {
        // NaN ends it as well.
        return hlo::lt(v[n], kMostSweeps) & hlo::gt(v[n + 1], hlo::scalar(b, real, tolerance));
      },
      [&](const Values& v) {
        Values next = repeat(b, rounds, Values(v.begin(), v.begin() + n),
                             [&](const Value&, const Values& s) { return round(s); });
        next.push_back(v[n] + 1.0);
        next.push_back(measure(next));
        return next;
      });
  result.resize(n);
  return result;
}

struct Eigen {
  Value values, vectors;
};

Eigen eigh(Call& c, const Value& given, bool lower, bool vectors) {
  hlo::Builder& b = c.builder();
  const DType dtype = given.dtype(), real = hlo::real_of(dtype);
  const int64_t batch = given.dim(0), n = given.dim(1), even = n + n % 2;
  // One triangle counts; the diagonal is real.
  Value strict = lower ? lower_triangle(given, true) : upper_triangle(given, true);
  Value diag = diagonal(given);
  if (hlo::is_complex(dtype)) diag = hlo::real(diag);
  Value on = hlo::eq(index_along(given, 1), index_along(given, 2));
  Value spread_diag = hlo::broadcast_in_dim(promote_real(diag, dtype), given.dims(), {0, 1});
  Value a = strict + adjoint(strict) + hlo::select(on, spread_diag, hlo::zeros_like(given));
  // Scaled so that no square overflows or vanishes.
  Value largest = hlo::reduce(hlo::abs(a), {1, 2}, hlo::Reduce::Maximum, true);
  Value scale = hlo::select(hlo::gt(largest, 0), largest, hlo::full_like(largest, 1));
  a = a / promote_real(scale, dtype);
  a = padded_square(a, even, even);
  Value v = identity(b, dtype, batch, even, even);
  const int64_t h = even / 2;
  Value off_mask = hlo::ne(index_along(a, 1), index_along(a, 2));
  // The largest off-diagonal part, relative to the whole, over the batch.
  const auto measure = [&](const Values& s) {
    Value squares = squared_magnitude(s[0]);
    Value off = hlo::reduce(hlo::select(off_mask, squares, hlo::zeros_like(squares)), {1, 2},
                            hlo::Reduce::Add);
    Value all = hlo::reduce(squares, {1, 2}, hlo::Reduce::Add);
    Value ratio = hlo::sqrt(off / hlo::select(hlo::gt(all, 0), all, hlo::full_like(all, 1)));
    return hlo::reduce(ratio, {0}, hlo::Reduce::Maximum);
  };
  const auto round = [&](const Values& s) {
    Value d = diagonal(s[0]);
    if (hlo::is_complex(dtype)) d = hlo::real(d);
    Value apq = diagonal(hlo::slice(s[0], {0, 0, h}, {batch, h, even}, {1, 1, 1}));
    const Rotation r = rotation(front(d, 1, h), back(d, 1, h), apq);
    Value next = rotate(rotate(s[0], r, 2), r, 1);
    Values result = {next_round(next_round(next, 2), 1)};
    if (vectors) result.push_back(next_round(rotate(s[1], r, 2), 2));
    return result;
  };
  Values state = {a};
  if (vectors) state.push_back(v);
  state = sweeps(b, even - 1, state, epsilon(real) * 0.25, round, measure);
  Value values = diagonal(state[0]);
  if (hlo::is_complex(dtype)) values = hlo::real(values);
  values = front(values, 1, n) * hlo::reshape(scale, {batch, 1});
  Value order = sorting_order(values, false);
  Eigen result;
  result.values = reorder(values, order);
  if (vectors) {
    Value columns = hlo::slice(state[1], {0, 0, 0}, {batch, n, n}, {1, 1, 1});
    result.vectors = reorder_columns(columns, order);
  }
  return result;
}

// m >= n: columns are rotated until they are orthogonal; their norms are the singular values.
Svd tall_svd(Call& c, const Value& given, bool full, bool vectors) {
  hlo::Builder& b = c.builder();
  const DType dtype = given.dtype(), real = hlo::real_of(dtype);
  const int64_t batch = given.dim(0), m = given.dim(1), n = given.dim(2), even = n + n % 2;
  Value largest = hlo::reduce(hlo::abs(given), {1, 2}, hlo::Reduce::Maximum, true);
  Value scale = hlo::select(hlo::gt(largest, 0), largest, hlo::full_like(largest, 1));
  Value a = padded_square(given / promote_real(scale, dtype), m, even);
  const int64_t h = even / 2;
  const auto sum_rows = [](const Value& x) { return hlo::reduce(x, {1}, hlo::Reduce::Add); };
  struct Pairs {
    Value pp, qq, pq;
  };
  const auto pairs = [&](const Value& x) {
    Value p = front(x, 2, h), q = back(x, 2, h);
    return Pairs{sum_rows(squared_magnitude(p)), sum_rows(squared_magnitude(q)),
                 sum_rows(conjugate(p) * q)};
  };
  // Columns this small are rounding errors of the larger ones and have no direction.
  const double tiny = epsilon(real) * epsilon(real) * 1e-3;
  const auto round = [&](const Values& s) {
    const Pairs g = pairs(s[0]);
    Value cosine = hlo::abs(g.pq) / hlo::sqrt(hlo::maximum(g.pp, tiny) * hlo::maximum(g.qq, tiny));
    const Rotation r = rotation(g.pp, g.qq, g.pq);
    Values result = {next_round(rotate(s[0], r, 2), 2),
                     hlo::maximum(s[1], hlo::reduce(cosine, {0, 1}, hlo::Reduce::Maximum))};
    if (vectors) result.push_back(next_round(rotate(s[2], r, 2), 2));
    return result;
  };
  // The largest cosine between columns that met in a sweep (the first measure starts it).
  Values state = {a, hlo::full_like(hlo::zeros(b, {real, {}}), 1)};
  if (vectors) state.push_back(identity(b, dtype, batch, even, even));
  const size_t parts = state.size();
  state.push_back(hlo::scalar(b, DType::S32, 0));
  const double tolerance = epsilon(real) * 2 * std::max<double>(1.0, static_cast<double>(m) / 64);
  state = hlo::while_loop(
      state,
      [&](const Values& v) {
        return hlo::lt(v[parts], kMostSweeps) & hlo::gt(v[1], hlo::scalar(b, real, tolerance));
      },
      [&](const Values& v) {
        Values inner(v.begin(), v.begin() + parts);
        inner[1] = hlo::zeros_like(inner[1]);
        Values next =
            repeat(b, even - 1, inner, [&](const Value&, const Values& s) { return round(s); });
        next.push_back(v[parts] + 1.0);
        return next;
      });
  Value columns = front(state[0], 2, n);
  Value norms = hlo::sqrt(sum_rows(squared_magnitude(columns)));
  Value order = sorting_order(norms, true);
  Svd result;
  result.s = reorder(norms, order) * hlo::reshape(scale, {batch, 1});
  if (!vectors) return result;
  // QR of orthogonal columns only normalizes them, and completes them where they are zero.
  const Reflectors r = householder(c, reorder_columns(columns, order));
  Value d = diagonal(r.packed);
  if (hlo::is_complex(dtype)) d = hlo::real(d);
  Value sign = hlo::select(hlo::lt(d, 0), hlo::full_like(d, -1), hlo::full_like(d, 1));
  if (full && m > n) {
    const Value parts_of_sign[] = {sign, hlo::full_like(hlo::zeros(b, {real, {batch, m - n}}), 1)};
    sign = hlo::concatenate(parts_of_sign, 1);
  }
  result.u = orthogonal_columns(c, r.packed, r.tau, full ? m : n) *
             promote_real(hlo::unsqueeze(sign, 1), dtype);
  Value v = hlo::slice(state[2], {0, 0, 0}, {batch, n, n}, {1, 1, 1});
  result.v = reorder_columns(v, order);
  return result;
}

}  // namespace

Svd svd(Call& c, const Value& a, bool full, bool vectors) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), m = a.dim(1), n = a.dim(2), k = std::min(m, n);
  if (k == 0 || batch == 0) {
    Svd empty;
    empty.s = hlo::zeros(b, {hlo::real_of(a.dtype()), {batch, k}});
    if (vectors) {
      empty.u = identity(b, a.dtype(), batch, m, full ? m : k);
      empty.v = identity(b, a.dtype(), batch, n, full ? n : k);
    }
    return empty;
  }
  if (m >= n) return tall_svd(c, a, full, vectors);
  Svd flipped = tall_svd(c, adjoint(a), full, vectors);
  return {flipped.v, flipped.s, flipped.u};
}

TPU_OP(
    "aten::_linalg_eigh(Tensor A, str UPLO=\"L\", bool compute_v=True) -> (Tensor eigenvalues, "
    "Tensor eigenvectors)") {
  check_matrix(c, "A", true);
  const std::string uplo = c.text("UPLO");
  c.check(uplo == "L" || uplo == "U" || uplo == "l" || uplo == "u",
          "Expected UPLO argument to be 'L' or 'U', but got ", uplo);
  const Dims batch = batch_dims(c.meta("A").sizes);
  Value a = flat_batch(c.tensor("A"));
  const bool vectors = c.flag("compute_v");
  if (a.elements() == 0) {
    Value none = hlo::zeros(c.builder(), {hlo::real_of(a.dtype()), batch | Dims{a.dim(1)}});
    return {none, vectors ? c.tensor("A") : hlo::zeros(c.builder(), {a.dtype(), {0}})};
  }
  const Eigen e = eigh(c, a, uplo == "L" || uplo == "l", vectors);
  return {with_batch(e.values, batch),
          vectors ? with_batch(e.vectors, batch) : hlo::zeros(c.builder(), {a.dtype(), {0}})};
}

// A = U diag(S) Vh
TPU_OP(
    "aten::_linalg_svd(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? "
    "driver=None) -> (Tensor U, Tensor S, Tensor Vh)") {
  check_matrix(c, "A", false);
  const Dims batch = batch_dims(c.meta("A").sizes);
  const bool vectors = c.flag("compute_uv");
  const Svd d = svd(c, flat_batch(c.tensor("A")), c.flag("full_matrices"), vectors);
  Value none = hlo::zeros(c.builder(), {c.dtype_of("A"), {0}});
  return {vectors ? with_batch(d.u, batch) : none, with_batch(d.s, batch),
          vectors ? with_batch(adjoint(d.v), batch) : none};
}

// V diag(1 / s) U^H without the s that are at most max(atol, rtol * largest); from the eigenvalues
// when the matrix is Hermitian.
TPU_OP(
    "aten::linalg_pinv.atol_rtol_tensor(Tensor self, *, Tensor? atol=None, Tensor? rtol=None, bool "
    "hermitian=False) -> Tensor") {
  const bool hermitian = c.flag("hermitian");
  check_matrix(c, "self", hermitian);
  hlo::Builder& b = c.builder();
  const Dims batch = batch_dims(c.meta("self").sizes);
  Value a = flat_batch(c.tensor("self"));
  const DType dtype = a.dtype(), real = hlo::real_of(dtype);
  if (a.elements() == 0) return {hlo::zeros(b, {dtype, batch | Dims{a.dim(2), a.dim(1)}})};
  const auto limit = [&](const char* name) {
    Value x = hlo::broadcast_to(c.tensor(name, real), batch);
    return hlo::reshape(x, {a.dim(0), 1});
  };
  const double own = epsilon(real) * static_cast<double>(std::max(a.dim(1), a.dim(2)));
  Value atol = c.has("atol") ? limit("atol") : hlo::zeros(b, {real, {a.dim(0), 1}});
  // A given atol switches the relative limit off, unless that is given as well.
  Value rtol = c.has("rtol") ? limit("rtol")
                             : hlo::select(hlo::gt(atol, 0), hlo::zeros_like(atol),
                                           hlo::full_like(atol, own));
  Value s, left, right;
  if (hermitian) {
    const Eigen e = eigh(c, a, true, true);
    s = e.values;
    left = right = e.vectors;
  } else {
    const Svd d = svd(c, a, false, true);
    s = d.s;
    left = d.v;
    right = d.u;
  }
  Value size = hlo::abs(s);
  Value largest = hlo::reduce(size, {1}, hlo::Reduce::Maximum, true);
  Value counts = hlo::gt(size, hlo::maximum(atol, rtol * largest));
  Value inverse = hlo::select(counts, hlo::full_like(s, 1) / s, hlo::zeros_like(s));
  left = left * promote_real(hlo::unsqueeze(inverse, 1), dtype);
  return {with_batch(matrix_product(c, left, adjoint(right)), batch)};
}

// The least squares solution of smallest norm: V diag(1 / s) U^H b, small s left out. Rank and
// residuals as LAPACK's drivers report them.
TPU_OP(
    "aten::linalg_lstsq(Tensor self, Tensor b, float? rcond=None, *, str? driver=None) -> (Tensor "
    "solution, Tensor residuals, Tensor rank, Tensor singular_values)") {
  check_matrix(c, "self", false);
  hlo::Builder& builder = c.builder();
  const TensorArg &a = c.meta("self"), &rhs = c.meta("b");
  const std::string driver = c.has("driver") ? c.text("driver") : "gelsy";
  c.check(
      driver == "gels" || driver == "gelsy" || driver == "gelsd" || driver == "gelss",
      "torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got ",
      driver);
  c.check(a.dtype == rhs.dtype,
          "torch.linalg.lstsq: Expected input and other to have the same "
          "dtype, but got input's dtype ",
          a.dtype, " and other's dtype ", rhs.dtype);
  const bool vector = is_vector_rhs(a.sizes, rhs.sizes);
  Value b = c.tensor("b");
  if (vector) b = hlo::unsqueeze(b, b.rank());
  c.check(b.rank() >= 2 && b.dim(-2) == a.sizes[a.rank() - 2],
          "torch.linalg.lstsq: input.size(-2) should match other.size(", vector ? "-1" : "-2",
          "), got ", a.sizes, " and ", rhs.sizes);
  const Dims a_batch = batch_dims(a.sizes), b_batch = batch_dims(b.dims());
  const Dims batch = c.broadcast({&a_batch, &b_batch});
  Value matrix = flat_batch(broadcast_batch(c.tensor("self"), batch));
  Value right = flat_batch(broadcast_batch(b, batch));
  const DType dtype = a.dtype, real = hlo::real_of(dtype);
  const int64_t m = matrix.dim(1), n = matrix.dim(2);
  const Svd d = svd(c, matrix, false, true);
  Value limit = c.has("rcond") ? c.scalar("rcond", real)
                               : hlo::scalar(builder, real,
                                             epsilon(real) * static_cast<double>(std::max(m, n)));
  Value first = d.s.dim(1) == 0 ? hlo::zeros(builder, {real, {d.s.dim(0), 1}}) : front(d.s, 1, 1);
  Value counts = hlo::gt(d.s, first * limit);
  if (driver == "gels") counts = hlo::gt(d.s, 0);  // takes full rank for granted
  Value inverse = hlo::select(counts, hlo::full_like(d.s, 1) / d.s, hlo::zeros_like(d.s));
  Value y =
      matrix_product(c, adjoint(d.u), right) * promote_real(hlo::unsqueeze(inverse, 2), dtype);
  Value x = matrix_product(c, d.v, y);
  Value rank = hlo::reduce(hlo::convert(counts, DType::S64), {1}, hlo::Reduce::Add);
  Value solution = with_batch(x, batch);
  if (vector) solution = hlo::squeeze(solution, solution.rank() - 1);
  Value residuals = hlo::zeros(builder, {real, {0}});
  if (m > n && driver != "gelsy") {
    Value rest = squared_magnitude(right - matrix_product(c, matrix, x));
    residuals = with_batch(hlo::reduce(rest, {1}, hlo::Reduce::Add), batch);
    if (vector) residuals = hlo::squeeze(residuals, residuals.rank() - 1);
  }
  Value singular = driver == "gelsd" || driver == "gelss" ? with_batch(d.s, batch)
                                                          : hlo::zeros(builder, {real, {0}});
  return {solution, residuals,
          driver == "gels" ? hlo::zeros(builder, {DType::S64, {0}}) : with_batch(rank, batch),
          singular};
}

}  // namespace torch_tpu::ops
