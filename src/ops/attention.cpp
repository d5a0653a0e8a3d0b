// SPDX-License-Identifier: Apache-2.0 - Scaled dot product attention as one operator, forward and backward.
//
// Softmax in float32 whatever the inputs are. A row without a single allowed key gives zeros, as
// PyTorch's kernels do. Grouped queries (fewer key heads than query heads) share their keys without
// copying them.
#include <cmath>

#include "src/ops/contraction.h"
#include "src/ops/host_kernels.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {
namespace {

struct Attention {
  Dims batch;         // leading dimensions, key heads last
  int64_t group = 1;  // query heads a key head
  int64_t queries = 0, keys = 0;
  DType compute = DType::F32;
  int64_t rank() const { return static_cast<int64_t>(batch.size()); }
  Dims scores() const { return with({group, queries, keys}); }
  Dims with(const Dims& rest) const {
    Dims d = batch;
    d.insert(d.end(), rest.begin(), rest.end());
    return d;
  }
  Dims leading() const { return counting(rank()); }
  // Dims of the call's own tensors: query heads in one dimension.
  Dims heads(const Dims& rest) const {
    Dims d = batch;
    d.back() *= group;
    d.insert(d.end(), rest.begin(), rest.end());
    return d;
  }
};

Attention attention_of(const Call& c) {
  const TensorArg &q = c.meta("query"), &k = c.meta("key"), &v = c.meta("value");
  c.check(q.rank() >= 3 && k.rank() == q.rank() && v.rank() == q.rank(),
          "query, key and value must have the same number of dimensions, at least 3, but got ",
          q.sizes, ", ", k.sizes, " and ", v.sizes);
  c.check(q.dtype == k.dtype && q.dtype == v.dtype,
          "Expected query, key, and value to have the same dtype, but got query.dtype: ", q.dtype,
          " key.dtype: ", k.dtype, " and value.dtype: ", v.dtype, " instead.");
  reject(c, !hlo::is_floating(q.dtype), q.dtype);
  const int64_t n = q.rank();
  c.check(q.sizes[n - 1] == k.sizes[n - 1],
          "query and key must agree in their last dimension, got ", q.sizes, " and ", k.sizes);
  c.check(k.sizes[n - 2] == v.sizes[n - 2], "key and value must have the same length, got ",
          k.sizes, " and ", v.sizes);
  Attention a;
  a.batch.assign(k.sizes.begin(), k.sizes.end() - 2);
  const int64_t query_heads = q.sizes[n - 3], key_heads = k.sizes[n - 3];
  const bool fits = key_heads > 0 ? query_heads % key_heads == 0 : query_heads == 0;
  c.check(fits && v.sizes[n - 3] == key_heads, "the number of heads of query (", query_heads,
          ") must be a multiple of that of key and value (", key_heads, ", ", v.sizes[n - 3], ")");
  for (int64_t i = 0; i < n - 3; ++i) {
    c.check(q.sizes[i] == k.sizes[i] && q.sizes[i] == v.sizes[i],
            "query, key and value must agree in batch dimensions, got ", q.sizes, ", ", k.sizes,
            " and ", v.sizes);
  }
  a.group = key_heads > 0 ? query_heads / key_heads : 1;
  a.queries = q.sizes[n - 2];
  a.keys = k.sizes[n - 2];
  a.compute = hlo::opmath(q.dtype);
  return a;
}

// [batch, group * heads...] with two trailing dimensions -> [batch, group, x, y]
Value grouped(const Attention& a, const Value& x) {
  return hlo::reshape(x, a.with({a.group, x.dim(-2), x.dim(-1)}));
}
Value ungrouped(const Attention& a, const Value& x) {
  return hlo::reshape(x, a.heads({x.dim(-2), x.dim(-1)}));
}

// `scale`, or 1 / sqrt(head size).
Value scale_of(Call& c, const Attention& a) {
  if (c.has("scale")) return c.scalar("scale", a.compute);
  const auto size = static_cast<double>(c.meta("query").sizes.back());
  return hlo::scalar(c.builder(), a.compute, 1.0 / std::sqrt(size));
}

// The attention bias, additive; bool masks say what may be seen.
Value added_bias(Call& c, const Attention& a, const char* name) {
  check_expands(c, c.meta(name).sizes, a.heads({a.queries, a.keys}));
  if (c.dtype_of(name) != DType::Pred) return c.tensor(name, a.compute);
  Value seen = c.tensor(name);
  Value nothing = hlo::zeros(c.builder(), {a.compute, seen.dims()});
  return hlo::select(seen, nothing, hlo::full_like(nothing, -INFINITY));
}

// The same as [batch, group, queries, keys].
Value bias_of(Call& c, const Attention& a, const char* name) {
  Value x = added_bias(c, a, name);
  return hlo::reshape(hlo::broadcast_to(x, a.heads({a.queries, a.keys})), a.scores());
}

// scale q k' + bias, -inf above the diagonal when causal (aligned at the first query and key).
Value scores(Call& c, const Attention& a, const Value& q, const Value& k, const char* bias) {
  const int64_t n = a.rank();
  Value s = contract(c, grouped(a, q), k, a.leading(), a.leading(), {n + 2}, {n + 1});
  s = s * scale_of(c, a);
  if (c.has(bias)) s = s + bias_of(c, a, bias);
  if (c.flag("is_causal")) {
    const hlo::Type type = {DType::S32, {a.queries, a.keys}};
    Value hidden = hlo::gt(hlo::iota(c.builder(), type, 1), hlo::iota(c.builder(), type, 0));
    s = hlo::select(hlo::broadcast_to(hidden, s.dims()), hlo::full_like(s, -INFINITY), s);
  }
  return s;
}

// p v with p in float32, or rounded to the inputs' dtype where the hardware multiplies that.
Value weighted(Call& c, const Value& p, const Value& other, const Dims& lhs_batch,
               const Dims& rhs_batch, const Dims& lhs_contract, const Dims& rhs_contract) {
  if (c.platform() == Platform::Cpu || other.dtype() == p.dtype()) {
    return contract(c, p, hlo::convert(other, p.dtype()), lhs_batch, rhs_batch, lhs_contract,
                    rhs_contract);
  }
  return contract(c, hlo::convert(p, other.dtype()), other, lhs_batch, rhs_batch, lhs_contract,
                  rhs_contract);
}

// ---- by the host's kernel -------------------------------------------------------------------

// It goes over the keys once a query, and never writes the scores down.
bool on_host(Call& c, const Attention& a) {
  constexpr int64_t kLeastScores = 1 << 12;  // below, XLA's loops are as fast
  return c.host_kernels() && c.dtype_of("query") == DType::F32 && a.rank() == 2 &&
         hlo::element_count(a.scores()) >= kLeastScores && c.meta("query").sizes[3] > 0 &&
         c.meta("query").sizes[3] == c.meta("value").sizes[3] && c.equals("dropout_p", 0);
}
bool backward_on_host(Call& c, const Attention& a) {
  return on_host(c, a) && a.group == 1 && !c.has("attn_bias");
}

// The kernel takes [batch, heads, tokens, size] or, as most models have it in memory, with heads
// and tokens exchanged: the query and what is like it, and the key and what is like that.
struct HostOrder {
  HostOrder(const Call& c, const char* name) {
    const TensorArg& x = c.meta(name);
    tokens_first = x.strides[2] > x.strides[1];
  }
  Value of(const Value& x) const { return tokens_first ? hlo::transpose(x, {0, 2, 1, 3}) : x; }
  hlo::Type of(const hlo::Type& type) const {
    const Dims& d = type.dims;
    return tokens_first ? hlo::Type{type.dtype, {d[0], d[2], d[1], d[3]}} : type;
  }
  bool tokens_first;
};

// [batch or 1, heads or 1, queries, keys]
Value host_bias(Call& c, const Attention& a) {
  Value x = added_bias(c, a, "attn_bias");
  Dims dims = x.dims();
  dims.insert(dims.begin(), 4 - dims.size(), 1);
  const Dims full = a.heads({a.queries, a.keys});
  const Dims wanted = {dims[0], dims[1], full[2], full[3]};
  return hlo::broadcast_to(hlo::reshape(x, dims), wanted);
}

HostAttributes host_attributes(Call& c, const HostOrder& queries, const HostOrder& keys) {
  return HostAttributes()
      .integer("query_tokens_first", queries.tokens_first)
      .integer("key_tokens_first", keys.tokens_first)
      .integer("causal", c.flag("is_causal"));
}

}  // namespace

// softmax(scale q k' + bias) v. In place of a seed, the pair (philox_seed, philox_offset) carries
// which weights dropout kept, so that the backward pass sees the same ones.
TPU_OP(
    "aten::_scaled_dot_product_fused_attention_overrideable(Tensor query, Tensor key, Tensor "
    "value, Tensor? attn_bias=None, float dropout_p=0., bool is_causal=False, bool "
    "return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor "
    "cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor "
    "philox_offset, Tensor debug_attn_mask)") {
  const Attention a = attention_of(c);
  hlo::Builder& b = c.builder();
  const DType dtype = c.dtype_of("query");
  const int64_t n = a.rank(), last = n + 2;
  if (on_host(c, a)) {
    const HostOrder queries(c, "query"), keys(c, "key");
    Value q = c.tensor("query");
    Values operands = {queries.of(q), keys.of(c.tensor("key")), keys.of(c.tensor("value"))};
    if (c.has("attn_bias")) operands.push_back(host_bias(c, a));
    operands.push_back(scale_of(c, a));
    Values results =
        host_call(c, "attention", operands, {queries.of(q.type()), {dtype, a.heads({a.queries})}},
                  host_attributes(c, queries, keys));
    results[0] = queries.of(results[0]);
    results.resize(9);
    results[6] = hlo::zeros(b, {DType::Pred, {0}});
    results[7] = hlo::zeros(b, {DType::S64, {}});
    results[8] = hlo::zeros(b, {dtype, {0}});
    return results;
  }
  Value v = c.tensor("value");
  Value s = scores(c, a, c.tensor("query"), c.tensor("key"), "attn_bias");
  Value highest = hlo::reduce(s, {last}, hlo::Reduce::Maximum, true);
  Value empty = hlo::eq(highest, -INFINITY);
  Value e = hlo::exponential(s - hlo::select(empty, hlo::zeros_like(highest), highest));
  Value total = hlo::reduce(e, {last}, hlo::Reduce::Add, true);
  Value logsumexp = hlo::reshape(hlo::log(total) + highest, a.heads({a.queries}));
  Value divisor = hlo::select(empty, hlo::full_like(total, 1), total);
  Value kept = hlo::zeros(b, {DType::Pred, {0}});
  Value output;
  if (c.equals("dropout_p", 0)) {
    // Dividing after the product is one division a result instead of one a weight.
    output = weighted(c, e, v, a.leading(), a.leading(), {last}, {n}) / divisor;
  } else {
    const Dims dims = a.scores();
    Value bits = hlo::reshape(c.random_bits(hlo::element_count(dims)), dims);
    Value uniform =
        hlo::convert(hlo::shift_right_logical(bits, hlo::full_like(bits, 8)), DType::F32) *
        std::ldexp(1.0, -24);
    kept = hlo::ge(uniform, c.scalar("dropout_p", DType::F32));
    Value p = hlo::select(kept, e / divisor, 0.0) / (1.0 - c.scalar("dropout_p", a.compute));
    output = weighted(c, p, v, a.leading(), a.leading(), {last}, {n});
    kept = hlo::reshape(kept, a.heads({a.queries, a.keys}));
  }
  Values results(9);
  results[0] = hlo::convert(ungrouped(a, output), dtype);
  results[1] = logsumexp;
  results[6] = kept;
  results[7] = hlo::zeros(b, {DType::S64, {}});
  results[8] = hlo::zeros(b, {dtype, {0}});
  return results;
}

// p = exp(s - logsumexp), ds = p (dp - sum(dout out)); dq = ds k, dk = ds' q, dv = p' dout.
TPU_OP(
    "aten::_scaled_dot_product_fused_attention_overrideable_backward(Tensor grad_out, Tensor "
    "query, Tensor key, Tensor value, Tensor attn_bias, bool[4] grad_input_mask, Tensor out, "
    "Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float "
    "dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) "
    "-> (Tensor grad_query, Tensor grad_key, Tensor grad_value, Tensor grad_attn_bias)") {
  const Attention a = attention_of(c);
  const DType dtype = c.dtype_of("query");
  const Dims mask = c.ints("grad_input_mask");
  const int64_t n = a.rank(), last = n + 2;
  const Dims lead = a.leading();
  Value q = c.tensor("query"), k = c.tensor("key"), v = c.tensor("value");
  if (backward_on_host(c, a)) {
    const HostOrder queries(c, "query"), keys(c, "key");
    Values results =
        host_call(c, "attention_backward",
                  {queries.of(c.tensor("grad_out", dtype)), queries.of(q), keys.of(k), keys.of(v),
                   queries.of(c.tensor("out")), c.tensor("logsumexp"), scale_of(c, a)},
                  {queries.of(q.type()), keys.of(k.type()), keys.of(v.type())},
                  host_attributes(c, queries, keys));
    results[0] = mask[0] ? queries.of(results[0]) : Value();
    for (int64_t i : {1, 2}) results[i] = mask[i] ? keys.of(results[i]) : Value();
    results.resize(4);
    return results;
  }
  Value grad = grouped(a, c.tensor("grad_out", dtype));
  Value lse = hlo::reshape(c.tensor("logsumexp", a.compute), a.with({a.group, a.queries, 1}));
  Value s = scores(c, a, q, k, "attn_bias");
  Value p = hlo::select(hlo::broadcast_to(hlo::eq(lse, -INFINITY), s.dims()), hlo::zeros_like(s),
                        hlo::exponential(s - lse));
  Value dp = contract(c, grad, v, lead, lead, {last}, {n + 1});
  Value dropped = p;
  if (!c.equals("dropout_p", 0)) {
    Value kept = hlo::reshape(c.tensor("philox_seed"), a.scores());
    Value keep_probability = 1.0 - c.scalar("dropout_p", a.compute);
    dp = hlo::select(kept, dp, 0.0) / keep_probability;
    dropped = hlo::select(kept, p, 0.0) / keep_probability;
  }
  Value out = grouped(a, c.tensor("out", a.compute));
  Value sum = hlo::reduce(out * hlo::convert(grad, a.compute), {last}, hlo::Reduce::Add, true);
  Value ds = p * (dp - sum);
  Values results(4);
  Value scale = scale_of(c, a);
  if (mask[0]) {
    Value dq = weighted(c, ds, k, lead, lead, {last}, {n}) * scale;
    results[0] = hlo::convert(ungrouped(a, dq), dtype);
  }
  // Sums over the group as well: the keys served all of it.
  if (mask[1]) {
    Value dk = weighted(c, ds, grouped(a, q), lead, lead, {n, n + 1}, {n, n + 1}) * scale;
    results[1] = hlo::convert(dk, dtype);
  }
  if (mask[2]) {
    Value dv = weighted(c, dropped, grad, lead, lead, {n, n + 1}, {n, n + 1});
    results[2] = hlo::convert(dv, dtype);
  }
  if (mask[3] && c.has("attn_bias")) {
    const TensorArg& bias = c.meta("attn_bias");
    Value full = hlo::reshape(ds, a.heads({a.queries, a.keys}));
    Dims summed;
    const int64_t extra = full.rank() - bias.rank();
    for (int64_t i = 0; i < full.rank(); ++i) {
      if (i < extra || (bias.sizes[i - extra] == 1 && full.dim(i) != 1)) summed.push_back(i);
    }
    full = summed.empty() ? full : hlo::reduce(full, summed, hlo::Reduce::Add);
    results[3] = hlo::convert(hlo::reshape(full, bias.sizes), bias.dtype);
  }
  return results;
}

}  // namespace torch_tpu::ops
