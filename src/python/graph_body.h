// SPDX-License-Identifier: Apache-2.0 - A Python function as the body of a graph.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "src/tensor/compiled.h"

namespace torch_tpu {

// fn(inputs, ints) -> [(tensor, int or None; strides or None)]. C++ threads without the GIL may
// call, hold and drop the result.
tensor::CompiledGraph::Body graph_body(pybind11::object fn);

}  // namespace torch_tpu
