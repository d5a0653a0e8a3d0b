// SPDX-License-Identifier: Apache-2.0 - Cumulative operators.
#include "src/ops/scan.h"

#include "src/ops/reduce.h"

namespace torch_tpu::ops {

namespace {

constexpr int64_t kBlock = 4;

Values each(std::span<const Value> xs, const std::function<Value(const Value&, size_t)>& fn) {
  Values out;
  for (size_t i = 0; i < xs.size(); ++i) out.push_back(fn(xs[i], i));
  return out;
}

// Puts `columns` (of equal shape) side by side along a new dimension.
Values interleave(const std::vector<Values>& columns, int64_t dim) {
  return each(columns[0], [&](const Value&, size_t operand) {
    Values parts;
    for (const Values& column : columns) parts.push_back(hlo::unsqueeze(column[operand], dim));
    return hlo::concatenate(parts, dim);
  });
}

Values shifted(std::span<const Value> xs, std::span<const Value> identities, int64_t dim) {
  return each(xs, [&](const Value& x, size_t i) {
    Dims low(x.rank(), 0), high(x.rank(), 0);
    low[dim] = 1;
    high[dim] = -1;
    return hlo::pad(x, identities[i], low, high);
  });
}

}  // namespace

Values scan(const Call& c, std::span<const Value> xs, std::span<const Value> identities,
            int64_t dim, const ScanFn& fn) {
  int64_t n = xs[0].dim(dim);
  if (n <= 1) return Values(xs.begin(), xs.end());
  if (c.open_sizes()) {
    hlo::Window window;
    window.size.assign(xs[0].rank(), 1);
    window.pad_low.assign(xs[0].rank(), 0);
    window.size[dim] = n;
    window.pad_low[dim] = n - 1;
    return hlo::reduce_window_general(xs, identities, window, fn);
  }
  int64_t block = std::min(n, kBlock), blocks = (n + block - 1) / block;
  Values split = each(xs, [&](const Value& x, size_t i) {
    Dims high(x.rank(), 0), dims = x.dims();
    high[dim] = blocks * block - n;
    dims[dim] = blocks;
    dims.insert(dims.begin() + dim + 1, block);
    Value whole = high[dim] > 0 ? hlo::pad(x, identities[i], Dims(x.rank(), 0), high) : x;
    return hlo::reshape(whole, dims);
  });
  std::vector<Values> columns;
  for (int64_t i = 0; i < block; ++i) {
    Values column = each(split, [&](const Value& x, size_t) {
      return hlo::squeeze(hlo::slice_dim(x, dim + 1, i, i + 1), dim + 1);
    });
    columns.push_back(i == 0 ? column : fn(columns.back(), column));
  }
  if (blocks > 1) {
    Values before = shifted(scan(c, columns.back(), identities, dim, fn), identities, dim);
    for (Values& column : columns) column = fn(before, column);
  }
  return each(interleave(columns, dim + 1), [&](const Value& y, size_t i) {
    Dims dims = xs[i].dims();
    dims[dim] = blocks * block;
    Value whole = hlo::reshape(y, dims);
    return dims[dim] > n ? hlo::slice_dim(whole, dim, 0, n) : whole;
  });
}

namespace {

using hlo::Reduce;

// A TPU has reduce_window, which XLA turns into blocks there (jax.lax.cumsum makes the same choice
// by platform).
Value cumulate(Call& c, const Value& x, int64_t dim, Reduce how) {
  Value identity = hlo::reduce_identity(c.builder(), x.dtype(), how);
  if (x.dim(dim) <= 1) return x;
  if (c.platform() == Platform::Tpu && hlo::bit_width(x.dtype()) <= 32) {
    hlo::Window window;
    window.size.assign(x.rank(), 1);
    window.pad_low.assign(x.rank(), 0);
    window.size[dim] = x.dim(dim);
    window.pad_low[dim] = x.dim(dim) - 1;
    return hlo::reduce_window(x, identity, window, how);
  }
  return scan(c, {&x, 1}, {&identity, 1}, dim, [&](const Values& a, const Values& b) -> Values {
    return {how == Reduce::Add ? a[0] + b[0] : a[0] * b[0]};
  })[0];
}

// Integers and bool in int64, halves accumulated in float32.
Values cumulative(Call& c, Reduce how) {
  DType self = c.dtype_of("self");
  bool whole = self == DType::Pred || hlo::is_integer(self);
  DType result = c.dtype("dtype").value_or(whole ? DType::S64 : self);
  c.check_supported(result != DType::Pred, "not implemented for 'bool'");
  Along a = along_dim(c, hlo::convert(c.tensor("self", result), hlo::opmath(result)));
  return {hlo::convert(a.same(cumulate(c, a.x, a.dim, how)), result)};
}
TPU_OP("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor") {
  return cumulative(c, Reduce::Add);
}
TPU_OP("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor") {
  return cumulative(c, Reduce::Multiply);
}

// Largest (smallest) so far and the last place that had it; a NaN stays, at its last place.
Values running_extreme(Call& c, Reduce how) {
  c.check_supported(!hlo::is_complex(c.dtype_of("self")), "does not support complex input");
  Along a = along_dim(c, c.tensor("self"));
  bool floating = hlo::is_floating(a.x.dtype());
  hlo::Builder& b = c.builder();
  Value place = hlo::iota(b, {DType::S32, a.x.dims()}, a.dim);
  const Value xs[] = {a.x, place};
  const Value identities[] = {hlo::reduce_identity(b, a.x.dtype(), how),
                              hlo::scalar(b, DType::S32, 0)};
  Values y =
      scan(c, xs, identities, a.dim, [&](const Values& before, const Values& after) -> Values {
        Value later =
            how == Reduce::Maximum ? hlo::ge(after[0], before[0]) : hlo::le(after[0], before[0]);
        if (floating) later = hlo::is_nan(after[0]) | later;  // false where only `before` is NaN
        return {hlo::select(later, after[0], before[0]), hlo::select(later, after[1], before[1])};
      });
  return {a.same(y[0]), a.same(hlo::convert(y[1], DType::S64))};
}
TPU_OP("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)") {
  return running_extreme(c, Reduce::Maximum);
}
TPU_OP("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)") {
  return running_extreme(c, Reduce::Minimum);
}
// The same into given tensors.
Values running_extreme_into(Call& c, Reduce how) {
  Values y = running_extreme(c, how);
  c.write("values", y[0]);
  c.write("indices", y[1]);
  return {};
}
TPU_OP("aten::_cummax_helper(Tensor self, Tensor(a!) values, Tensor(b!) indices, int dim) -> ()") {
  return running_extreme_into(c, Reduce::Maximum);
}
TPU_OP("aten::_cummin_helper(Tensor self, Tensor(a!) values, Tensor(b!) indices, int dim) -> ()") {
  return running_extreme_into(c, Reduce::Minimum);
}

// log(exp(a) + exp(b)) = max + log1p(exp(min - max)); equal infinities stay what they are. Complex
// numbers are ordered by their real parts.
Value log_add_exp(const Value& a, const Value& b) {
  bool complex = hlo::is_complex(a.dtype());
  Value ra = complex ? hlo::real(a) : a, rb = complex ? hlo::real(b) : b;
  Value a_less = hlo::lt(ra, rb);
  Value low = hlo::select(a_less, a, b), high = hlo::select(a_less, b, a);
  Value sum = high + hlo::log_plus_one(hlo::exponential(low - high));
  return hlo::select(hlo::eq(ra, rb) & ~hlo::is_finite(ra), a, sum);
}
TPU_OP("aten::_logcumsumexp(Tensor self, int dim) -> Tensor") {
  DType result = c.dtype_of("self");
  c.check_supported(hlo::is_floating(result) || hlo::is_complex(result), "not implemented for '",
                    result, "'");
  Along a = along_dim(c, c.tensor("self", hlo::opmath(result)));
  Value identity = hlo::convert(hlo::lowest(c.builder(), hlo::real_of(a.x.dtype())), a.x.dtype());
  Value y = scan(c, {&a.x, 1}, {&identity, 1}, a.dim,
                 [](const Values& before, const Values& after) -> Values {
                   return {log_add_exp(before[0], after[0])};
                 })[0];
  return {hlo::convert(a.same(y), result)};
}

}  // namespace
}  // namespace torch_tpu::ops
