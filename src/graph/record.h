// SPDX-License-Identifier: Apache-2.0 - What tracing one operator call yields: its function, and where inputs and results go.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/graph/args.h"
#include "src/graph/key.h"
#include "src/hlo/builder.h"

namespace torch_tpu::graph {

enum class Platform : uint8_t { Cpu, Tpu };

// Which tensor argument a parameter is the base value of (list arguments: the element too).
struct TensorRef {
  uint16_t arg = 0, element = 0;
  bool operator==(const TensorRef&) const = default;
};

// Where a run-time scalar comes from at each call. dtype is one of F32, F64, S32, S64, U32.
struct ScalarSource {
  enum Kind : uint8_t {
    NumberRe,  // Number of a Scalar argument, an element of a list, or a host tensor
    NumberIm,
    ViewStart,  // (offset of tensor / divisor) % modulus
    SeedLow,
    SeedHigh,
    OffsetLow,  // of (the generator's offset + divisor)
    OffsetHigh,
    NumberFlag,  // 1 if the number is not zero (NaN counts as not zero)
  } kind = NumberRe;
  DType dtype = DType::F32;
  TensorRef from;
  int64_t divisor = 1, modulus = 1;
  bool operator==(const ScalarSource&) const = default;
};

// A new tensor: its base value is result `result` of the function.
struct OutputSpec {
  int32_t result = -1;  // -1: undefined tensor
  DType dtype = DType::F32;
  Dims sizes, strides;
  hlo::Type base;
  bool contiguous = true;
};

// A mutated argument: its storage gets a new base value.
struct WriteSpec {
  TensorRef to;
  int32_t result = -1;
  hlo::Type base;
  bool donates = true;  // the old base is an input that this write replaces
  int32_t input = -1;   // index into Record::inputs of the old base, or -1
};

// A run-time check. The function's error words (S64[2]) are the number of the check that failed,
// from 1 (0 if all held), and the value that stands for "{}" in its message.
struct CheckSpec {
  enum Error : uint8_t { Index, Runtime, Value } error = Index;
  std::string message;
  // In a graph of several ops: which op it is, and the line that called it; else the record's.
  std::string op = {}, line = {};
};

// An output of a whole graph. Several may be windows on one result, and what the graph passes on
// unchanged stays on its input's storage.
struct GraphOutput {
  enum Kind : uint8_t {
    None,
    Input,      // the very tensor argument `index`
    InputView,  // a window on the storage of tensor argument `index`; offset is from its offset
    Result,     // a window on result `index`
    Number,     // an integer, `offset`
  } kind = None;
  int32_t index = -1;
  DType dtype = DType::F32;
  Dims sizes, strides;
  int64_t offset = 0;
};

struct Record {
  Key key;
  std::string op;  // qualified name of the op as called, for messages
  hlo::Function function;
  std::vector<TensorRef> inputs;  // parameters 0..n-1
  std::vector<hlo::Type> input_types;
  std::vector<ScalarSource> scalars;  // the parameters after them, all 0-dim
  uint64_t random_increment = 0;      // what the generator's offset advances by
  int32_t generator_arg = -1;
  std::vector<OutputSpec> outputs;
  std::vector<WriteSpec> writes;
  std::vector<hlo::Type> result_types;
  std::vector<GraphOutput> graph_outputs;  // only of whole graphs
  bool whole = false;                      // a program of its own in every mode
  std::vector<CheckSpec> checks;
  int32_t error_result = -1;  // result that holds the error words
  // Makes the same call's function for another platform (values of run-time inputs do not matter).
  std::function<std::shared_ptr<Record>(Platform, bool host_kernels, bool open_sizes)> retrace;
  // The run layer's own: the program of this call alone, and when it was last part of a window.
  mutable std::shared_ptr<void> program;
  mutable uint64_t last_position = 0;
};
using RecordPtr = std::shared_ptr<const Record>;

}  // namespace torch_tpu::graph
