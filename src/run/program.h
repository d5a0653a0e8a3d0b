// SPDX-License-Identifier: Apache-2.0 - Program: a list of traced op calls that becomes one executable.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/graph/key.h"
#include "src/graph/loops.h"
#include "src/graph/record.h"
#include "src/pjrt/client.h"

namespace torch_tpu::run {

// One op call in a program. Operands: >= 0 is a result of an earlier node (numbered through the
// program), < 0 is program input ~operand.
struct ProgramNode {
  graph::RecordPtr record;
  std::vector<int32_t> operands;
  const std::string* line = nullptr;  // of the user's, for the compiler to quote; or null
};

// Scalars of one element type travel together in one small vector.
struct ScalarPack {
  hlo::DType dtype;
  std::vector<uint32_t> scalars;  // indices into the program's scalars, in node order
};

class Program {
 public:
  enum State : uint32_t {
    Waiting,  // for a compile thread
    Compiled,
    Broken,
    Unloaded,  // its executable was dropped to bound memory; made again (from disk) at next use
  };

  // `live`: numbers of the results that leave the program.
  Program(graph::Key key, std::vector<ProgramNode> nodes, std::vector<hlo::Type> inputs,
          std::vector<int32_t> live);

  // These inputs are needed afterwards, so none gives its buffer. Before module_text().
  void keep(const std::vector<bool>& inputs);

  // One module for the platform: the CPU's is this program's own; other platforms trace the calls
  // anew, so that what a TPU would get can be checked anywhere.
  std::string module_text(std::optional<graph::Platform> other = {}) const {
    return module(other, loops_).text;
  }
  // The same with loops, if it has them: where arguments are stacked, `inputs` and `outputs` tell
  // which of the program's each argument and result of the module is (packs of scalars count as
  // inputs after the others, failed checks as the last output).
  struct Module {
    std::string text;
    std::vector<std::vector<int32_t>> inputs, outputs;
    std::vector<graph::Looped::Loop> loops;
  };
  Module module(std::optional<graph::Platform> other,
                const std::optional<graph::LoopOptions>& loops) const;
  // What module_text() makes loops of; before it. Nothing at first.
  void set_loops(const graph::LoopOptions& options) { loops_ = options; }

  const graph::Key& key() const { return key_; }
  const std::vector<ProgramNode>& nodes() const { return nodes_; }
  const std::vector<hlo::Type>& inputs() const { return inputs_; }
  const std::vector<int32_t>& live() const { return live_; }
  const std::vector<ScalarPack>& packs() const { return packs_; }
  // For each input, the output that may take its buffer, or -1.
  const std::vector<int32_t>& donations() const { return donations_; }
  // Nodes with run-time checks, in order: row i of the last output are the error words of
  // checked()[i].
  const std::vector<int32_t>& checked() const { return checked_; }
  // What a result depends on: inputs, and indices into checked(). Worked out when first asked for,
  // by the execution thread.
  struct Dependence {
    std::vector<int32_t> inputs, checked;
  };
  const std::vector<Dependence>& dependences();
  // Of the results that leave the program and take no input's buffer.
  int64_t new_bytes() const { return new_bytes_; }
  size_t output_count() const { return live_.size() + (checked_.empty() ? 0 : 1); }

  State state() const { return state_.load(std::memory_order_acquire); }
  void wait() const { state_.wait(Waiting, std::memory_order_acquire); }
  void compiled(pjrt::Executable executable);
  void broken(std::string error);
  // Both only in the execution thread.
  void unload();
  void reload() { state_.store(Waiting, std::memory_order_release); }
  uint64_t last_run = 0;  // the execution thread's count of programs run
  const pjrt::Executable& executable() const { return *executable_; }
  const std::string& error() const { return error_; }

 private:
  hlo::Function assemble(const std::vector<graph::RecordPtr>& records) const;
  void plan_donations();

  graph::Key key_;
  std::vector<ProgramNode> nodes_;
  std::vector<hlo::Type> inputs_;
  std::vector<int32_t> live_;
  std::vector<ScalarPack> packs_;
  std::vector<int32_t> donations_;
  std::vector<int32_t> checked_;
  std::vector<Dependence> dependences_;
  std::optional<graph::LoopOptions> loops_;
  int64_t new_bytes_ = 0;
  std::atomic<State> state_{Waiting};
  std::unique_ptr<pjrt::Executable> executable_;
  std::string error_;
};

}  // namespace torch_tpu::run
