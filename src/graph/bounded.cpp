// SPDX-License-Identifier: Apache-2.0 - Walks through the traces of a function, and which rule an instruction goes by.
#include "src/graph/bounder.h"

#include <algorithm>
#include <functional>

namespace torch_tpu::graph::bounds {

Region Bounder::copy_region(const Region& region) {
  std::vector<Type> types;
  for (int32_t id : region.args) types.push_back(fns_[0]->types[id]);
  return b_.region(types, [&](const Values& args) {
    for (size_t i = 0; i < args.size(); ++i)
      known_[region.args[i]] = {args[i], std::vector<Dim>(args[i].rank())};
    for (const Instr& instr : region.body) {
      Values operands;
      for (int32_t id : instr.operands) operands.push_back(known_[id].v);
      Values made = copy(instr, operands);
      for (size_t i = 0; i < made.size(); ++i)
        known_[instr.first_result + static_cast<int32_t>(i)] = {made[i],
                                                                std::vector<Dim>(made[i].rank())};
    }
    Values out;
    for (int32_t id : region.results) out.push_back(known_[id].v);
    return out;
  });
}

Values Bounder::copy(const Instr& instr, const Values& operands) {
  std::vector<Type> types;
  for (int32_t i = 0; i < instr.result_count; ++i)
    types.push_back(fns_[0]->types[instr.first_result + i]);
  std::vector<Region> regions;
  for (const Region& r : instr.regions) regions.push_back(copy_region(r));
  return b_.append(instr.name, operands, instr.attributes, std::move(types), std::move(regions),
                   instr.callee);
}

// Regions see no dynamic dimensions and are the same in all traces.
void Bounder::check_regions(const std::vector<const Instr*>& all) const {
  std::function<void(const std::vector<const Instr*>&)> check =
      [&](const std::vector<const Instr*>& now) {
        const Instr& first = *now[0];
        for (size_t g = 0; g < first.regions.size(); ++g) {
          const Region& region = first.regions[g];
          for (int32_t id : region.args)
            if (is_dynamic(id)) give_up(first.name + " carries a dynamic size");
          for (size_t i = 0; i < region.body.size(); ++i) {
            std::vector<const Instr*> inner;
            for (const Instr* instr : now) {
              if (instr->regions[g].body.size() != region.body.size())
                give_up("a region differs between sizes");
              inner.push_back(&instr->regions[g].body[i]);
              if (inner.back()->name != region.body[i].name ||
                  inner.back()->operands != region.body[i].operands ||
                  inner.back()->attributes != region.body[i].attributes)
                give_up("a region differs between sizes");
            }
            for (int32_t id : region.body[i].operands)
              if (is_dynamic(id)) give_up(first.name + " works on a dynamic size");
            for (int32_t k = 0; k < region.body[i].result_count; ++k)
              if (is_dynamic(region.body[i].first_result + k))
                give_up(first.name + " makes a dynamic size");
            check(inner);
          }
        }
      };
  check(all);
}

void Bounder::check_same_attributes(const std::vector<const Instr*>& all) const {
  for (const Instr* instr : all)
    if (instr->attributes != all[0]->attributes)
      give_up(instr->name + " depends on a size in a way that is not understood: " +
              all[0]->attributes + " and " + instr->attributes);
}

void Bounder::instruction(const std::vector<const Instr*>& all) {
  const Instr& instr = *all[0];
  std::vector<Known> xs;
  bool dynamic = false;
  for (int32_t id : instr.operands) {
    xs.push_back(known_[id]);
    dynamic = dynamic || is_dynamic(id);
  }
  bool empty = false;
  for (int32_t i = 0; i < instr.result_count; ++i) {
    dynamic = dynamic || is_dynamic(instr.first_result + i);
    empty = empty || fns_[0]->types[instr.first_result + i].elements() == 0;
  }
  const bool differs = std::any_of(
      all.begin(), all.end(), [&](const Instr* i) { return i->attributes != instr.attributes; });
  check_regions(all);
  auto set = [&](std::vector<Known> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      const int32_t id = instr.first_result + static_cast<int32_t>(i);
      if (out[i].v.type() != fns_[0]->types[id])
        give_up(instr.name + " has another type than it should: " + out[i].v.type().str());
      for (size_t d = 0; d < out[i].dims.size(); ++d)
        if (at_of(out[i], d) != extents(id, d))
          give_up(instr.name + " has another size than it should");
      known_[id] = std::move(out[i]);
    }
  };
  if (instr.name == "stablehlo.constant") return set({splat(all)});
  if (!dynamic && !differs) {
    Values operands;
    for (const Known& x : xs) operands.push_back(x.v);
    std::vector<Known> out;
    for (const Value& v : copy(instr, operands)) {
      Known k{v, std::vector<Dim>(v.rank())};
      out.push_back(std::move(k));
    }
    return set(std::move(out));
  }
  if (empty) {
    std::vector<Known> out;
    for (int32_t i = 0; i < instr.result_count; ++i) {
      const int32_t id = instr.first_result + i;
      out.push_back({hlo::zeros(b_, fns_[0]->types[id]), simple_dims(id, true)});
    }
    return set(std::move(out));
  }
  const size_t dot_at = instr.name.find('.');
  const std::string_view name = std::string_view(instr.name).substr(dot_at + 1);
  if (name == "slice") return set({slice(all, xs[0])});
  if (name == "pad") return set({pad(all, xs[0], xs[1])});
  if (name == "dynamic_slice") return set({dynamic_slice(all, xs)});
  if (name == "convolution") return set({convolution(all, xs[0], xs[1])});
  if (name == "reduce_window") return set(reduce_window(all, xs));
  if (name == "gather") {
    // The sizes of windows may be sizes of the operand.
    const Dims sizes = array(instr, "slice_sizes");
    for (size_t d = 0; d < sizes.size(); ++d) {
      const Dims size = across(all, "slice_sizes", d);
      if (!constant(size) && size != at_of(xs[0], d))
        give_up("a gather of windows of dynamic size");
      // (All of it in every trace, or never.)
      if (constant(size) && xs[0].dims[d].dynamic() && size[0] == xs[0].v.dims()[d] && size[0] != 1)
        give_up("a gather of windows that are sometimes everything");
    }
    return set({gather(instr, xs[0], xs[1])});
  }
  if (name == "broadcast_in_dim") {
    check_same_attributes(all);
    const Dims where = array(instr, "broadcast_dimensions");
    std::vector<Dim> dims = simple_dims(instr.first_result, true);
    for (size_t i = 0; i < where.size(); ++i)
      if (at_of(xs[0], i) == extents(instr.first_result, static_cast<size_t>(where[i])))
        dims[where[i]] = xs[0].dims[i];
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "reshape") {
    std::vector<Dims> to;
    for (size_t d = 0; d < fns_[0]->types[instr.first_result].dims.size(); ++d)
      to.push_back(extents(instr.first_result, d));
    return set({regroup(xs[0], to)});
  }
  check_same_attributes(all);
  if (hlo::is_pointwise(name)) {
    std::vector<Known*> shaped;
    for (Known& x : xs)
      if (!x.dims.empty()) shaped.push_back(&x);
    std::vector<Dim> dims = agree(shaped);
    for (size_t d = 0; d < dims.size(); ++d)
      for (Known* x : shaped) dims[d].uniform = dims[d].uniform && x->dims[d].uniform;
    Values operands;
    for (const Known& x : xs) operands.push_back(x.v);
    std::vector<Known> out;
    for (const Value& v : copy(instr, operands)) out.push_back({v, dims});
    return set(std::move(out));
  }
  if (name == "transpose") {
    std::vector<Dim> dims;
    for (int64_t d : array(instr, "permutation")) dims.push_back(xs[0].dims[d]);
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "bitcast_convert") {
    const size_t rank = fns_[0]->types[instr.first_result].dims.size();
    std::vector<Dim> dims(
        xs[0].dims.begin(),
        xs[0].dims.begin() + static_cast<std::ptrdiff_t>(std::min(rank, xs[0].dims.size())));
    if (rank != xs[0].dims.size() && !xs[0].dims.empty() && xs[0].dims.back().dynamic() &&
        rank < xs[0].dims.size())
      give_up("bits of a dynamic dimension");
    dims.resize(rank);
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "iota") {
    const auto d = static_cast<size_t>(number(instr, "iota_dimension"));
    std::vector<Dim> dims = simple_dims(instr.first_result, true);
    dims[d].uniform = false;
    return set({{copy(instr, {})[0], dims}});
  }
  if (name == "top_k") {
    const size_t last = xs[0].dims.size() - 1;
    std::vector<Dim> dims = xs[0].dims;
    dims[last] = simple(extents(instr.first_result, last));
    Value v = xs[0].v;
    if (xs[0].dims[last].dynamic()) {
      if (v.dtype() != DType::F32) give_up("top_k of " + v.type().str());
      make_simple(xs[0], last);
      // The least value of the total order that it sorts by.
      Value least = hlo::bitcast_convert(s32(-1), DType::F32);
      v = masked(xs[0], {static_cast<int64_t>(last)}, least);
    }
    std::vector<Known> out;
    for (const Value& made : copy(instr, {v})) out.push_back({made, dims});
    return set(std::move(out));
  }
  if (name == "reduce") return set(reduce(instr, xs));
  if (name == "dot_general") return set({dot(instr, xs[0], xs[1])});
  if (name == "concatenate") return set({concatenate(instr, xs)});
  if (name == "reverse") return set({reverse(instr, xs[0])});
  if (name == "dynamic_update_slice") return set({dynamic_update_slice(xs)});
  if (name == "sort") return set(sort(instr, xs));
  if (name == "scatter") return set({scatter(instr, xs)});
  if (name == "cholesky" || name == "fft" || name == "triangular_solve") {
    const size_t rank = xs[0].dims.size();
    for (const Known& x : xs)
      for (size_t d = rank - std::min<size_t>(rank, name == "fft" ? 3 : 2); d < rank; ++d)
        if (x.dims[d].dynamic()) give_up(instr.name + " of a dynamic size");
    std::vector<Known*> shaped;
    for (Known& x : xs) shaped.push_back(&x);
    Values operands;
    std::vector<Dim> dims = agree(shaped);
    for (Dim& dim : dims) dim.uniform = false;
    for (const Known& x : xs) operands.push_back(x.v);
    return set({{copy(instr, operands)[0], dims}});
  }
  give_up(instr.name + " has no rule for dynamic sizes");
}

Values Bounder::run(const std::function<Value(size_t)>& param) {
  const Function& f = *fns_[0];
  for (const Function* other : fns_) {
    // Say where, if it can be told.
    for (size_t i = 0; i < std::min(f.body.size(), other->body.size()); ++i)
      if (other->body[i].name != f.body[i].name)
        give_up("the program has another form at other sizes (" + f.body[i].name + ", " +
                other->body[i].name + ")");
    if (other->params.size() != f.params.size() || other->body.size() != f.body.size() ||
        other->results != f.results)
      give_up("the program has another form at other sizes");
  }
  known_.resize(f.types.size());
  auto flat_of = [&](const std::vector<Dims>& to) {
    Dims total(fns_.size(), 1);
    for (const Dims& at : to)
      for (size_t p = 0; p < total.size(); ++p) total[p] *= at[p];
    return total;
  };
  auto all_extents = [&](int32_t id) {
    std::vector<Dims> to;
    for (size_t d = 0; d < f.types[id].dims.size(); ++d) to.push_back(extents(id, d));
    return to;
  };
  for (size_t i = 0; i < f.params.size(); ++i) {
    const int32_t id = f.params[i];
    Value v = param(i);
    if (!is_dynamic(id)) {
      if (v.type() != f.types[id]) give_up("a parameter has another type: " + v.type().str());
      known_[id] = {v, std::vector<Dim>(v.rank())};
      continue;
    }
    const std::vector<Dims> to = all_extents(id);
    known_[id] = regroup({v, {simple(flat_of(to))}}, to);
  }
  for (size_t i = 0; i < f.body.size(); ++i) {
    std::vector<const Instr*> all;
    for (const Function* fn : fns_) {
      all.push_back(&fn->body[i]);
      const Instr &a = f.body[i], &c = fn->body[i];
      if (a.name != c.name || a.operands != c.operands || a.first_result != c.first_result ||
          a.result_count != c.result_count || a.regions.size() != c.regions.size())
        give_up("the program has another form at other sizes (" + a.name + ", " + c.name + ")");
    }
    instruction(all);
  }
  Values out;
  for (int32_t id : f.results) {
    if (!is_dynamic(id)) {
      out.push_back(known_[id].v);
      continue;
    }
    Known flat = regroup(known_[id], {flat_of(all_extents(id))});
    make_simple(flat, 0);
    out.push_back(flat.v);
  }
  return out;
}

}  // namespace torch_tpu::graph::bounds

namespace torch_tpu::graph {

hlo::Values bounded_call(hlo::Builder& b, const BoundedTraces& traces, const hlo::Values& sizes,
                         const std::function<hlo::Value(size_t)>& param) {
  return bounds::Bounder(b, traces, sizes).run(param);
}

}  // namespace torch_tpu::graph
