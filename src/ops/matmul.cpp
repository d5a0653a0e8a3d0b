// SPDX-License-Identifier: Apache-2.0 - Matrix and vector products: mm, bmm, their add forms, dot, outer updates.
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {
namespace {

void check_dtypes(const Call& c, const char* a, const char* b) {
  c.check(c.dtype_of(a) == c.dtype_of(b), "expected ", a, " and ", b,
          " to have the same dtype, but got: ", c.dtype_of(a), " != ", c.dtype_of(b));
}

void check_matrices(const Call& c, const char* a, const char* b) {
  c.check(c.meta(a).rank() == 2, a, " must be a matrix, got a tensor of shape ", c.meta(a).sizes);
  c.check(c.meta(b).rank() == 2, b, " must be a matrix, got a tensor of shape ", c.meta(b).sizes);
  const Dims &m1 = c.meta(a).sizes, &m2 = c.meta(b).sizes;
  c.check(m1[1] == m2[0], "mat1 and mat2 shapes cannot be multiplied (", m1[0], "x", m1[1], " and ",
          m2[0], "x", m2[1], ")");
  check_dtypes(c, a, b);
  reject_bool(c, c.dtype_of(a));
}

void check_batches(const Call& c, const char* a, const char* b) {
  for (const char* name : {a, b}) {
    c.check(c.meta(name).rank() == 3, name, " must be a 3D tensor, got a tensor of shape ",
            c.meta(name).sizes);
  }
  const Dims &m1 = c.meta(a).sizes, &m2 = c.meta(b).sizes;
  c.check(m1[0] == m2[0] && m1[2] == m2[1], "Expected size for first two dimensions of ", b,
          " tensor to be: [", m1[0], ", ", m1[2], "] but got: [", m2[0], ", ", m2[1], "].");
  check_dtypes(c, a, b);
  reject_bool(c, c.dtype_of(a));
}

// beta * self + alpha * product, in the product's (opmath) dtype. beta = 0 must not look at self:
// it may hold NaN.
Value scaled_sum(Call& c, Value product) {
  const DType compute = product.dtype();
  check_expands(c, c.meta("self").sizes, product.dims());
  if (!c.equals("alpha", 1)) product = product * c.scalar("alpha", compute);
  if (c.equals("beta", 0)) return product;
  Value self = hlo::broadcast_to(c.tensor("self", compute), product.dims());
  if (!c.equals("beta", 1)) self = self * c.scalar("beta", compute);
  return self + product;
}

void check_self_dtype(const Call& c, const char* other, DType dtype) {
  c.check(c.dtype_of("self") == dtype, "self and ", other, " must have the same dtype, but got ",
          c.dtype_of("self"), " and ", dtype);
}

Value mm(Call& c, const char* a, const char* b) {
  check_matrices(c, a, b);
  // A row by a transposed matrix, which contract() then reads as it lies.
  const graph::TensorArg& matrix = c.meta(b);
  if (c.meta(a).sizes[0] == 1 && matrix.strides[0] == 1 && matrix.strides[1] > 1)
    return contract(c, c.tensor(a), transposed(c.tensor(b)), {}, {}, {1}, {1});
  return matrix_product(c, c.tensor(a), c.tensor(b));
}

Value bmm(Call& c, const char* a, const char* b) {
  check_batches(c, a, b);
  return matrix_product(c, c.tensor(a), c.tensor(b));
}

// Products of halves that keep the float32 they were accumulated in.
DType wider_result(const Call& c, const char* a) {
  const DType out = *c.dtype("out_dtype"), in = c.dtype_of(a);
  c.check(out == in || (out == DType::F32 && (in == DType::F16 || in == DType::BF16)),
          "out_dtype must be the same as the dtype of ", a,
          " or float32 for float16 and bfloat16 inputs, got ", out, " for ", in);
  return out;
}

Value vector_dot(Call& c, const char* other, bool conjugate_self) {
  const graph::TensorArg &a = c.meta("self"), &b = c.meta(other);
  c.check(a.rank() == 1 && b.rank() == 1, "1D tensors expected, but got ", a.rank(), "D and ",
          b.rank(), "D tensors");
  c.check(a.dtype == b.dtype, "expected both vectors to have same dtype, but found ", a.dtype,
          " and ", b.dtype);
  c.check(a.sizes == b.sizes, "inconsistent tensor size, expected tensor ", a.sizes, " and src ",
          b.sizes, " to have the same number of elements, but got ", a.elements(), " and ",
          b.elements(), " elements respectively");
  reject_bool(c, a.dtype);
  Value x = c.tensor("self");
  return hlo::convert(
      contract(c, conjugate_self ? conjugate(x) : x, c.tensor(other), {}, {}, {0}, {0}), a.dtype);
}

Value matrix_vector(Call& c, const char* mat, const char* vec, int64_t input_rank, Dims input) {
  const graph::TensorArg &m = c.meta(mat), &v = c.meta(vec);
  c.check(m.rank() == 2 && v.rank() == 1 && input_rank <= 1,
          "vector + matrix @ vector expected, got ", input_rank, ", ", m.rank(), ", ", v.rank());
  const bool fits = input.empty() || input[0] == 1 || input[0] == m.sizes[0];
  c.check(m.sizes[1] == v.sizes[0] && fits, "size mismatch, got input (",
          input.empty() ? m.sizes[0] : input[0], "), mat (", m.sizes[0], "x", m.sizes[1],
          "), vec (", v.sizes[0], ")");
  check_dtypes(c, mat, vec);
  reject_bool(c, m.dtype);
  return contract(c, c.tensor(mat), c.tensor(vec), {}, {}, {1}, {0});
}

}  // namespace

TPU_OP("aten::mm(Tensor self, Tensor mat2) -> Tensor") {
  return {hlo::convert(mm(c, "self", "mat2"), c.dtype_of("self"))};
}

TPU_OP("aten::mm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor") {
  const DType out = wider_result(c, "self");
  return {hlo::convert(mm(c, "self", "mat2"), out)};
}

TPU_OP("aten::bmm(Tensor self, Tensor mat2) -> Tensor") {
  return {hlo::convert(bmm(c, "self", "mat2"), c.dtype_of("self"))};
}

TPU_OP("aten::bmm.dtype(Tensor self, Tensor mat2, ScalarType out_dtype) -> Tensor") {
  const DType out = wider_result(c, "self");
  return {hlo::convert(bmm(c, "self", "mat2"), out)};
}

// beta self + alpha (mat1 @ mat2)
TPU_OP(
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor") {
  Value product = mm(c, "mat1", "mat2");
  check_self_dtype(c, "mat2", c.dtype_of("mat2"));
  return {hlo::convert(scaled_sum(c, product), c.dtype_of("self"))};
}

TPU_OP(
    "aten::addmm.dtype(Tensor self, Tensor mat1, Tensor mat2, ScalarType out_dtype, *, Scalar "
    "beta=1, Scalar alpha=1) -> Tensor") {
  const DType out = wider_result(c, "mat1");
  return {hlo::convert(scaled_sum(c, mm(c, "mat1", "mat2")), out)};
}

// The activation sees the rounded sum, as the two ops in a row would.
TPU_OP(
    "aten::_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar "
    "alpha=1, bool use_gelu=False) -> Tensor") {
  Value product = mm(c, "mat1", "mat2");
  check_self_dtype(c, "mat2", c.dtype_of("mat2"));
  Value sum =
      hlo::convert(hlo::convert(scaled_sum(c, product), c.dtype_of("self")), product.dtype());
  if (c.flag("use_gelu")) {
    sum = sum * 0.5 * (hlo::erf(sum * 0.70710678118654752440) + 1.0);
  } else {
    sum = hlo::maximum(sum, 0);
  }
  return {hlo::convert(sum, c.dtype_of("self"))};
}

TPU_OP(
    "aten::baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor") {
  Value product = bmm(c, "batch1", "batch2");
  check_self_dtype(c, "batch2", c.dtype_of("batch2"));
  return {hlo::convert(scaled_sum(c, product), c.dtype_of("self"))};
}

TPU_OP(
    "aten::baddbmm.dtype(Tensor self, Tensor batch1, Tensor batch2, ScalarType out_dtype, *, "
    "Scalar beta=1, Scalar alpha=1) -> Tensor") {
  const DType out = wider_result(c, "batch1");
  return {hlo::convert(scaled_sum(c, bmm(c, "batch1", "batch2")), out)};
}

// beta self + alpha sum_b batch1[b] @ batch2[b]: one contraction over batch and inner dimension.
TPU_OP(
    "aten::addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor") {
  check_batches(c, "batch1", "batch2");
  check_self_dtype(c, "batch2", c.dtype_of("batch2"));
  Value product = contract(c, c.tensor("batch1"), c.tensor("batch2"), {}, {}, {0, 2}, {0, 1});
  return {hlo::convert(scaled_sum(c, product), c.dtype_of("self"))};
}

TPU_OP("aten::mv(Tensor self, Tensor vec) -> Tensor") {
  return {hlo::convert(matrix_vector(c, "self", "vec", 1, {}), c.dtype_of("self"))};
}

TPU_OP(
    "aten::addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor") {
  const graph::TensorArg& self = c.meta("self");
  Value product = matrix_vector(c, "mat", "vec", self.rank(), self.sizes);
  check_self_dtype(c, "mat", c.dtype_of("mat"));
  return {hlo::convert(scaled_sum(c, product), self.dtype)};
}

// beta self + alpha vec1 (x) vec2; for bool the sums and products are "or" and "and".
TPU_OP(
    "aten::addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> "
    "Tensor") {
  const graph::TensorArg &a = c.meta("vec1"), &b = c.meta("vec2");
  c.check(a.rank() == 1, "Expected 1-D argument vec1, but got ", a.rank(), "-D");
  c.check(b.rank() == 1, "Expected 1-D argument vec2, but got ", b.rank(), "-D");
  const DType result = c.result_type({"self", "vec1", "vec2"});
  const DType compute = hlo::opmath(result);
  const bool whole = result == DType::Pred || hlo::is_integer(result);
  for (const char* name : {"beta", "alpha"}) {
    c.check(!whole || c.number_kind(name) < graph::Number::Float,
            "For integral input tensors, argument ", name, " must not be a floating point number.");
  }
  const Dims sizes = {a.sizes[0], b.sizes[0]};
  Value outer = hlo::broadcast_in_dim(c.tensor("vec1", compute), sizes, {0}) *
                hlo::broadcast_in_dim(c.tensor("vec2", compute), sizes, {1});
  return {hlo::convert(scaled_sum(c, outer), result)};
}

TPU_OP("aten::dot(Tensor self, Tensor tensor) -> Tensor") {
  return {vector_dot(c, "tensor", false)};
}

// sum conj(self) other
TPU_OP("aten::vdot(Tensor self, Tensor other) -> Tensor") { return {vector_dot(c, "other", true)}; }

// The three, each with dimensions of size 1 put in where its `expand` says, multiplied and summed
// over `sumdim`. (unroll_dim only says how PyTorch's own kernel goes about it.)
TPU_OP(
    "aten::_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] "
    "expand3, int[] sumdim, int unroll_dim=1) -> Tensor") {
  const DType dtype = c.dtype_of("i1");
  const auto expanded = [&](const char* name, const char* at) {
    Value x = c.tensor(name, hlo::opmath(dtype));
    Dims dims = c.ints(at);
    const auto rank = static_cast<int64_t>(c.meta(name).sizes.size() + dims.size());
    for (int64_t d : dims) x = hlo::unsqueeze(x, c.wrap(d, rank));
    return x;
  };
  Value product = expanded("i1", "expand1") * expanded("i3", "expand3") * expanded("i2", "expand2");
  const Dims summed = c.ints("sumdim");
  if (!summed.empty()) {
    product = hlo::reduce(product, c.reduce_dims("sumdim", product.rank()), hlo::Reduce::Add);
  }
  return {hlo::convert(product, dtype)};
}

// int8 x int8, accumulated in int32
TPU_OP("aten::_int_mm(Tensor self, Tensor mat2) -> Tensor") {
  check_matrices(c, "self", "mat2");
  c.check(c.dtype_of("self") == DType::S8, "Expected self dtype to be of type int8 but got ",
          c.dtype_of("self"));
  return {hlo::dot_general(c.tensor("self"), c.tensor("mat2"), {}, {}, {1}, {0}, DType::S32)};
}

}  // namespace torch_tpu::ops
