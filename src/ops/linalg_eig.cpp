// SPDX-License-Identifier: Apache-2.0 - Eigenvalues and eigenvectors of general matrices.
//
// All in complex numbers: Householder reflections bring A to Hessenberg form, single-shift QR steps
// (Givens rotations that chase a bulge down the subdiagonal) to the triangular Schur form T = Q' A
// Q. Its diagonal holds the eigenvalues; back substitution gives the eigenvectors of T, and Q those
// of A. See Golub and Van Loan, Matrix Computations, chapter 7.
#include <algorithm>

#include "src/ops/linalg.h"

namespace torch_tpu::ops {

using graph::CheckSpec;

namespace {

constexpr double kMostSteps = 30;  // for each eigenvalue

Value norm_of(const Value& x) { return hlo::sqrt(squared_magnitude(x)); }

// v / |v|, 1 of 0.
Value phase(const Value& v) {
  Value size = norm_of(v);
  Value zero = hlo::eq(size, 0);
  Value one = promote_real(hlo::full_like(size, 1), v.dtype());
  return hlo::select(zero, one, v / promote_real(hlo::select(zero, 1.0, size), v.dtype()));
}

// x scaled by real numbers.
Value scaled(const Value& x, const Value& factor) { return x * promote_real(factor, x.dtype()); }

struct Schur {
  Value t, q;
};

// A - 2 v v' A and so on, with v the reflection that clears column k below the subdiagonal.
Schur hessenberg(Call& c, const Value& a) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), n = a.dim(1);
  Value q = identity(b, a.dtype(), batch, n, n);
  if (n < 3) return {a, q};
  const Values s = repeat(b, n - 2, {a, q}, [&](const Value& k, const Values& state) -> Values {
    const Value &h = state[0], &all = state[1];
    Value x = column_at(h, k);
    Value row = index_along(x, 1);
    Value first = hlo::eq(row, k + 1.0);
    x = hlo::select(hlo::gt(row, k), x, hlo::zeros_like(x));
    Value length = hlo::sqrt(hlo::reduce(squared_magnitude(x), {1}, hlo::Reduce::Add, true));
    Value head =
        hlo::reduce(hlo::select(first, x, hlo::zeros_like(x)), {1}, hlo::Reduce::Add, true);
    Value v = x + hlo::select(first, hlo::broadcast_to(scaled(phase(head), length), x.dims()),
                              hlo::zeros_like(x));
    Value size = hlo::sqrt(hlo::reduce(squared_magnitude(v), {1}, hlo::Reduce::Add, true));
    Value none = hlo::eq(size, 0);
    v = scaled(v, hlo::select(none, 0.0, hlo::full_like(size, 1) / hlo::select(none, 1.0, size)));
    const auto from_left = [&](const Value& m) {
      return m - matrix_product(c, v, matrix_product(c, adjoint(v), m)) * 2.0;
    };
    const auto from_right = [&](const Value& m) {
      return m - matrix_product(c, matrix_product(c, m, v), adjoint(v)) * 2.0;
    };
    return {from_right(from_left(h)), from_right(all)};
  });
  return {s[0], s[1]};
}

// Element (i, j) of each matrix, [batch]; i and j are S32 [batch].
Value element(const Value& x, const Value& i, const Value& j) {
  Value row = hlo::eq(index_along(x, 1), hlo::reshape(i, {x.dim(0), 1, 1}));
  Value column = hlo::eq(index_along(x, 2), hlo::reshape(j, {x.dim(0), 1, 1}));
  return hlo::reduce(hlo::select(row & column, x, hlo::zeros_like(x)), {1, 2}, hlo::Reduce::Add);
}

Value complex_sqrt(const Value& x) { return hlo::sqrt(x); }

// The eigenvalue of the last 2x2 block [[a, b], [c, d]] up to `hi` that is closer to d.
Value wilkinson(const Value& h, const Value& hi) {
  Value lower = hi - 1.0;
  Value a = element(h, lower, lower), b = element(h, lower, hi);
  Value c = element(h, hi, lower), d = element(h, hi, hi);
  Value half = (a - d) * 0.5, product = b * c;
  Value root = complex_sqrt(half * half + product);
  // The larger denominator: |half + root| or |half - root|.
  Value plus = half + root, minus = half - root;
  Value larger = hlo::ge(squared_magnitude(plus), squared_magnitude(minus));
  Value below = hlo::select(larger, plus, minus);
  Value zero = hlo::eq(squared_magnitude(below), 0);
  Value safe =
      hlo::select(zero, promote_real(hlo::full_like(hlo::real(below), 1), below.dtype()), below);
  return d - hlo::select(zero, hlo::zeros_like(product), product / safe);
}

Schur schur(Call& c, const Value& a, bool vectors) {
  hlo::Builder& b = c.builder();
  const int64_t batch = a.dim(0), n = a.dim(1);
  const DType dtype = a.dtype(), real = hlo::real_of(dtype);
  Schur s = hessenberg(c, a);
  if (n < 2) return s;
  const Dims per_matrix = {batch};
  const hlo::Type whole = {DType::S32, per_matrix};
  // Subdiagonal element i is (i + 1, i).
  const auto subdiagonal = [&](const Value& h) {
    return diagonal(hlo::slice(h, {0, 1, 0}, {batch, n, n - 1}, {1, 1, 1}));
  };
  // Elements small beside their neighbours on the diagonal count as zero.
  const auto deflated = [&](const Value& h) {
    Value d = norm_of(diagonal(h));
    Value beside = hlo::slice_dim(d, 1, 0, n - 1) + hlo::slice_dim(d, 1, 1, n);
    Value large = hlo::gt(norm_of(subdiagonal(h)), beside * epsilon(real));  // NaN: not large
    // Back on the subdiagonal.
    Value wide = hlo::broadcast_in_dim(
        hlo::pad(large, hlo::scalar(b, DType::Pred, 0), {0, 1}, {0, 0}), h.dims(), {0, 1});
    Value below = hlo::eq(index_along(h, 1), index_along(h, 2) + 1.0);
    return std::pair(hlo::select(below & ~wide, hlo::zeros_like(h), h), large);
  };
  // The last block that is not yet triangular: rows lo to hi, hi = 0 if none is left.
  const auto block = [&](const Value& large) {
    Value index = hlo::iota(b, {DType::S32, large.dims()}, 1) + 1.0;
    Value hi = hlo::reduce(hlo::select(large, index, 0.0), {1}, hlo::Reduce::Maximum);
    Value before = hlo::le(index, hlo::reshape(hi, {batch, 1}));
    Value lo = hlo::reduce(hlo::select(before & ~large, index, 0.0), {1}, hlo::Reduce::Maximum);
    return std::pair(lo, hi);
  };
  auto [first, large] = deflated(s.t);
  auto [lo, hi] = block(large);
  const auto limit = kMostSteps * static_cast<double>(n);
  // State: T, Q, lo, hi, steps spent on this hi, all steps.
  const Value init[] = {first, s.q, lo, hi, hlo::zeros(b, whole), hlo::scalar(b, DType::S32, 0)};
  const Values done = hlo::while_loop(
      init,
      [&](const Values& v) {
        Value more = hlo::reduce(hlo::gt(v[3], 0), {0}, hlo::Reduce::Or);
        return more & hlo::lt(v[5], limit);
      },
      [&](const Values& v) -> Values {
        const Value &from = v[2], &to = v[3], &spent = v[4];
        Value busy = hlo::gt(to, 0);
        Value end = hlo::maximum(to, 1.0);
        Value shift = wilkinson(v[0], end);
        // Every tenth step on one eigenvalue an unusual shift, against cycles.
        Value stuck =
            hlo::gt(spent, 0) & hlo::eq(hlo::remainder(spent, hlo::full_like(spent, 10)), 0);
        Value odd = element(v[0], end, end) +
                    promote_real(norm_of(element(v[0], end, end - 1.0)) * 0.75, dtype);
        shift = hlo::select(stuck, odd, shift);
        Value begin =
            hlo::reduce(hlo::select(busy, from, static_cast<double>(n)), {0}, hlo::Reduce::Minimum);
        Value stop = hlo::reduce(to, {0}, hlo::Reduce::Maximum);
        const Value start[] = {begin, v[0], v[1]};
        const Values swept = hlo::while_loop(
            start, [&](const Values& w) { return hlo::lt(w[0], stop); },
            [&](const Values& w) -> Values {
              const Value& k = w[0];
              Value zero = hlo::scalar(b, DType::S32, 0);
              const auto pair_at = [&](const Value& column) {
                const Value at[] = {zero, k, column};
                return hlo::reshape(hlo::dynamic_slice(w[1], at, {batch, 2, 1}), {batch, 2});
              };
              Value chase = pair_at(hlo::maximum(k - 1.0, 0.0)), enter = pair_at(k);
              const auto part = [&](const Value& p, int64_t i) {
                return hlo::reshape(hlo::slice_dim(p, 1, i, i + 1), per_matrix);
              };
              Value entering = hlo::eq(from, k);
              Value x = hlo::select(entering, part(enter, 0) - shift, part(chase, 0));
              Value y = hlo::select(entering, part(enter, 1), part(chase, 1));
              // [cos, sin; -conj(sin), cos] (x, y) = (r, 0); the identity outside of the block.
              Value size = hlo::sqrt(squared_magnitude(x) + squared_magnitude(y));
              Value still = ~busy | hlo::lt(k, from) | hlo::ge(k, to) | hlo::eq(size, 0);
              Value safe = hlo::select(still, 1.0, size);
              Value cosine = hlo::select(still, 1.0, norm_of(x) / safe);
              Value sine = scaled(phase(x) * conjugate(y), hlo::full_like(safe, 1) / safe);
              sine = hlo::select(still, hlo::zeros_like(sine), sine);
              const auto rotated = [&](const Value& m, int64_t dim, const Value& sn) {
                Dims sizes = m.dims();
                sizes[dim] = 2;
                Values at(3, zero);
                at[dim] = k;
                Value two = hlo::dynamic_slice(m, at, sizes);
                Value p = hlo::slice_dim(two, dim, 0, 1), q = hlo::slice_dim(two, dim, 1, 2);
                Value cs = promote_real(hlo::reshape(cosine, {batch, 1, 1}), dtype);
                Value sr = hlo::reshape(sn, {batch, 1, 1});
                const Value parts[] = {cs * p + sr * q, cs * q - conjugate(sr) * p};
                return hlo::dynamic_update_slice(m, hlo::concatenate(parts, dim), at);
              };
              Value t = rotated(rotated(w[1], 1, sine), 2, conjugate(sine));
              Value q = vectors ? rotated(w[2], 2, conjugate(sine)) : w[2];
              return {k + 1.0, t, q};
            });
        // What the bulge leaves below the subdiagonal is rounding.
        Value clean = hlo::select(hlo::gt(index_along(swept[1], 1), index_along(swept[1], 2) + 1.0),
                                  hlo::zeros_like(swept[1]), swept[1]);
        auto [next, big] = deflated(clean);
        auto [new_lo, new_hi] = block(big);
        Value same = hlo::eq(new_hi, to);
        return {next, swept[2], new_lo, new_hi, hlo::select(same, spent + 1.0, 0.0), v[5] + 1.0};
      });
  c.fail_if(hlo::gt(done[3], 0), CheckSpec::Runtime,
            c.op_name() +
                "(): The algorithm failed to converge because the input matrix is "
                "ill-conditioned or has too many repeated eigenvalues");
  return {upper_triangle(done[0]), done[1]};
}

// Row by row from the last: x[i, k] = -(sum over j > i of t[i, j] x[j, k]) / (t[i, i] - t[k, k]).
// Equal eigenvalues are told apart by what rounding leaves open.
Value triangular_vectors(Call& c, const Value& t) {
  hlo::Builder& b = c.builder();
  const int64_t n = t.dim(1);
  const DType real = hlo::real_of(t.dtype());
  Value d = diagonal(t);
  Value columns = hlo::unsqueeze(d, 1);  // [batch, 1, n]
  Value largest = hlo::reduce(norm_of(t), {1, 2}, hlo::Reduce::Maximum);
  Value least = hlo::reshape(hlo::maximum(largest * epsilon(real), 1e-30), {t.dim(0), 1, 1});
  Value one = identity(b, t.dtype(), t.dim(0), n, n);
  return repeat(
      b, n, {one},
      [&](const Value& i, const Values& s) -> Values {
        Value strict =
            hlo::select(hlo::gt(index_along(t, 2), index_along(t, 1)), t, hlo::zeros_like(t));
        Value sum = matrix_product(c, row_at(strict, i), s[0]);
        Value gap = column_at(columns, i) - columns;
        Value tiny = hlo::lt(norm_of(gap), least);
        gap = hlo::select(tiny, promote_real(hlo::broadcast_to(least, gap.dims()), t.dtype()), gap);
        Value later = hlo::gt(index_along(sum, 2), i);
        Value row = hlo::select(later, -sum / gap, row_at(s[0], i));
        Value zero = hlo::scalar(b, DType::S32, 0);
        const Value at[] = {zero, i, zero};
        return {hlo::dynamic_update_slice(s[0], row, at)};
      },
      /*downwards=*/true)[0];
}

// Columns of length 1 whose largest element is real.
Value normalized(const Value& v) {
  Value size = squared_magnitude(v);
  Value length = hlo::sqrt(hlo::reduce(size, {1}, hlo::Reduce::Add, true));
  Value largest = hlo::reduce(size, {1}, hlo::Reduce::Maximum, true);
  Value row = index_along(size, 1);
  Value first = hlo::reduce(hlo::select(hlo::eq(size, largest), row, static_cast<double>(v.dim(1))),
                            {1}, hlo::Reduce::Minimum, true);
  Value at = hlo::eq(row, first);
  Value head = hlo::reduce(hlo::select(at, v, hlo::zeros_like(v)), {1}, hlo::Reduce::Add, true);
  Value turned = v * conjugate(phase(head));
  turned = hlo::select(at, promote_real(hlo::real(turned), v.dtype()), turned);
  return scaled(turned, hlo::full_like(length, 1) / length);
}

struct Eigen {
  Value values, vectors;
};

Eigen eigen(Call& c, bool vectors) {
  check_matrix(c, "self", true);
  const TensorArg& self = c.meta("self");
  const DType dtype = hlo::complex_of(self.dtype), real = hlo::real_of(dtype);
  const Dims batch = batch_dims(self.sizes);
  Value given = c.tensor("self");
  if (given.elements() == 0) {
    Dims values = self.sizes;
    values.pop_back();
    return {hlo::zeros(c.builder(), {dtype, values}), hlo::zeros(c.builder(), {dtype, self.sizes})};
  }
  const auto finite = [](const Value& x) {
    if (!hlo::is_complex(x.dtype())) return hlo::is_finite(x);
    return hlo::is_finite(hlo::real(x)) & hlo::is_finite(hlo::imag(x));
  };
  c.fail_if(~finite(given), CheckSpec::Runtime,
            "torch.linalg.eig: input tensor should not contain infs or NaNs.");
  Value a = flat_batch(hlo::convert(given, dtype));
  const Schur s = schur(c, a, vectors);
  Value values = diagonal(s.t);
  if (!hlo::is_complex(self.dtype)) {
    // Real matrices have real eigenvalues and pairs: imaginary parts within rounding are none.
    Value largest = hlo::reduce(norm_of(a), {1, 2}, hlo::Reduce::Maximum, false);
    Value noise = hlo::reshape(largest * (4 * epsilon(real)), {a.dim(0), 1});
    Value none = hlo::le(hlo::abs(hlo::imag(values)), noise);
    values = hlo::select(none, promote_real(hlo::real(values), dtype), values);
  }
  Eigen e;
  Dims dims = self.sizes;
  dims.pop_back();
  e.values = hlo::reshape(values, dims);
  if (vectors) {
    Value v = matrix_product(c, s.q, triangular_vectors(c, s.t));
    e.vectors = with_batch(normalized(v), batch);
  }
  return e;
}

}  // namespace

TPU_OP("aten::linalg_eig(Tensor self) -> (Tensor eigenvalues, Tensor eigenvectors)") {
  const Eigen e = eigen(c, true);
  return {e.values, e.vectors};
}
TPU_OP("aten::_linalg_eigvals(Tensor self) -> Tensor") { return {eigen(c, false).values}; }

}  // namespace torch_tpu::ops
