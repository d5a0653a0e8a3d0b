// SPDX-License-Identifier: Apache-2.0 - Plans that map strided windows to slices of a base value.
#include "src/graph/view.h"

#include <algorithm>
#include <array>

namespace torch_tpu::graph {
namespace {

using hlo::Builder;
using hlo::Type;
using hlo::Value;

constexpr int kMaxAxes = 32;

// One dimension of the base as the plan sees it: `stride` elements apart, `extent` long; the window
// takes `count` of them, `step` apart, as its dimension `dim` (or -1).
struct Axis {
  int64_t stride, extent;
  int64_t dim = -1, step = 1, count = 1;
};

struct Axes {
  std::array<Axis, kMaxAxes> axis;
  int n = 0;
  bool push(int64_t stride, int64_t extent) {
    if (n == kMaxAxes) return false;
    axis[n++] = Axis{stride, extent};
    return true;
  }
};

// Gives every window dimension (size > 1, stride > 0) an axis of its own. Axes are in descending
// order of stride.
bool match(Axes& axes, const Window& w, int64_t offset) {
  for (int64_t d = 0; d < w.rank; ++d) {
    if (w.sizes[d] == 1 || w.strides[d] == 0) continue;
    int found = -1;
    for (int j = 0; j < axes.n; ++j) {
      const Axis& a = axes.axis[j];
      if (a.extent > 1 && a.stride <= w.strides[d]) {
        found = j;
        break;
      }
    }
    if (found < 0) return false;
    Axis& a = axes.axis[found];
    if (a.dim >= 0 || w.strides[d] % a.stride != 0) return false;
    a.step = w.strides[d] / a.stride;
    a.count = w.sizes[d];
    a.dim = d;
    if ((a.count - 1) * a.step >= a.extent) return false;
  }
  for (int j = 0; j < axes.n; ++j) {
    const Axis& a = axes.axis[j];
    int64_t start = (offset / a.stride) % a.extent;
    if (start + (a.count - 1) * a.step >= a.extent) return false;
  }
  return true;
}

bool base_axes(Axes& axes, const int64_t* base, int64_t base_rank) {
  int64_t stride = 1;
  std::array<int64_t, kMaxAxes> strides;
  if (base_rank > kMaxAxes) return false;
  for (int64_t i = base_rank; i-- > 0;) {
    strides[i] = stride;
    stride *= base[i];
  }
  for (int64_t i = 0; i < base_rank; ++i)
    if (!axes.push(strides[i], base[i])) return false;
  return true;
}

// Axes of a flat run of n elements split at the window's strides: [n/s1, s1/s2, ..., sk].
bool stride_axes(Axes& axes, const Window& w, int64_t n) {
  std::array<int64_t, kMaxAxes> s;
  int k = 0;
  for (int64_t d = 0; d < w.rank; ++d) {
    if (w.sizes[d] == 1 || w.strides[d] == 0) continue;
    if (k == kMaxAxes - 1) return false;
    s[k++] = w.strides[d];
  }
  std::sort(s.begin(), s.begin() + k, std::greater<>());
  int64_t outer = n;
  for (int i = 0; i < k; ++i) {
    if (i > 0 && s[i] == s[i - 1]) return false;  // overlapping
    if (outer % s[i] != 0) return false;
    axes.push(s[i], outer / s[i]);
    outer = s[i];
  }
  return axes.push(1, outer);
}

// Elements from the first to the last that the window touches.
int64_t span_of(const Window& w) {
  int64_t span = 1;
  for (int64_t d = 0; d < w.rank; ++d) {
    if (w.sizes[d] == 0) return 0;
    span += (w.sizes[d] - 1) * w.strides[d];
  }
  return span;
}

// True when no two elements of the window are the same memory, as far as strides alone tell.
bool disjoint(const Window& w) {
  std::array<std::pair<int64_t, int64_t>, kMaxAxes> by_stride;
  int n = 0;
  for (int64_t d = 0; d < w.rank; ++d) {
    if (w.sizes[d] <= 1) continue;
    if (n == kMaxAxes) return false;
    by_stride[n++] = {w.strides[d], w.sizes[d]};
  }
  std::sort(by_stride.begin(), by_stride.begin() + n);
  int64_t span = 1;
  for (int i = 0; i < n; ++i) {
    if (by_stride[i].first < span) return false;
    span += (by_stride[i].second - 1) * by_stride[i].first;
  }
  return true;
}

// For the flat plan: the run's length, rounded up so that the leading stride divides it.
int64_t flat_length(const Window& w) {
  int64_t span = span_of(w), lead = 1;
  for (int64_t d = 0; d < w.rank; ++d)
    if (w.sizes[d] > 1) lead = std::max(lead, w.strides[d]);
  return (span + lead - 1) / lead * lead;
}

// An axis that is taken in steps is two, where the step divides it: every so many-th element is a
// range of the outer one, at one place of the inner. So it is read and written as a plain slice.
Axes without_steps(const Axes& axes) {
  Axes out;
  for (int j = 0; j < axes.n; ++j) {
    const Axis& a = axes.axis[j];
    const int rest = axes.n - j;
    const bool split =
        a.step > 1 && a.count > 1 && a.extent % a.step == 0 && out.n + rest < kMaxAxes;
    if (!split) {
      out.axis[out.n++] = a;
      continue;
    }
    out.axis[out.n++] = Axis{a.stride * a.step, a.extent / a.step, a.dim, 1, a.count};
    out.axis[out.n++] = Axis{a.stride, a.step};
  }
  return out;
}

int64_t product(const int64_t* dims, int64_t n) {
  int64_t p = 1;
  for (int64_t i = 0; i < n; ++i) p *= dims[i];
  return p;
}

Window window_of(const TensorArg& t) {
  return {t.sizes.data(), t.strides.data(), t.rank(), t.offset};
}

Dims extents(const Axes& axes) {
  Dims d;
  for (int j = 0; j < axes.n; ++j) d.push_back(axes.axis[j].extent);
  return d;
}

// Positions of the axes that window dimensions use, in the order of those dimensions.
Dims axis_order(const Axes& axes) {
  Dims order;
  for (int j = 0; j < axes.n; ++j)
    if (axes.axis[j].dim >= 0) order.push_back(j);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return axes.axis[a].dim < axes.axis[b].dim; });
  return order;
}

struct Region {
  Dims span;  // per axis
  bool whole = true;
  bool stepped = false;
  std::vector<Value> starts;
};

Region region_of(Builder& b, const Axes& axes, const StartSource& start) {
  Region r;
  for (int j = 0; j < axes.n; ++j) {
    const Axis& a = axes.axis[j];
    int64_t span = (a.count - 1) * a.step + 1;
    r.span.push_back(span);
    if (a.step > 1 && a.count > 1) r.stepped = true;
    if (span != a.extent) r.whole = false;
  }
  if (!r.whole) {
    std::optional<DType> index;
    for (int j = 0; j < axes.n; ++j) {
      Value v;
      if (r.span[j] != axes.axis[j].extent && start)
        v = start(axes.axis[j].stride, axes.axis[j].extent);
      if (v) index = v.dtype();
      r.starts.push_back(v);
    }
    for (Value& v : r.starts)
      if (!v) v = hlo::constant_int(b, {index.value_or(DType::S32), {}}, 0);
  }
  return r;
}

Value read_axes(const Value& base, const Axes& matched, const TensorArg& t,
                const StartSource& start) {
  Builder& b = base.builder();
  const Axes axes = without_steps(matched);
  Value v = hlo::reshape(base, extents(axes));
  Region r = region_of(b, axes, start);
  if (!r.whole) v = hlo::dynamic_slice(v, r.starts, r.span);
  if (r.stepped) {
    Dims zero(axes.n, 0), step;
    for (int j = 0; j < axes.n; ++j) step.push_back(axes.axis[j].step);
    v = hlo::slice(v, zero, r.span, step);
  }
  // Drop unused axes (extent 1 by now), order as the window's dimensions, spread expanded ones.
  Dims kept, perm, order = axis_order(axes);
  Dims rank_of(axes.n, -1);
  for (int j = 0; j < axes.n; ++j) {
    if (axes.axis[j].dim < 0) continue;
    rank_of[j] = static_cast<int64_t>(kept.size());
    kept.push_back(axes.axis[j].count);
  }
  v = hlo::reshape(v, kept);
  for (int64_t j : order) perm.push_back(rank_of[j]);
  v = hlo::transpose(v, perm);
  Dims into;
  for (int64_t j : order) into.push_back(axes.axis[j].dim);
  return hlo::broadcast_in_dim(v, t.sizes, into);
}

Value write_axes(const Value& base, const Axes& matched, const Value& value,
                 const StartSource& start) {
  Builder& b = base.builder();
  const Axes axes = without_steps(matched);
  // Into the axes' order.
  Dims order = axis_order(axes), sizes_in_order, inverse(order.size()), full;
  for (int64_t j : order) sizes_in_order.push_back(axes.axis[j].count);
  Value v = hlo::reshape(value, sizes_in_order);
  Dims sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < sorted.size(); ++i)
    inverse[i] = std::find(order.begin(), order.end(), sorted[i]) - order.begin();
  v = hlo::transpose(v, inverse);
  for (int j = 0; j < axes.n; ++j) full.push_back(axes.axis[j].count);
  v = hlo::reshape(v, full);
  Region r = region_of(b, axes, start);
  Value shaped = hlo::reshape(base, extents(axes));
  if (r.stepped) {
    Value old = r.whole ? shaped : hlo::dynamic_slice(shaped, r.starts, r.span);
    Dims zero(axes.n, 0), interior;
    Value mask;
    for (int j = 0; j < axes.n; ++j) {
      int64_t step = axes.axis[j].count > 1 ? axes.axis[j].step : 1;
      interior.push_back(step - 1);
      if (step == 1) continue;
      Value i = hlo::iota(b, {DType::S32, r.span}, j);
      Value on = hlo::eq(hlo::remainder(i, hlo::full_like(i, static_cast<double>(step))), 0);
      mask = mask ? mask & on : on;
    }
    Value spread = hlo::pad(v, hlo::zeros(b, {v.dtype(), {}}), zero, zero, interior);
    v = hlo::select(mask, spread, old);
  }
  Value out = r.whole ? v : hlo::dynamic_update_slice(shaped, v, r.starts);
  return hlo::reshape(out, base.dims());
}

// Flat element indices of the window relative to `offset`.
Value element_indices(Builder& b, const TensorArg& t, DType dtype, const Value& offset) {
  Value index = hlo::broadcast_in_dim(hlo::convert(offset, dtype), t.sizes, {});
  for (int64_t d = 0; d < t.rank(); ++d) {
    if (t.sizes[d] <= 1 || t.strides[d] == 0) continue;
    Value i = hlo::iota(b, {dtype, t.sizes}, d);
    index = index + i * hlo::constant_int(b, {dtype, {}}, t.strides[d]);
  }
  return index;
}

Value offset_value(Builder& b, const StartSource& start, int64_t n) {
  if (start) return start(1, n);
  return hlo::constant_int(b, {n > INT32_MAX ? DType::S64 : DType::S32, {}}, 0);
}

// How a window maps to a base, and the axes it uses (not for Identity and Gather).
struct Plan {
  ViewKind kind = ViewKind::Gather;
  Axes axes;
};

Plan plan_of(const Window& w, const int64_t* base, int64_t base_rank) {
  Plan plan;
  int64_t n = product(base, base_rank);
  int64_t elements = product(w.sizes, w.rank);
  if (elements == 0) return plan;
  if (w.offset == 0 && elements == n && w.rank == base_rank) {
    int64_t stride = 1;
    bool same = true;
    for (int64_t d = w.rank; d-- > 0 && same;) {
      same = w.sizes[d] == base[d] && (w.sizes[d] == 1 || w.strides[d] == stride);
      stride *= w.sizes[d];
    }
    if (same) {
      plan.kind = ViewKind::Identity;
      return plan;
    }
  }
  auto fits = [&](ViewKind kind, auto&& make_axes, int64_t offset) {
    plan.axes = {};
    if (!make_axes(plan.axes) || !match(plan.axes, w, offset)) return false;
    plan.kind = kind;
    return true;
  };
  if (fits(
          ViewKind::BaseDims, [&](Axes& a) { return base_axes(a, base, base_rank); }, w.offset) ||
      fits(
          ViewKind::Strides, [&](Axes& a) { return stride_axes(a, w, n); }, w.offset) ||
      fits(ViewKind::Flat, [&](Axes& a) { return stride_axes(a, w, flat_length(w)); }, 0)) {
    return plan;
  }
  return plan;
}

// The run of the flat base that a Flat plan's axes split, and where it starts.
struct FlatRun {
  Value flat, run;
  std::vector<Value> at;
  int64_t span;
};

FlatRun flat_run(const Value& base, const Window& w, const StartSource& start) {
  Builder& b = base.builder();
  FlatRun r;
  r.span = span_of(w);
  r.flat = hlo::reshape(base, {base.elements()});
  r.at = {offset_value(b, start, base.elements())};
  r.run = hlo::pad(hlo::dynamic_slice(r.flat, r.at, {r.span}), hlo::zeros(b, {base.dtype(), {}}),
                   {0}, {flat_length(w) - r.span});
  return r;
}

// For a Gather plan: the flat index of each of the window's elements.
Value gather_indices(const Value& base, const TensorArg& t, const StartSource& start) {
  int64_t n = base.elements();
  DType dtype = n > INT32_MAX ? DType::S64 : DType::S32;
  return element_indices(base.builder(), t, dtype, offset_value(base.builder(), start, n));
}

}  // namespace

ViewKind classify(const Window& w, const int64_t* base, int64_t base_rank) {
  return plan_of(w, base, base_rank).kind;
}

Type reinterpreted(const Type& base, DType dtype) {
  if (base.dtype == dtype) return base;
  int64_t from = hlo::byte_size(base.dtype), to = hlo::byte_size(dtype);
  Type out{dtype, base.dims};
  if (from == to) return out;
  if (!out.dims.empty() && (out.dims.back() * from) % to == 0) {
    out.dims.back() = out.dims.back() * from / to;
    return out;
  }
  out.dims = {base.elements() * from / to};
  return out;
}

Value reinterpret(const Value& base, DType dtype) {
  if (base.dtype() == dtype) return base;
  Type target = reinterpreted(base.type(), dtype);
  // bool is one byte that is 0 or 1.
  if (base.dtype() == DType::Pred) return reinterpret(hlo::convert(base, DType::U8), dtype);
  if (dtype == DType::Pred) {
    Value u8 = reinterpret(base, DType::U8);
    return hlo::reshape(hlo::ne(u8, 0), target.dims);
  }
  // complex is a pair of floats.
  if (hlo::is_complex(base.dtype())) {
    Dims flat = {base.elements(), 1};
    std::vector<Value> parts = {hlo::reshape(hlo::real(base), flat),
                                hlo::reshape(hlo::imag(base), flat)};
    Value pair = hlo::concatenate(parts, 1);
    Value f = hlo::reshape(pair, reinterpreted(base.type(), hlo::real_of(base.dtype())).dims);
    return reinterpret(f, dtype);
  }
  if (hlo::is_complex(dtype)) {
    Value f = reinterpret(base, hlo::real_of(dtype));
    int64_t n = f.elements() / 2;
    Value pair = hlo::slice_dim(hlo::reshape(f, {f.elements()}), 0, 0, 2 * n);
    pair = hlo::reshape(pair, {n, 2});
    Value re = hlo::reshape(hlo::slice_dim(pair, 1, 0, 1), {n});
    Value im = hlo::reshape(hlo::slice_dim(pair, 1, 1, 2), {n});
    return hlo::reshape(hlo::complex(re, im), target.dims);
  }
  int64_t from = hlo::byte_size(base.dtype()), to = hlo::byte_size(dtype);
  Value flat = hlo::reshape(base, {base.elements()});
  if (from < to) {
    int64_t ratio = to / from, n = base.elements() / ratio;
    if (n * ratio != base.elements()) flat = hlo::slice_dim(flat, 0, 0, n * ratio);
    flat = hlo::reshape(flat, {n, ratio});
  }
  return hlo::reshape(hlo::bitcast_convert(flat, dtype), target.dims);
}

Value read_view(const Value& base, const TensorArg& t, const StartSource& start) {
  Builder& b = base.builder();
  Window w = window_of(t);
  if (t.elements() == 0) return hlo::zeros(b, {base.dtype(), t.sizes});
  Plan plan = plan_of(w, base.dims().data(), base.rank());
  switch (plan.kind) {
    case ViewKind::Identity:
      return base;
    case ViewKind::BaseDims:
    case ViewKind::Strides:
      return read_axes(base, plan.axes, t, start);
    case ViewKind::Flat:
      return read_axes(flat_run(base, w, start).run, plan.axes, t, nullptr);
    case ViewKind::Gather:
      break;
  }
  return hlo::take(hlo::reshape(base, {base.elements()}), gather_indices(base, t, start), 0);
}

Value write_view(const Value& base, const TensorArg& t, const Value& value,
                 const StartSource& start) {
  Window w = window_of(t);
  if (t.elements() == 0) return base;
  for (int64_t d = 0; d < t.rank(); ++d) {
    if (t.strides[d] != 0 || t.sizes[d] <= 1) continue;
    // Every element along an expanded dimension is the same memory: one of them is written.
    TensorArg once = t;
    once.sizes[d] = 1;
    return write_view(base, once, hlo::slice_dim(value, d, 0, 1), start);
  }
  Plan plan = plan_of(w, base.dims().data(), base.rank());
  switch (plan.kind) {
    case ViewKind::Identity:
      return hlo::reshape(value, base.dims());
    case ViewKind::BaseDims:
    case ViewKind::Strides:
      return write_axes(base, plan.axes, value, start);
    case ViewKind::Flat: {
      FlatRun r = flat_run(base, w, start);
      Value written = write_axes(r.run, plan.axes, value, nullptr);
      written = hlo::slice_dim(written, 0, 0, r.span);
      return hlo::reshape(hlo::dynamic_update_slice(r.flat, written, r.at), base.dims());
    }
    case ViewKind::Gather:
      break;
  }
  int64_t n = base.elements();
  Value index = gather_indices(base, t, start);
  int64_t count = t.elements();
  hlo::ScatterDims dims;
  dims.inserted_window_dims = {0};
  dims.scatter_dims_to_operand_dims = {0};
  dims.index_vector_dim = 1;
  Value out = hlo::scatter(
      hlo::reshape(base, {n}), hlo::reshape(index, {count, 1}), hlo::reshape(value, {count}), dims,
      [](const Value&, const Value& update) { return update; }, false, disjoint(w));
  return hlo::reshape(out, base.dims());
}

bool overwrites(const TensorArg& t, const Type& base) {
  Window w = window_of(t);
  if (base.elements() != t.elements() || t.offset != 0 || !disjoint(w)) return false;
  ViewKind kind = classify(w, base.dims.data(), base.rank());
  if (kind == ViewKind::Identity) return true;
  return kind == ViewKind::BaseDims || kind == ViewKind::Strides;
}

}  // namespace torch_tpu::graph
