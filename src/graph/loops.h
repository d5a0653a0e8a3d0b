// SPDX-License-Identifier: Apache-2.0 - Makes loops of what a function does over and over, such as a model's equal layers.
//
// A flat function of N layers is compiled N times as slowly as one layer. Here the runs of
// instructions that repeat are found, and each becomes one while loop: what the turns have in
// common is used from outside, what each has of its own (weights, saved activations, results) is
// stacked along a new first dimension, what a turn gets from the one before is carried. What
// elementwise instructions do to all elements of a stack (an optimizer) is done to the stack at
// once. Values are those of the flat function.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/hlo/builder.h"

namespace torch_tpu::graph {

struct LoopOptions {
  int32_t turns = 3;    // fewest that make a loop
  int32_t saved = 100;  // instructions that a loop must save at least
  int32_t worth = 0;    // instructions that all loops together must save at least
  // Whether parameters and results of the function may be stacked. Else stacking what comes from
  // outside is a copy of it in each call, so this is for callers that can keep them stacked.
  bool stack_arguments = false;
};

struct Looped {
  hlo::Function function;
  // Which of the old function's parameters (results) each one is; several: they are stacked.
  std::vector<std::vector<int32_t>> params, results;
  struct Loop {
    int32_t turns = 0;
    int32_t instructions = 0;  // of one turn
  };
  std::vector<Loop> loops;
};

// Nothing if no loop is found that is worth it.
std::optional<Looped> make_loops(const hlo::Function& fn, const LoopOptions& options = {});

}  // namespace torch_tpu::graph
