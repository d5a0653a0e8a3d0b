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
  const bool heads_fit =
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
      key.sym_size(1) == value.sym_size(1) &&
      (query.sym_size(1) == key.sym_size(1) ||
       (enable_gqa && key.sym_size(1) > 0 && query.sym_size(1) % key.sym_size(1) == 0));
  const bool fused =
      at::globalContext().userEnabledOverrideableSDP() && heads_fit &&
      at::isFloatingType(query.scalar_type()) && query.scalar_type() == key.scalar_type() &&
      query.scalar_type() == value.scalar_type() && query.sym_size(0) == key.sym_size(0) &&
      query.sym_size(0) == value.sym_size(0) && query.sym_size(3) == key.sym_size(3) &&
      key.sym_size(2) == value.sym_size(2);
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

// ---- the same under the names of other backends' kernels ----------------------------------------
// Callers that name a kernel get the same entry, with what those kernels mask as a mask.

using OptionalTensor = std::optional<at::Tensor>;
using OptionalInt = std::optional<c10::SymInt>;

std::vector<at::Tensor> attend(const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, const OptionalTensor& bias, double dropout,
                               bool causal, std::optional<double> scale) {
  return call_entry("aten::_scaled_dot_product_fused_attention_overrideable",
                    {query, key, value, bias, dropout, causal, false, scale});
}

// kept: what the forward pass gave as its random state.
std::vector<at::Tensor> attend_backward(const at::Tensor& grad, const at::Tensor& query,
                                        const at::Tensor& key, const at::Tensor& value,
                                        const at::Tensor& bias, bool bias_gradient,
                                        const at::Tensor& out, const at::Tensor& logsumexp,
                                        const at::Tensor& kept, double dropout, bool causal,
                                        std::optional<double> scale) {
  const at::Tensor none;
  return call_entry(
      "aten::_scaled_dot_product_fused_attention_overrideable_backward",
      {grad, query, key, value, bias,
       std::vector<bool>{true, true, true, bias_gradient && bias.defined()}, out, logsumexp, none,
       none, query.size(-2), key.size(-2), dropout, causal, kept, none, scale});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
      bool causal, bool, std::optional<double> scale) {
  auto r = attend(query, key, value, {}, dropout, causal, scale);
  return {r[0], r[1], at::Tensor(), at::Tensor(), query.size(-2), key.size(-2), r[6], r[7], r[8]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool causal, const at::Tensor& kept,
    const at::Tensor&, std::optional<double> scale) {
  auto r = attend_backward(grad, query, key, value, {}, false, out, logsumexp, kept, dropout,
                           causal, scale);
  return {r[0], r[1], r[2]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const OptionalTensor& bias, bool want_logsumexp, double dropout, bool causal,
    std::optional<double> scale) {
  auto r = attend(query, key, value, bias, dropout, causal, scale);
  return {r[0], want_logsumexp ? r[1] : r[1].slice(-1, 0, 0), r[6], r[7]};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor& kept, const at::Tensor&, double dropout, std::array<bool, 4> wanted,
    bool causal, std::optional<double> scale) {
  if (!grad.defined()) return {};
  auto r = attend_backward(grad, query, key, value, bias, wanted[3], out, logsumexp, kept, dropout,
                           causal, scale);
  return {r[0], r[1], r[2], r[3]};
}

// What a query may see, where that is more than `is_causal` can say.
struct Sight {
  OptionalTensor query_ends, key_ends;  // cumulative lengths: sequences side by side in one row
  OptionalTensor key_lengths;           // [batch]
  // Keys from i + shift - left to i + shift + right, both if not negative; shift aligns the ends
  // of a sequence's queries and keys.
  int64_t left = -1, right = -1;
  bool align_ends = true;

  bool all() const { return !query_ends && !key_lengths && left < 0 && right < 0; }
};

// true where a query may look, [1 or batch, 1, queries, keys]; undefined if it may look anywhere.
at::Tensor sight_mask(const Sight& s, const at::Tensor& query, const at::Tensor& key) {
  if (s.all()) return {};
  const int64_t queries = query.size(2), keys = key.size(2);
  auto options = query.options().dtype(at::kLong);
  at::Tensor i = at::arange(queries, options), j = at::arange(keys, options);
  at::Tensor seen, shift = at::scalar_tensor(keys - queries, options);
  if (s.query_ends) {
    TORCH_CHECK(s.key_ends, "attention: cumulative lengths of the keys are missing");
    const at::Tensor q = s.query_ends->to(at::kLong), k = s.key_ends->to(at::kLong);
    const at::Tensor of_query = at::searchsorted(q, i, false, true) - 1;
    const at::Tensor of_key = at::searchsorted(k, j, false, true) - 1;
    seen = of_query.unsqueeze(1).eq(of_key.unsqueeze(0));
    const at::Tensor lengths = k.diff() - q.diff();
    shift = lengths.index_select(0, of_query.clamp(0, lengths.size(0) - 1)).unsqueeze(1);
    i = i - q.index_select(0, of_query.clamp(0, q.size(0) - 1));
    j = j - k.index_select(0, of_key.clamp(0, k.size(0) - 1));
  }
  at::Tensor distance = j.unsqueeze(0) - i.unsqueeze(1);
  if (s.align_ends) distance = distance - shift;
  auto also = [&](const at::Tensor& more) {
    seen = seen.defined() ? seen.logical_and(more) : more;
  };
  if (s.right >= 0) also(distance.le(s.right));
  if (s.left >= 0) also(distance.ge(-s.left));
  if (seen.defined()) seen = seen.reshape({1, 1, queries, keys});
  if (s.key_lengths)
    also(j.reshape({1, 1, 1, keys}).lt(s.key_lengths->to(at::kLong).reshape({-1, 1, 1, 1})));
  return seen.expand({query.size(0), query.size(1), queries, keys});
}

// [batch, length, heads, size], or [all lengths, heads, size] -> [batch, heads, length, size]
at::Tensor heads_first(const at::Tensor& x) {
  return (x.dim() == 3 ? x.unsqueeze(0) : x).transpose(1, 2);
}
at::Tensor heads_back(const at::Tensor& x, const at::Tensor& like) {
  const at::Tensor y = x.transpose(1, 2);
  return like.dim() == 3 ? y.squeeze(0) : y;
}

Sight flash_sight(const OptionalTensor& query_ends, const OptionalTensor& key_ends, bool causal,
                  OptionalInt left, OptionalInt right, const OptionalTensor& key_lengths) {
  Sight s;
  if (query_ends && query_ends->defined()) s.query_ends = query_ends, s.key_ends = key_ends;
  if (key_lengths && key_lengths->defined()) s.key_lengths = key_lengths;
  s.left = left ? left->guard_int(__FILE__, __LINE__) : -1;
  s.right = right ? right->guard_int(__FILE__, __LINE__) : -1;
  if (causal) s.right = s.right < 0 ? 0 : std::min<int64_t>(s.right, 0);
  return s;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash_forward(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const OptionalTensor& query_ends, const OptionalTensor& key_ends, c10::SymInt, c10::SymInt,
    double dropout, bool causal, bool, std::optional<double> scale, OptionalInt left,
    OptionalInt right, const OptionalTensor& key_lengths, const OptionalTensor& slopes,
    const OptionalTensor& block_table, std::optional<int64_t>) {
  TORCH_CHECK_NOT_IMPLEMENTED(!block_table || !block_table->defined(),
                              "_flash_attention_forward(): block_table is not supported on tpu; "
                              "gather the pages of the cache into key and value first");
  const at::Tensor q = heads_first(query), k = heads_first(key), v = heads_first(value);
  at::Tensor bias =
      sight_mask(flash_sight(query_ends, key_ends, causal, left, right, key_lengths), q, k);
  if (slopes && slopes->defined()) {
    auto options = q.options().dtype(at::kFloat);
    const int64_t shift = k.size(2) - q.size(2);
    at::Tensor far = at::arange(k.size(2), options).unsqueeze(0) -
                     at::arange(q.size(2), options).unsqueeze(1) - shift;
    at::Tensor linear = far.abs() * slopes->to(at::kFloat).reshape({-1, q.size(1), 1, 1}) * -1;
    bias = bias.defined() ? linear.masked_fill(bias.logical_not(), -INFINITY) : linear;
    bias = bias.expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  }
  auto r =
      attend(q, k, v, bias.defined() ? OptionalTensor(bias) : std::nullopt, dropout, false, scale);
  at::Tensor logsumexp = query.dim() == 3 ? r[1].squeeze(0) : r[1];
  return {heads_back(r[0], query), logsumexp, r[6], r[7], r[8]};
}

at::Tensor flash_forward_into(at::Tensor& out, const at::Tensor& query, const at::Tensor& key,
                              const at::Tensor& value, const OptionalTensor& query_ends,
                              const OptionalTensor& key_ends, c10::SymInt max_q, c10::SymInt max_k,
                              double dropout, bool causal, bool debug, std::optional<double> scale,
                              OptionalInt left, OptionalInt right,
                              const OptionalTensor& key_lengths, const OptionalTensor& slopes,
                              const OptionalTensor& block_table, std::optional<int64_t> splits) {
  TORCH_CHECK(dropout == 0, "_flash_attention_forward_no_dropout_inplace(): dropout_p must be 0");
  auto r = flash_forward(query, key, value, query_ends, key_ends, max_q, max_k, 0, causal, debug,
                         scale, left, right, key_lengths, slopes, block_table, splits);
  out.copy_(std::get<0>(r));
  return std::get<1>(r);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_forward_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor& query_ends,
    const at::Tensor& key_ends, c10::SymInt, c10::SymInt, double dropout, bool causal,
    const at::Tensor& kept, const at::Tensor&, std::optional<double> scale, OptionalInt left,
    OptionalInt right) {
  const at::Tensor q = heads_first(query), k = heads_first(key), v = heads_first(value);
  const at::Tensor bias =
      sight_mask(flash_sight(query_ends, key_ends, causal, left, right, {}), q, k);
  auto r = attend_backward(heads_first(grad), q, k, v, bias, false, heads_first(out),
                           query.dim() == 3 ? logsumexp.unsqueeze(0) : logsumexp, kept, dropout,
                           false, scale);
  return {heads_back(r[0], query), heads_back(r[1], key), heads_back(r[2], value)};
}

enum MaskType : int64_t { NoMask, CausalFromTopLeft, CausalFromBottomRight };

// The mask together with the caller's bias.
at::Tensor efficient_bias(const at::Tensor& q, const at::Tensor& k, const OptionalTensor& bias,
                          const OptionalTensor& query_ends, const OptionalTensor& key_ends,
                          int64_t mask_type, std::optional<int64_t> window,
                          const OptionalTensor& key_lengths) {
  Sight s;
  if (query_ends && query_ends->defined()) s.query_ends = query_ends, s.key_ends = key_ends;
  if (key_lengths && key_lengths->defined()) s.key_lengths = key_lengths;
  s.align_ends = mask_type == CausalFromBottomRight;
  if (mask_type != NoMask) s.right = 0;
  if (window && *window > 0) s.left = *window - 1;
  const at::Tensor seen = sight_mask(s, q, k);
  if (!bias || !bias->defined()) return seen;
  if (!seen.defined()) return *bias;
  return bias->expand(seen.sizes()).masked_fill(seen.logical_not(), -INFINITY);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt>
efficient_forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const OptionalTensor& bias, const OptionalTensor& query_ends,
                  const OptionalTensor& key_ends, OptionalInt max_q, OptionalInt max_k,
                  double dropout, int64_t mask_type, bool want_logsumexp,
                  std::optional<double> scale, const OptionalTensor& key_lengths,
                  std::optional<int64_t> window) {
  const at::Tensor q = heads_first(query), k = heads_first(key), v = heads_first(value);
  const at::Tensor mask =
      efficient_bias(q, k, bias, query_ends, key_ends, mask_type, window, key_lengths);
  auto r =
      attend(q, k, v, mask.defined() ? OptionalTensor(mask) : std::nullopt, dropout, false, scale);
  return {heads_back(r[0], query),
          want_logsumexp ? r[1] : r[1].slice(-1, 0, 0),
          r[6],
          r[7],
          max_q.value_or(c10::SymInt(q.size(2))),
          max_k.value_or(c10::SymInt(k.size(2)))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> efficient_forward_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const OptionalTensor& bias, const at::Tensor& out, const OptionalTensor& query_ends,
    const OptionalTensor& key_ends, c10::SymInt, c10::SymInt, const at::Tensor& logsumexp,
    double dropout, const at::Tensor& kept, const at::Tensor&, int64_t mask_type,
    bool bias_gradient, std::optional<double> scale, std::optional<int64_t>,
    std::optional<int64_t> window, bool) {
  const at::Tensor q = heads_first(query), k = heads_first(key), v = heads_first(value);
  const at::Tensor mask = efficient_bias(q, k, bias, query_ends, key_ends, mask_type, window, {});
  auto r = attend_backward(heads_first(grad), q, k, v, mask, bias_gradient, heads_first(out),
                           logsumexp, kept, dropout, false, scale);
  at::Tensor of_bias = r[3];
  if (of_bias.defined() && bias && bias->defined()) of_bias = at::sum_to(of_bias, bias->sizes());
  return {heads_back(r[0], query), heads_back(r[1], key), heads_back(r[2], value), of_bias};
}

// The uniform numbers whose comparison with dropout_p is the mask.
at::Tensor& fill_dropout_mask(at::Tensor& self, double, int64_t seed, int64_t offset) {
  const at::Tensor key = at::tensor({seed, offset / 4}, at::kLong).view(at::kUInt64);
  return self._philox_uniform_(key.to(self.device()));
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

// [batch, length, 3 width] + bias as queries (scaled), keys and values [batch, heads, length,
// size].
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_heads(const at::Tensor& qkv,
                                                           const at::Tensor& bias, int64_t heads) {
  TORCH_CHECK(qkv.dim() == 3 && !qkv.is_nested() && qkv.size(2) % (3 * heads) == 0,
              "_transform_bias_rescale_qkv(): qkv must be [batch, length, 3 * heads * size], got ",
              qkv.sizes(), " for ", heads, " heads");
  const auto parts = (qkv + bias).unflatten(2, {3, heads, -1}).permute({2, 0, 3, 1, 4}).unbind(0);
  const double scale = 1 / std::sqrt(static_cast<double>(parts[0].size(3)));
  return {parts[0].mul(scale), parts[1].contiguous(), parts[2].contiguous()};
}

// nn.TransformerEncoder asks before it drops padding by nested tensors, which the device does not
// have; "no" keeps it on dense ones.
bool fits_nested_tensor(const at::Tensor&, const at::Tensor&) { return false; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_native_multi_head_attention", multi_head_attention);
  m.impl("_transformer_encoder_layer_fwd", transformer_encoder_layer);
  m.impl("_nested_tensor_from_mask_left_aligned", fits_nested_tensor);
  m.impl("_transform_bias_rescale_qkv", split_heads);
  m.impl("_fused_sdp_choice", sdp_choice);
  m.impl("_scaled_dot_product_flash_attention", flash);
  m.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  m.impl("_scaled_dot_product_efficient_attention", efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
  m.impl("_flash_attention_forward", flash_forward);
  m.impl("_flash_attention_forward_no_dropout_inplace", flash_forward_into);
  m.impl("_flash_attention_backward", flash_forward_backward);
  m.impl("_efficient_attention_forward", efficient_forward);
  m.impl("_efficient_attention_backward", efficient_forward_backward);
  m.impl("_fill_mem_eff_dropout_mask_", fill_dropout_mask);
  m.impl("_scaled_dot_product_fused_attention_overrideable", fused_attention);
}

}  // namespace torch_tpu::tensor

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torch_tpu::tensor::sdp_choice)
}  // namespace at::native
