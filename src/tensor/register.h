// SPDX-License-Identifier: Apache-2.0 - Registers every operator's kernels, derived from the operator table.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace torch_tpu::tensor {

// Registers a kernel for every operator of PyTorch that needs one; called once, when the extension
// is loaded.
void register_operators();
// The same for sparse tensors.
void register_sparse_operators();

// Calls an entry without the dispatcher: the result is written through self (an in-place form that
// need not exist as an operator), or returned.
void call_in_place(const char* entry, const at::Tensor& self, std::vector<c10::IValue> rest);
std::vector<at::Tensor> call_entry(const char* entry, std::vector<c10::IValue> args);

// A dense host copy of a device tensor.
at::Tensor to_host(const at::Tensor& tensor);

// How often each operator ran on the CPU (TORCH_TPU_CPU_FALLBACK=1).
std::vector<std::pair<std::string, int64_t>> fallback_counts();
void set_cpu_fallback(bool on);

// What became of an operator: "entry", "derived", "decomposition", "composite" or "none".
struct OpRow {
  std::string op, how, where;
};
std::vector<OpRow> operator_rows();

}  // namespace torch_tpu::tensor
