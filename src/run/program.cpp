// SPDX-License-Identifier: Apache-2.0 - Puts the functions of op calls together into one StableHLO module.
#include "src/run/program.h"

#include <algorithm>

#include "src/hlo/builder.h"

namespace torch_tpu::run {

using hlo::Value;

Program::Program(graph::Key key, std::vector<ProgramNode> nodes, std::vector<hlo::Type> inputs,
                 std::vector<int32_t> live)
    : key_(key), nodes_(std::move(nodes)), inputs_(std::move(inputs)), live_(std::move(live)) {
  uint32_t scalar = 0;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (const graph::ScalarSource& s : nodes_[n].record->scalars) {
      auto pack = std::find_if(packs_.begin(), packs_.end(),
                               [&](const ScalarPack& p) { return p.dtype == s.dtype; });
      if (pack == packs_.end()) {
        packs_.push_back({s.dtype, {}});
        pack = packs_.end() - 1;
      }
      pack->scalars.push_back(scalar++);
    }
    if (!nodes_[n].record->checks.empty()) checked_.push_back(static_cast<int32_t>(n));
  }
  plan_donations();
}

// An input whose storage was overwritten gives its buffer to the result that replaced it: follow
// each result back through the writes that made it.
void Program::plan_donations() {
  donations_.assign(inputs_.size(), -1);
  std::vector<int32_t> origin;  // per result: the program input it replaces, or -1
  std::vector<const hlo::Type*> types;
  for (const ProgramNode& node : nodes_) {
    size_t first = origin.size();
    const graph::Record& r = *node.record;
    origin.resize(first + r.result_types.size(), -1);
    for (const hlo::Type& t : r.result_types) types.push_back(&t);
    for (const graph::WriteSpec& w : r.writes) {
      if (w.input < 0) continue;
      int32_t operand = node.operands[w.input];
      origin[first + w.result] = operand < 0 ? ~operand : origin[operand];
    }
  }
  for (size_t i = 0; i < live_.size(); ++i) {
    int32_t input = origin[live_[i]];
    if (input >= 0 && donations_[input] < 0 && inputs_[input] == *types[live_[i]] &&
        inputs_[input].elements() > 0) {
      donations_[input] = static_cast<int32_t>(i);
    } else {
      new_bytes_ += types[live_[i]]->bytes();
    }
  }
}

void Program::keep(const std::vector<bool>& inputs) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!inputs[i] || donations_[i] < 0) continue;
    donations_[i] = -1;
    new_bytes_ += inputs_[i].bytes();
  }
}

const std::vector<Program::Dependence>& Program::dependences() {
  if (!dependences_.empty()) return dependences_;
  auto merge = [](std::vector<int32_t>& to, const std::vector<int32_t>& from) {
    std::vector<int32_t> both;
    std::set_union(to.begin(), to.end(), from.begin(), from.end(), std::back_inserter(both));
    to = std::move(both);
  };
  std::vector<Dependence> results;
  int32_t checked = 0;
  for (const ProgramNode& node : nodes_) {
    Dependence d;
    for (int32_t operand : node.operands) {
      merge(d.inputs, operand < 0 ? std::vector<int32_t>{~operand} : results[operand].inputs);
      if (operand >= 0) merge(d.checked, results[operand].checked);
    }
    if (!node.record->checks.empty()) merge(d.checked, {checked++});
    results.resize(results.size() + node.record->result_types.size(), d);
  }
  for (int32_t i : live_) dependences_.push_back(results[i]);
  return dependences_;
}

hlo::Function Program::assemble(const std::vector<graph::RecordPtr>& records) const {
  hlo::Builder b;
  std::vector<Value> inputs, results, scalars;
  for (const hlo::Type& t : inputs_) inputs.push_back(b.param(t));
  size_t scalar_count = 0;
  for (const ScalarPack& p : packs_) scalar_count += p.scalars.size();
  scalars.resize(scalar_count);
  for (const ScalarPack& p : packs_) {
    Value pack = b.param({p.dtype, {static_cast<int64_t>(p.scalars.size())}});
    for (size_t i = 0; i < p.scalars.size(); ++i) {
      auto at = static_cast<int64_t>(i);
      scalars[p.scalars[i]] = hlo::reshape(hlo::slice_dim(pack, 0, at, at + 1), {});
    }
  }
  size_t scalar = 0;
  std::vector<Value> words;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    const graph::Record& own = *nodes_[n].record;
    const graph::Record& r = *records[n];
    // Another platform's trace may read its inputs in another order, but not other inputs.
    std::vector<Value> args;
    for (size_t i = 0; i < r.inputs.size(); ++i) {
      auto at = std::find(own.inputs.begin(), own.inputs.end(), r.inputs[i]) - own.inputs.begin();
      int32_t operand = nodes_[n].operands.at(at);
      args.push_back(operand < 0 ? inputs[~operand] : results[operand]);
    }
    for (const graph::ScalarSource& s : r.scalars) {
      auto at = std::find(own.scalars.begin(), own.scalars.end(), s) - own.scalars.begin();
      if (at == static_cast<std::ptrdiff_t>(own.scalars.size()))
        args.push_back(hlo::constant_int(b, {s.dtype, {}}, 0));
      else
        args.push_back(scalars[scalar + at]);
    }
    const std::string* line = nodes_[n].line;
    b.set_location(line != nullptr
                       ? std::make_shared<const std::string>(hlo::location_text(own.op, *line))
                       : nullptr);
    std::vector<Value> out = b.inline_call(r.function, args);
    results.insert(results.end(), out.begin(), out.end());
    if (r.error_result >= 0) words.push_back(hlo::reshape(out[r.error_result], {1, 2}));
    scalar += own.scalars.size();
  }
  std::vector<Value> outputs;
  for (int32_t i : live_) outputs.push_back(results[i]);
  if (!words.empty()) outputs.push_back(hlo::concatenate(words, 0));
  return b.finish(outputs);
}

Program::Module Program::module(std::optional<graph::Platform> other,
                                const std::optional<graph::LoopOptions>& loops) const {
  std::vector<graph::RecordPtr> records;
  for (const ProgramNode& n : nodes_)
    records.push_back(other && n.record->retrace ? n.record->retrace(*other, false, false)
                                                 : n.record);
  hlo::Function function = assemble(records);
  Module made;
  std::optional<graph::Looped> looped;
  if (loops) looped = graph::make_loops(function, *loops);
  if (looped) {
    function = std::move(looped->function);
    made.inputs = std::move(looped->params);
    made.outputs = std::move(looped->results);
    made.loops = std::move(looped->loops);
  } else {
    for (size_t i = 0; i < function.params.size(); ++i)
      made.inputs.push_back({static_cast<int32_t>(i)});
    for (size_t i = 0; i < function.results.size(); ++i)
      made.outputs.push_back({static_cast<int32_t>(i)});
  }
  hlo::ModuleOptions options;
  options.name = "torch_tpu";
  for (const std::vector<int32_t>& parts : made.inputs) {
    std::vector<int32_t> to;  // where the parts' buffers go; nowhere if that is -1 for one
    for (int32_t i : parts)
      to.push_back(i < static_cast<int32_t>(donations_.size()) ? donations_[i] : -1);
    const auto output = std::find(made.outputs.begin(), made.outputs.end(), to);
    options.param_attributes.push_back(
        output == made.outputs.end()
            ? ""
            : "tf.aliasing_output = " + std::to_string(output - made.outputs.begin()) + " : i32");
  }
  made.text = hlo::write_module(function, options);
  return made;
}

void Program::compiled(pjrt::Executable executable) {
  executable_ = std::make_unique<pjrt::Executable>(std::move(executable));
  state_.store(Compiled, std::memory_order_release);
  state_.notify_all();
}

void Program::unload() {
  executable_.reset();
  state_.store(Unloaded, std::memory_order_release);
}

void Program::broken(std::string error) {
  error_ = std::move(error);
  state_.store(Broken, std::memory_order_release);
  state_.notify_all();
}

}  // namespace torch_tpu::run
