// SPDX-License-Identifier: Apache-2.0 - Whole optimizer steps in one program, and the loss scaler's kernels.
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {

// ---- loss scaling ------------------------------------------------------------------------------

// Every gradient times inv_scale; found_inf becomes 1 if any element is not finite.
TPU_OP(
    "aten::_amp_foreach_non_finite_check_and_unscale_(Tensor(a!)[] self, Tensor(b!) found_inf, "
    "Tensor inv_scale) -> ()") {
  Value inv_scale = c.tensor("inv_scale", DType::F32);
  Value found = c.tensor("found_inf", DType::F32);
  Dims found_dims = found.dims();
  found = reshape(found, {});
  Value bad = hlo::gt(found, 0);
  Values grads = c.tensors("self");
  for (size_t i = 0; i < grads.size(); ++i) {
    const Value& g = grads[i];
    require_real_float(c, g.dtype());
    Dims all(g.rank());
    for (size_t d = 0; d < all.size(); ++d) all[d] = static_cast<int64_t>(d);
    bad = bad | hlo::reduce(~hlo::is_finite(g), all, hlo::Reduce::Or);
    DType compute = hlo::opmath(g.dtype());
    Value scale = reshape(convert(inv_scale, compute), {});
    // A scale of 1 must leave infinities as they are.
    Value scaled = select(hlo::eq(scale, 1), convert(g, compute), convert(g, compute) * scale);
    c.write("self", static_cast<int64_t>(i), convert(scaled, g.dtype()));
  }
  c.write("found_inf", reshape(select(bad, 1, found), found_dims));
  return {};
}

// After an overflow the scale backs off and the count restarts; after growth_interval good steps in
// a row it grows, unless it would overflow.
TPU_OP(
    "aten::_amp_update_scale_(Tensor(a!) self, Tensor(b!) growth_tracker, Tensor found_inf, float "
    "scale_growth_factor, float scale_backoff_factor, int growth_interval) -> Tensor(a!)") {
  Value scale = c.tensor("self"), tracker = c.tensor("growth_tracker");
  Value bad = hlo::ne(reshape(c.tensor("found_inf", DType::F32), scale.dims()), 0);
  Value shaped_tracker = reshape(tracker, scale.dims());
  Value steps = shaped_tracker + 1;
  Value due = hlo::eq(steps, static_cast<double>(c.integer("growth_interval")));
  Value grown = scale * c.scalar("scale_growth_factor", scale.dtype());
  grown = select(due & hlo::is_finite(grown), grown, scale);
  Value backed_off = scale * c.scalar("scale_backoff_factor", scale.dtype());
  Value count = select(bad | due, 0, steps);
  c.write("growth_tracker", reshape(count, tracker.dims()));
  Value next = select(bad, backed_off, grown);
  c.write("self", next);
  return {Value{}};
}

// ---- optimizers --------------------------------------------------------------------------------

// What the fused steps share: the scalars, and that nothing changes after an overflow.
struct Step {
  Call& c;
  Value skip;  // 0-dim Pred, or none
  explicit Step(Call& call) : c(call) {
    if (c.has("found_inf")) skip = hlo::ne(reshape(c.tensor("found_inf", DType::F32), {}), 0);
  }
  // One of a number and a tensor of one element.
  Value scalar(std::string_view name, DType dtype) {
    if (const TensorArg* meta = c.meta_or_null(name); meta && !meta->host) {
      return reshape(c.tensor(name, dtype), {});
    }
    return c.tensor(name, dtype);
  }
  // The gradient without the loss scale; stored back as the optimizers of PyTorch do.
  Value gradient(int64_t i, const Value& grad, DType compute) {
    require_real_float(c, compute);
    Value g = convert(grad, compute);
    if (c.has("grad_scale")) {
      g = g / reshape(c.tensor("grad_scale", compute), {});
      write("grads", i, grad, g);
    }
    return c.flag("maximize") ? -g : g;
  }
  void write(std::string_view name, int64_t i, const Value& old_value, const Value& value) {
    Value v = convert(value, old_value.dtype());
    c.write(name, i, skip ? select(skip, old_value, v) : v);
  }
};

// m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
// p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps).
// Weight decay is added to the gradient, or (decoupled) p *= 1 - lr * weight_decay.
static Values adam(Call& c, bool decoupled) {
  Step step(c);
  Values params = c.tensors("self"), grads = c.tensors("grads"), ms = c.tensors("exp_avgs"),
         vs = c.tensors("exp_avg_sqs"), steps = c.tensors("state_steps");
  bool amsgrad = c.flag("amsgrad");
  Values maxima = amsgrad ? c.tensors("max_exp_avg_sqs") : Values{};
  bool decays = !c.equals("weight_decay", 0);
  // The corrections are differences from 1: in float32 they would lose their digits.
  DType exact = DType::F64;
  Value lr = step.scalar("lr", exact);
  Value beta1 = c.scalar("beta1", exact), beta2 = c.scalar("beta2", exact);
  Value eps = c.scalar("eps", exact), decay = c.scalar("weight_decay", exact);
  for (size_t i = 0; i < params.size(); ++i) {
    int64_t at = static_cast<int64_t>(i);
    DType compute = hlo::opmath(params[i].dtype());
    auto narrow = [&](const Value& x) { return convert(x, compute); };
    Value t = reshape(convert(steps[i], exact), {});
    Value step_size = narrow(lr / (1.0 - hlo::power(beta1, t)));
    Value root_correction = narrow(hlo::sqrt(1.0 - hlo::power(beta2, t)));
    Value p = narrow(params[i]);
    Value g = step.gradient(at, grads[i], compute);
    if (decays && decoupled) p = p * narrow(1.0 - lr * decay);
    if (decays && !decoupled) g = g + p * narrow(decay);
    Value m = narrow(ms[i]), v = narrow(vs[i]);
    m = m + (g - m) * narrow(1.0 - beta1);
    v = v * narrow(beta2) + g * g * narrow(1.0 - beta2);
    Value spread = v;
    if (amsgrad) {
      spread = hlo::maximum(narrow(maxima[i]), v);
      step.write("max_exp_avg_sqs", at, maxima[i], spread);
    }
    p = p - step_size * m / (hlo::sqrt(spread) / root_correction + narrow(eps));
    step.write("self", at, params[i], p);
    step.write("exp_avgs", at, ms[i], m);
    step.write("exp_avg_sqs", at, vs[i], v);
  }
  return {};
}
static Values adam_coupled(Call& c) { return adam(c, false); }
static Values adam_decoupled(Call& c) { return adam(c, true); }
#define TPU_ADAM(name, lr, fn)                                                                  \
  TPU_OP_FN("aten::" name                                                                       \
            "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] "      \
            "exp_avg_sqs, Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, " lr           \
            " lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, bool " \
            "maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()",                 \
            Contiguous, fn)
TPU_ADAM("_fused_adam_", "float", adam_coupled);
TPU_ADAM("_fused_adam_.tensor_lr", "Tensor", adam_coupled);
TPU_ADAM("_fused_adamw_", "float", adam_decoupled);
TPU_ADAM("_fused_adamw_.tensor_lr", "Tensor", adam_decoupled);
#undef TPU_ADAM

// buffer = momentum * buffer + (1 - dampening) g (just g at the first step); p -= lr * buffer, or
// with Nesterov's momentum p -= lr (g + momentum * buffer).
static Values sgd(Call& c) {
  Step step(c);
  Values params = c.tensors("self"), grads = c.tensors("grads");
  bool with_momentum = !c.equals("momentum", 0);
  Values buffers = with_momentum ? c.tensors("momentum_buffer_list") : Values{};
  bool decays = !c.equals("weight_decay", 0);
  bool nesterov = c.flag("nesterov"), first = c.flag("is_first_step");
  for (size_t i = 0; i < params.size(); ++i) {
    int64_t at = static_cast<int64_t>(i);
    DType compute = hlo::opmath(params[i].dtype());
    Value p = convert(params[i], compute);
    Value g = step.gradient(at, grads[i], compute);
    if (decays) g = g + p * c.scalar("weight_decay", compute);
    if (with_momentum) {
      Value momentum = c.scalar("momentum", compute);
      Value buffer = g;
      if (!first) {
        buffer =
            convert(buffers[i], compute) * momentum + g * (1.0 - c.scalar("dampening", compute));
      }
      step.write("momentum_buffer_list", at, buffers[i], buffer);
      g = nesterov ? g + buffer * momentum : buffer;
    }
    step.write("self", at, params[i], p - step.scalar("lr", compute) * g);
  }
  return {};
}
#define TPU_SGD(name, lr)                                                                      \
  TPU_OP_FN("aten::" name                                                                      \
            "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, "   \
            "float weight_decay, float momentum, " lr                                          \
            " lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? " \
            "grad_scale=None, Tensor? found_inf=None) -> ()",                                  \
            Contiguous, sgd)
TPU_SGD("_fused_sgd_", "float");
TPU_SGD("_fused_sgd_.tensor_lr", "Tensor");
#undef TPU_SGD

// sum += g^2; p -= lr / (1 + (t - 1) lr_decay) * g / (sqrt(sum) + eps).
static Values adagrad(Call& c) {
  Step step(c);
  Values params = c.tensors("self"), grads = c.tensors("grads"), sums = c.tensors("state_sums"),
         steps = c.tensors("state_steps");
  bool decays = !c.equals("weight_decay", 0);
  for (size_t i = 0; i < params.size(); ++i) {
    int64_t at = static_cast<int64_t>(i);
    DType compute = hlo::opmath(params[i].dtype());
    Value p = convert(params[i], compute);
    Value g = step.gradient(at, grads[i], compute);
    if (decays) g = g + p * c.scalar("weight_decay", compute);
    Value t = reshape(convert(steps[i], compute), {});
    Value lr = step.scalar("lr", compute) / ((t - 1) * c.scalar("lr_decay", compute) + 1);
    Value sum = convert(sums[i], compute) + g * g;
    step.write("state_sums", at, sums[i], sum);
    step.write("self", at, params[i], p - lr * g / (hlo::sqrt(sum) + c.scalar("eps", compute)));
  }
  return {};
}
#define TPU_ADAGRAD(name, steps, lr)                                                      \
  TPU_OP_FN("aten::" name                                                                 \
            "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] state_sums, " steps     \
            " state_steps, *, " lr                                                        \
            " lr, float lr_decay, float weight_decay, float eps, bool maximize, Tensor? " \
            "grad_scale=None, Tensor? found_inf=None) -> ()",                             \
            Contiguous, adagrad)
TPU_ADAGRAD("_fused_adagrad_", "Tensor(d!)[]", "float");
TPU_ADAGRAD("_fused_adagrad_.tensor_lr", "Tensor[]", "Tensor");
#undef TPU_ADAGRAD

}  // namespace torch_tpu::ops
