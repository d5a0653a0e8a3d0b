// SPDX-License-Identifier: Apache-2.0 - CompiledGraph: a graph of operators that is one call and one program.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/tensor/capture.h"
#include "src/tensor/kernel.h"

namespace torch_tpu::tensor {

// Runs through the same kernel as every operator does: the key tells sizes, dtypes and layouts of
// the inputs, an unknown key runs the body once on placeholders, a known one is a look-up and a
// launch. So nothing but sizes is specialised, and a parameter whose storage changes its form is
// not an error but another program.
class CompiledGraph {
 public:
  // One output of the body: a tensor (undefined: None), with the strides that the caller counts on
  // if it cares, or an integer.
  struct Output {
    at::Tensor tensor;
    std::optional<std::vector<int64_t>> strides;
    std::optional<int64_t> number;
  };
  // Runs the graph on placeholders, below autograd. May be called again, for another platform.
  using Body = std::function<std::vector<Output>(Capture&, const std::vector<at::Tensor>& inputs,
                                                 const std::vector<int64_t>& ints)>;

  CompiledGraph(const std::string& name, Body body);
  ~CompiledGraph();
  CompiledGraph(const CompiledGraph&) = delete;
  CompiledGraph& operator=(const CompiledGraph&) = delete;

  // inputs: on the device, 0-dim on the CPU (whose values are run-time inputs), or undefined.
  // Tensors that the graph writes to are written. Results: tensors, ints, or None. May throw what
  // the body throws; nothing has been run then.
  std::vector<c10::IValue> call(std::vector<at::Tensor>& inputs, const std::vector<int64_t>& ints);
  // StableHLO of the programs that have been made of it.
  std::vector<std::string> module_texts(std::optional<graph::Platform> other = {}) const;

 private:
  std::shared_ptr<OpKernel> kernel_;
};

}  // namespace torch_tpu::tensor
