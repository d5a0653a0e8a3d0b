// SPDX-License-Identifier: Apache-2.0 - Scaled dot product attention: when it is one operator, and its numbers that are not tensors.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include <cmath>
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

// ---- what nn.MultiheadAttention and nn.TransformerEncoderLayer call where no gradient is needed
// --

// Self-attention with one matrix for query, key and value. A bool mask says what may not be seen.
// mask_type: 0 is [queries, keys], 1 is [batch, keys], 2 is [batch, heads, queries, keys].
std::tuple<at::Tensor, at::Tensor> multi_head_attention(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t embed_dim,
    int64_t heads, const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
    const at::Tensor& proj_weight, const at::Tensor& proj_bias,
    const std::optional<at::Tensor>& given_mask, bool need_weights, bool average_weights,
    std::optional<int64_t> mask_type) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && value.dim() == 3 && !query.is_nested(),
              "_native_multi_head_attention(): query, key and value must be dense, [batch, length, "
              "embedding]; query is ",
              query.dim(), "-D");
  TORCH_CHECK(heads > 0 && embed_dim % heads == 0,
              "_native_multi_head_attention(): embed_dim must be a multiple of num_head, got ",
              embed_dim, " and ", heads);
  const auto weights = qkv_weight.chunk(3, 0), biases = qkv_bias.chunk(3, 0);
  auto project = [&](const at::Tensor& input, size_t which) {
    return at::linear(input, weights[which], biases[which]).unflatten(2, {heads, -1});
  };
  const at::Tensor q = project(query, 0).transpose(1, 2), k = project(key, 1).transpose(1, 2),
                   v = project(value, 2).transpose(1, 2);

  std::optional<at::Tensor> mask;
  if (given_mask.has_value()) {
    mask = *given_mask;
    if (mask_type == 1) mask = mask->unsqueeze(1).unsqueeze(1);
    if (mask->scalar_type() == at::kBool) mask = mask->logical_not();
  }
  at::Tensor result, seen;
  if (need_weights) {
    at::Tensor scores =
        at::matmul(q * (1 / std::sqrt(double(embed_dim) / double(heads))), k.transpose(2, 3));
    if (mask.has_value()) {
      scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), -INFINITY)
                                                : scores + *mask;
    }
    seen = at::_safe_softmax(scores, -1);
    result = at::matmul(seen, v);
    if (average_weights) seen = seen.mean(1);
  } else {
    result = at::scaled_dot_product_attention(q, k, v, mask);
  }
  return {at::linear(result.transpose(1, 2).flatten(2), proj_weight, proj_bias), seen};
}

at::Tensor transformer_encoder_layer(const at::Tensor& source, int64_t embed_dim, int64_t heads,
                                     const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                     const at::Tensor& proj_weight, const at::Tensor& proj_bias,
                                     bool use_gelu, bool norm_first, double eps,
                                     const at::Tensor& norm_weight_1, const at::Tensor& norm_bias_1,
                                     const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2,
                                     const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1,
                                     const at::Tensor& ffn_weight_2, const at::Tensor& ffn_bias_2,
                                     const std::optional<at::Tensor>& mask,
                                     std::optional<int64_t> mask_type) {
  auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(x, {embed_dim}, weight, bias, eps);
  };
  const at::Tensor input = norm_first ? norm(source, norm_weight_1, norm_bias_1) : source;
  at::Tensor x = source + std::get<0>(multi_head_attention(
                              input, input, input, embed_dim, heads, qkv_weight, qkv_bias,
                              proj_weight, proj_bias, mask, false, true, mask_type));
  if (!norm_first) x = norm(x, norm_weight_1, norm_bias_1);
  const at::Tensor hidden =
      at::linear(norm_first ? norm(x, norm_weight_2, norm_bias_2) : x, ffn_weight_1, ffn_bias_1);
  x = x + at::linear(use_gelu ? at::gelu(hidden) : at::relu(hidden), ffn_weight_2, ffn_bias_2);
  return norm_first ? x : norm(x, norm_weight_2, norm_bias_2);
}

// nn.TransformerEncoder asks before it drops padding by nested tensors, which the device does not
// have; "no" keeps it on dense ones.
bool fits_nested_tensor(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_native_multi_head_attention", multi_head_attention);
  m.impl("_transformer_encoder_layer_fwd", transformer_encoder_layer);
  m.impl("_nested_tensor_from_mask_left_aligned", fits_nested_tensor);
  m.impl("_fused_sdp_choice", sdp_choice);
  m.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention);
}

}  // namespace torch_tpu::tensor

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::tensor::sdp_choice)
}  // namespace at::native
