// SPDX-License-Identifier: Apache-2.0 - Sparse tensors: indices and values are tensors of the device, operators are composed.
//
// Most of PyTorch's sparse kernels are written in terms of dense operators on indices and values,
// and say nothing of the device. They are registered for its sparse CPU keys; ours lead there. The
// rest is composed here.
#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "src/tensor/register.h"

namespace torch_tpu::tensor {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

// ---- coordinate format --------------------------------------------------------------------------

at::Tensor make_sparse(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes,
                       bool coalesced) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse),
                                       coalesced);
}

int64_t product(at::IntArrayRef sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

// Each element's place in the row-major order of the sparse dimensions, [nnz].
at::Tensor flat_places(const at::Tensor& indices, at::IntArrayRef sizes) {
  at::Tensor flat = at::zeros({indices.size(1)}, indices.options());
  for (int64_t d = 0; d < indices.size(0); ++d) flat = flat * sizes[d] + indices.select(0, d);
  return flat;
}

// [product of the sparse dimensions, dense dimensions...]
at::Tensor rows_of(const at::Tensor& dense, int64_t sparse_dim) {
  std::vector<int64_t> shape = {product(dense.sizes().slice(0, sparse_dim))};
  for (int64_t d = sparse_dim; d < dense.dim(); ++d) shape.push_back(dense.size(d));
  return dense.reshape(shape);
}

// What a dense tensor holds where `like` has elements.
at::Tensor values_at(const at::Tensor& dense, const at::Tensor& like) {
  return rows_of(dense, like.sparse_dim())
      .index_select(0, flat_places(like._indices(), like.sizes()));
}

at::Tensor coalesced(const at::Tensor& self) {
  const at::Tensor indices = self._indices(), values = self._values();
  if (self.sparse_dim() == 0 || values.numel() == 0 || indices.size(1) < 2) {
    return make_sparse(indices.clone(), values.clone(), self.sizes(), true);
  }
  auto [places, inverse] = at::_unique(flat_places(indices, self.sizes()), true, true);
  std::vector<int64_t> shape = values.sizes().vec();
  shape[0] = places.numel();
  const bool logical = values.scalar_type() == at::kBool;
  const at::Tensor parts = logical ? values.to(at::kInt) : values;
  at::Tensor sums = at::zeros(shape, parts.options()).index_add_(0, inverse, parts);
  std::vector<at::Tensor> rows(self.sparse_dim());
  at::Tensor rest = places;
  for (int64_t d = self.sparse_dim(); d-- > 0;) {
    rows[d] = rest.remainder(self.size(d));
    rest = rest.floor_divide(self.size(d));
  }
  return make_sparse(at::stack(rows), logical ? sums.to(at::kBool) : sums, self.sizes(), true);
}

// result = the elements of `from`, which has its sizes.
at::Tensor& put(at::Tensor& result, const at::Tensor& from) {
  if (result.is_sparse()) {
    result.sparse_resize_and_clear_(from.sizes(), from.sparse_dim(), from.dense_dim());
    return result.copy_(from);
  }
  result.resize_(from.sizes());
  return result.copy_(from);
}

at::Tensor sum_of(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  TORCH_CHECK(self.sizes() == other.sizes(),
              "add: expected sizes of 'self' and 'other' to match, but ", self.sizes(),
              " != ", other.sizes());
  const auto dtype = at::result_type(self, other);
  if (!self.is_sparse()) {
    at::Tensor rows = rows_of(self.to(dtype), other.sparse_dim());
    const at::Tensor values = (other._values().to(dtype) * alpha).to(dtype);
    return rows.index_add(0, flat_places(other._indices(), other.sizes()), values)
        .reshape(self.sizes());
  }
  TORCH_CHECK(other.is_sparse(),
              "add(sparse, dense) is not supported. Use add(dense, sparse) instead.");
  if (self.sparse_dim() != other.sparse_dim())
    return sum_of(self.to_dense(), other, alpha).to_sparse(self.sparse_dim());
  return make_sparse(
      at::cat({self._indices(), other._indices()}, 1),
      at::cat({self._values().to(dtype), (other._values().to(dtype) * alpha).to(dtype)}),
      self.sizes(), false);
}

at::Tensor& add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                    at::Tensor& out) {
  return put(out, sum_of(self, other, alpha).to(out.scalar_type()));
}

at::Tensor product_of(const at::Tensor& self, const at::Tensor& other) {
  if (!self.is_sparse()) return product_of(other, self);
  if (other.dim() == 0) {
    const at::Tensor factor = other.is_sparse() ? other.to_dense() : other;
    return make_sparse(self._indices(), self._values() * factor, self.sizes(), self.is_coalesced());
  }
  const at::Tensor dense = other.is_sparse() ? other.to_dense() : other;
  // Elements at one place are summed first: the product is not linear in both.
  const at::Tensor mine = self.coalesce();
  return make_sparse(mine._indices(), mine._values() * values_at(dense.expand(self.sizes()), mine),
                     self.sizes(), true);
}

at::Tensor& mul_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return put(out, product_of(self, other).to(out.scalar_type()));
}

// sparse [m, k] @ dense [k, n]
at::Tensor times_dense(const at::Tensor& sparse, const at::Tensor& dense) {
  TORCH_CHECK(sparse.sparse_dim() == 2 && sparse.dense_dim() == 0,
              "addmm: 2D tensor of 2 sparse and 0 dense dimensions expected, got ",
              sparse.sparse_dim(), " and ", sparse.dense_dim());
  TORCH_CHECK(dense.dim() == 2 && sparse.size(1) == dense.size(0),
              "addmm: Argument #3 (dense): Expected dim 0 size ", sparse.size(1), ", got ",
              dense.dim() > 0 ? dense.size(0) : 0);
  const at::Tensor indices = sparse._indices();
  const at::Tensor terms =
      sparse._values().unsqueeze(1) * dense.index_select(0, indices.select(0, 1));
  return at::zeros({sparse.size(0), dense.size(1)}, dense.options())
      .index_add_(0, indices.select(0, 0), terms);
}

at::Tensor plus_product(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                        const at::Scalar& beta, const at::Scalar& alpha) {
  const at::Tensor dense = b.is_sparse() ? b.to_dense() : b;
  at::Tensor y = a.is_sparse() ? times_dense(a, dense) : a.mm(dense);
  if (!alpha.equal(1)) y = y * alpha;
  if (beta.equal(0)) return y;
  return (self.is_sparse() ? self.to_dense() : self) * beta + y;
}
at::Tensor& addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                      const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  at::Tensor y = plus_product(self, a, b, beta, alpha);
  out.resize_(y.sizes());
  return out.copy_(y);
}
at::Tensor& addmm_(at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                   const at::Scalar& beta, const at::Scalar& alpha) {
  return self.copy_(plus_product(self, a, b, beta, alpha));
}

at::Tensor batches(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.dim() == 3 && other.dim() == 3 && self.size(0) == other.size(0) &&
                  self.size(2) == other.size(1),
              "bmm: sizes do not fit, got ", self.sizes(), " and ", other.sizes());
  if (!self.is_sparse() || self.sparse_dim() != 3)
    return at::bmm(self.is_sparse() ? self.to_dense() : self,
                   other.is_sparse() ? other.to_dense() : other);
  const at::Tensor indices = self._indices(), batch = indices.select(0, 0);
  const at::Tensor rows = other.reshape({-1, other.size(2)});
  const at::Tensor terms = self._values().unsqueeze(1) *
                           rows.index_select(0, batch * other.size(1) + indices.select(0, 2));
  return at::zeros({self.size(0) * self.size(1), other.size(2)}, other.options())
      .index_add_(0, batch * self.size(1) + indices.select(0, 1), terms)
      .reshape({self.size(0), self.size(1), other.size(2)});
}
at::Tensor& bmm_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  at::Tensor y = batches(self, other);
  out.resize_(y.sizes());
  return out.copy_(y);
}

at::Tensor sparse_by_sparse(const at::Tensor& a, const at::Tensor& b) {
  return times_dense(a, b.to_dense()).to_sparse();
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  return self.to_dense().index_select(dim, index).to_sparse(self.sparse_dim());
}

// The gradient of a sum over `dims` where `self` has elements.
at::Tensor sum_backward(const at::Tensor& grad, const at::Tensor& self, at::IntArrayRef dims) {
  at::Tensor dense = grad.is_sparse() ? grad.to_dense() : grad;
  std::vector<int64_t> sorted;
  for (int64_t d : dims) sorted.push_back(at::maybe_wrap_dim(d, self.dim()));
  std::sort(sorted.begin(), sorted.end());
  for (int64_t d : sorted) dense = dense.unsqueeze(d);
  const at::Tensor mine = self.coalesce();
  return make_sparse(mine._indices(), values_at(dense.expand(self.sizes()), mine), self.sizes(),
                     true);
}

// What `self` holds where `mask` has elements.
at::Tensor masked(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(self.sizes() == mask.sizes(),
              "sparse_mask(): the sizes of self and mask do not match, got ", self.sizes(), " and ",
              mask.sizes());
  if (self.is_same(mask)) return self;
  const at::Tensor dense = self.is_sparse() ? self.to_dense() : self;
  return make_sparse(mask._indices(), values_at(dense, mask), mask.sizes(), mask.is_coalesced());
}

// The elements of self, zero where mask has none; `accumulate`: times how often mask has them.
at::Tensor mask_projection(const at::Tensor& self, const at::Tensor& mask, bool accumulate) {
  if (self.is_same(mask)) return self;
  const at::Tensor theirs = flat_places(mask._indices(), mask.sizes());
  at::Tensor count =
      at::zeros({product(mask.sizes().slice(0, mask.sparse_dim()))}, theirs.options())
          .index_add_(0, theirs, at::ones_like(theirs))
          .index_select(0, flat_places(self._indices(), self.sizes()));
  if (!accumulate) count = count.gt(0);
  std::vector<int64_t> shape(self._values().dim(), 1);
  shape[0] = count.numel();
  const at::Tensor factor = count.reshape(shape).to(self.scalar_type());
  return make_sparse(self._indices(), self._values() * factor, self.sizes(), self.is_coalesced());
}

// What is not there counts as -inf.
at::Tensor softmax_of(const at::Tensor& self, int64_t dim, bool half_to_float, bool logarithm) {
  TORCH_CHECK(!half_to_float, "softmax with half to float conversion is not supported on tpu");
  const at::Tensor mine = self.coalesce();
  at::Tensor rows = at::full(self.sizes(), -INFINITY, mine._values().options());
  const int64_t sparse = self.sparse_dim();
  at::Tensor dense = rows_of(rows, sparse)
                         .index_copy(0, flat_places(mine._indices(), self.sizes()), mine._values())
                         .reshape(self.sizes());
  dense = logarithm ? dense.log_softmax(dim) : dense.softmax(dim);
  return make_sparse(mine._indices(), values_at(dense, mine), self.sizes(), true);
}
at::Tensor softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_of(self, dim, half_to_float, false);
}
at::Tensor log_softmax(const at::Tensor& self, int64_t dim, bool half_to_float) {
  return softmax_of(self, dim, half_to_float, true);
}
at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                            const at::Tensor&) {
  const at::Tensor g = grad.to_dense(), y = output.to_dense();
  const at::Tensor x = y * (g - (g * y).sum(dim, true));
  return make_sparse(output._indices(), values_at(x, output), output.sizes(), true);
}
at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, int64_t dim,
                                const at::Tensor&) {
  const at::Tensor g = grad.to_dense(), y = output.to_dense();
  const at::Tensor x = g - y.exp() * g.sum(dim, true);
  return make_sparse(output._indices(), values_at(x, output), output.sizes(), true);
}

// ---- compressed formats -------------------------------------------------------------------------

// Indices of the caller's own are looked at on the host.
void validate(bool rows, const at::Tensor& compressed, const at::Tensor& plain, int64_t count,
              int64_t dim, int64_t nnz) {
  at::_validate_compressed_sparse_indices(rows, to_host(compressed), to_host(plain), count, dim,
                                          nnz);
}

// How many of the ascending row numbers come before each row.
at::Tensor row_pointers(const at::Tensor& rows, int64_t count, bool out_int32) {
  return at::searchsorted(rows, at::arange(count + 1, rows.options()), out_int32);
}
at::Tensor& row_pointers_out(const at::Tensor& rows, int64_t count, bool out_int32,
                             at::Tensor& out) {
  return put(out, row_pointers(rows, count, out_int32));
}

// The inverse: batch, row and column of each element, [batch dimensions + 2, elements].
at::Tensor coordinates_of(const at::Tensor& pointers, const at::Tensor& plain, bool out_int32,
                          bool transpose) {
  const at::Tensor place = at::arange(plain.size(-1), pointers.options()).expand_as(plain);
  const at::Tensor row = at::searchsorted(pointers, place.contiguous(), false, true) - 1;
  std::vector<at::Tensor> lists;
  for (int64_t d = 0; d < plain.dim() - 1; ++d) {
    std::vector<int64_t> shape(plain.dim(), 1);
    shape[d] = plain.size(d);
    lists.push_back(at::arange(plain.size(d), row.options()).reshape(shape).expand_as(plain));
  }
  lists.push_back(transpose ? plain : row);
  lists.push_back(transpose ? row : plain);
  const auto dtype = out_int32 ? at::kInt : at::kLong;
  for (at::Tensor& t : lists) t = t.reshape({-1}).to(dtype);
  return at::stack(lists);
}
at::Tensor& coordinates_out(const at::Tensor& pointers, const at::Tensor& plain, bool out_int32,
                            bool transpose, at::Tensor& out) {
  return put(out, coordinates_of(pointers, plain, out_int32, transpose));
}

// beta self + alpha (a @ b) where self has elements.
at::Tensor sampled_addmm(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                         const at::Scalar& beta, const at::Scalar& alpha) {
  TORCH_CHECK(self.layout() == at::kSparseCsr,
              "sampled_addmm: Expected self to have sparse csr layout, but got ", self.layout());
  TORCH_CHECK(a.layout() == at::kStrided && b.layout() == at::kStrided,
              "sampled_addmm: Expected mat1 and mat2 to have strided layout");
  TORCH_CHECK(a.dim() >= 2 && b.dim() == a.dim() && self.size(-2) == a.size(-2) &&
                  self.size(-1) == b.size(-1) && a.size(-1) == b.size(-2),
              "sampled_addmm: sizes do not fit, got ", self.sizes(), ", ", a.sizes(), " and ",
              b.sizes());
  const at::Tensor y = at::matmul(a, b) * alpha;
  const at::Tensor at_self = coordinates_of(self.crow_indices(), self.col_indices(), false, false);
  at::Tensor taken = y.reshape({-1}).index_select(0, flat_places(at_self, self.sizes()));
  at::Tensor values = taken.reshape(self.values().sizes());
  if (!beta.equal(0)) values = self.values() * beta + values;
  return at::_sparse_csr_tensor_unsafe(self.crow_indices(), self.col_indices(), values,
                                       self.sizes(), values.options().layout(at::kSparseCsr));
}
at::Tensor strided(const at::Tensor& x) { return x.layout() == at::kStrided ? x : x.to_dense(); }

// A dense result, or its elements that are not zero in the format of `out`.
at::Tensor& put_compressed(at::Tensor& out, const at::Tensor& dense) {
  if (out.layout() == at::kStrided) return put(out, dense);
  const at::Tensor csr = dense.to_sparse_csr();
  TORCH_CHECK_NOT_IMPLEMENTED(out.layout() == at::kSparseCsr, "a result of layout ", out.layout(),
                              " is not supported on tpu; use sparse_csr");
  at::sparse_csr::get_sparse_csr_impl(out)->set_member_tensors(
      csr.crow_indices(), csr.col_indices(), csr.values().to(out.scalar_type()), csr.sizes());
  return out;
}

at::Tensor& csr_addmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                          const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  const at::Tensor sparse = a.layout() == at::kStrided ? a : a.to_sparse();
  return put_compressed(out, plus_product(strided(self), sparse, strided(b), beta, alpha));
}

at::Tensor& csr_addmv_out(const at::Tensor& self, const at::Tensor& matrix,
                          const at::Tensor& vector, const at::Scalar& beta, const at::Scalar& alpha,
                          at::Tensor& out) {
  const at::Tensor column = self.expand({matrix.size(0)}).unsqueeze(1);
  at::Tensor y = plus_product(column, matrix.to_sparse(), vector.unsqueeze(1), beta, alpha);
  return put(out, y.squeeze(1));
}

at::Tensor& csr_bmm_out(const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  return put(out, at::bmm(strided(self), strided(other)));
}

at::Tensor& csr_baddbmm_out(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                            const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  return put(out, at::baddbmm(self, strided(a), strided(b), beta, alpha));
}

at::Tensor& csr_add_out(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha,
                        at::Tensor& out) {
  return put_compressed(out, at::add(strided(self), strided(other), alpha));
}

// ---- sparse [m, k] @ dense [k, n], reduced over the elements of each row ----

at::Tensor row_of_each(const at::Tensor& csr) {
  return coordinates_of(csr.crow_indices(), csr.col_indices(), false, false).select(0, 0);
}
at::Tensor elements_of_rows(const at::Tensor& csr) {
  return csr.crow_indices().diff().clamp_min(1).unsqueeze(1).to(csr.scalar_type());
}
at::Tensor weighted_rows(const at::Tensor& csr, const at::Tensor& dense) {
  return csr.values().unsqueeze(1) * dense.index_select(0, csr.col_indices());
}

// Rows without elements are zero. For amax and amin also which element gave each result; the number
// of elements stands for none.
std::tuple<at::Tensor, at::Tensor> mm_reduce(const at::Tensor& self, const at::Tensor& other,
                                             std::string_view reduce) {
  TORCH_CHECK(self.layout() == at::kSparseCsr && other.layout() == at::kStrided,
              "sparse_mm_reduce: Expect self to be CSR and other to be strided, got ",
              self.layout(), " and ", other.layout());
  TORCH_CHECK(self.dim() == 2 && other.dim() == 2 && self.size(1) == other.size(0),
              "sparse_mm_reduce: sizes do not fit, got ", self.sizes(), " and ", other.sizes());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(),
              "sparse_mm_reduce: expected the dtypes to be the same, got ", self.scalar_type(),
              " and ", other.scalar_type());
  const bool extreme = reduce == "amax" || reduce == "amin";
  TORCH_CHECK(extreme || reduce == "sum" || reduce == "mean", "sparse_mm_reduce: reduce '", reduce,
              "' is not supported; use sum, mean, amax or amin");
  at::Tensor out = at::zeros({self.size(0), other.size(1)}, other.options());
  const int64_t count = self._nnz();
  if (count == 0) return {out, at::empty({0}, self.col_indices().options())};
  const at::Tensor row = row_of_each(self), terms = weighted_rows(self, other);
  if (!extreme) {
    out.index_add_(0, row, terms);
    if (reduce == "mean") out.div_(elements_of_rows(self));
    return {out, at::empty({0}, self.col_indices().options())};
  }
  const at::Tensor rows = row.unsqueeze(1).expand_as(terms);
  out.scatter_reduce_(0, rows, terms, reduce, false);
  const at::Tensor best = out.index_select(0, row);
  const at::Tensor place = at::arange(count, row.options()).unsqueeze(1);
  const at::Tensor chosen = at::where(terms.eq(best).logical_or(terms.isnan()), place, count);
  at::Tensor from = at::full(out.sizes(), count, row.options());
  from.scatter_reduce_(0, rows, chosen, "amin", true);
  return {out, from.to(self.col_indices().scalar_type())};
}

std::tuple<at::Tensor, at::Tensor> mm_reduce_backward(
    const at::Tensor& self, const at::Tensor& grad, const at::Tensor& other,
    std::string_view reduce, const at::Tensor& from, std::array<bool, 2> wanted) {
  const at::Tensor row = row_of_each(self), column = self.col_indices(), values = self.values();
  // What reaches the product of each element with a row of `other`, [elements, n].
  at::Tensor arrives;
  if (reduce == "amax" || reduce == "amin") {
    // One row more for those that nothing reaches.
    arrives = at::zeros({values.numel() + 1, grad.size(1)}, grad.options())
                  .scatter_(0, from.to(at::kLong), grad)
                  .narrow(0, 0, values.numel());
  } else {
    arrives = (reduce == "mean" ? grad / elements_of_rows(self) : grad).index_select(0, row);
  }
  at::Tensor mine, theirs;
  if (wanted[0]) {
    const at::Tensor slope = (arrives * other.index_select(0, column)).sum(1);
    mine = at::_sparse_csr_tensor_unsafe(self.crow_indices(), column, slope, self.sizes(),
                                         slope.options().layout(at::kSparseCsr));
  }
  if (wanted[1]) {
    theirs = at::zeros_like(other).index_add_(0, column, arrives * values.unsqueeze(1));
  }
  return {mine, theirs};
}

// ---- registration -------------------------------------------------------------------------------

// Leads an operator to PyTorch's kernel for another key.
template <c10::DispatchKey key>
void lead(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(key, *stack);
}

// All that PyTorch has for the CPU's key and not for ours.
template <c10::DispatchKey key>
void lead_all(torch::Library& library, c10::DispatchKey ours,
              const std::set<std::string>& composed) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(key) || op->hasKernelForDispatchKey(ours)) continue;
    const std::string full =
        name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (composed.contains(full)) continue;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&lead<key>>());
  }
}

}  // namespace

// Not led: kernels that read the host's memory. No kernel is better than those.
void register_sparse_operators() {
  static auto* coo = new torch::Library(torch::Library::IMPL, "aten",
                                        c10::DispatchKey::SparsePrivateUse1, __FILE__, __LINE__);
  lead_all<c10::DispatchKey::SparseCPU>(
      *coo, c10::DispatchKey::SparsePrivateUse1,
      {"aten::hspmm", "aten::hspmm.out", "aten::sspaddmm.out", "aten::_spdiags",
       "aten::index_select", "aten::_sparse_sum_backward", "aten::sparse_mask",
       "aten::_sparse_mask_projection"});
  static auto* csr = new torch::Library(torch::Library::IMPL, "aten",
                                        c10::DispatchKey::SparseCsrPrivateUse1, __FILE__, __LINE__);
  lead_all<c10::DispatchKey::SparseCsrCPU>(
      *csr, c10::DispatchKey::SparseCsrPrivateUse1,
      {"aten::_sparse_csr_sum.dim_dtype", "aten::_sparse_csr_prod.dim_dtype",
       "aten::triangular_solve.X", "aten::_spsolve", "aten::_sparse_mm_reduce_impl",
       "aten::_sparse_mm_reduce_impl_backward", "aten::sparse_sampled_addmm.out"});
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_coalesce", coalesced);
  m.impl("add.out", add_out);
  m.impl("mul.out", mul_out);
  m.impl("addmm", plus_product);
  m.impl("addmm.out", addmm_out);
  m.impl("addmm_", addmm_);
  m.impl("bmm", batches);
  m.impl("bmm.out", bmm_out);
  m.impl("_sparse_sparse_matmul", sparse_by_sparse);
  m.impl("index_select", index_select);
  m.impl("_sparse_sum_backward", sum_backward);
  m.impl("sparse_mask", masked);
  m.impl("_sparse_mask_projection", mask_projection);
  m.impl("_sparse_softmax", softmax);
  m.impl("_sparse_log_softmax", log_softmax);
  m.impl("_sparse_softmax_backward_data", softmax_backward);
  m.impl("_sparse_log_softmax_backward_data", log_softmax_backward);
}

TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) {
  m.impl("add.out", csr_add_out);
  m.impl("addmm.out", csr_addmm_out);
  m.impl("addmv.out", csr_addmv_out);
  m.impl("bmm.out", csr_bmm_out);
  m.impl("baddbmm.out", csr_baddbmm_out);
  m.impl("sparse_sampled_addmm", sampled_addmm);
  m.impl("_sparse_mm_reduce_impl", mm_reduce);
  m.impl("_sparse_mm_reduce_impl_backward", mm_reduce_backward);
}

// From dense tensors: PyTorch's own, written in terms of nonzero and masks.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using torch::CppFunction;
  for (const char* name : {"_to_sparse", "_to_sparse.sparse_dim", "_to_sparse_csr",
                           "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"})
    m.impl(name, CppFunction::makeFromBoxedFunction<&lead<c10::DispatchKey::CPU>>());
  m.impl("_convert_indices_from_coo_to_csr", row_pointers);
  m.impl("_convert_indices_from_coo_to_csr.out", row_pointers_out);
  m.impl("_convert_indices_from_csr_to_coo", coordinates_of);
  m.impl("_convert_indices_from_csr_to_coo.out", coordinates_out);
  m.impl("_validate_compressed_sparse_indices", validate);
}

}  // namespace torch_tpu::tensor
