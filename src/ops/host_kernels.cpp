// SPDX-License-Identifier: Apache-2.0 - The table of host kernels, and how an entry calls one.
#include "src/ops/host_kernels.h"

#include <algorithm>

namespace torch_tpu::ops {
namespace {

// The functions are in src/tensor/host_kernels.cpp; TORCH_TPU_HOST_KERNELS=0 switches all off.
constexpr HostKernel kTable[] = {
    {"convolution", "convolution_overrideable in float32, with groups or over volumes",
     "2 to 4 times faster than what XLA's CPU plugin makes of it"},
    {"convolution_by_columns",
     "the same in two dimensions, where the weight is the smaller operand",
     "1.3 to 1.7 times faster: one copy for the windows, and one program without hand-overs"},
    {"convolution_grad_input", "convolution_backward_overrideable, also over many pixels",
     "together with the next, 1.3 to 17 times faster"},
    {"convolution_grad_weight", "convolution_backward_overrideable, also over many pixels",
     "see above"},
    {"matmul", "products of two large float32 matrices",
     "takes transposed matrices as they lie, which XLA's CPU plugin copies. With the next two, a "
     "GPT "
     "training step takes a tenth less"},
    {"attention", "scaled dot product attention in float32, without dropout, of many scores",
     "never writes the scores down, and takes either order of heads and tokens as it lies"},
    {"attention_backward", "its backward, with as many key heads as query heads and no bias",
     "see above"},
};

}  // namespace

std::span<const HostKernel> host_kernels() { return kTable; }

void HostAttributes::add(std::string_view name, const std::string& value) {
  if (!text_.empty()) text_ += ", ";
  text_ += std::string(name) + " = " + value;
}

HostAttributes& HostAttributes::ints(std::string_view name, const hlo::Dims& values) {
  std::string list;
  for (const int64_t v : values) list += (list.empty() ? "" : ", ") + std::to_string(v);
  add(name, list.empty() ? "array<i64>" : "array<i64: " + list + ">");
  return *this;
}

HostAttributes& HostAttributes::integer(std::string_view name, int64_t value) {
  add(name, std::to_string(value) + " : i64");
  return *this;
}

hlo::Values host_call(Call& c, std::string_view name, const hlo::Values& operands,
                      std::vector<hlo::Type> results, const HostAttributes& attributes) {
  const bool known = std::any_of(std::begin(kTable), std::end(kTable),
                                 [&](const HostKernel& kernel) { return kernel.name == name; });
  c.check(known && c.host_kernels(), "no host kernel \"", name, "\" here");
  return hlo::custom_call(c.builder(), "torch_tpu." + std::string(name), operands,
                          std::move(results), "{" + attributes.text() + "}", 4);
}

}  // namespace torch_tpu::ops
