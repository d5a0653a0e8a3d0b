// SPDX-License-Identifier: Apache-2.0 - Finds repeated runs of instructions, sorts out what flows between turns, writes loops.
#include "src/graph/loops.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>

#include "src/graph/key.h"
#include "src/hlo/attributes.h"

namespace torch_tpu::graph {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::DType;
using hlo::Function;
using hlo::Instr;
using hlo::Region;
using hlo::Type;
using hlo::Value;
using hlo::Values;

constexpr size_t kPeriods = 64;           // candidates looked at in a round
constexpr int64_t kSmallStack = 1 << 16;  // bytes that may be put together from parts anywhere
constexpr int kAgain = 12;                // instructions that a loop may do again to save memory

std::string_view bare(const Instr& instr) {
  return std::string_view(instr.name).substr(instr.name.find('.') + 1);
}

bool only_moves(std::string_view op) {
  return op == "broadcast_in_dim" || op == "reshape" || op == "transpose" || op == "slice";
}

// Done to a stack by a loop of its own, as there is no such instruction for many at once: of
// tensors that lie in one buffer (sharded gradients) at positions that are known when the program
// runs.
bool one_by_one(std::string_view op) { return op == "dynamic_slice"; }

Type stacked(const Type& type, int64_t count) {
  Type out = type;
  out.dims.insert(out.dims.begin(), count);
  return out;
}

// What an instruction does, whatever values it does it to.
class Hasher {
 public:
  explicit Hasher(const Function& fn) : fn_(fn) {}

  void instr(const Instr& instr) {
    hash_.bytes(instr.name);
    hash_.bytes(instr.attributes);
    if (instr.callee) hash_.bytes(instr.callee->name);
    hash_.word(instr.operands.size());
    for (int32_t id : instr.operands) use(id);
    for (const Region& region : instr.regions) this->region(region);
    hash_.word(static_cast<uint64_t>(instr.result_count));
    for (int32_t k = 0; k < instr.result_count; ++k) type(fn_.types[instr.first_result + k]);
  }
  Key finish() const { return hash_.finish(); }

 private:
  void region(const Region& region) {
    hash_.word(region.args.size());
    for (int32_t id : region.args) {
      type(fn_.types[id]);
      own(id);
    }
    hash_.word(region.body.size());
    for (const Instr& i : region.body) {
      instr(i);
      for (int32_t k = 0; k < i.result_count; ++k) own(i.first_result + k);
    }
    hash_.word(region.results.size());
    for (int32_t id : region.results) use(id);
  }
  void own(int32_t id) { own_.emplace(id, own_.size()); }
  // A value from outside counts by its type, and within regions by its place among those.
  void use(int32_t id) {
    if (auto found = own_.find(id); found != own_.end()) {
      hash_.word(1 + 2 * found->second);
      return;
    }
    hash_.word(0);
    type(fn_.types[id]);
  }
  void type(const Type& t) {
    hash_.word(static_cast<uint64_t>(t.dtype) << 32 | t.dims.size());
    for (int64_t d : t.dims) hash_.word(static_cast<uint64_t>(d));
  }

  const Function& fn_;
  KeyHasher hash_;
  std::unordered_map<int32_t, uint64_t> own_;
};

// A family is a value for each turn. It is found in a stack, where turn k's is at offset + step *
// k.
struct Source {
  int32_t stack = -1;
  int32_t offset = 0, step = 1;
};

// What a turn uses in one place.
struct Slot {
  enum Kind : uint8_t {
    Inner,    // of the same turn: position, result
    Carried,  // carry `index`
    Fixed,    // the same value in all turns: `index`
    Along,    // each turn its own: source
  } kind = Fixed;
  int32_t index = 0, result = 0;
  Source source;
};

struct Carry {
  int32_t position = 0, result = 0;  // what is handed to the next turn
  int32_t init = 0;
  int32_t stack = -1;  // what the turns begin with
};

// Instructions that are done together: the turns of a loop, or one instruction on a stack. Labels
// number the instances; a loop that goes through its stacks from the end has labels that fall.
struct Group {
  bool loop = false;
  int32_t count = 0, period = 1;
  int32_t start = 0;                     // of a loop: its first instruction
  bool falling = false;                  // of a loop
  std::vector<int32_t> members;          // of one instruction on a stack, by label
  std::vector<std::vector<Slot>> slots;  // by position and use
  std::vector<Carry> carries;
  std::vector<std::vector<int32_t>> stacks;  // by position and result
  std::set<std::pair<int32_t, int32_t>>
      last;  // position and result that are wanted of the last turn

  int32_t turn(int32_t label) const { return falling ? count - 1 - label : label; }
  int32_t instruction(int32_t label, int32_t position) const {
    return loop ? start + turn(label) * period + position : members[label];
  }
};

struct Stack {
  enum Kind : uint8_t {
    Result,  // of a group
    Begin,   // of a loop: what its turns begin with
    Given,   // made of values from anywhere
  } kind = Given;
  int32_t group = -1, position = 0, index = 0;  // result, or carry
  std::vector<int32_t> members;
  bool wanted = false;
  Value value;
};

class Looper {
 public:
  Looper(const Function& fn, const LoopOptions& options) : fn_(fn), options_(options) {}

  std::optional<Looped> run();

 private:
  // ---- facts ----
  void learn();
  int32_t value_of(int32_t instruction, int32_t result) const {
    return fn_.body[instruction].first_result + result;
  }
  const Type& type(int32_t value) const { return fn_.types[value]; }
  bool is_param(int32_t value) const { return def_[value] < 0; }

  // ---- finding loops ----
  struct Run {
    int32_t start, period,
        length;  // `length` instructions from start on repeat those a period before
    int64_t saves() const { return static_cast<int64_t>(length) - period; }
  };
  std::vector<Run> runs();
  int64_t saved_within(const Run& run, const std::vector<Run>& all) const;
  bool make_loop(const Run& run);
  bool consistent(int32_t start, int32_t period, int32_t count) const;
  int64_t crossing(int32_t start, int32_t period) const;
  void classify(Group& group);
  void classify();
  bool trim();

  // ---- stacks ----
  std::optional<Source> find(const std::vector<int32_t>& members) const;
  Source find_or_give(const std::vector<int32_t>& members);
  int32_t add_stack(Stack stack);
  void add_result_stacks(int32_t group);

  // ---- instructions on stacks ----
  void stack_instructions();
  bool stack_instruction(const std::vector<int32_t>& members, int depth);

  // ---- what the loops must give ----
  void plan();
  bool can_do_again(const Source& source, int& left) const;
  bool can_do_again(const Group& g, int32_t position, const Source& source, int& left) const;
  void want(int32_t value);
  void want(const Source& source) { stacks_[source.stack].wanted = true; }
  Source through(const Source& inner, const Source& outer) const {
    return {inner.stack, inner.offset + inner.step * outer.offset, inner.step * outer.step};
  }

  // ---- writing ----
  bool order(std::vector<int32_t>& nodes);
  Value get(int32_t value);
  Value stack(int32_t index);
  Value whole(const Source& source, int32_t count);
  Value element(const Value& stack, const Value& index);
  void write_loop(Group& group);
  void write_stacked(Group& group);
  void write_one_by_one(Group& group);
  Value again(Builder& b, const Source& source, const std::function<Value(const Source&)>& element);
  Values zero_starts(const Value& first, int64_t rank);
  void arguments();
  void set_location(const Instr* instr) {
    b_.set_location(instr != nullptr ? instr->location : nullptr);
  }

  const Function& fn_;
  const LoopOptions options_;
  std::vector<std::vector<int32_t>> uses_;  // by instruction
  std::vector<int32_t> def_;                // by value: the instruction, or -1 for parameters
  std::vector<int32_t> keys_, number_;      // by instruction; by value: equal where values are
  std::vector<char> effects_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> users_;  // by value: instruction, use
  std::vector<int32_t> group_of_, label_of_, position_of_;       // by instruction
  std::vector<Group> groups_;
  std::vector<Stack> stacks_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> homes_;  // by value: stack, index

  Builder b_;
  std::vector<Value> values_;  // by old value
  Looped out_;
};

// ---- facts -------------------------------------------------------------------------------------

void Looper::learn() {
  const size_t n = fn_.body.size();
  def_.assign(fn_.types.size(), -1);
  number_.assign(fn_.types.size(), -1);
  users_.resize(fn_.types.size());
  homes_.resize(fn_.types.size());
  uses_.resize(n);
  keys_.resize(n);
  effects_.resize(n);
  group_of_.assign(n, -1);
  label_of_.assign(n, 0);
  position_of_.assign(n, 0);
  std::unordered_map<Key, int32_t, KeyHash> keys, numbers;
  int32_t number = 0;
  for (int32_t id : fn_.params) number_[id] = number++;
  for (size_t i = 0; i < n; ++i) {
    const Instr& instr = fn_.body[i];
    const auto at = static_cast<int32_t>(i);
    uses_[i] = hlo::used_values(instr);
    for (size_t u = 0; u < uses_[i].size(); ++u)
      users_[uses_[i][u]].emplace_back(at, static_cast<int32_t>(u));
    effects_[i] = hlo::has_side_effect(instr) ? 1 : 0;
    Hasher hash(fn_);
    hash.instr(instr);
    const Key key = hash.finish();
    keys_[i] = keys.emplace(key, static_cast<int32_t>(keys.size())).first->second;
    KeyHasher same;
    same.word(key.hi);
    same.word(key.lo);
    for (int32_t id : uses_[i]) same.word(static_cast<uint64_t>(number_[id]));
    if (effects_[i]) same.word(i + 1);
    const auto [found, is_new] = numbers.emplace(same.finish(), number);
    if (is_new) number += instr.result_count;
    for (int32_t k = 0; k < instr.result_count; ++k) {
      def_[instr.first_result + k] = at;
      number_[instr.first_result + k] = found->second + k;
    }
  }
}

// ---- finding loops -----------------------------------------------------------------------------

// Stretches that repeat, those that save most first. A period is the distance of two instructions
// that do the same; the candidates are those that most instructions vote for.
std::vector<Looper::Run> Looper::runs() {
  const auto n = static_cast<int32_t>(fn_.body.size());
  std::vector<std::vector<int32_t>> where(n);
  auto free = [&](int32_t i) { return group_of_[i] < 0 && !effects_[i]; };
  for (int32_t i = 0; i < n; ++i)
    if (free(i)) where[keys_[i]].push_back(i);
  std::unordered_map<int32_t, int64_t> votes;
  for (const auto& at : where) {
    // A layer may have a few of them; what it has many of tells nothing.
    for (size_t k = 0; k < at.size(); ++k)
      for (size_t m = 1; m <= 16 && m <= k; ++m) ++votes[at[k] - at[k - m]];
  }
  std::vector<std::pair<int64_t, int32_t>> ranked;
  for (const auto& [period, count] : votes)
    if (count >= options_.turns && period > 1) ranked.emplace_back(-count, period);
  std::sort(ranked.begin(), ranked.end());
  if (ranked.size() > kPeriods) ranked.resize(kPeriods);
  std::vector<Run> out;
  for (const auto& [count, period] : ranked) {
    int32_t begin = -1;
    for (int32_t i = 0; i <= n - period; ++i) {
      const bool repeats =
          i < n - period && free(i) && free(i + period) && keys_[i] == keys_[i + period];
      if (repeats) {
        if (begin < 0) begin = i;
        continue;
      }
      if (begin >= 0) {
        const Run run{begin, period, i - begin + period};
        if (run.length >= options_.turns * period && run.saves() >= options_.saved)
          out.push_back(run);
        begin = -1;
      }
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Run& a, const Run& b) { return a.saves() > b.saves(); });
  return out;
}

// What smaller loops within a run would save: of gradients accumulated over a few batches, the
// loops over the layers of each batch are worth more than one over the batches.
int64_t Looper::saved_within(const Run& run, const std::vector<Run>& all) const {
  std::vector<std::pair<int32_t, int32_t>> taken;
  int64_t saved = 0;
  for (const Run& r : all) {  // those that save most first
    const int32_t end = r.start + r.length;
    if (2 * r.period > run.period || r.start < run.start || end > run.start + run.length) continue;
    if (std::any_of(taken.begin(), taken.end(),
                    [&](const auto& t) { return r.start < t.second && t.first < end; }))
      continue;
    taken.emplace_back(r.start, end);
    saved += r.saves();
  }
  return saved;
}

// Bytes that a turn hands to the next one.
int64_t Looper::crossing(int32_t start, int32_t period) const {
  std::set<int32_t> seen;
  int64_t bytes = 0;
  for (int32_t i = start + period; i < start + 2 * period; ++i)
    for (int32_t v : uses_[i])
      if (def_[v] >= start && def_[v] < start + period && seen.insert(v).second)
        bytes += type(v).bytes() + 1;
  return bytes;
}

// Whether each turn uses in each place what the others use there: of its own, of the turn before,
// or of what was there before the first. And each gets something of the turn before: else there is
// nothing to be done one after the other.
bool Looper::consistent(int32_t start, int32_t period, int32_t count) const {
  bool carries = false;
  for (int32_t p = 0; p < period; ++p) {
    for (size_t u = 0; u < uses_[start + p].size(); ++u) {
      for (int32_t t = 1; t < count; ++t) {
        const int32_t first = uses_[start + period + p][u];
        const int32_t v = uses_[start + t * period + p][u];
        const int32_t distance = def_[v] < start ? -1 : t - (def_[v] - start) / period;
        const int32_t expected = def_[first] < start ? -1 : 1 - (def_[first] - start) / period;
        if (distance != expected || distance > 1) return false;
        if (distance < 0) continue;
        if ((def_[v] - start) % period != (def_[first] - start) % period ||
            v - fn_.body[def_[v]].first_result != first - fn_.body[def_[first]].first_result)
          return false;
        carries |= distance == 1;
      }
      // The first turn gets what is carried from outside.
      const int32_t first = uses_[start + p][u], second = uses_[start + period + p][u];
      const bool inner = def_[second] >= start + period;
      if (inner ? def_[first] + period != def_[second] ||
                      first - fn_.body[def_[first]].first_result !=
                          second - fn_.body[def_[second]].first_result
                : def_[first] >= start)
        return false;
    }
  }
  return carries;
}

bool Looper::make_loop(const Run& run) {
  const int32_t extra = run.length % run.period;
  // Where a turn begins is open if more than whole turns repeat: where least is handed on, which is
  // between two layers.
  std::vector<std::pair<int64_t, int32_t>> starts;
  for (int32_t o = 0; o <= extra; ++o) starts.emplace_back(crossing(run.start + o, run.period), o);
  std::sort(starts.begin(), starts.end());
  const int32_t most = run.length / run.period;
  for (int32_t fewer = 0; fewer <= 3 && most - fewer >= options_.turns; ++fewer) {
    for (size_t s = 0; s < starts.size() && s < 4; ++s) {
      for (int32_t skip = 0; skip <= fewer; ++skip) {
        const int32_t start = run.start + starts[s].second + skip * run.period;
        if (!consistent(start, run.period, most - fewer)) continue;
        Group group;
        group.loop = true;
        group.start = start;
        group.period = run.period;
        group.count = most - fewer;
        for (int32_t i = 0; i < group.count * group.period; ++i)
          group_of_[start + i] = static_cast<int32_t>(groups_.size());
        groups_.push_back(std::move(group));
        return true;
      }
    }
  }
  return false;
}

// Which way the turns' own values go, and what each use is.
void Looper::classify(Group& g) {
  const auto index = static_cast<int32_t>(&g - groups_.data());
  std::vector<std::vector<std::vector<int32_t>>> families(g.period);  // by turn; of Along
  std::map<std::tuple<int32_t, int32_t, int32_t>, int32_t> carries;
  int votes = 0;
  for (int32_t p = 0; p < g.period; ++p) {
    const std::vector<int32_t>& first = uses_[g.start + p];
    const std::vector<int32_t>& second = uses_[g.start + g.period + p];
    g.slots.emplace_back(first.size());
    families[p].resize(first.size());
    for (size_t u = 0; u < first.size(); ++u) {
      Slot& slot = g.slots[p][u];
      const int32_t def = def_[second[u]];
      if (def >= g.start) {
        const int32_t q = (def - g.start) % g.period;
        const int32_t r = second[u] - fn_.body[def].first_result;
        if (def >= g.start + g.period) {
          slot = {Slot::Inner, q, r, {}};
          continue;
        }
        auto [found, is_new] =
            carries.emplace(std::tuple(q, r, first[u]), static_cast<int32_t>(g.carries.size()));
        if (is_new) g.carries.push_back({q, r, first[u], -1});
        slot = {Slot::Carried, found->second, 0, {}};
        continue;
      }
      std::vector<int32_t> family;
      bool same = true;
      for (int32_t t = 0; t < g.count; ++t) {
        family.push_back(uses_[g.start + t * g.period + p][u]);
        same = same && number_[family[t]] == number_[family[0]];
      }
      if (same) {
        slot = {Slot::Fixed, family[0], 0, {}};
        continue;
      }
      slot.kind = Slot::Along;
      if (auto found = find(family)) votes += found->step;
      families[p][u] = std::move(family);
    }
  }
  g.falling = votes < 0;
  for (int32_t label = 0; label < g.count; ++label) {
    for (int32_t p = 0; p < g.period; ++p) {
      label_of_[g.instruction(label, p)] = label;
      position_of_[g.instruction(label, p)] = p;
    }
  }
  for (int32_t p = 0; p < g.period; ++p) {
    for (size_t u = 0; u < g.slots[p].size(); ++u) {
      if (g.slots[p][u].kind != Slot::Along) continue;
      std::vector<int32_t>& family = families[p][u];
      if (g.falling) std::reverse(family.begin(), family.end());
      g.slots[p][u].source = find_or_give(family);
    }
  }
  add_result_stacks(index);
  for (size_t c = 0; c < g.carries.size(); ++c) {
    Carry& carry = g.carries[c];
    Stack s{Stack::Begin, index, 0, static_cast<int32_t>(c), {}, false, {}};
    s.members.resize(g.count);
    for (int32_t label = 0; label < g.count; ++label) {
      const int32_t t = g.turn(label);
      s.members[label] =
          t == 0 ? carry.init
                 : value_of(g.start + (t - 1) * g.period + carry.position, carry.result);
    }
    carry.stack = add_stack(std::move(s));
  }
}

void Looper::classify() {
  stacks_.clear();
  for (auto& homes : homes_) homes.clear();
  std::fill(group_of_.begin(), group_of_.end(), -1);
  for (size_t k = 0; k < groups_.size(); ++k) {
    Group& old = groups_[k];
    Group g;
    g.loop = true;
    g.start = old.start;
    g.period = old.period;
    g.count = old.count;
    old = std::move(g);
    for (int32_t i = 0; i < old.count * old.period; ++i)
      group_of_[old.start + i] = static_cast<int32_t>(k);
    classify(old);
  }
}

// A layer that is odd in one of the loops (often the last one in the backward pass) stays out of
// the others too: else its weights would be in a stack of which others use a part, which is a copy.
// Whether a loop was changed.
bool Looper::trim() {
  bool changed = false;
  for (const Stack& stack : stacks_) {
    if (stack.kind != Stack::Given || !std::all_of(stack.members.begin(), stack.members.end(),
                                                   [&](int32_t v) { return is_param(v); }))
      continue;
    struct Use {
      Group* group;
      Source source;
    };
    std::vector<Use> uses;
    int32_t low = 0, high = static_cast<int32_t>(stack.members.size());
    for (Group& g : groups_) {
      for (const auto& slots : g.slots) {
        for (const Slot& slot : slots) {
          if (slot.kind != Slot::Along || &stacks_[slot.source.stack] != &stack) continue;
          const int32_t end = slot.source.offset + slot.source.step * (g.count - 1);
          low = std::max(low, std::min(slot.source.offset, end));
          high = std::min(high, std::max(slot.source.offset, end) + 1);
          if (uses.empty() || uses.back().group != &g) uses.push_back({&g, slot.source});
        }
      }
    }
    if (high - low < options_.turns) continue;
    for (auto& [g, source] : uses) {
      if (g->count <= high - low) continue;
      // Turns before and after those whose weights all have.
      const int32_t first = source.offset + source.step * (g->falling ? g->count - 1 : 0);
      const int32_t step = g->falling ? -source.step : source.step;
      const int32_t skip = step > 0 ? low - first : first - (high - 1);
      if (skip < 0 || skip + high - low > g->count) continue;
      g->start += skip * g->period;
      g->count = high - low;
      changed = true;
    }
    if (changed) return true;  // what was found out about the loop no longer holds
  }
  return false;
}

// ---- stacks ------------------------------------------------------------------------------------

std::optional<Source> Looper::find(const std::vector<int32_t>& members) const {
  for (const auto& [stack, index] : homes_[members[0]]) {
    const std::vector<int32_t>& there = stacks_[stack].members;
    for (const int32_t step : {1, -1}) {
      const auto last = index + step * (static_cast<int32_t>(members.size()) - 1);
      if (last < 0 || last >= static_cast<int32_t>(there.size())) continue;
      bool fits = true;
      for (size_t k = 0; fits && k < members.size(); ++k)
        fits = there[index + step * static_cast<int32_t>(k)] == members[k];
      if (fits) return Source{stack, index, step};
    }
  }
  return {};
}

Source Looper::find_or_give(const std::vector<int32_t>& members) {
  if (auto found = find(members)) return *found;
  return {add_stack({Stack::Given, -1, 0, 0, members, false, {}}), 0, 1};
}

int32_t Looper::add_stack(Stack stack) {
  const auto index = static_cast<int32_t>(stacks_.size());
  for (size_t k = 0; k < stack.members.size(); ++k)
    homes_[stack.members[k]].emplace_back(index, static_cast<int32_t>(k));
  stacks_.push_back(std::move(stack));
  return index;
}

void Looper::add_result_stacks(int32_t group) {
  Group& g = groups_[group];
  for (int32_t p = 0; p < g.period; ++p) {
    g.stacks.emplace_back();
    for (int32_t r = 0; r < fn_.body[g.instruction(0, p)].result_count; ++r) {
      Stack s{Stack::Result, group, p, r, {}, false, {}};
      for (int32_t label = 0; label < g.count; ++label)
        s.members.push_back(value_of(g.instruction(label, p), r));
      g.stacks[p].push_back(add_stack(std::move(s)));
    }
  }
}

// ---- instructions on stacks --------------------------------------------------------------------

// What is done to each element of a stack in the same way, one element after the other, is one
// instruction on the stack: the update of an optimizer, wherever its instructions stand.
void Looper::stack_instructions() {
  for (size_t s = 0; s < stacks_.size(); ++s) {  // grows
    const std::vector<int32_t> members = stacks_[s].members;
    if (static_cast<int32_t>(members.size()) < options_.turns) continue;
    std::map<std::pair<int32_t, int32_t>, std::vector<std::vector<int32_t>>> users;
    for (size_t k = 0; k < members.size(); ++k) {
      for (const auto& [i, u] : users_[members[k]]) {
        if (group_of_[i] >= 0 || effects_[i]) continue;
        auto& lists = users[{keys_[i], u}];
        if (lists.size() == k) lists.emplace_back();
        if (lists.size() == k + 1) lists[k].push_back(i);
      }
    }
    for (const auto& [key, lists] : users) {
      if (lists.size() != members.size()) continue;
      const size_t each = lists[0].size();
      if (std::any_of(lists.begin(), lists.end(), [&](const auto& l) { return l.size() != each; }))
        continue;
      for (size_t j = 0; j < each; ++j) {
        std::vector<int32_t> instructions;
        for (const auto& l : lists) instructions.push_back(l[j]);
        stack_instruction(instructions, 8);
      }
    }
  }
}

bool Looper::stack_instruction(const std::vector<int32_t>& members, int depth) {
  const Instr& first = fn_.body[members[0]];
  const std::string_view op = bare(first);
  const bool reduces = op == "reduce";
  if (depth == 0 || !(hlo::is_pointwise(op) || only_moves(op) || one_by_one(op) || reduces))
    return false;
  if (reduces ? first.result_count != 1 : first.result_count != 1 || !first.regions.empty())
    return false;
  std::set<int32_t> distinct;
  for (int32_t i : members)
    if (group_of_[i] >= 0 || keys_[i] != keys_[members[0]] || !distinct.insert(i).second)
      return false;
  Group g;
  g.count = static_cast<int32_t>(members.size());
  g.members = members;
  g.slots.emplace_back(uses_[members[0]].size());
  bool any = false;
  for (size_t u = 0; u < g.slots[0].size(); ++u) {
    Slot& slot = g.slots[0][u];
    std::vector<int32_t> family;
    bool same = true, params = true;
    for (int32_t i : members) {
      family.push_back(uses_[i][u]);
      same = same && number_[family.back()] == number_[family[0]];
      params = params && is_param(family.back());
    }
    if (same) {
      slot = {Slot::Fixed, family[0], 0, {}};
      continue;
    }
    if (reduces && u > 0) return false;  // where it starts from
    auto found = find(family);
    if (!found) {
      std::set<int32_t> different(family.begin(), family.end());
      const bool small = type(family[0]).bytes() * g.count <= kSmallStack;
      if (different.size() == family.size() && params) {
        found = find_or_give(family);
      } else if (!params) {
        std::vector<int32_t> makers;
        for (int32_t v : family) makers.push_back(def_[v]);
        const bool made =
            std::all_of(makers.begin(), makers.end(), [](int32_t i) { return i >= 0; });
        if (made && stack_instruction(makers, depth - 1)) found = find(family);
      }
      if (!found && small) found = find_or_give(family);
    }
    if (!found) return false;
    slot = {Slot::Along, 0, 0, *found};
    any = true;
  }
  if (!any) return false;
  for (int32_t i : members)  // a maker may have been one of them
    if (group_of_[i] >= 0) return false;
  const auto index = static_cast<int32_t>(groups_.size());
  for (int32_t k = 0; k < g.count; ++k) {
    group_of_[members[k]] = index;
    label_of_[members[k]] = k;
    position_of_[members[k]] = 0;
  }
  groups_.push_back(std::move(g));
  add_result_stacks(index);
  return true;
}

// ---- what the loops must give ------------------------------------------------------------------

// Whether a loop may compute again what another one had: if that is little, and what it needs is
// there anyway. The compiler would have done the same within a flat program.
bool Looper::can_do_again(const Source& source, int& left) const {
  const Stack& s = stacks_[source.stack];
  if (s.wanted || s.kind == Stack::Given) return true;
  if (s.kind != Stack::Result || !groups_[s.group].loop) return false;
  return can_do_again(groups_[s.group], s.position, source, left);
}

bool Looper::can_do_again(const Group& g, int32_t position, const Source& source, int& left) const {
  const Instr& instr = fn_.body[g.instruction(0, position)];
  const std::string_view op = bare(instr);
  if (--left < 0 || !instr.regions.empty()) return false;
  if (!hlo::is_pointwise(op) && !only_moves(op) && op != "constant" && op != "iota") return false;
  for (const Slot& slot : g.slots[position]) {
    switch (slot.kind) {
      case Slot::Fixed:
        break;
      case Slot::Carried:
        if (!stacks_[g.carries[slot.index].stack].wanted) return false;
        break;
      case Slot::Along:
        if (!can_do_again(through(slot.source, source), left)) return false;
        break;
      case Slot::Inner:
        if (!can_do_again({g.stacks[slot.index][slot.result], source.offset, source.step}, left))
          return false;
    }
  }
  return true;
}

void Looper::want(int32_t value) {
  const int32_t i = def_[value];
  if (i < 0 || group_of_[i] < 0) return;
  Group& g = groups_[group_of_[i]];
  const int32_t r = value - fn_.body[i].first_result;
  if (g.loop && g.turn(label_of_[i]) == g.count - 1)
    g.last.emplace(position_of_[i], r);
  else
    stacks_[g.stacks[position_of_[i]][r]].wanted = true;
}

void Looper::plan() {
  for (size_t i = 0; i < fn_.body.size(); ++i)
    if (group_of_[i] < 0)
      for (int32_t v : uses_[i]) want(v);
  std::vector<Source> choices;
  for (const Group& g : groups_) {
    for (const Carry& c : g.carries) want(c.init);
    for (const auto& slots : g.slots) {
      for (const Slot& slot : slots) {
        if (slot.kind == Slot::Fixed) want(slot.index);
        if (slot.kind != Slot::Along) continue;
        const Stack& s = stacks_[slot.source.stack];
        if (g.loop && s.kind == Stack::Result && groups_[s.group].loop)
          choices.push_back(slot.source);
        else
          want(slot.source);
      }
    }
  }
  // What cannot be made again first.
  for (int round = 0; round < 2; ++round) {
    for (const Source& source : choices) {
      int left = round == 0 ? 1 : kAgain;
      const Stack& s = stacks_[source.stack];
      const std::string_view op = bare(fn_.body[groups_[s.group].instruction(0, s.position)]);
      const bool cheap =
          hlo::is_pointwise(op) || only_moves(op) || op == "constant" || op == "iota";
      if (round == 0 ? !cheap : !can_do_again(source, left)) want(source);
    }
  }
  for (const Stack& s : stacks_)
    if (s.wanted && s.kind == Stack::Given)
      for (int32_t v : s.members) want(v);
}

// ---- writing -----------------------------------------------------------------------------------

// Nodes are instructions, or ~groups. False, and the groups of single instructions that stand in
// the way of themselves are given up, if there is no order.
bool Looper::order(std::vector<int32_t>& nodes) {
  const size_t n = fn_.body.size();
  auto node_of = [&](int32_t i) {
    return group_of_[i] < 0 ? i : static_cast<int32_t>(n) + group_of_[i];
  };
  std::vector<std::vector<int32_t>> after(n + groups_.size());
  std::vector<int32_t> waits(n + groups_.size(), 0), first(n + groups_.size(), -1);
  int32_t effect = -1;
  for (int32_t i = 0; i < static_cast<int32_t>(n); ++i) {
    const int32_t to = node_of(i);
    if (first[to] < 0) first[to] = i;
    auto depend = [&](int32_t on) {
      const int32_t from = node_of(on);
      if (from == to) return;
      after[from].push_back(to);
      ++waits[to];
    };
    for (int32_t v : uses_[i])
      if (def_[v] >= 0) depend(def_[v]);
    if (effects_[i]) {
      if (effect >= 0) depend(effect);
      effect = i;
    }
  }
  std::priority_queue<std::pair<int32_t, int32_t>, std::vector<std::pair<int32_t, int32_t>>,
                      std::greater<>>
      ready;
  size_t count = 0;
  for (size_t k = 0; k < first.size(); ++k) {
    if (first[k] < 0) continue;
    ++count;
    if (waits[k] == 0) ready.emplace(first[k], static_cast<int32_t>(k));
  }
  nodes.clear();
  while (!ready.empty()) {
    const int32_t node = ready.top().second;
    ready.pop();
    nodes.push_back(node < static_cast<int32_t>(n) ? node : ~(node - static_cast<int32_t>(n)));
    for (int32_t to : after[node])
      if (--waits[to] == 0) ready.emplace(first[to], to);
  }
  return nodes.size() == count;
}

Values Looper::zero_starts(const Value& first, int64_t rank) {
  Values starts(static_cast<size_t>(rank), hlo::constant_int(b_, {DType::S32, {}}, 0));
  starts[0] = first;
  return starts;
}

Value Looper::element(const Value& stack, const Value& index) {
  Dims sizes = stack.dims();
  sizes[0] = 1;
  const Value one = hlo::dynamic_slice(stack, zero_starts(index, stack.rank()), sizes);
  return hlo::reshape(one, Dims(sizes.begin() + 1, sizes.end()));
}

Value Looper::get(int32_t value) {
  if (values_[value]) return values_[value];
  // An element of a stack: of the group that made it, or of a stack of parameters.
  for (const auto& [s, index] : homes_[value]) {
    const Stack& home = stacks_[s];
    if (!home.value) continue;
    set_location(def_[value] < 0 ? nullptr : &fn_.body[def_[value]]);
    const Value one = hlo::slice_dim(home.value, 0, index, index + 1);
    const Value made = hlo::reshape(one, type(value).dims);
    set_location(nullptr);
    return values_[value] = made;
  }
  hlo::fail("make_loops", "a value is used before it is there");
}

Value Looper::stack(int32_t index) {
  if (!stacks_[index].value) {
    Values parts;
    for (int32_t v : stacks_[index].members) {
      const Value x = get(v);
      parts.push_back(hlo::reshape(x, stacked(x.type(), 1).dims));
    }
    stacks_[index].value = hlo::concatenate(parts, 0);
  }
  return stacks_[index].value;
}

// A family's values as one stack of their own.
Value Looper::whole(const Source& source, int32_t count) {
  Value x = stack(source.stack);
  const int32_t low = source.step > 0 ? source.offset : source.offset - count + 1;
  if (x.dim(0) != count) x = hlo::slice_dim(x, 0, low, low + count);
  return source.step > 0 || count == 1 ? x : hlo::reverse(x, {0});
}

// A source's value in a turn, made again where its stack was not kept.
Value Looper::again(Builder& b, const Source& source,
                    const std::function<Value(const Source&)>& element) {
  const Stack& s = stacks_[source.stack];
  if (s.wanted || s.kind != Stack::Result) return element(source);
  const Group& g = groups_[s.group];
  const Instr& instr = fn_.body[g.instruction(0, s.position)];
  Values uses;
  for (const Slot& slot : g.slots[s.position]) {
    switch (slot.kind) {
      case Slot::Fixed:
        uses.push_back(values_[slot.index]);
        break;
      case Slot::Carried:
        uses.push_back(element({g.carries[slot.index].stack, source.offset, source.step}));
        break;
      case Slot::Along:
        uses.push_back(again(b, through(slot.source, source), element));
        break;
      case Slot::Inner:
        uses.push_back(
            again(b, {g.stacks[slot.index][slot.result], source.offset, source.step}, element));
    }
  }
  return b.copy(fn_, instr, uses)[s.index];
}

void Looper::write_loop(Group& g) {
  // Whatever is used from outside has to be there before the loop begins.
  std::set<std::pair<int32_t, int32_t>> wanted;  // position, result
  std::vector<int32_t> results, begins;          // stacks that the loop fills
  for (const auto& at : g.stacks)
    for (int32_t s : at)
      if (stacks_[s].wanted) results.push_back(s);
  for (const Carry& c : g.carries)
    if (stacks_[c.stack].wanted) begins.push_back(c.stack);
  std::function<void(const Source&)> prepare = [&](const Source& source) {
    const Stack& s = stacks_[source.stack];
    if (s.wanted || s.kind != Stack::Result) {
      stack(source.stack);
      return;
    }
    const Group& other = groups_[s.group];
    for (const Slot& slot : other.slots[s.position]) {
      if (slot.kind == Slot::Fixed) values_[slot.index] = get(slot.index);
      if (slot.kind == Slot::Carried) stack(other.carries[slot.index].stack);
      if (slot.kind == Slot::Along) prepare(through(slot.source, source));
      if (slot.kind == Slot::Inner)
        prepare({other.stacks[slot.index][slot.result], source.offset, source.step});
    }
  };
  for (const auto& slots : g.slots) {
    for (const Slot& slot : slots) {
      if (slot.kind == Slot::Fixed) get(slot.index);
      if (slot.kind == Slot::Along) prepare(slot.source);
    }
  }
  Values init = {hlo::constant_int(b_, {DType::S32, {}}, 0)};
  for (const Carry& c : g.carries) init.push_back(get(c.init));
  for (const auto* filled : {&results, &begins})
    for (int32_t s : *filled)
      init.push_back(hlo::zeros(b_, stacked(type(stacks_[s].members[0]), g.count)));
  // Of the last turn, what is neither carried on nor in a stack.
  std::vector<std::pair<int32_t, int32_t>> last;
  auto carry_of = [&](const std::pair<int32_t, int32_t>& what) {
    return std::find_if(g.carries.begin(), g.carries.end(),
                        [&](const Carry& c) {
                          return c.position == what.first && c.result == what.second;
                        }) -
           g.carries.begin();
  };
  for (const auto& what : g.last) {
    if (carry_of(what) < static_cast<std::ptrdiff_t>(g.carries.size())) continue;
    if (stacks_[g.stacks[what.first][what.second]].wanted) continue;
    last.push_back(what);
    init.push_back(hlo::zeros(b_, type(value_of(g.instruction(0, what.first), what.second))));
  }

  auto body = [&](const Values& state) {
    const Value turn = state[0];
    const Value label =
        g.falling ? hlo::subtract(hlo::constant_int(b_, turn.type(), g.count - 1), turn) : turn;
    std::map<std::tuple<int32_t, int32_t, int32_t>, Value> fetched;
    auto fetch = [&](const Source& source) {
      Value& made = fetched[{source.stack, source.offset, source.step}];
      if (!made) {
        const Value offset = hlo::constant_int(b_, turn.type(), source.offset);
        Value index = label;
        if (source.step < 0)
          index = hlo::subtract(offset, label);
        else if (source.offset != 0)
          index = hlo::add(offset, label);
        made = element(stacks_[source.stack].value, index);
      }
      return made;
    };
    std::map<std::tuple<int32_t, int32_t, int32_t>, Value> remade;
    std::vector<Values> made;
    for (int32_t p = 0; p < g.period; ++p) {
      const Instr& instr = fn_.body[g.instruction(0, p)];
      Values uses;
      set_location(&instr);
      for (const Slot& slot : g.slots[p]) {
        switch (slot.kind) {
          case Slot::Fixed:
            uses.push_back(values_[slot.index]);
            break;
          case Slot::Carried:
            uses.push_back(state[1 + slot.index]);
            break;
          case Slot::Inner:
            uses.push_back(made[slot.index][slot.result]);
            break;
          case Slot::Along: {
            Value& x = remade[{slot.source.stack, slot.source.offset, slot.source.step}];
            if (!x) x = again(b_, slot.source, fetch);
            uses.push_back(x);
          }
        }
      }
      made.push_back(b_.copy(fn_, instr, uses));
    }
    Values next = {hlo::add(turn, hlo::constant_int(b_, turn.type(), 1))};
    for (const Carry& c : g.carries) next.push_back(made[c.position][c.result]);
    auto put = [&](int32_t position, const Value& x) {
      const Value into = state[next.size()];
      set_location(&fn_.body[g.instruction(0, position)]);
      next.push_back(hlo::dynamic_update_slice(into, hlo::reshape(x, stacked(x.type(), 1).dims),
                                               zero_starts(label, into.rank())));
    };
    for (int32_t s : results) put(stacks_[s].position, made[stacks_[s].position][stacks_[s].index]);
    for (int32_t s : begins) put(g.carries[stacks_[s].index].position, state[1 + stacks_[s].index]);
    for (const auto& [position, result] : last) next.push_back(made[position][result]);
    set_location(nullptr);
    return next;
  };
  const Values out = hlo::while_loop(
      init,
      [&](const Values& state) {
        return hlo::lt(state[0], hlo::constant_int(b_, state[0].type(), g.count));
      },
      body);
  size_t at = 1 + g.carries.size();
  for (const auto* filled : {&results, &begins})
    for (int32_t s : *filled) stacks_[s].value = out[at++];
  for (const auto& what : last)
    values_[value_of(g.instruction(g.turn(g.count - 1), what.first), what.second)] = out[at++];
  for (const auto& what : g.last) {
    const auto c = carry_of(what);
    if (c < static_cast<std::ptrdiff_t>(g.carries.size()))
      values_[value_of(g.instruction(g.turn(g.count - 1), what.first), what.second)] = out[1 + c];
  }
  out_.loops.push_back({g.count, g.period});
}

void Looper::write_stacked(Group& g) {
  const Instr& instr = fn_.body[g.members[0]];
  const std::string_view op = bare(instr);
  const Type& one = type(instr.first_result);
  const Type result = stacked(one, g.count);
  const bool pointwise = hlo::is_pointwise(op);
  Values uses;
  set_location(&instr);
  for (const Slot& slot : g.slots[0]) {
    const bool along = slot.kind == Slot::Along;
    Value x = along ? whole(slot.source, g.count) : get(slot.index);
    if (pointwise) {
      const int64_t rank = x.rank() - (along ? 1 : 0);
      if (rank < one.rank() ? along : !along) {
        Dims dims = result.dims, where;
        if (along) {
          where = {0};
        } else {
          for (int64_t d = 1; d <= rank; ++d) where.push_back(d);
        }
        x = hlo::broadcast_in_dim(x, dims, where);
      }
    }
    uses.push_back(x);
  }
  set_location(&instr);
  auto moved = [&](const char* name, int64_t front, int64_t more) {
    Dims out = hlo::ints(instr.attributes, name);
    for (int64_t& d : out) d += more;
    if (front >= 0) out.insert(out.begin(), front);
    return out;
  };
  std::string attributes = instr.attributes;
  using hlo::Attributes;
  if (op == "broadcast_in_dim")
    attributes =
        Attributes().ints("broadcast_dimensions", moved("broadcast_dimensions", 0, 1)).take();
  else if (op == "transpose")
    attributes = Attributes().ints("permutation", moved("permutation", 0, 1)).take();
  else if (op == "reduce")
    attributes = Attributes().ints("dimensions", moved("dimensions", -1, 1)).take();
  else if (op == "slice")
    attributes = Attributes()
                     .ints("start_indices", moved("start_indices", 0, 0))
                     .ints("limit_indices", moved("limit_indices", g.count, 0))
                     .ints("strides", moved("strides", 1, 0))
                     .take();
  stacks_[g.stacks[0][0]].value = b_.copy(fn_, instr, uses, std::move(attributes), {result})[0];
  set_location(nullptr);
}

void Looper::write_one_by_one(Group& g) {
  const Instr& instr = fn_.body[g.members[0]];
  for (const Slot& slot : g.slots[0])
    slot.kind == Slot::Along ? stack(slot.source.stack) : get(slot.index);
  const DType counter = DType::S32;
  const Value made = hlo::while_loop(
      {{hlo::constant_int(b_, {counter, {}}, 0),
        hlo::zeros(b_, stacked(type(instr.first_result), g.count))}},
      [&](const Values& state) {
        return hlo::lt(state[0], hlo::constant_int(b_, {counter, {}}, g.count));
      },
      [&](const Values& state) -> Values {
        set_location(&instr);
        Values uses;
        for (const Slot& slot : g.slots[0]) {
          if (slot.kind == Slot::Along) {
            const Value step = hlo::constant_int(b_, {counter, {}}, slot.source.step);
            const Value offset = hlo::constant_int(b_, {counter, {}}, slot.source.offset);
            uses.push_back(element(stacks_[slot.source.stack].value, state[0] * step + offset));
          } else {
            uses.push_back(get(slot.index));
          }
        }
        const Value one = b_.copy(fn_, instr, uses)[0];
        const Value all =
            hlo::dynamic_update_slice(state[1], hlo::reshape(one, stacked(one.type(), 1).dims),
                                      zero_starts(state[0], state[1].rank()));
        set_location(nullptr);
        return {state[0] + hlo::constant_int(b_, {counter, {}}, 1), all};
      })[1];
  stacks_[g.stacks[0][0]].value = made;
}

// Parameters; a stack of parameters only is one, if that is allowed and no other stack has them.
void Looper::arguments() {
  std::vector<int32_t> index(fn_.types.size(), -1);  // of a parameter
  for (size_t i = 0; i < fn_.params.size(); ++i) index[fn_.params[i]] = static_cast<int32_t>(i);
  std::vector<int32_t> stack_of(fn_.params.size(), -1);
  for (size_t s = 0; options_.stack_arguments && s < stacks_.size(); ++s) {
    const Stack& stack = stacks_[s];
    if (!stack.wanted || stack.kind != Stack::Given) continue;
    std::set<int32_t> own;
    const bool free = std::all_of(stack.members.begin(), stack.members.end(), [&](int32_t v) {
      return is_param(v) && stack_of[index[v]] < 0 && own.insert(v).second;
    });
    if (!free) continue;
    for (int32_t v : stack.members) stack_of[index[v]] = static_cast<int32_t>(s);
  }
  for (size_t i = 0; i < fn_.params.size(); ++i) {
    const int32_t v = fn_.params[i];
    if (stack_of[i] < 0) {
      values_[v] = b_.param(type(v));
      out_.params.push_back({static_cast<int32_t>(i)});
      continue;
    }
    Stack& stack = stacks_[stack_of[i]];
    if (stack.value) continue;
    stack.value = b_.param(stacked(type(v), static_cast<int64_t>(stack.members.size())));
    out_.params.emplace_back();
    for (int32_t m : stack.members) out_.params.back().push_back(index[m]);
  }
}

std::optional<Looped> Looper::run() {
  learn();
  bool found = true;
  while (found) {
    found = false;
    const std::vector<Run> all = runs();
    for (const Run& run : all) {
      if (saved_within(run, all) > run.saves()) continue;
      found = make_loop(run);
      if (found) break;
    }
  }
  int64_t saved = 0;
  for (const Group& g : groups_) saved += static_cast<int64_t>(g.count - 1) * g.period;
  if (groups_.empty() || saved < options_.worth) return {};
  std::sort(groups_.begin(), groups_.end(),
            [](const Group& a, const Group& b) { return a.start < b.start; });
  classify();
  while (trim()) classify();
  const size_t loops = groups_.size(), stacks = stacks_.size();
  stack_instructions();
  std::vector<int32_t> nodes;
  if (!order(nodes)) {  // they stand in the way of one another
    for (int32_t& g : group_of_)
      if (g >= static_cast<int32_t>(loops)) g = -1;
    groups_.resize(loops);
    stacks_.resize(stacks);
    for (auto& homes : homes_)
      std::erase_if(homes, [&](const auto& h) { return h.first >= static_cast<int32_t>(stacks); });
    if (!order(nodes)) return {};
  }
  plan();
  // Results that are all of a stack.
  std::unordered_map<int32_t, int> times;
  std::unordered_map<int32_t, int32_t> stack_of;
  for (int32_t v : fn_.results) ++times[v];
  for (size_t s = 0; options_.stack_arguments && s < stacks_.size(); ++s) {
    Stack& stack = stacks_[s];
    if (stack.kind != Stack::Result) continue;
    const bool all = std::all_of(stack.members.begin(), stack.members.end(), [&](int32_t v) {
      auto there = times.find(v);
      return there != times.end() && there->second == 1;
    });
    if (!all) continue;
    stack.wanted = true;
    for (int32_t v : stack.members) stack_of[v] = static_cast<int32_t>(s);
  }
  for (int32_t v : fn_.results)
    if (!stack_of.contains(v)) want(v);
  values_.resize(fn_.types.size());
  arguments();
  for (int32_t node : nodes) {
    if (node < 0) {
      Group& g = groups_[~node];
      if (g.loop)
        write_loop(g);
      else if (one_by_one(bare(fn_.body[g.members[0]])))
        write_one_by_one(g);
      else
        write_stacked(g);
      continue;
    }
    const Instr& instr = fn_.body[node];
    Values uses;
    for (int32_t v : uses_[node]) uses.push_back(get(v));
    const Values made = b_.copy(fn_, instr, uses);
    for (int32_t k = 0; k < instr.result_count; ++k) values_[instr.first_result + k] = made[k];
  }
  Values results;
  std::set<int32_t> done;
  std::unordered_map<int32_t, int32_t> index;
  for (size_t i = 0; i < fn_.results.size(); ++i) index[fn_.results[i]] = static_cast<int32_t>(i);
  for (size_t i = 0; i < fn_.results.size(); ++i) {
    const int32_t v = fn_.results[i];
    auto there = stack_of.find(v);
    if (there == stack_of.end()) {
      results.push_back(get(v));
      out_.results.push_back({static_cast<int32_t>(i)});
    } else if (done.insert(there->second).second) {
      const Stack& s = stacks_[there->second];
      results.push_back(s.value);
      out_.results.emplace_back();
      for (int32_t m : s.members) out_.results.back().push_back(index[m]);
    }
  }
  out_.function = b_.finish(results);
  return std::move(out_);
}

}  // namespace

std::optional<Looped> make_loops(const Function& fn, const LoopOptions& options) {
  return Looper(fn, options).run();
}

}  // namespace torch_tpu::graph
