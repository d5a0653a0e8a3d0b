// SPDX-License-Identifier: Apache-2.0 - Cells of recurrent networks: LSTM and GRU, forward and backward.
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {
namespace {

// [batch, n * hidden] as n values.
Values chunks(const Value& x, int64_t n) {
  const int64_t size = x.dim(1) / n;
  Values parts;
  for (int64_t i = 0; i < n; ++i) {
    parts.push_back(hlo::slice_dim(x, 1, i * size, (i + 1) * size));
  }
  return parts;
}

Value rounded_join(const Values& parts, DType dtype) {
  return hlo::convert(hlo::concatenate(parts, 1), dtype);
}

Value with_bias(Call& c, const char* gates, const char* bias, DType compute) {
  Value x = c.tensor(gates, compute);
  c.check(x.rank() == 2, gates, " must be a matrix, got ", x.dims());
  return c.has(bias) ? x + c.tensor(bias, compute) : x;
}

Value sum_over_batch(const Value& x) { return hlo::reduce(x, {0}, hlo::Reduce::Add); }
// Derivatives in terms of the function's value.
Value sigmoid_slope(const Value& y) { return y * (1.0 - y); }
Value tanh_slope(const Value& y) { return 1.0 - y * y; }

}  // namespace

// i, f, o = sigmoid, g = tanh of the summed gates; cy = f cx + i g, hy = o tanh(cy).
TPU_OP(
    "aten::_thnn_fused_lstm_cell(Tensor input_gates, Tensor hidden_gates, Tensor cx, Tensor? "
    "input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor, Tensor)") {
  const DType dtype = c.dtype_of("input_gates"), compute = hlo::opmath(dtype);
  require_real_float(c, dtype);
  const Values gates = chunks(with_bias(c, "input_gates", "input_bias", compute) +
                                  with_bias(c, "hidden_gates", "hidden_bias", compute),
                              4);
  Value i = hlo::logistic(gates[0]), f = hlo::logistic(gates[1]), g = hlo::tanh(gates[2]),
        o = hlo::logistic(gates[3]);
  Value cy = f * c.tensor("cx", compute) + i * g;
  return {hlo::convert(o * hlo::tanh(cy), dtype), hlo::convert(cy, dtype),
          rounded_join({i, f, g, o}, dtype)};
}

TPU_OP(
    "aten::_thnn_fused_lstm_cell_backward_impl(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor "
    "cy, Tensor workspace, bool has_bias) -> (Tensor, Tensor, Tensor)") {
  const DType dtype = c.dtype_of("workspace"), compute = hlo::opmath(dtype);
  if (!c.has("grad_hy") && !c.has("grad_cy")) return Values(3);
  const Values gates = chunks(c.tensor("workspace", compute), 4);
  const Value &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
  Value cx = c.tensor("cx", compute), y = hlo::tanh(c.tensor("cy", compute));
  Value grad_hy = c.has("grad_hy") ? c.tensor("grad_hy", compute) : hlo::zeros_like(y);
  Value grad_c = grad_hy * o * tanh_slope(y);
  if (c.has("grad_cy")) grad_c = grad_c + c.tensor("grad_cy", compute);
  Value grad_gates =
      hlo::concatenate(Values{grad_c * g * sigmoid_slope(i), grad_c * cx * sigmoid_slope(f),
                              grad_c * i * tanh_slope(g), grad_hy * y * sigmoid_slope(o)},
                       1);
  Value grad_bias = c.flag("has_bias") ? hlo::convert(sum_over_batch(grad_gates), dtype) : Value{};
  return {hlo::convert(grad_gates, dtype), hlo::convert(grad_c * f, dtype), grad_bias};
}

// r, z = sigmoid, n = tanh(n_input + r n_hidden); hy = n + z (hx - n). The workspace holds what
// the gradient needs: r, z, n, hx, n_hidden.
TPU_OP(
    "aten::_thnn_fused_gru_cell(Tensor input_gates, Tensor hidden_gates, Tensor hx, Tensor? "
    "input_bias=None, Tensor? hidden_bias=None) -> (Tensor, Tensor)") {
  const DType dtype = c.dtype_of("input_gates"), compute = hlo::opmath(dtype);
  require_real_float(c, dtype);
  const Values in = chunks(with_bias(c, "input_gates", "input_bias", compute), 3);
  const Values hidden = chunks(with_bias(c, "hidden_gates", "hidden_bias", compute), 3);
  Value hx = c.tensor("hx", compute);
  Value r = hlo::logistic(in[0] + hidden[0]), z = hlo::logistic(in[1] + hidden[1]);
  Value n = hlo::tanh(in[2] + r * hidden[2]);
  return {hlo::convert(n + z * (hx - n), dtype), rounded_join({r, z, n, hx, hidden[2]}, dtype)};
}

TPU_OP(
    "aten::_thnn_fused_gru_cell_backward(Tensor grad_hy, Tensor workspace, bool has_bias) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)") {
  const DType dtype = c.dtype_of("workspace"), compute = hlo::opmath(dtype);
  const Values saved = chunks(c.tensor("workspace", compute), 5);
  const Value &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &n_hidden = saved[4];
  Value grad = c.tensor("grad_hy", compute);
  Value grad_n = grad * (1.0 - z) * tanh_slope(n);
  Value grad_z = grad * (hx - n) * sigmoid_slope(z);
  Value grad_r = grad_n * n_hidden * sigmoid_slope(r);
  Value grad_in = hlo::concatenate(Values{grad_r, grad_z, grad_n}, 1);
  Value grad_hidden = hlo::concatenate(Values{grad_r, grad_z, grad_n * r}, 1);
  Values results = {hlo::convert(grad_in, dtype), hlo::convert(grad_hidden, dtype),
                    hlo::convert(grad * z, dtype), Value{}, Value{}};
  if (c.flag("has_bias")) {
    results[3] = hlo::convert(sum_over_batch(grad_in), dtype);
    results[4] = hlo::convert(sum_over_batch(grad_hidden), dtype);
  }
  return results;
}

}  // namespace torch_tpu::ops
