// SPDX-License-Identifier: Apache-2.0 - What the linear algebra families share: batches of matrices and factorizations.
#pragma once

#include <functional>

#include "src/ops/contraction.h"
#include "src/ops/entry.h"

namespace torch_tpu::ops {

// ---- arguments ---------------------------------------------------------------------------------
// Float or complex matrices in full precision, with PyTorch's words otherwise.
void check_matrix(const Call& c, const char* name, bool square);
Dims batch_dims(const Dims& sizes);     // all but the last two
Dims operator|(Dims a, const Dims& b);  // one list after the other
// [..., m, n] as [batch, m, n], and back.
Value flat_batch(const Value& x);
Value with_batch(const Value& x, const Dims& batch);
// Matrices broadcast to these batch dimensions.
Value broadcast_batch(const Value& x, const Dims& batch);
// B is a vector (or a batch of them) where A is a matrix (or a batch of them).
bool is_vector_rhs(const Dims& a, const Dims& b);
// Row-major without gaps.
bool is_contiguous(const TensorArg& tensor);
// For determinants PyTorch factors the transpose of row-major real matrices; its gradients know.
bool factors_transpose(const TensorArg& a);

// ---- pieces; all on [batch, m, n] ---------------------------------------------------------------
Value index_along(const Value& like, int64_t dim);  // S32 positions with like's dims
Value identity(hlo::Builder& b, DType dtype, int64_t batch, int64_t rows, int64_t columns);
Value lower_triangle(const Value& x, bool strict = false);
Value upper_triangle(const Value& x, bool strict = false);
Value diagonal(const Value& x);                       // [batch, min(m, n)]
Value column_at(const Value& x, const Value& k);      // [batch, m, 1]
Value row_at(const Value& x, const Value& k);         // [batch, 1, n]
Value take_rows(const Value& x, const Value& order);  // order: [batch, rows]
Value squared_magnitude(const Value& x);              // real
Value promote_real(const Value& x, DType dtype);      // real values as `dtype`, complex or not
// fn(k, state) for k = 0, 1, ..., count - 1 (or down to 0).
Values repeat(hlo::Builder& b, int64_t count, Values state,
              const std::function<Values(const Value& k, const Values& state)>& fn,
              bool downwards = false);
double epsilon(DType dtype);

// ---- factorizations -----------------------------------------------------------------------------
struct Lu {
  Value lu;      // [batch, m, n]
  Value pivots;  // S32, one-based, [batch, min(m, n)]
  Value order;   // S32 [batch, m]: row i of P' A is row order[i] of A
  Value info;    // S32 [batch]: position of the first zero pivot, or 0
};
Lu lu_factor(Call& c, const Value& a, bool pivot = true);
Value order_of_pivots(const Value& pivots, int64_t rows);
Value inverse_order(const Value& order);
// A X = B (or A^H X = B) from the factors of A.
Value lu_solve(Call& c, const Value& lu, const Value& order, const Value& rhs, bool adjoint_a);

struct Reflectors {
  Value packed;  // LAPACK's geqrf: R above, the reflectors below the diagonal
  Value tau;     // [batch, min(m, n)]
};
Reflectors householder(Call& c, const Value& a);
// The first `columns` columns of H(1) H(2) ... H(k).
Value orthogonal_columns(Call& c, const Value& packed, const Value& tau, int64_t columns);
// Q x or Q^H x.
Value apply_reflectors(Call& c, const Value& packed, const Value& tau, const Value& x,
                       bool adjoint_q);

struct Svd {
  Value u, s, v;  // A = u diag(s) v^H; u and v are empty if not wanted
};
Svd svd(Call& c, const Value& a, bool full, bool vectors);

}  // namespace torch_tpu::ops
