// SPDX-License-Identifier: Apache-2.0 - Operators whose result's shape depends on data: count, read the count, go on.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/IndexingUtils.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/kernel.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {
namespace {

using TensorList = c10::List<std::optional<at::Tensor>>;

// Coordinates of the true elements, row major, int64[count, rank].
at::Tensor true_coordinates(const at::Tensor& self) {
  return guard([&] {
    if (self.numel() == 0) return at::empty({0, self.dim()}, self.options().dtype(at::kLong));
    int64_t count = at::count_nonzero(self).item<int64_t>();
    if (count == 0) return at::empty({0, self.dim()}, self.options().dtype(at::kLong));
    return call_entry("aten::nonzero_static", {self, count, int64_t{-1}}).at(0);
  });
}

at::Tensor& nonzero_out(const at::Tensor& self, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type ",
              out.scalar_type());
  at::Tensor r = true_coordinates(self);
  at::native::resize_output(out, r.sizes());
  return out.copy_(r);
}

at::Tensor select_masked(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask, got ",
              mask.scalar_type());
  auto [m, s] = at::expand_outplace(mask, self);
  at::Tensor index = true_coordinates(m->reshape({-1})).squeeze(1);
  return s->reshape({-1}).index_select(0, index);
}

at::Tensor& masked_select_out(const at::Tensor& self, const at::Tensor& mask, at::Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, mask);
  at::Tensor r = select_masked(self, mask);
  at::native::resize_output(out, r.sizes());
  return out.copy_(r);
}

bool is_mask(const at::Tensor& t) {
  return t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
}

// Masks become the coordinates of their true elements; index tensors come to the device as int64.
TensorList integer_indices(const at::Tensor& self, const TensorList& indices) {
  TensorList out;
  int64_t dim = 0;
  for (size_t i = 0; i < indices.size(); ++i) {
    std::optional<at::Tensor> given = indices.get(i);
    if (!given || !given->defined()) {
      out.push_back(std::nullopt);
      ++dim;
      continue;
    }
    at::Tensor t = *given;
    if (is_mask(t)) {
      for (int64_t d = 0; d < t.dim(); ++d) {
        TORCH_CHECK_INDEX(dim + d < self.dim() && t.size(d) == self.size(dim + d),
                          "The shape of the mask ", t.sizes(), " at index ", d,
                          " does not match the shape of the indexed tensor ", self.sizes(),
                          " at index ", dim + d);
      }
      at::Tensor where = t.device() == self.device() ? true_coordinates(t) : at::nonzero(t);
      // Host masks are counted on the host.
      if (where.device() != self.device()) where = where.to(self.device());
      for (int64_t d = 0; d < t.dim(); ++d) out.push_back(where.select(1, d));
      dim += t.dim();
      // A 0-dim mask adds a dimension of size 0 or 1.
      if (t.dim() == 0)
        TORCH_CHECK_NOT_IMPLEMENTED(false, "indexing with a 0-dim mask is not supported here");
      continue;
    }
    TORCH_CHECK_INDEX(t.scalar_type() == at::kLong || t.scalar_type() == at::kInt ||
                          t.scalar_type() == at::kShort || t.scalar_type() == at::kChar,
                      "tensors used as indices must be long, int, byte or bool tensors");
    if (t.device() != self.device()) {
      // As on CUDA: host indices are welcome. They can be checked right here.
      if (dim < self.dim() && t.numel() > 0) {
        int64_t n = self.size(dim), low = t.min().item<int64_t>(), high = t.max().item<int64_t>();
        TORCH_CHECK_INDEX(low >= -n && high < n, "index ", low < -n ? low : high,
                          " is out of bounds for dimension ", dim, " with size ", n);
      }
      t = t.to(self.device());
    }
    out.push_back(t);
    ++dim;
  }
  TORCH_CHECK_INDEX(dim <= self.dim(), "too many indices for tensor of dimension ", self.dim(),
                    " (got ", dim, ")");
  return out;
}

template <const char* const& entry>
at::Tensor index_with(const at::Tensor& self, const TensorList& indices) {
  return guard([&] { return call_entry(entry, {self, integer_indices(self, indices)}).at(0); });
}
const char* const kIndex = "aten::index.Tensor";
const char* const kUnsafeIndex = "aten::_unsafe_index.Tensor";

at::Tensor& index_out(const at::Tensor& self, const TensorList& indices, at::Tensor& out) {
  at::assert_no_overlap(out, self);
  at::Tensor r = index_with<kIndex>(self, indices);
  at::native::resize_output(out, r.sizes());
  return out.copy_(r);
}

at::Tensor& index_put_impl_(at::Tensor& self, const TensorList& indices, const at::Tensor& values,
                            bool accumulate, bool unsafe) {
  return guard([&]() -> at::Tensor& {
    (void)unsafe;
    TORCH_CHECK_INDEX(static_cast<int64_t>(indices.size()) <= self.dim(),
                      "too many indices for tensor of dimension ", self.dim(), " (got ",
                      indices.size(), ")");
    TORCH_CHECK(values.device() == self.device() || (values.dim() == 0 && values.device().is_cpu()),
                "index_put_: expected values on ", self.device(), " or a 0-dim CPU tensor, got ",
                values.device());
    TORCH_CHECK(values.scalar_type() == self.scalar_type() ||
                    values.unsafeGetTensorImpl()->is_wrapped_number(),
                "Index put requires the source and destination dtypes match, got ",
                self.scalar_type(), " for the destination and ", values.scalar_type(),
                " for the source.");
    at::assert_no_internal_overlap(self);
    // x[mask] = number: no need to know how many.
    if (indices.size() == 1 && !accumulate && values.numel() == 1) {
      std::optional<at::Tensor> mask = indices.get(0);
      if (mask && mask->scalar_type() == at::kBool && mask->device() == self.device() &&
          mask->dim() > 0 && mask->dim() <= self.dim() &&
          mask->sizes() == self.sizes().slice(0, mask->dim())) {
        at::Tensor m = *mask;
        for (int64_t d = m.dim(); d < self.dim(); ++d) m = m.unsqueeze(-1);
        at::Tensor v = values.dim() == 0 ? values : values.reshape({});
        return self.masked_fill_(m, v);
      }
    }
    TensorList integers = integer_indices(self, indices);
    at::Tensor v = values.device() == self.device() ? values : values.to(self.device());
    call_in_place("aten::index_put", self, {integers, v, accumulate});
    return self;
  });
}

at::Tensor& index_put_(at::Tensor& self, const TensorList& indices, const at::Tensor& values,
                       bool accumulate) {
  return index_put_impl_(self, indices, values, accumulate, false);
}
at::Tensor index_put(const at::Tensor& self, const TensorList& indices, const at::Tensor& values,
                     bool accumulate) {
  at::Tensor out = self.clone(at::MemoryFormat::Preserve);
  return index_put_impl_(out, indices, values, accumulate, false);
}

// ---- unique ------------------------------------------------------------------------------------

struct Runs {
  at::Tensor first;   // where each run of equal elements begins
  at::Tensor number;  // for each element, the number of its run
  at::Tensor counts;
};

// `changes[i]`: element i differs from element i - 1 (n - 1 of them).
Runs runs_of(const at::Tensor& changes, int64_t n, bool counts) {
  at::Tensor begins = at::cat({at::ones({1}, changes.options()), changes});
  Runs r;
  r.first = true_coordinates(begins).squeeze(1);
  r.number = begins.to(at::kLong).cumsum(0) - 1;
  if (counts) {
    at::Tensor end = at::full({1}, n, r.first.options());
    r.counts = at::cat({r.first.slice(0, 1), end}) - r.first;
  }
  return r;
}

at::Tensor no_longs(const at::Tensor& like) {
  return at::empty({0}, like.options().dtype(at::kLong));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique2(const at::Tensor& self, bool sorted,
                                                       bool inverse, bool counts) {
  (void)sorted;  // always sorted
  at::Tensor flat = self.reshape({-1});
  int64_t n = flat.numel();
  if (n == 0)
    return {at::empty({0}, self.options()),
            at::empty(inverse ? self.sizes() : at::IntArrayRef{0}, self.options().dtype(at::kLong)),
            no_longs(self)};
  auto [values, order] = flat.sort(/*stable=*/true, 0, false);
  Runs r = runs_of(at::ne(values.slice(0, 1), values.slice(0, 0, n - 1)), n, counts);
  at::Tensor inv = no_longs(self);
  if (inverse)
    inv = at::empty({n}, order.options()).scatter_(0, order, r.number).reshape(self.sizes());
  return {values.index_select(0, r.first), inv, counts ? r.counts : no_longs(self)};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool inverse) {
  auto [v, i, c] = unique2(self, sorted, inverse, false);
  return {v, i};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_consecutive(const at::Tensor& self,
                                                                  bool inverse, bool counts,
                                                                  std::optional<int64_t> dim) {
  if (!dim) {
    at::Tensor flat = self.reshape({-1});
    int64_t n = flat.numel();
    if (n == 0)
      return {
          at::empty({0}, self.options()),
          at::empty(inverse ? self.sizes() : at::IntArrayRef{0}, self.options().dtype(at::kLong)),
          no_longs(self)};
    Runs r = runs_of(at::ne(flat.slice(0, 1), flat.slice(0, 0, n - 1)), n, counts);
    return {flat.index_select(0, r.first),
            inverse ? r.number.reshape(self.sizes()) : no_longs(self),
            counts ? r.counts : no_longs(self)};
  }
  int64_t d = c10::maybe_wrap_dim(*dim, self.dim());
  int64_t n = self.size(d);
  if (n == 0 || self.numel() == 0) {
    TORCH_CHECK(
        n == 0 || self.numel() != 0,
        "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    return {at::empty(self.sizes(), self.options()), no_longs(self), no_longs(self)};
  }
  at::Tensor rows = self.movedim(d, 0).reshape({n, -1});
  Runs r = runs_of(at::ne(rows.slice(0, 1), rows.slice(0, 0, n - 1)).any(1), n, counts);
  return {self.index_select(d, r.first), inverse ? r.number : no_longs(self),
          counts ? r.counts : no_longs(self)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim(const at::Tensor& self, int64_t dim,
                                                          bool sorted, bool inverse, bool counts) {
  (void)sorted;
  int64_t d = c10::maybe_wrap_dim(dim, self.dim());
  int64_t n = self.size(d);
  if (self.numel() == 0) {
    TORCH_CHECK(
        n == 0,
        "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied");
    return {at::empty(self.sizes(), self.options()), no_longs(self), no_longs(self)};
  }
  // Rows in lexicographic order: stable sorts from the last column to the first.
  at::Tensor rows = self.movedim(d, 0).reshape({n, -1});
  at::Tensor order = at::arange(n, self.options().dtype(at::kLong));
  for (int64_t c = rows.size(1); c-- > 0;) {
    at::Tensor column = rows.select(1, c).index_select(0, order);
    order = order.index_select(0, std::get<1>(column.sort(/*stable=*/true, 0, false)));
  }
  at::Tensor sorted_rows = rows.index_select(0, order);
  Runs r =
      runs_of(at::ne(sorted_rows.slice(0, 1), sorted_rows.slice(0, 0, n - 1)).any(1), n, counts);
  at::Tensor inv = no_longs(self);
  if (inverse) inv = at::empty({n}, order.options()).scatter_(0, order, r.number);
  return {self.index_select(d, order.index_select(0, r.first)), inv,
          counts ? r.counts : no_longs(self)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> unique_dim_consecutive(const at::Tensor& self,
                                                                      int64_t dim, bool inverse,
                                                                      bool counts) {
  return tensor::unique_consecutive(self, inverse, counts, std::optional<int64_t>(dim));
}

// ---- counts that size a result -----------------------------------------------------------------

at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                    c10::SymInt minlength_sym) {
  int64_t minlength = minlength_sym.guard_int(__FILE__, __LINE__);
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  TORCH_CHECK(self.dim() == 1 && !at::isFloatingType(self.scalar_type()),
              "bincount only supports 1-d non-negative integral inputs.");
  bool weighted = weights && weights->defined();
  auto options =
      weighted ? (weights->scalar_type() == at::kFloat ? weights->options()
                                                       : weights->options().dtype(at::kDouble))
               : self.options().dtype(at::kLong);
  if (self.numel() == 0) return at::zeros({minlength}, self.options().dtype(at::kLong));
  TORCH_CHECK(!weighted || weights->numel() == self.numel(),
              "weights should be 1-d and have the same length as input");
  TORCH_CHECK(self.min().item<int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  int64_t n = std::max(minlength, self.max().item<int64_t>() + 1);
  at::Tensor source = weighted ? weights->to(options.dtype()) : at::ones({self.numel()}, options);
  return at::zeros({n}, options).scatter_add_(0, self.to(at::kLong), source);
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<c10::SymInt> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  TORCH_CHECK(repeats.scalar_type() == at::kLong || repeats.scalar_type() == at::kInt,
              "repeats has to be Long or Int tensor");
  if (repeats.numel() == 0) return at::empty({0}, repeats.options());
  int64_t n =
      output_size ? output_size->guard_int(__FILE__, __LINE__) : repeats.sum().item<int64_t>();
  if (!output_size) TORCH_CHECK(repeats.min().item<int64_t>() >= 0, "repeats can not be negative");
  if (n == 0) return at::empty({0}, repeats.options());
  return call_entry("aten::repeat_interleave.Tensor", {repeats, n}).at(0);
}

at::Tensor padded_to_jagged(const at::Tensor& dense, at::TensorList offsets,
                            std::optional<c10::SymInt> total) {
  TORCH_CHECK(!offsets.empty() && offsets.back().numel() > 0,
              "_padded_dense_to_jagged_forward(): offsets must not be empty");
  int64_t n =
      total ? total->guard_int(__FILE__, __LINE__) : offsets.back().slice(0, -1).item<int64_t>();
  return call_entry("aten::_padded_dense_to_jagged_forward", {dense, offsets.vec(), n}).at(0);
}

// Observers start with empty buffers and learn the number of channels from the first batch.
std::tuple<at::Tensor, at::Tensor> observe_and_quantize(
    const at::Tensor& self, const at::Tensor& observer_on, const at::Tensor& fake_quant_on,
    at::Tensor& running_min, at::Tensor& running_max, at::Tensor& scale, at::Tensor& zero_point,
    double averaging_const, int64_t quant_min, int64_t quant_max, int64_t axis, bool per_row,
    bool symmetric) {
  if (per_row && running_min.numel() == 0) {
    const int64_t n = self.size(axis);
    running_min.resize_({n}).fill_(INFINITY);
    running_max.resize_({n}).fill_(-INFINITY);
    scale.resize_({n}).fill_(1);
    zero_point.resize_({n}).fill_(0);
  }
  auto r =
      call_entry("aten::_fused_moving_avg_obs_fq_helper",
                 {self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point,
                  averaging_const, quant_min, quant_max, axis, per_row, symmetric});
  return {r[0], r[1]};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("nonzero", true_coordinates);
  m.impl("nonzero.out", nonzero_out);
  m.impl("masked_select", select_masked);
  m.impl("masked_select.out", masked_select_out);
  m.impl("index.Tensor", index_with<kIndex>);
  m.impl("index.Tensor_out", index_out);
  m.impl("_unsafe_index.Tensor", index_with<kUnsafeIndex>);
  m.impl("_index_put_impl_", index_put_impl_);
  m.impl("index_put_", index_put_);
  m.impl("index_put", index_put);
  m.impl("_unique2", unique2);
  m.impl("_unique", unique);
  m.impl("unique_consecutive", unique_consecutive);
  m.impl("unique_dim", unique_dim);
  m.impl("unique_dim_consecutive", unique_dim_consecutive);
  m.impl("_padded_dense_to_jagged_forward", padded_to_jagged);
  m.impl("_fused_moving_avg_obs_fq_helper", observe_and_quantize);
  m.impl("bincount", bincount);
  m.impl("repeat_interleave.Tensor", repeat_interleave);
}

}  // namespace torch_tpu::tensor
