// SPDX-License-Identifier: Apache-2.0 - Rules for what finds elements by value or by index: sort, gather, scatter.
#include "src/graph/bounder.h"

#include <algorithm>

namespace torch_tpu::graph::bounds {

std::vector<Known> Bounder::sort(const Instr& instr, std::vector<Known> xs) {
  const auto d = static_cast<size_t>(number(instr, "dimension"));
  const bool stable = instr.attributes.find("is_stable = true") != std::string::npos;
  std::vector<Known*> all;
  Values operands;
  for (Known& x : xs) {
    make_simple(x, d);
    all.push_back(&x);
  }
  std::vector<Dim> dims = agree(all);
  for (Known& x : xs) operands.push_back(x.v);
  for (Dim& dim : dims) dim.uniform = false;
  std::vector<Known> out;
  if (!dims[d].dynamic()) {
    for (const Value& v : copy(instr, operands)) out.push_back({v, dims});
    return out;
  }
  // What is behind the end sorts behind everything.
  Value inside = mask_along(dims[d], operands[0].dims()[d]);
  operands.push_back(hlo::broadcast_in_dim(inside, operands[0].dims(), {static_cast<int64_t>(d)}));
  const Region& region = instr.regions[0];
  Values sorted =
      hlo::sort(operands, static_cast<int64_t>(d), stable, [&](const Values& l, const Values& r) {
        for (size_t i = 0; i < xs.size(); ++i) {
          known_[region.args[2 * i]] = {l[i], {}};
          known_[region.args[2 * i + 1]] = {r[i], {}};
        }
        for (const Instr& inner : region.body) {
          Values ops;
          for (int32_t id : inner.operands) ops.push_back(known_[id].v);
          Values made = copy(inner, ops);
          for (size_t i = 0; i < made.size(); ++i)
            known_[inner.first_result + static_cast<int32_t>(i)] = {made[i], {}};
        }
        Value less = known_[region.results[0]].v;
        return l.back() & (~r.back() | less);
      });
  for (size_t i = 0; i < xs.size(); ++i) out.push_back({sorted[i], dims});
  return out;
}

Known Bounder::gather(const Instr& instr, Known x, Known indices) {
  const Dims offset = list(instr, "offset_dims"), collapsed = list(instr, "collapsed_slice_dims"),
             batching = list(instr, "operand_batching_dims"),
             index_batching = list(instr, "start_indices_batching_dims"),
             map = list(instr, "start_index_map"), sizes = array(instr, "slice_sizes");
  const Dims vector = integers(attribute(instr.attributes, "index_vector_dim"), '>');
  const int64_t vector_dim = vector.empty() ? 0 : vector[0];
  const int32_t id = instr.first_result;
  for (size_t i = 0; i < batching.size(); ++i)
    agree_along(x, batching[i], indices, index_batching[i]);
  std::vector<Dim> windows, batches;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (contains(batching, at)) continue;
    const bool is_all = sizes[d] == x.v.dims()[d] && !contains(collapsed, at);
    if (contains(map, at)) make_simple(x, d);
    if (contains(collapsed, at)) continue;
    windows.push_back(is_all ? x.dims[d] : Dim());
  }
  for (size_t d = 0; d < indices.dims.size(); ++d)
    if (static_cast<int64_t>(d) != vector_dim) batches.push_back(indices.dims[d]);
  std::vector<Dim> dims;
  size_t w = 0, k = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(fns_[0]->types[id].dims.size()); ++d) {
    dims.push_back(contains(offset, d) ? windows.at(w++) : batches.at(k++));
    if (contains(offset, d)) continue;
    // Different elements of x, unless they cannot differ.
    bool same_x = true;
    for (size_t b = 0; b < batching.size(); ++b) same_x = same_x && x.dims[batching[b]].uniform;
    dims.back().uniform = dims.back().uniform && same_x;
  }
  return {copy(instr, {x.v, indices.v})[0], dims};
}

Known Bounder::scatter(const Instr& instr, std::vector<Known> xs) {
  if (xs.size() != 3) give_up("a scatter of several values");
  Known &x = xs[0], &indices = xs[1], &updates = xs[2];
  const Dims window = list(instr, "update_window_dims"),
             inserted = list(instr, "inserted_window_dims"),
             batching = list(instr, "input_batching_dims"),
             index_batching = list(instr, "scatter_indices_batching_dims"),
             map = list(instr, "scatter_dims_to_operand_dims");
  const Dims vector = integers(attribute(instr.attributes, "index_vector_dim"), '>');
  const int64_t vector_dim = vector.empty() ? 0 : vector[0];
  for (size_t i = 0; i < batching.size(); ++i)
    agree_along(x, batching[i], indices, index_batching[i]);
  for (int64_t d : map) make_simple(x, static_cast<size_t>(d));
  // Windows are all of the operand's dimension where they are dynamic.
  size_t w = 0;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (contains(inserted, at) || contains(batching, at)) continue;
    const auto u = static_cast<size_t>(window.at(w++));
    if (!updates.dims[u].dynamic() && !x.dims[d].dynamic()) continue;
    if (contains(map, at) || at_of(updates, u) != at_of(x, d))
      give_up("a scatter of windows of dynamic size");
    agree_along(x, d, updates, u);
  }
  std::vector<size_t> batch_of_updates;
  for (size_t d = 0; d < updates.dims.size(); ++d)
    if (!contains(window, static_cast<int64_t>(d))) batch_of_updates.push_back(d);
  Dims mask;
  size_t k = 0;
  for (size_t d = 0; d < indices.dims.size(); ++d) {
    if (static_cast<int64_t>(d) == vector_dim) continue;
    agree_along(indices, d, updates, batch_of_updates.at(k++));
    if (!contains(index_batching, static_cast<int64_t>(d))) mask.push_back(static_cast<int64_t>(d));
  }
  // An index that is out of range is dropped.
  Value at = masked(indices, mask, hlo::max_finite(b_, indices.v.dtype()));
  for (Dim& dim : x.dims) dim.uniform = false;
  return {copy(instr, {x.v, at, updates.v})[0], x.dims};
}

}  // namespace torch_tpu::graph::bounds
