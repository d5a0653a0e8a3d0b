// SPDX-License-Identifier: Apache-2.0 - Reshapes of dynamic dimensions: factors regrouped, or elements moved.
#include "src/graph/bounder.h"

#include <algorithm>
#include <numeric>

namespace torch_tpu::graph::bounds {

// The elements of a dense product of factors `from` in the places of `to`, both row-major.
Known Bounder::move_elements(const Value& flat, const Factors& from,
                             const std::vector<Factors>& to) {
  Factors all;
  Dims dims;
  for (const Factors& f : to) {
    all.insert(all.end(), f.begin(), f.end());
    dims.push_back(extent_of(f));
  }
  Factors source = from;
  Factors rows_to = all;
  // Static factors at the end become one, and so does everything that lies densely in front.
  auto merge = [](Factors& f) {
    f.erase(std::remove_if(f.begin(), f.end(),
                           [](const Factor& x) { return !x.dynamic() && x.bound() == 1; }),
            f.end());
    while (f.size() > 1 && !f.back().dynamic() && (!f[f.size() - 2].dynamic() || f.size() == 2)) {
      Factor& into = f[f.size() - 2];
      for (int64_t& v : into.at) v *= f.back().bound();
      f.pop_back();
    }
  };
  merge(source);
  merge(rows_to);
  // Whole rows move together.
  auto divisor = [](const Factors& f) {
    int64_t out = 0;
    if (!f.empty() && (!f.back().dynamic() || f.size() == 1))
      for (int64_t v : f.back().at) out = std::gcd(out, v);
    return std::max<int64_t>(out, 1);
  };
  const int64_t row = std::gcd(divisor(source), divisor(rows_to));
  for (Factors* f : {&source, &rows_to}) {
    if (f->empty()) continue;
    Factor& last = f->back();
    if (row > 1)
      for (int64_t& v : last.at) v /= row;
    if (last.dynamic()) last.size = size_of(last.at);
  }
  const int64_t n_from = extent_of(source), n_to = extent_of(rows_to);
  if (n_from >= INT32_MAX || n_to >= INT32_MAX) give_up("a reshape of too many elements");
  Value at = hlo::iota(b_, {DType::S32, {n_to}}, 0);
  auto full = [&](const Value& v) { return hlo::broadcast_to(v, at.dims()); };
  auto by = [&](int64_t v) { return hlo::full_like(at, static_cast<double>(v)); };
  // The number of the element in dense order.
  Value dense, stride = s32(1);
  int64_t inner = 1;
  for (size_t i = rows_to.size(); i-- > 0;) {
    const Factor& f = rows_to[i];
    Value c = inner == 1 ? at : hlo::divide(at, by(inner));
    if (i > 0) c = hlo::remainder(c, by(f.bound()));
    c = c * full(stride);
    dense = dense ? dense + c : c;
    inner *= f.bound();
    stride = times(stride, real(f));
  }
  if (!dense) dense = at;
  // Where that is among the source's.
  Value place;
  inner = 1;
  for (size_t i = source.size(); i-- > 0;) {
    const Factor& f = source[i];
    Value size = full(hlo::maximum(real(f), 1));
    Value c = dense;
    if (i > 0) {
      c = hlo::remainder(dense, size);
      dense = hlo::divide(dense, size);
    }
    if (inner != 1) c = c * by(inner);
    place = place ? place + c : c;
    inner *= f.bound();
  }
  if (!place) place = hlo::zeros_like(at);
  place = hlo::clamp(s32(0), place, s32(n_from - 1));
  Value rows = hlo::reshape(flat, {n_from, row});
  Known out;
  out.v = hlo::reshape(hlo::take(rows, place, 0), dims);
  for (const Factors& f : to) {
    const bool dynamic =
        std::any_of(f.begin(), f.end(), [](const Factor& x) { return x.dynamic(); });
    out.dims.push_back({dynamic ? f : Factors{}, false});
  }
  return out;
}

// The value with dimensions of these extents (per trace).
Known Bounder::regroup(const Known& x, const std::vector<Dims>& to) {
  Dims bounds;
  for (const Dims& at : to) bounds.push_back(at[0]);
  const size_t traces = fns_.size();
  struct Piece {
    Factor f;
    bool uniform;
  };
  std::vector<Piece> left;
  Factors from;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    if (x.dims[d].dynamic()) {
      for (const Factor& f : x.dims[d].factors) left.push_back({f, x.dims[d].uniform});
    } else if (x.v.dims()[d] != 1) {
      left.push_back({{Dims(traces, x.v.dims()[d]), {}}, x.dims[d].uniform});
    }
  }
  for (const Piece& p : left) from.push_back(p.f);
  std::reverse(left.begin(), left.end());  // the next one is the last
  auto divides = [&](const Dims& a, const Dims& b) {
    for (size_t p = 0; p < traces; ++p)
      if (a[p] == 0 || b[p] % a[p] != 0) return false;
    return true;
  };
  std::vector<Dim> dims;
  bool fits = true;
  for (size_t d = 0; d < to.size() && fits; ++d) {
    Dims want = to[d];
    Dim out;
    out.uniform = true;
    auto add = [&](const Factor& f, bool uniform) {
      out.factors.push_back(f);
      out.uniform = out.uniform && uniform;
      for (size_t p = 0; p < traces; ++p) want[p] /= f.at[p];
    };
    while (fits && !(constant(want) && want[0] == 1)) {
      if (left.empty()) {
        fits = false;
      } else if (divides(left.back().f.at, want)) {
        add(left.back().f, left.back().uniform);
        left.pop_back();
      } else if (Factor& f = left.back().f; divides(want, f.at)) {
        // Splits the factor: what is inside of it must be static, or all of it must be.
        Dims rest(traces);
        for (size_t p = 0; p < traces; ++p) rest[p] = f.at[p] / want[p];
        if (!constant(rest) || (!f.dynamic() && !constant(want))) {
          fits = false;
        } else {
          Factor outer{want, f.dynamic() ? size_of(want) : Value()};
          f = {rest, {}};
          add(outer, left.back().uniform);
        }
      } else {
        // [6] as [4, 3] of [2, 6]: a common part.
        Dims part(traces);
        for (size_t p = 0; p < traces; ++p) part[p] = std::gcd(f.at[p], want[p]);
        if (f.dynamic() || !constant(part) || part[0] == 1) {
          fits = false;
        } else {
          Factor outer{part, {}};
          for (int64_t& v : f.at) v /= part[0];
          add(outer, left.back().uniform);
        }
      }
    }
    if (constant(to[d])) {
      // Dynamic factors whose product is static would be strange.
      for (const Factor& f : out.factors)
        if (f.dynamic()) fits = false;
      out.factors.clear();
    }
    dims.push_back(std::move(out));
  }
  for (const Piece& p : left)
    if (!(constant(p.f.at) && p.f.at[0] == 1)) fits = false;
  if (fits) return {hlo::reshape(x.v, bounds), std::move(dims)};
  std::vector<Factors> targets;
  for (const Dims& at : to) {
    Factor f{at, constant(at) ? Value() : size_of(at)};
    targets.push_back({f});
  }
  const bool uniform = std::all_of(x.dims.begin(), x.dims.end(), [&](const Dim& d) {
    return d.uniform || (!d.dynamic() && x.v.dims()[&d - x.dims.data()] == 1);
  });
  Value flat = hlo::reshape(x.v, {x.v.elements()});
  if (!uniform) return move_elements(flat, from, targets);
  Known out;
  out.v = hlo::broadcast_to(hlo::reshape(hlo::slice_dim(flat, 0, 0, 1), {}), bounds);
  for (const Dims& at : to) out.dims.push_back(simple(at, true));
  return out;
}

}  // namespace torch_tpu::graph::bounds
