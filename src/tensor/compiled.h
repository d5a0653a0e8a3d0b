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

// A graph as an operator's kernel, whose results' tensors are made here.
class GraphKernel {
 public:
  GraphKernel(const std::string& name, std::function<hlo::Values(graph::Call&)> body);
  ~GraphKernel();
  GraphKernel(const GraphKernel&) = delete;
  GraphKernel& operator=(const GraphKernel&) = delete;

  // Outputs that are inputs are those of `given`. adjust, if there is one, tells what a result with
  // a buffer of its own really is, by its place among the outputs.
  using Adjust = std::function<graph::GraphOutput(size_t, graph::GraphOutput)>;
  std::vector<c10::IValue> call(std::vector<at::Tensor>& inputs, const std::vector<int64_t>& ints,
                                const std::vector<at::Tensor>& given, const Adjust& adjust = {});
  // StableHLO of the programs that have been made of it.
  std::vector<std::string> module_texts(std::optional<graph::Platform> other = {}) const;
  const OpKernel& kernel() const { return *kernel_; }

 private:
  std::shared_ptr<OpKernel> kernel_;
};

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

  // inputs: on the device, 0-dim on the CPU (whose values are run-time inputs), or undefined.
  // Tensors that the graph writes to are written. Results: tensors, ints, or None. May throw what
  // the body throws; nothing has been run then.
  std::vector<c10::IValue> call(std::vector<at::Tensor>& inputs, const std::vector<int64_t>& ints);
  std::vector<std::string> module_texts(std::optional<graph::Platform> other = {}) const {
    return kernel_.module_texts(other);
  }

 private:
  GraphKernel kernel_;
};

// The values of an output as a buffer of its own, with its dimensions in the order that the strides
// the caller counts on suggest; `out` is told what the tensor is.
hlo::Value dense_result(Capture& capture, const CompiledGraph::Output& output,
                        graph::GraphOutput& out);
// A tensor on a storage.
at::Tensor window(c10::Storage storage, const graph::GraphOutput& out, int64_t offset,
                  c10::ScalarType dtype);

}  // namespace torch_tpu::tensor
