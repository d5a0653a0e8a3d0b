// SPDX-License-Identifier: Apache-2.0 - Graphs as text: writing one for any platform without running it, and calling it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "src/graph/record.h"
#include "src/hlo/type.h"
#include "src/tensor/compiled.h"

namespace torch_tpu::tensor {

// A graph as one StableHLO module, with all that its "main" needs to be called.
struct GraphText {
  std::string module;
  std::vector<int32_t> inputs;               // which of the graph's inputs main takes, in order,
  std::vector<graph::ScalarSource> scalars;  // and after them these 0-dim numbers (random ones)
  uint64_t random_increment = 0;
  std::vector<hlo::Type> results;
  std::vector<graph::CheckSpec> checks;
  int32_t error_result = -1;
  // The graph's outputs: results 0, 1, ... in order, with these strides.
  std::vector<std::vector<int64_t>> strides;
};

// Runs the body on placeholders for dense inputs of these types, and nothing else. Host kernels are
// left out. Every output is a result of its own; the body may not write to its inputs.
GraphText write_graph(const std::string& name, const CompiledGraph::Body& body,
                      const std::vector<hlo::Type>& inputs, graph::Platform platform);

// Such a graph as a call. It is compiled, cached and run as every program is; the form for the
// platform at hand is taken.
std::unique_ptr<CompiledGraph> graph_of_text(const std::string& name,
                                             std::map<graph::Platform, GraphText> forms);

}  // namespace torch_tpu::tensor
