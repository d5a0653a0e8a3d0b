// SPDX-License-Identifier: Apache-2.0 - Operators without an entry: PyTorch's decomposition, traced once per call shape.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <exception>
#include <functional>
#include <string>

#include "src/graph/call.h"

namespace torch_tpu::tensor {

// The op has no lowering: no entry, and no decomposition that could be traced.
class NoLowering : public std::exception {};

// Runs PyTorch's Python decomposition of an operator ("aten::foo.bar") on tensors of the device.
// Returns false when there is none.
using Decomposer = std::function<bool(const std::string& op, torch::jit::Stack& stack)>;
void set_decomposer(Decomposer decomposer);

// Runs the decomposition of `op` on placeholders and returns its results as values of c. Throws
// NoLowering.
hlo::Values decompose(const std::string& op, const c10::FunctionSchema& schema, graph::Call& c);

}  // namespace torch_tpu::tensor
