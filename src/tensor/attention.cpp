// SPDX-License-Identifier: Apache-2.0 - Scaled dot product attention: when it is one operator, and its numbers that are not tensors.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <tuple>

#include "src/tensor/register.h"

namespace torch_tpu::tensor {
namespace {

// One operator when the shapes are those its entry takes; what needs broadcasting (or asks for the
// plain formula) is composed from matmul and softmax by PyTorch.
int64_t sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                   bool enable_gqa) {
  const bool heads_fit = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
                         key.size(1) == value.size(1) &&
                         (query.size(1) == key.size(1) ||
                          (enable_gqa && key.size(1) > 0 && query.size(1) % key.size(1) == 0));
  const bool fused = at::globalContext().userEnabledOverrideableSDP() && heads_fit &&
                     at::isFloatingType(query.scalar_type()) &&
                     query.scalar_type() == key.scalar_type() &&
                     query.scalar_type() == value.scalar_type() && query.size(0) == key.size(0) &&
                     query.size(0) == value.size(0) && query.size(3) == key.size(3) &&
                     key.size(2) == value.size(2);
  return static_cast<int64_t>(fused ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// The entry gives the tensors; the two lengths among the results come from the sizes.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
fused_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                const std::optional<at::Tensor>& bias, double dropout, bool causal, bool debug_mask,
                std::optional<double> scale) {
  auto r = call_entry("aten::_scaled_dot_product_fused_attention_overrideable",
                      {query, key, value, bias, dropout, causal, debug_mask, scale});
  return {r[0], r[1], r[2], r[3], query.size(-2), key.size(-2), r[6], r[7], r[8]};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", sdp_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention);
}

}  // namespace torch_tpu::tensor

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::tensor::sdp_choice)
}  // namespace at::native
