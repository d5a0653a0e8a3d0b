// SPDX-License-Identifier: Apache-2.0 - Capture: op calls are recorded into a function instead of being submitted.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/graph/call.h"
#include "src/graph/record.h"
#include "src/run/array.h"

namespace torch_tpu::tensor {

// While one is open on this thread, tensors made by device operators are placeholders.
class Capture {
 public:
  // graph: many ops of equal rank, not the parts of one, so that failed checks name each.
  explicit Capture(graph::Call& call, bool graph = false);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  static Capture* current();

  graph::Call& call() { return call_; }
  // A placeholder tensor (contiguous) that stands for a value of the enclosing call.
  at::TensorBase input(const hlo::Value& value, c10::ScalarType dtype);
  // The same, dense, with its dimensions in memory in the order that these strides suggest.
  at::TensorBase input(const hlo::Value& value, c10::ScalarType dtype, c10::IntArrayRef strides);
  // The value of a tensor, read through its view.
  hlo::Value value_of(const at::TensorBase& tensor);
  // The base value of a tensor's storage.
  hlo::Value base_of(const at::TensorBase& tensor);
  // What a placeholder's storage held when it was made.
  bool changed(const at::TensorBase& input) const;

  // A record that was traced for another platform than the graph's is traced anew.
  void record(const graph::Record& record, const std::vector<run::ArrayPtr>& inputs,
              const std::vector<uint64_t>& scalars, std::vector<run::ArrayPtr>& results);
  // The generator's state where the graph has come to, int64 [seed, offset]; and ops to come draw
  // from such a state (undefined: from the generator again).
  at::Tensor random_state();
  void draw_from(const at::Tensor& state);
  const std::vector<int64_t>& draws() const { return draws_; }
  // The line of the user's that the ops to come belong to, for failed checks ("file.py:12").
  void set_line(std::string line) { line_ = std::move(line); }

 private:
  friend class CaptureRegion;
  hlo::Value value(const run::ArrayPtr& array);
  hlo::Value random_scalar(graph::ScalarSource source);

  graph::Call& call_;
  bool graph_;
  std::string line_;
  hlo::Value drawn_state_;  // U64 [seed, offset], or none
  uint64_t drawn_ = 0;
  // Where sizes are open: the words that each operator drew, and their sum in the program.
  std::vector<int64_t> draws_;
  hlo::Value drawn_words_;
  Capture* outer_;
  std::unordered_map<const run::Array*, hlo::Value> values_;
  std::vector<run::ArrayPtr> held_;
  std::unordered_map<const c10::StorageImpl*, run::ArrayPtr> inputs_;
};

// ---- control flow of a captured graph: the functions run while their region is open ------------
// Both branches return tensors of the same dtypes and sizes; pred has one element.
std::vector<at::Tensor> capture_if(Capture& capture, const at::Tensor& pred,
                                   const std::function<std::vector<at::Tensor>()>& on_true,
                                   const std::function<std::vector<at::Tensor>()>& on_false);
// The body gets and returns tensors of the dtypes and sizes of init; the condition gives one
// element.
using LoopBody = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
std::vector<at::Tensor> capture_while(
    Capture& capture, const std::vector<at::Tensor>& init,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& condition,
    const LoopBody& body);

// The checks of a function whose error words these are become checks of the call.
void raise_checks(graph::Call& call, const hlo::Value& words,
                  const std::vector<graph::CheckSpec>& checks);

// The dimensions of a dense tensor, outermost in memory first.
hlo::Dims memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides);

}  // namespace torch_tpu::tensor
