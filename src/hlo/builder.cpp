// SPDX-License-Identifier: Apache-2.0 - Recording of instructions and regions; inlining; dead code.
#include "src/hlo/builder.h"

#include <algorithm>
#include <set>

#include "src/hlo/attributes.h"

namespace torch_tpu::hlo {
namespace {

// Keeps the instructions whose results are marked live or that have effects, last first, marking
// what they use. A region's instructions are swept when their owner turns out to be live, which is
// before anything the region can capture is looked at.
void sweep(std::vector<Instr>& body, std::vector<char>& live) {
  size_t kept = body.size();
  for (size_t i = body.size(); i-- > 0;) {
    Instr& instr = body[i];
    bool needed = false;
    for (int32_t r = 0; r < instr.result_count; ++r) needed |= live[instr.first_result + r] != 0;
    if (!needed && !has_side_effect(instr)) continue;
    for (int32_t id : instr.operands) live[id] = 1;
    for (Region& region : instr.regions) {
      for (int32_t id : region.results) live[id] = 1;
      sweep(region.body, live);
    }
    if (--kept != i) body[kept] = std::move(instr);
  }
  body.erase(body.begin(), body.begin() + static_cast<std::ptrdiff_t>(kept));
}

// Regions that XLA wants self-contained: all they may use from outside are constants.
bool is_closed(std::string_view op) {
  return op == "stablehlo.reduce" || op == "stablehlo.reduce_window" || op == "stablehlo.scatter" ||
         op == "stablehlo.sort" || op == "stablehlo.all_reduce" || op == "stablehlo.reduce_scatter";
}

// Rewrites value ids through a table; -1 in the table means "not defined here".
struct Renumber {
  std::vector<int32_t> table;
  std::function<int32_t(int32_t old_id)> define;
  // When checking closed regions: new ids below `outside` belong to no open closed region, and
  // which new ids are constants.
  bool check_closed = false;
  int32_t outside = 0;
  int32_t next = 0;
  std::vector<char> constant;

  void uses(std::vector<int32_t>& ids, std::string_view op) const {
    for (int32_t& id : ids) {
      if (table[id] < 0) {
        fail(op, "uses a value of a region that is already closed; return it from the region");
      }
      id = table[id];
      if (id < outside && !constant[id]) {
        fail(op,
             "inside the region of a reduction, scatter or sort, uses a value from "
             "outside that is not a constant; make it an operand");
      }
    }
  }
  void add(int32_t old_id) {
    table[old_id] = define(old_id);
    next = table[old_id] + 1;
  }
  void body(std::vector<Instr>& instrs) {
    for (Instr& instr : instrs) {
      uses(instr.operands, instr.name);
      for (Region& r : instr.regions) region(r, instr.name);
      const int32_t old_first = instr.first_result;
      for (int32_t k = 0; k < instr.result_count; ++k) add(old_first + k);
      if (instr.result_count > 0) instr.first_result = table[old_first];
      if (check_closed) {
        constant.resize(next, 0);
        if (instr.name == "stablehlo.constant") constant[next - 1] = 1;
      }
    }
  }
  void region(Region& r, std::string_view op) {
    const int32_t outside_before = outside;
    if (check_closed && is_closed(op)) {
      constant.resize(next, 0);
      outside = next;
    }
    std::vector<std::pair<int32_t, int32_t>> defined;  // old ids: first, count
    defined.reserve(r.args.size() + r.body.size());
    for (int32_t& id : r.args) {
      defined.emplace_back(id, 1);
      add(id);
      id = table[defined.back().first];
    }
    for (const Instr& i : r.body) defined.emplace_back(i.first_result, i.result_count);
    body(r.body);
    uses(r.results, op);
    outside = outside_before;
    for (auto [first, count] : defined) {  // the scope ends
      for (int32_t k = 0; k < count; ++k) table[first + k] = -1;
    }
  }
};

void collect_captured(const Region& region, std::set<int32_t>& own, std::vector<int32_t>& out) {
  own.insert(region.args.begin(), region.args.end());
  auto use = [&](int32_t id) {
    if (!own.contains(id) && std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  };
  for (const Instr& instr : region.body) {
    for (int32_t id : instr.operands) use(id);
    for (const Region& inner : instr.regions) collect_captured(inner, own, out);
    for (int32_t k = 0; k < instr.result_count; ++k) own.insert(instr.first_result + k);
  }
  for (int32_t id : region.results) use(id);
}

}  // namespace

std::vector<int32_t> used_values(const Instr& instr) {
  std::vector<int32_t> out = instr.operands;
  if (instr.regions.empty()) return out;
  std::set<int32_t> own;
  std::vector<int32_t> captured;
  for (const Region& region : instr.regions) collect_captured(region, own, captured);
  out.insert(out.end(), captured.begin(), captured.end());
  return out;
}

bool has_side_effect(const Instr& instr) {
  if (instr.name == "stablehlo.custom_call" &&
      instr.attributes.find("has_side_effect = true") != std::string::npos) {
    return true;
  }
  for (const Region& region : instr.regions) {
    if (std::any_of(region.body.begin(), region.body.end(), has_side_effect)) return true;
  }
  return false;
}

int32_t Builder::new_value(Type type) {
  for (int64_t d : type.dims) {
    if (d < 0) throw BuildError("a value of type " + type.str() + " has a negative dimension");
  }
  types_.push_back(std::move(type));
  return static_cast<int32_t>(types_.size()) - 1;
}

Value Builder::param(Type type) {
  if (!open_.empty()) throw BuildError("param: called inside a region");
  const int32_t id = new_value(std::move(type));
  params_.push_back(id);
  return {this, id};
}

Values Builder::append(std::string name, std::span<const Value> operands, std::string attributes,
                       std::vector<Type> results, std::vector<Region> regions,
                       std::shared_ptr<const TextFunction> callee) {
  Instr instr;
  instr.operands.reserve(operands.size());
  for (const Value& x : operands) {
    if (&builder_of(name, x) != this) fail(name, "an operand belongs to another Builder");
    instr.operands.push_back(x.id());
  }
  instr.name = std::move(name);
  instr.attributes = std::move(attributes);
  instr.regions = std::move(regions);
  instr.callee = std::move(callee);
  instr.location = location_;
  instr.first_result = static_cast<int32_t>(types_.size());
  instr.result_count = static_cast<int32_t>(results.size());
  Values values;
  values.reserve(results.size());
  for (Type& type : results) values.emplace_back(this, new_value(std::move(type)));
  (open_.empty() ? body_ : *open_.back()).push_back(std::move(instr));
  return values;
}

Value Builder::append1(std::string name, std::span<const Value> operands, std::string attributes,
                       Type result) {
  Instr instr;
  instr.operands.reserve(operands.size());
  for (const Value& x : operands) {
    if (&builder_of(name, x) != this) fail(name, "an operand belongs to another Builder");
    instr.operands.push_back(x.id());
  }
  instr.name = std::move(name);
  instr.attributes = std::move(attributes);
  instr.location = location_;
  instr.first_result = new_value(std::move(result));
  const int32_t id = instr.first_result;
  (open_.empty() ? body_ : *open_.back()).push_back(std::move(instr));
  return {this, id};
}

Region Builder::region(const std::vector<Type>& args,
                       const std::function<Values(const Values&)>& fn) {
  Region region;
  Values values;
  for (const Type& type : args) {
    region.args.push_back(new_value(type));
    values.emplace_back(this, region.args.back());
  }
  struct Scope {
    std::vector<std::vector<Instr>*>& open;
    ~Scope() { open.pop_back(); }
  };
  open_.push_back(&region.body);
  Scope scope{open_};
  for (const Value& x : fn(values)) {
    if (&builder_of("region", x) != this) fail("region", "a result belongs to another Builder");
    region.results.push_back(x.id());
  }
  return region;
}

const Instr* Builder::source(const Value& x) const {
  const std::vector<Instr>& body = open_.empty() ? body_ : *open_.back();
  for (auto instr = body.rbegin(); instr != body.rend(); ++instr) {
    const int32_t result = x.id() - instr->first_result;
    if (result >= 0 && result < instr->result_count) return &*instr;
  }
  return nullptr;
}

Values Builder::inline_call(const Function& fn, std::span<const Value> args) {
  check_size("inline_call", "the argument list", args.size(), fn.params.size());
  Renumber renumber;
  renumber.table.assign(fn.types.size(), -1);
  for (size_t i = 0; i < args.size(); ++i) {
    if (&builder_of("inline_call", args[i]) != this) {
      fail("inline_call", "an argument belongs to another Builder");
    }
    const Type& expected = fn.types[fn.params[i]];
    if (args[i].type() != expected) {
      fail("inline_call", "argument " + std::to_string(i) + " is " + args[i].type().str() +
                              ", expected " + expected.str());
    }
    renumber.table[fn.params[i]] = args[i].id();
  }
  renumber.define = [&](int32_t old_id) { return new_value(fn.types[old_id]); };
  std::vector<Instr> copy = fn.body;
  renumber.body(copy);
  if (location_) {
    for (Instr& instr : copy) instr.location = location_;
  }
  std::vector<Instr>& target = open_.empty() ? body_ : *open_.back();
  std::move(copy.begin(), copy.end(), std::back_inserter(target));
  std::vector<int32_t> results = fn.results;
  renumber.uses(results, "inline_call");
  Values values;
  for (int32_t id : results) values.emplace_back(this, id);
  return values;
}

Values Builder::copy(const Function& fn, const Instr& instr, std::span<const Value> uses) {
  const auto first = fn.types.begin() + instr.first_result;
  return copy(fn, instr, uses, instr.attributes, {first, first + instr.result_count});
}

Values Builder::copy(const Function& fn, const Instr& instr, std::span<const Value> uses,
                     std::string attributes, std::vector<Type> results) {
  const std::vector<int32_t> used = used_values(instr);
  check_size("copy", "the list of values", uses.size(), used.size());
  const size_t operands = instr.operands.size();
  std::vector<Region> regions = instr.regions;
  if (!regions.empty()) {
    Renumber renumber;
    renumber.table.assign(fn.types.size(), -1);
    for (size_t i = operands; i < used.size(); ++i) {
      if (&builder_of("copy", uses[i]) != this) fail("copy", "a value of another Builder");
      renumber.table[used[i]] = uses[i].id();
    }
    renumber.define = [&](int32_t old_id) { return new_value(fn.types[old_id]); };
    for (Region& region : regions) renumber.region(region, instr.name);
  }
  Values made = append(instr.name, uses.first(operands), std::move(attributes), std::move(results),
                       std::move(regions), instr.callee);
  if (!location_) (open_.empty() ? body_ : *open_.back()).back().location = instr.location;
  return made;
}

Function Builder::finish(std::span<const Value> results) {
  if (!open_.empty()) throw BuildError("finish: called inside a region");
  Function fn;
  std::vector<char> live(types_.size(), 0);
  for (const Value& x : results) {
    if (&builder_of("finish", x) != this) fail("finish", "a result belongs to another Builder");
    live[x.id()] = 1;
    fn.results.push_back(x.id());
  }
  sweep(body_, live);
  Renumber renumber;
  renumber.check_closed = true;
  renumber.table.assign(types_.size(), -1);
  fn.types.reserve(types_.size());
  renumber.define = [&](int32_t old_id) {
    fn.types.push_back(std::move(types_[old_id]));
    return static_cast<int32_t>(fn.types.size()) - 1;
  };
  for (int32_t id : params_) {
    renumber.add(id);
    fn.params.push_back(renumber.table[id]);
  }
  renumber.body(body_);
  renumber.uses(fn.results, "finish");
  fn.body = std::move(body_);
  types_.clear();
  params_.clear();
  body_.clear();
  return fn;
}

}  // namespace torch_tpu::hlo
