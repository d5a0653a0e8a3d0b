// SPDX-License-Identifier: Apache-2.0 - BoundedGraph: a graph of operators as one program for a range of sizes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/graph/bounded.h"
#include "src/tensor/compiled.h"

namespace torch_tpu::tensor {

// Inputs of dynamic size travel at the front of flat buffers that are as large as the bounds need,
// with the real sizes as run-time numbers, and results come back so: a tensor of its exact size is
// a window on such a buffer. What a bounded graph gives can be passed on to another without a copy;
// other inputs are copied by the host, which needs no program. An input that is written is such a
// window afterwards. The generator advances as if the operators had run at the real sizes.
class BoundedGraph {
 public:
  // What the inputs are at some sizes, which are within what the graph was made for.
  struct Sample {
    std::vector<int64_t> sizes;                 // the dynamic sizes
    std::vector<std::vector<int64_t>> tensors;  // dimensions of each input of dynamic size
    std::vector<int64_t> ints;                  // the graph's integer inputs
  };
  // dynamic: which inputs are of dynamic size. The first sample is at the bounds, the others tell
  // how the program depends on the sizes.
  BoundedGraph(const std::string& name, CompiledGraph::Body body, std::vector<bool> dynamic,
               std::vector<Sample> samples);

  // inputs as for CompiledGraph, but for the integers, which are the dynamic sizes. output_sizes:
  // the dimensions of each output (not looked at where it is none, or an integer). Throws
  // graph::NotBounded if there is no such program; nothing has been run then.
  std::vector<c10::IValue> call(std::vector<at::Tensor>& inputs, const std::vector<int64_t>& sizes,
                                const std::vector<std::vector<int64_t>>& output_sizes);
  std::vector<std::string> module_texts(std::optional<graph::Platform> other = {}) const {
    return graph_.module_texts(other);
  }

 private:
  hlo::Values trace(graph::Call& c);

  CompiledGraph::Body body_;
  std::vector<bool> dynamic_;
  std::vector<Sample> samples_;
  std::vector<bool> open_;         // outputs whose sizes differ between the samples
  std::vector<int64_t> elements_;  // of each input of dynamic size, at the bounds
  std::vector<size_t> written_;    // inputs of dynamic size that the graph writes to
  std::vector<graph::DrawnWords> draws_;
  GraphKernel graph_;
};

}  // namespace torch_tpu::tensor
