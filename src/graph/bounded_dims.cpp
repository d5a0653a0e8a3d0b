// SPDX-License-Identifier: Apache-2.0 - Which elements along a dimension count: masks, and operands that must agree.
#include "src/graph/bounder.h"

#include <algorithm>

namespace torch_tpu::graph::bounds {

bool same(const Factors& a, const Factors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Factor& x, const Factor& y) {
    return x.at == y.at && x.dynamic() == y.dynamic();
  });
}

int64_t extent_of(const Factors& f) {
  int64_t out = 1;
  for (const Factor& x : f) out *= x.bound();
  return out;
}

Value Bounder::mask_along(const Dim& dim, int64_t extent) {
  for (const auto& [key, v] : masks_)
    if (key.second == extent && same(key.first, dim.factors)) return v;
  Value at = hlo::iota(b_, {DType::S32, {extent}}, 0);
  Value mask;
  int64_t inner = extent;
  for (size_t k = 0; k < dim.factors.size(); ++k) {
    const Factor& f = dim.factors[k];
    inner /= f.bound();
    if (!f.dynamic()) continue;
    Value c = inner == 1 ? at : hlo::divide(at, hlo::full_like(at, static_cast<double>(inner)));
    bool outermost = true;
    for (size_t j = 0; j < k; ++j) outermost = outermost && dim.factors[j].bound() == 1;
    if (!outermost) c = hlo::remainder(c, hlo::full_like(c, static_cast<double>(f.bound())));
    Value m = hlo::lt(c, f.size);
    mask = mask ? mask & m : m;
  }
  masks_.push_back({{dim.factors, extent}, mask});
  return mask;
}

Value Bounder::masked(const Known& x, const Dims& dims, const Value& fill) {
  Value mask;
  for (int64_t d : dims) {
    if (!x.dims[d].dynamic()) continue;
    Value m = hlo::broadcast_in_dim(mask_along(x.dims[d], x.v.dims()[d]), x.v.dims(), {d});
    mask = mask ? mask & m : m;
  }
  return mask ? hlo::select(mask, x.v, fill) : x.v;
}

void Bounder::make_simple(Known& x, size_t d) {
  Dim& dim = x.dims[d];
  if (dim.factors.size() <= 1) return;
  const Dims at = at_of(x, d);
  size_t first = 0;
  while (dim.factors[first].bound() == 1 && !dim.factors[first].dynamic()) ++first;
  const bool in_front =
      std::none_of(dim.factors.begin() + static_cast<std::ptrdiff_t>(first) + 1, dim.factors.end(),
                   [](const Factor& f) { return f.dynamic(); }) &&
      dim.factors[first].dynamic();
  if (dim.uniform || in_front) {
    dim.factors = {{at, size_of(at)}};
    return;
  }
  const Factors wanted = {{at, size_of(at)}};
  if (x.dims.size() == 1) {
    x = move_elements(x.v, dim.factors, {wanted});
    return;
  }
  // Where each element of the dense order is now.
  const int64_t extent = x.v.dims()[d];
  Value flat = hlo::iota(b_, {DType::S32, {extent}}, 0);
  Known index = move_elements(flat, dim.factors, {wanted});
  x.v = hlo::take(x.v, index.v, static_cast<int64_t>(d));
  dim.factors = index.dims[0].factors;
}

void Bounder::agree_along(Known& x, size_t dx, Known& y, size_t dy) {
  Dim& a = x.dims[dx];
  Dim& b = y.dims[dy];
  if (a.dynamic() != b.dynamic()) give_up("a dynamic dimension meets a static one");
  if (!a.dynamic() || same(a.factors, b.factors)) return;
  if (a.uniform) {
    a.factors = b.factors;
  } else if (b.uniform) {
    b.factors = a.factors;
  } else {
    make_simple(x, dx);
    make_simple(y, dy);
    if (!same(a.factors, b.factors)) give_up("two dimensions that should be equal are not");
  }
}

std::vector<Dim> Bounder::agree(const std::vector<Known*>& xs) {
  std::vector<Dim> out = xs[0]->dims;
  for (const Known* x : xs)
    if (x->dims.size() != out.size()) give_up("operands of different ranks");
  for (size_t d = 0; d < out.size(); ++d) {
    // Whoever has elements that differ decides; if several disagree, all become simple.
    Known* leader = xs[0];
    for (Known* x : xs)
      if (leader->dims[d].uniform && !x->dims[d].uniform) leader = x;
    for (Known* x : xs) agree_along(*leader, d, *x, d);
    for (Known* x : xs) agree_along(*leader, d, *x, d);
    out[d] = leader->dims[d];
  }
  return out;
}

}  // namespace torch_tpu::graph::bounds
