// SPDX-License-Identifier: Apache-2.0 - what a plugin tells of a compiled program, for Python.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <optional>
#include <string>

#include "src/pjrt/executable.h"

namespace torch_tpu {

struct CompiledFacts {
  double compile_seconds = 0;
  std::map<std::string, double> cost;
  std::optional<pjrt::CompiledProgram::MemoryStats> memory;
  pjrt::CompiledProgram::OptimizedProgram optimized;
};

CompiledFacts facts_of(const pjrt::CompiledProgram& program, double compile_seconds);
// "compile_seconds", "cost", "memory" (bytes by category), "optimized" and "optimized_format".
pybind11::dict to_dict(const CompiledFacts& facts);

}  // namespace torch_tpu
