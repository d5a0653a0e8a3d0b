// SPDX-License-Identifier: Apache-2.0 - Tracing: one operator call's arguments become a Record.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "src/graph/call.h"
#include "src/graph/op_table.h"
#include "src/graph/record.h"

namespace torch_tpu::graph {

// A form of an operator as the dispatcher knows it, derived from an entry.
struct Variant {
  enum Form : uint8_t { Functional, InPlace, Out };
  const OpEntry* entry = nullptr;
  std::string op;  // qualified name with overload, "aten::add_.Tensor"
  Form form = Functional;
  bool foreach = false;  // arguments are lists of what the entry takes
  int first_out = -1;    // Out: index of the first out= argument
  int out_count = 0;
  uint64_t id = 0;  // hash of op, part of every key
  // Instead of the entry's body: a lowering made at run time (a traced decomposition).
  std::function<hlo::Values(Call&)> body;
  bool asked_precision = false;
  // What traced bodies have asked about numbers, per argument. Grows only; guarded by the caller.
  std::vector<Specialization> asked;
  std::vector<Derivation> derived;
};

struct TraceOptions {
  Platform platform = Platform::Cpu;
  bool host_kernels = false;
  // The function will be compared with what it is at other sizes: its form must not depend on them.
  bool open_sizes = false;
  hlo::Precision precision = hlo::Precision::Highest;
  DType default_float = DType::F32;
};

// Runs the entry's body. Throws UserError for the user's mistakes.
std::shared_ptr<Record> trace(Variant& variant, std::shared_ptr<const Args> args,
                              const TraceOptions& options);

}  // namespace torch_tpu::graph
