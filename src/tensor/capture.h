// SPDX-License-Identifier: Apache-2.0 - Capture: op calls are recorded into a function instead of being submitted.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

#include "src/graph/call.h"
#include "src/graph/record.h"
#include "src/run/array.h"

namespace torch_tpu::tensor {

// While one is open on this thread, tensors made by device operators are placeholders.
class Capture {
 public:
  Capture(graph::Call& call);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  static Capture* current();

  // A placeholder tensor (contiguous) that stands for a value of the enclosing call.
  at::TensorBase input(const hlo::Value& value, c10::ScalarType dtype);
  // The value of a tensor, read through its view.
  hlo::Value value_of(const at::TensorBase& tensor);
  // What a placeholder's storage held when it was made.
  bool changed(const at::TensorBase& input) const;

  void record(const graph::Record& record, const std::vector<run::ArrayPtr>& inputs,
              const std::vector<uint64_t>& scalars, std::vector<run::ArrayPtr>& results);

 private:
  hlo::Value value(const run::ArrayPtr& array);

  graph::Call& call_;
  Capture* outer_;
  std::unordered_map<const run::Array*, hlo::Value> values_;
  std::vector<run::ArrayPtr> held_;
  std::unordered_map<const c10::StorageImpl*, run::ArrayPtr> inputs_;
};

}  // namespace torch_tpu::tensor
