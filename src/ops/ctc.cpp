// SPDX-License-Identifier: Apache-2.0 - Connectionist temporal classification loss and its backward.
#include <algorithm>
#include <limits>

#include "src/ops/reduce.h"

namespace torch_tpu::ops {
namespace {

using graph::CheckSpec;

// The states of row n are its labels with blanks around them: blank, l1, blank, l2, ..., blank.
// A path may stay, advance by one, or skip a blank between two different labels.
struct Ctc {
  DType result, compute;
  int64_t steps, batch, classes, states;
  Value emission;       // log-probability of each state's label, [T, N, L]
  Value label;          // class of each state, S32 [N, L]
  Value skip;           // state i may be reached from i - 2, [N, L]
  Value input, target;  // lengths, S32 [N, 1]
  Value state;          // 0, 1, ..., L - 1 as S32 [N, L]
  Value lowest;         // log 0
};

Value lengths(Call& c, std::string_view name, bool listed) {
  if (listed) {
    Dims values = c.ints(name);
    return hlo::constant_ints(c.builder(), {DType::S32, {int64_t(values.size()), 1}}, values);
  }
  Value v = c.tensor(name, DType::S32);
  return hlo::reshape(v, {v.elements(), 1});
}

Ctc prepare(Call& c, bool listed) {
  hlo::Builder& b = c.builder();
  Ctc r;
  r.result = c.dtype_of("log_probs");
  c.check(hlo::is_floating(r.result), "expected floating point log_probs, got ", r.result);
  r.compute = hlo::opmath(r.result);
  const TensorArg &probs = c.meta("log_probs"), &targets = c.meta("targets");
  c.check(probs.rank() == 3, "expected log_probs of shape [T, N, C], got ", probs.sizes);
  c.check(targets.dtype == DType::S64 || targets.dtype == DType::S32,
          "expected targets of dtype int64 or int32, got ", targets.dtype);
  c.check(targets.rank() == 1 || targets.rank() == 2, "expected 1 or 2-dimensional targets, got ",
          targets.sizes);
  r.steps = probs.sizes[0];
  r.batch = probs.sizes[1];
  r.classes = probs.sizes[2];
  int64_t blank = c.integer("blank"), longest = targets.sizes.back();
  c.check(blank >= 0 && blank < r.classes, "blank must be in label range");
  c.check(targets.rank() == 1 || targets.sizes[0] == r.batch, "expected targets of ", r.batch,
          " rows, got ", targets.sizes);
  r.input = lengths(c, "input_lengths", listed);
  r.target = lengths(c, "target_lengths", listed);
  c.check(r.input.elements() == r.batch, "input_lengths must be of size batch_size");
  c.check(r.target.elements() == r.batch, "target_lengths must be of size batch_size");
  if (listed) {
    Dims ends = c.ints("target_lengths");
    int64_t total = 0;
    longest = 0;
    for (int64_t n : ends) {
      c.check(n >= 0, "Expected target_lengths to have value at least 0, but got value ", n);
      longest = std::max(longest, n);
      total += n;
    }
    c.check(targets.rank() == 1 ? targets.sizes[0] == total : targets.sizes[1] >= longest,
            "expected targets to have size at least ", targets.rank() == 1 ? total : longest,
            ", but got ", targets.sizes);
    for (int64_t n : c.ints("input_lengths")) {
      c.check(n >= 0 && n <= r.steps, "Expected input_lengths to have value at most ", r.steps,
              ", but got value ", n);
    }
  }
  r.states = 2 * longest + 1;
  Dims row{r.batch, r.states};
  r.state = hlo::iota(b, {DType::S32, row}, 1);
  r.lowest = hlo::lowest(b, r.compute);
  // The targets of row n, state by state: number (i - 1) / 2 of them.
  Value number = hlo::shift_right_arithmetic(r.state, hlo::full_like(r.state, 1));
  Value flat = hlo::reshape(c.tensor("targets", DType::S32), {targets.elements()});
  Value start;
  if (targets.rank() == 1) {  // one after another
    Value up_to = hlo::le(hlo::iota(b, {DType::S32, {r.batch, r.batch}}, 1),
                          hlo::iota(b, {DType::S32, {r.batch, r.batch}}, 0));
    Value all = hlo::reshape(r.target, {1, r.batch});
    start = sum(hlo::select(up_to, hlo::broadcast_to(all, {r.batch, r.batch}), 0), {1}, true) -
            r.target;
  } else {
    start = hlo::iota(b, {DType::S32, {r.batch, 1}}, 0) * double(targets.sizes[1]);
  }
  Value inside = hlo::lt(number, r.target);
  Value odd = hlo::eq(hlo::and_(r.state, hlo::full_like(r.state, 1)), 1);
  Value labelled = odd & inside;
  r.label = hlo::full_like(r.state, double(blank));
  if (flat.elements() > 0) {
    Value where = hlo::minimum(start + number, double(flat.elements() - 1));
    Value label = hlo::select(labelled, hlo::take(flat, where, 0), double(blank));
    r.label = checked_index(
        c, label, r.classes, Negative::Reject, CheckSpec::Index,
        "ctc_loss: target {} is out of range, expected 0 to " + std::to_string(r.classes - 1));
  }
  Value before = hlo::full_like(r.label, double(blank));
  if (r.states > 2) {
    before = hlo::pad(r.label, hlo::scalar(b, DType::S32, double(blank)), {0, 2}, {0, -2});
  }
  r.skip = labelled & hlo::ne(r.label, before) & hlo::ge(r.state, 2);
  hlo::GatherDims dims;
  dims.offset_dims = {0};
  dims.collapsed_slice_dims = {2};
  dims.operand_batching_dims = {1};
  dims.start_indices_batching_dims = {0};
  dims.start_index_map = {2};
  dims.index_vector_dim = 2;
  r.emission = hlo::gather(c.tensor("log_probs", r.compute), r.label, dims, {r.steps, 1, 1});
  return r;
}

// log(exp a + exp b + exp c), -inf where all are.
Value log_sum(const Value& a, const Value& b, const Value& c) {
  Value top = hlo::maximum(hlo::maximum(a, b), c);
  Value safe = hlo::select(hlo::is_finite(top), top, 0);
  return hlo::log(hlo::exponential(a - safe) + hlo::exponential(b - safe) +
                  hlo::exponential(c - safe)) +
         safe;
}
// States moved by `by` places, log 0 coming in.
Value moved(const Ctc& r, const Value& x, int64_t by) {
  return hlo::pad(x, r.lowest, {0, by}, {0, -by});
}
Value step_of(const Value& x, const Value& t) {  // x[t] of [T, N, L]
  Value zero = hlo::zeros_like(t);
  const Value starts[] = {t, zero, zero};
  return hlo::reshape(hlo::dynamic_slice(x, starts, {1, x.dim(1), x.dim(2)}), {x.dim(1), x.dim(2)});
}
Value with_step(const Value& x, const Value& t, const Value& row) {
  Value zero = hlo::zeros_like(t);
  const Value starts[] = {t, zero, zero};
  return hlo::dynamic_update_slice(x, hlo::reshape(row, {1, x.dim(1), x.dim(2)}), starts);
}
// What stands at the last two states of a row: its last label and the blank after it.
Value final_state(const Ctc& r) {
  Value last = r.target * 2.0;
  return hlo::eq(r.state, last) | hlo::eq(r.state, last - 1);
}

// Forward: alpha[t, i] = log of the probability of all paths that are in state i at time t.
// alpha[t] = emission[t] + log_sum(alpha[t-1] from i, i - 1, and i - 2 where skips are allowed).
Values ctc(Call& c, bool listed) {
  hlo::Builder& b = c.builder();
  Ctc r = prepare(c, listed);
  Value first = hlo::le(r.state, 1) & hlo::le(r.state, r.target * 2.0);
  Value none = hlo::broadcast_to(r.lowest, {r.batch, r.states});
  Value alpha = hlo::broadcast_to(r.lowest, {r.steps, r.batch, r.states});
  Value last = none;
  if (r.steps > 0) {
    Value t0 = hlo::scalar(b, DType::S32, 0);
    Value start = hlo::select(first, step_of(r.emission, t0), none);
    const Value init[] = {hlo::scalar(b, DType::S32, 1), start, with_step(alpha, t0, start)};
    alpha = hlo::while_loop(
        init, [&](const Values& s) { return hlo::lt(s[0], double(r.steps)); },
        [&](const Values& s) -> Values {
          Value skipped = hlo::select(r.skip, moved(r, s[1], 2), r.lowest);
          Value next = step_of(r.emission, s[0]) + log_sum(s[1], moved(r, s[1], 1), skipped);
          return {s[0] + 1, next, with_step(s[2], s[0], next)};
        })[2];
    // alpha at each row's own last time.
    Value time = hlo::iota(b, {DType::S32, alpha.dims()}, 0);
    Value own = hlo::eq(time, hlo::broadcast_in_dim(r.input - 1, alpha.dims(), {1, 2}));
    last = hlo::reduce(hlo::select(own, alpha, r.lowest), {0}, hlo::Reduce::Maximum);
  }
  Value ends = hlo::select(final_state(r), last, r.lowest);
  Value top = hlo::reduce(ends, {1}, hlo::Reduce::Maximum, true);
  Value safe = hlo::select(hlo::is_finite(top), top, 0);
  Value loss = -(hlo::log(sum(hlo::exponential(ends - safe), {1}, true)) + safe);
  // No input explains no label, and nothing else. zero_infinity is the caller's and backward's.
  loss = hlo::select(hlo::eq(r.input, 0) & hlo::eq(r.target, 0), 0, loss);
  return {hlo::convert(hlo::reshape(loss, {r.batch}), r.result),
          hlo::convert(hlo::transpose(alpha, {1, 0, 2}), r.result)};
}

// beta[t, i]: the same from the other end. The share of paths through i at t is
// p = exp(alpha + beta - emission + nll), and d nll / d log_probs[t, c] = exp(log_probs) - sum of p
// over the states of class c (one matrix product with their one-hot rows). 0 after a row's end.
Value ctc_backward(Call& c, bool listed) {
  hlo::Builder& b = c.builder();
  Ctc r = prepare(c, listed);
  if (r.steps == 0 || r.batch == 0) return c.tensor("log_probs");
  Value none = hlo::broadcast_to(r.lowest, {r.batch, r.states});
  Value skip_on = r.states > 2 ? hlo::pad(r.skip, hlo::scalar(b, DType::Pred, 0), {0, -2}, {0, 2})
                               : hlo::ne(r.state, r.state);  // i + 2 may be reached from i
  Value ends = final_state(r);
  Value all = hlo::broadcast_to(r.lowest, {r.steps, r.batch, r.states});
  const Value init[] = {hlo::scalar(b, DType::S32, double(r.steps - 1)), none, all};
  Value beta = hlo::while_loop(
      init, [](const Values& s) { return hlo::ge(s[0], 0); },
      [&](const Values& s) -> Values {
        Value skipped = hlo::select(skip_on, moved(r, s[1], -2), r.lowest);
        Value onward = log_sum(s[1], moved(r, s[1], -1), skipped);
        Value starts = hlo::select(ends, hlo::zeros_like(onward), none);
        Value here = hlo::select(hlo::eq(r.input - 1, s[0]), starts, onward);
        here = step_of(r.emission, s[0]) + here;
        return {s[0] - 1, here, with_step(s[2], s[0], here)};
      })[2];
  Value alpha = hlo::transpose(c.tensor("log_alpha", r.compute), {1, 0, 2});
  Value nll = hlo::reshape(c.tensor("neg_log_likelihood", r.compute), {r.batch, 1});
  Value joint = alpha + beta;
  Value share =
      hlo::exponential(joint - r.emission + hlo::broadcast_in_dim(nll, joint.dims(), {1, 2}));
  // A row that no path explains has no gradient: NaN, as on CPU.
  Value possible = hlo::broadcast_in_dim(hlo::is_finite(nll), joint.dims(), {1, 2});
  Value never = hlo::eq(joint, -std::numeric_limits<double>::infinity());
  share = hlo::select(never & possible, 0, share);
  Dims cube{r.batch, r.states, r.classes};
  Value hot = hlo::convert(
      hlo::eq(hlo::broadcast_in_dim(r.label, cube, {0, 1}), hlo::iota(b, {DType::S32, cube}, 2)),
      r.compute);
  Value by_class = hlo::dot_general(share, hot, {1}, {0}, {2}, {1}, {}, hlo::Precision::Highest);
  by_class = hlo::transpose(by_class, {1, 0, 2});  // [N, T, C] -> [T, N, C]
  Value g = hlo::broadcast_in_dim(hlo::reshape(c.tensor("grad", r.compute), {r.batch, 1}),
                                  by_class.dims(), {1, 2});
  Value dx = (hlo::exponential(c.tensor("log_probs", r.compute)) - by_class) * g;
  Value live = hlo::lt(hlo::iota(b, {DType::S32, {r.steps, r.batch, 1}}, 0),
                       hlo::reshape(r.input, {1, r.batch, 1}));
  if (c.flag("zero_infinity")) {
    live =
        live & hlo::reshape(hlo::ne(nll, std::numeric_limits<double>::infinity()), {1, r.batch, 1});
  }
  return hlo::convert(hlo::select(live, dx, 0), r.result);
}

TPU_OP(
    "aten::_ctc_loss(Tensor log_probs, Tensor targets, int[] input_lengths, int[] target_lengths, "
    "int blank=0, bool zero_infinity=False) -> (Tensor, Tensor)") {
  return ctc(c, true);
}
TPU_OP(
    "aten::_ctc_loss.Tensor(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor "
    "target_lengths, int blank=0, bool zero_infinity=False) -> (Tensor, Tensor)") {
  return ctc(c, false);
}
TPU_OP(
    "aten::_ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, int[] input_lengths, "
    "int[] target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, int blank, bool "
    "zero_infinity=False) -> Tensor") {
  return {ctc_backward(c, true)};
}
TPU_OP(
    "aten::_ctc_loss_backward.Tensor(Tensor grad, Tensor log_probs, Tensor targets, Tensor "
    "input_lengths, Tensor target_lengths, Tensor neg_log_likelihood, Tensor log_alpha, int blank, "
    "bool zero_infinity=False) -> Tensor") {
  return {ctc_backward(c, false)};
}

}  // namespace
}  // namespace torch_tpu::ops
