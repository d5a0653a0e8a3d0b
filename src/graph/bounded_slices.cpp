// SPDX-License-Identifier: Apache-2.0 - Rules for what moves whole windows: slices, padding, concatenation, reversal, updates.
#include "src/graph/bounder.h"

#include <algorithm>

namespace torch_tpu::graph::bounds {

Known Bounder::slice(const std::vector<const Instr*>& all, Known x) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  const Dims start = array(instr, "start_indices"), limit = array(instr, "limit_indices"),
             strides = array(instr, "strides");
  const size_t rank = start.size();
  std::vector<Dim> dims(rank);
  std::vector<std::pair<size_t, Dims>> moving;
  Dims static_start = start, static_limit = limit;
  for (size_t d = 0; d < rank; ++d) {
    const Dims from = across(all, "start_indices", d), step = across(all, "strides", d);
    const Dims to = across(all, "limit_indices", d), out = extents(id, d);
    if (!x.dims[d].dynamic()) {
      if (!constant(from) || !constant(to) || !constant(step)) {
        // A window of a static dimension whose place depends on a size.
        if (!constant(step) || step[0] != 1) give_up("a slice with a step that depends on a size");
        dims[d] = simple(out);
        if (!constant(from)) moving.emplace_back(d, from);
      } else {
        dims[d].uniform = x.dims[d].uniform;
      }
      continue;
    }
    if (constant(from) && from[0] == 0 && constant(step) && step[0] == 1 && to == at_of(x, d)) {
      dims[d] = x.dims[d];  // all of it
      continue;
    }
    make_simple(x, d);
    if (!constant(step)) give_up("a slice with a step that depends on a size");
    if (!constant(from)) {
      if (step[0] != 1) give_up("a slice with a step that starts at a dynamic place");
      moving.emplace_back(d, from);
    }
    dims[d].uniform = x.dims[d].uniform;
    if (constant(out)) {
      if (step[0] != 1 && !constant(to)) give_up("a slice with large steps over a dynamic size");
      continue;
    }
    if (step[0] == 1) {
      dims[d] = simple(out, x.dims[d].uniform);
      continue;
    }
    // ceil((limit - start) / step)
    Value size = constant(to) ? s32(to[0]) : size_of(to);
    size = hlo::maximum(size - static_cast<double>(from[0]) + static_cast<double>(step[0] - 1), 0);
    size = hlo::divide(size, s32(step[0]));
    table_.emplace_back(out, size);
    dims[d].factors = {{out, size}};
  }
  // What starts at a dynamic place is cut out last.
  for (auto& [d, from] : moving) {
    static_start[d] = 0;
    static_limit[d] = x.v.dims()[d];
  }
  Known out{hlo::slice(x.v, static_start, static_limit, strides), dims};
  if (moving.empty()) return out;
  Values starts(rank, s32(0));
  Dims sizes = fns_[0]->types[id].dims;
  Dims none(rank, 0), room(rank, 0);
  for (auto& [d, from] : moving) {
    starts[d] = size_of(from);
    if (dims[d].dynamic()) room[d] = sizes[d];  // the window at the bounds may reach over the end
  }
  out.v = hlo::dynamic_slice(hlo::pad(out.v, zero(out.v), none, room), starts, sizes);
  return out;
}

Known Bounder::pad(const std::vector<const Instr*>& all, Known x, const Known& value) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  std::vector<Dim> dims(x.dims.size());
  Dims mask;
  for (size_t d = 0; d < dims.size(); ++d) {
    const Dims low = across(all, "edge_padding_low", d), high = across(all, "edge_padding_high", d),
               inner = across(all, "interior_padding", d);
    const Dims out = extents(id, d);
    auto all_zero = [](const Dims& v) {
      return std::all_of(v.begin(), v.end(), [](int64_t i) { return i == 0; });
    };
    if (all_zero(low) && all_zero(high) && all_zero(inner)) {
      dims[d] = x.dims[d];
      continue;
    }
    if (!constant(low) || !constant(inner)) give_up("padding in front depends on a size");
    make_simple(x, d);
    if (x.dims[d].dynamic()) mask.push_back(static_cast<int64_t>(d));
    dims[d] = simple(out);
  }
  const Value operands[] = {masked(x, mask, value.v), value.v};
  return {copy(instr, {operands[0], operands[1]})[0], dims};
}

Known Bounder::concatenate(const Instr& instr, std::vector<Known> xs) {
  const auto d = static_cast<size_t>(number(instr, "dimension"));
  const int32_t id = instr.first_result;
  bool any = false;
  for (Known& x : xs) {
    make_simple(x, d);
    any = any || x.dims[d].dynamic();
  }
  std::vector<Dim> along;
  for (Known& x : xs) {
    along.push_back(x.dims[d]);
    x.dims[d] = {};
  }
  std::vector<Known*> all;
  for (Known& x : xs) all.push_back(&x);
  std::vector<Dim> dims = agree(all);
  for (Dim& dim : dims) dim.uniform = false;
  Values values;
  for (const Known& x : xs) values.push_back(x.v);
  if (!any) {
    dims[d] = {};
    return {copy(instr, values)[0], dims};
  }
  // Each takes its place after the real end of those before it.
  const Type& type = fns_[0]->types[id];
  Value out = hlo::zeros(b_, type);
  Value at = s32(0);
  for (size_t i = 0; i < xs.size(); ++i) {
    Values starts(type.rank(), s32(0));
    starts[d] = at;
    out = hlo::dynamic_update_slice(out, values[i], starts);
    at = at + (along[i].dynamic() ? along[i].factors[0].size : s32(values[i].dims()[d]));
  }
  const Dims total = extents(id, d);
  table_.emplace_back(total, at);
  dims[d] = {{{total, at}}, false};
  return {out, dims};
}

Known Bounder::reverse(const Instr& instr, Known x) {
  const Dims which = array(instr, "dimensions");
  for (int64_t d : which) make_simple(x, static_cast<size_t>(d));
  Value v = copy(instr, {x.v})[0];
  for (int64_t d : which) {
    const Dim& dim = x.dims[d];
    if (!dim.dynamic()) continue;
    // The real elements are at the end now.
    const int64_t n = v.dims()[d];
    Dims low(v.rank(), 0), high(v.rank(), 0);
    high[d] = n;
    Values starts(v.rank(), s32(0));
    starts[d] = s32(n) - dim.factors[0].size;
    v = hlo::dynamic_slice(hlo::pad(v, zero(v), low, high), starts, x.v.dims());
  }
  return {v, x.dims};
}

// XLA moves a start so that the window fits, which has to mean the real size.
Value Bounder::start_inside(const Known& start, const Known& x, size_t d, int64_t size) {
  if (!x.dims[d].dynamic()) return start.v;
  Value last = hlo::convert(x.dims[d].factors[0].size, start.v.dtype()) - static_cast<double>(size);
  return hlo::maximum(hlo::minimum(start.v, last), 0);
}

Known Bounder::dynamic_slice(const std::vector<const Instr*>& all, std::vector<Known> xs) {
  const Instr& instr = *all[0];
  Known& x = xs[0];
  const Dims sizes = array(instr, "slice_sizes");
  std::vector<Dim> dims(x.dims.size());
  Values operands = {x.v};
  for (size_t d = 0; d < dims.size(); ++d) {
    const Dims size = across(all, "slice_sizes", d);
    if (size == at_of(x, d)) {
      dims[d] = x.dims[d];
      operands.push_back(hlo::zeros_like(xs[d + 1].v));
    } else if (constant(size)) {
      make_simple(x, d);
      dims[d].uniform = x.dims[d].uniform;
      operands.push_back(start_inside(xs[d + 1], x, d, size[0]));
    } else {
      // A dynamic window: room behind the end, so that it need not be moved.
      make_simple(x, d);
      dims[d] = simple(size);
      Value start = xs[d + 1].v;
      Value room =
          hlo::convert(x.dims[d].dynamic() ? x.dims[d].factors[0].size : s32(x.v.dims()[d]),
                       start.dtype()) -
          hlo::convert(dims[d].factors[0].size, start.dtype());
      operands.push_back(hlo::maximum(hlo::minimum(start, room), 0));
      Dims low(x.v.rank(), 0), high(x.v.rank(), 0);
      high[d] = size[0];
      x.v = hlo::pad(x.v, zero(x.v), low, high);
    }
  }
  operands[0] = x.v;
  return {hlo::dynamic_slice(x.v, std::span(operands).subspan(1), sizes), dims};
}

Known Bounder::dynamic_update_slice(std::vector<Known> xs) {
  Known& x = xs[0];
  Known& update = xs[1];
  const size_t rank = x.dims.size();
  Values starts;
  Dims grow(rank, 0), none(rank, 0), partial;
  for (size_t d = 0; d < rank; ++d) {
    const Value start = xs[d + 2].v;
    if (at_of(update, d) == at_of(x, d)) {
      agree_along(x, d, update, d);
      starts.push_back(hlo::zeros_like(start));
      continue;
    }
    make_simple(x, d);
    make_simple(update, d);
    const Dim& to = x.dims[d];
    const Dim& part = update.dims[d];
    if (!part.dynamic()) {
      starts.push_back(start_inside(xs[d + 2], x, d, update.v.dims()[d]));
      continue;
    }
    Value room =
        hlo::convert(to.dynamic() ? to.factors[0].size : s32(x.v.dims()[d]), start.dtype()) -
        hlo::convert(part.factors[0].size, start.dtype());
    starts.push_back(hlo::maximum(hlo::minimum(start, room), 0));
    grow[d] = update.v.dims()[d];
    partial.push_back(static_cast<int64_t>(d));
  }
  if (partial.empty()) return {hlo::dynamic_update_slice(x.v, update.v, starts), x.dims};
  // What is behind the update's real end stays as it was.
  Value old = hlo::pad(x.v, zero(x.v), none, grow);
  Value window = hlo::dynamic_slice(old, starts, update.v.dims());
  Value mask;
  for (int64_t d : partial) {
    Value m =
        hlo::broadcast_in_dim(mask_along(update.dims[d], update.v.dims()[d]), update.v.dims(), {d});
    mask = mask ? mask & m : m;
  }
  Value out = hlo::dynamic_update_slice(old, hlo::select(mask, update.v, window), starts);
  return {hlo::slice(out, none, x.v.dims(), Dims(rank, 1)), x.dims};
}

}  // namespace torch_tpu::graph::bounds
