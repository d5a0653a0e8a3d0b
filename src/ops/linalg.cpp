// SPDX-License-Identifier: Apache-2.0 - Pieces of linear algebra: batches of matrices, triangles, loops, argument checks.
#include "src/ops/linalg.h"

#include <algorithm>
#include <limits>

namespace torch_tpu::ops {

void check_matrix(const Call& c, const char* name, bool square) {
  const TensorArg& x = c.meta(name);
  c.check(x.rank() >= 2, "The input tensor ", name, " must have at least 2 dimensions.");
  c.check(hlo::is_floating(x.dtype) || hlo::is_complex(x.dtype),
          "Expected a floating point or complex tensor as input. Got ", x.dtype);
  c.check(hlo::opmath(x.dtype) == x.dtype, "Low precision dtypes not supported. Got ", x.dtype);
  c.check(!square || x.sizes[x.rank() - 1] == x.sizes[x.rank() - 2], name,
          " must be batches of square matrices, but they are ", x.sizes[x.rank() - 2], " by ",
          x.sizes[x.rank() - 1], " matrices");
}

Dims batch_dims(const Dims& sizes) { return {sizes.begin(), sizes.end() - 2}; }

Dims operator|(Dims a, const Dims& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Value flat_batch(const Value& x) {
  return hlo::reshape(x, {hlo::element_count(batch_dims(x.dims())), x.dim(-2), x.dim(-1)});
}

Value with_batch(const Value& x, const Dims& batch) {
  return hlo::reshape(x, batch | Dims(x.dims().begin() + 1, x.dims().end()));
}

Value broadcast_batch(const Value& x, const Dims& batch) {
  return hlo::broadcast_to(x, batch | Dims{x.dim(-2), x.dim(-1)});
}

bool is_vector_rhs(const Dims& a, const Dims& b) {
  return b.size() == 1 || (a.size() == b.size() + 1 && std::equal(b.begin(), b.end(), a.begin()));
}

bool is_contiguous(const TensorArg& tensor) {
  int64_t expected = 1;
  for (int64_t i = tensor.rank(); i-- > 0;) {
    if (tensor.sizes[i] == 0) return true;
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

bool factors_transpose(const TensorArg& a) { return is_contiguous(a) && !hlo::is_complex(a.dtype); }

Value index_along(const Value& like, int64_t dim) {
  return hlo::iota(like.builder(), {DType::S32, like.dims()}, dim);
}

Value identity(hlo::Builder& b, DType dtype, int64_t batch, int64_t rows, int64_t columns) {
  const hlo::Type type = {DType::S32, {batch, rows, columns}};
  return hlo::convert(hlo::eq(hlo::iota(b, type, 1), hlo::iota(b, type, 2)), dtype);
}

Value lower_triangle(const Value& x, bool strict) {
  Value row = index_along(x, 1), column = index_along(x, 2);
  return hlo::select(strict ? hlo::gt(row, column) : hlo::ge(row, column), x, hlo::zeros_like(x));
}

Value upper_triangle(const Value& x, bool strict) {
  Value row = index_along(x, 1), column = index_along(x, 2);
  return hlo::select(strict ? hlo::lt(row, column) : hlo::le(row, column), x, hlo::zeros_like(x));
}

Value diagonal(const Value& x) {
  const int64_t k = std::min(x.dim(1), x.dim(2));
  Value square = hlo::slice(x, {0, 0, 0}, {x.dim(0), k, k}, {1, 1, 1});
  Value on = hlo::eq(index_along(square, 1), index_along(square, 2));
  return hlo::reduce(hlo::select(on, square, hlo::zeros_like(square)), {2}, hlo::Reduce::Add);
}

Value column_at(const Value& x, const Value& k) {
  Value zero = hlo::scalar(x.builder(), DType::S32, 0);
  const Value starts[] = {zero, zero, k};
  return hlo::dynamic_slice(x, starts, {x.dim(0), x.dim(1), 1});
}

Value row_at(const Value& x, const Value& k) {
  Value zero = hlo::scalar(x.builder(), DType::S32, 0);
  const Value starts[] = {zero, k, zero};
  return hlo::dynamic_slice(x, starts, {x.dim(0), 1, x.dim(2)});
}

Value take_rows(const Value& x, const Value& order) {
  if (x.elements() == 0 || order.elements() == 0) {
    return hlo::zeros(x.builder(), {x.dtype(), {x.dim(0), order.dim(1), x.dim(2)}});
  }
  hlo::GatherDims dims;
  dims.offset_dims = {2};
  dims.collapsed_slice_dims = {1};
  dims.operand_batching_dims = {0};
  dims.start_indices_batching_dims = {0};
  dims.start_index_map = {1};
  dims.index_vector_dim = 2;
  return hlo::gather(x, order, dims, {1, 1, x.dim(2)});
}

Value squared_magnitude(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return x * x;
  Value re = hlo::real(x), im = hlo::imag(x);
  return re * re + im * im;
}

Value promote_real(const Value& x, DType dtype) {
  return hlo::is_complex(dtype) ? hlo::complex(x, hlo::zeros_like(x)) : x;
}

Values repeat(hlo::Builder& b, int64_t count, Values state,
              const std::function<Values(const Value& k, const Values& state)>& fn,
              bool downwards) {
  if (count == 0) return state;
  Values all = {hlo::scalar(b, DType::S32, 0)};
  all.insert(all.end(), state.begin(), state.end());
  const auto end = static_cast<double>(count);
  Values result = hlo::while_loop(
      all, [&](const Values& v) { return hlo::lt(v[0], end); },
      [&](const Values& v) {
        Value k = downwards ? (end - 1) - v[0] : v[0];
        Values next = fn(k, Values(v.begin() + 1, v.end()));
        next.insert(next.begin(), v[0] + 1.0);
        return next;
      });
  result.erase(result.begin());
  return result;
}

double epsilon(DType dtype) {
  return hlo::real_of(dtype) == DType::F64
             ? std::numeric_limits<double>::epsilon()
             : static_cast<double>(std::numeric_limits<float>::epsilon());
}

// Cross product along a dimension of size 3.
TPU_OP("aten::linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor") {
  const TensorArg &a = c.meta("self"), &b = c.meta("other");
  c.check(a.rank() == b.rank(), "linalg.cross: inputs must have the same number of dimensions.");
  const int64_t dim = c.wrap(c.integer("dim"), a.rank());
  c.check(a.sizes[dim] == 3 && b.sizes[dim] == 3, "linalg.cross: inputs dimension ", dim,
          " must have length 3. Got ", a.sizes[dim], " and ", b.sizes[dim]);
  const DType result = c.result_type({"self", "other"});
  const Dims sizes = c.broadcast({&a.sizes, &b.sizes});
  Value x = hlo::broadcast_to(c.tensor("self", hlo::opmath(result)), sizes);
  Value y = hlo::broadcast_to(c.tensor("other", hlo::opmath(result)), sizes);
  const auto at = [&](const Value& v, int64_t i) { return hlo::slice_dim(v, dim, i, i + 1); };
  Values parts;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t j = (i + 1) % 3, k = (i + 2) % 3;
    parts.push_back(at(x, j) * at(y, k) - at(x, k) * at(y, j));
  }
  return {hlo::convert(hlo::concatenate(parts, dim), result)};
}

// out[i] = sum over j of coefficients[i, j] input[j]; zero coefficients leave NaN out.
TPU_OP("aten::_compute_linear_combination(Tensor input, Tensor coefficients) -> Tensor") {
  const TensorArg &x = c.meta("input"), &k = c.meta("coefficients");
  c.check(k.rank() == 2 && x.rank() >= 1 && k.sizes[1] == x.sizes[0],
          "coefficients must be a matrix with a column for each of the ", x.sizes,
          " tensors of input, got ", k.sizes);
  const DType compute = hlo::opmath(x.dtype);
  Value rows = c.tensor("input", compute), factors = c.tensor("coefficients", compute);
  const Dims dims = Dims{k.sizes[0]} | x.sizes;
  Value wide = hlo::broadcast_in_dim(factors, dims, {0, 1});
  Value terms = hlo::broadcast_in_dim(rows, dims, counting(rows.rank(), 1));
  terms = hlo::select(hlo::eq(wide, hlo::zeros_like(wide)), hlo::zeros_like(wide), wide * terms);
  return {hlo::convert(hlo::reduce(terms, {1}, hlo::Reduce::Add), x.dtype)};
}

// Taylor's series of degree 19 after halving until the norm is small, then repeated squaring. The
// norms are those below which degree 18 is exact to rounding (Bader, Blanes, Casas 2019).
TPU_OP("aten::linalg_matrix_exp(Tensor self) -> Tensor") {
  const TensorArg& self = c.meta("self");
  c.check(hlo::is_floating(self.dtype) || hlo::is_complex(self.dtype),
          "Expected a floating point or complex tensor as input. Got ", self.dtype);
  c.check(self.rank() >= 2 && self.sizes[self.rank() - 1] == self.sizes[self.rank() - 2],
          "self must be batches of square matrices, got ", self.sizes);
  hlo::Builder& b = c.builder();
  const Dims batch = batch_dims(self.sizes);
  Value a = flat_batch(c.tensor("self", hlo::opmath(self.dtype)));
  const DType dtype = a.dtype(), real = hlo::real_of(dtype);
  const int64_t n = a.dim(1);
  if (a.elements() == 0) return {c.tensor("self")};
  Value magnitude = hlo::is_complex(dtype) ? hlo::sqrt(squared_magnitude(a)) : hlo::abs(a);
  Value norm =
      hlo::reduce(hlo::reduce(magnitude, {1}, hlo::Reduce::Add), {1}, hlo::Reduce::Maximum);
  const double small = real == DType::F64 ? 1.090863719290036 : 3.010066362817634;
  Value halvings = hlo::ceil(hlo::log(hlo::maximum(norm / small, 1.0)) * 1.4426950408889634);
  halvings = hlo::select(hlo::is_finite(halvings), hlo::minimum(halvings, 1024), 0.0);
  // Halving is exact; a power function need not be.
  Value most = hlo::reduce(halvings, {0}, hlo::Reduce::Maximum);
  const auto repeated = [&](const Value& x, const std::function<Value(const Value&)>& fn) {
    const Value init[] = {hlo::scalar(b, real, 0), x};
    return hlo::while_loop(
        init, [&](const Values& v) { return hlo::lt(v[0], most); },
        [&](const Values& v) {
          Value more = hlo::broadcast_in_dim(hlo::lt(v[0], halvings), x.dims(), {0});
          return Values{v[0] + 1.0, hlo::select(more, fn(v[1]), v[1])};
        })[1];
  };
  a = repeated(a, [](const Value& x) { return x * 0.5; });
  Value one = identity(b, dtype, a.dim(0), n, n);
  Value a2 = matrix_product(c, a, a), a3 = matrix_product(c, a2, a), a4 = matrix_product(c, a2, a2);
  double inverse[20] = {1};
  for (int i = 1; i < 20; ++i) inverse[i] = inverse[i - 1] / i;
  Value sum;
  for (int i = 16; i >= 0; i -= 4) {
    Value part = one * inverse[i] + a * inverse[i + 1] + a2 * inverse[i + 2] + a3 * inverse[i + 3];
    sum = sum ? matrix_product(c, sum, a4) + part : part;
  }
  Value result = repeated(sum, [&](const Value& x) { return matrix_product(c, x, x); });
  return {hlo::convert(with_batch(result, batch), self.dtype)};
}

}  // namespace torch_tpu::ops
