// SPDX-License-Identifier: Apache-2.0 - Functions with loops compute what the flat functions compute: hand-written and random ones.
#include "src/graph/loops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "src/hlo/builder.h"
#include "src/pjrt/client.h"
#include "src/pjrt/test_plugin.h"

namespace torch_tpu::graph {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::DType;
using hlo::Function;
using hlo::Type;
using hlo::Value;
using hlo::Values;
using pjrt::testing::test_client;

const Type kMatrix{DType::F32, {4, 4}};

std::vector<std::vector<float>> execute(const Function& fn,
                                        const std::vector<std::vector<float>>& inputs) {
  pjrt::Executable program = test_client()->compile(hlo::write_module(fn), {});
  std::vector<pjrt::Buffer> buffers;
  std::vector<PJRT_Buffer*> raw, outputs(fn.results.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    buffers.push_back(test_client()->from_host(
        inputs[i].data(), pjrt::kF32, fn.types[fn.params[i]].dims, test_client()->device(0)));
    raw.push_back(buffers.back().raw());
  }
  program.execute(raw, {}, outputs);
  std::vector<std::vector<float>> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const pjrt::Buffer buffer(test_client()->api(), outputs[i]);
    results.emplace_back(static_cast<size_t>(fn.types[fn.results[i]].elements()));
    buffer.to_host(results.back().data(), results.back().size() * sizeof(float));
  }
  return results;
}

// Runs a function flat and with loops, arguments stacked and not, and compares all results.
// Returns what was made with stacked arguments.
std::optional<Looped> compare(const Function& fn, LoopOptions options) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<std::vector<float>> inputs;
  for (int32_t id : fn.params) {
    inputs.emplace_back(static_cast<size_t>(fn.types[id].elements()));
    for (float& x : inputs.back()) x = number(random);
  }
  const auto expected = execute(fn, inputs);
  std::optional<Looped> made;
  for (const bool stack : {false, true}) {
    options.stack_arguments = stack;
    made = make_loops(fn, options);
    if (!made) continue;
    SCOPED_TRACE(hlo::write_module(made->function));
    std::vector<std::vector<float>> arguments;
    for (const auto& parts : made->params) {
      EXPECT_TRUE(stack || parts.size() == 1);
      arguments.emplace_back();
      for (int32_t i : parts)
        arguments.back().insert(arguments.back().end(), inputs[i].begin(), inputs[i].end());
    }
    const auto got = execute(made->function, arguments);
    size_t seen = 0;
    for (size_t r = 0; r < got.size(); ++r) {
      size_t at = 0;
      for (int32_t i : made->results[r]) {
        ++seen;
        for (float x : expected[i]) EXPECT_NEAR(got[r].at(at++), x, 1e-5 + 1e-5 * std::abs(x));
      }
      EXPECT_EQ(at, got[r].size());
    }
    EXPECT_EQ(seen, expected.size());
  }
  return made;
}

size_t stacks(const std::vector<std::vector<int32_t>>& parts) {
  return std::count_if(parts.begin(), parts.end(), [](const auto& p) { return p.size() > 1; });
}

Value matmul(const Value& a, const Value& b) { return hlo::dot_general(a, b, {}, {}, {1}, {0}); }

TEST(Loops, LayersOneAfterTheOther) {
  Builder b;
  Value x = b.param(kMatrix);
  Values weights;
  for (int i = 0; i < 5; ++i) weights.push_back(b.param(kMatrix));
  for (const Value& w : weights) x = x + hlo::tanh(matmul(x, w));
  const auto made = compare(b.finish({{x}}), {.turns = 3, .saved = 3});
  ASSERT_TRUE(made);
  ASSERT_EQ(made->loops.size(), 1);
  EXPECT_EQ(made->loops[0].turns, 5);
  EXPECT_EQ(made->loops[0].instructions, 3);
  EXPECT_EQ(made->params, (std::vector<std::vector<int32_t>>{{0}, {1, 2, 3, 4, 5}}));
}

// A training step: forward, backward, and an update that stands in one piece behind both.
Function training_step(int layers, bool by_parameter, bool clipped, bool odd = false) {
  Builder b;
  Value x = b.param(kMatrix);
  Values weights, momenta, inputs, hidden, gradients(layers);
  for (int i = 0; i < layers; ++i) weights.push_back(b.param(kMatrix));
  for (int i = 0; i < layers; ++i) momenta.push_back(b.param(kMatrix));
  for (const Value& w : weights) {
    inputs.push_back(x);
    hidden.push_back(hlo::tanh(matmul(x, w)));
    x = x + hidden.back();
  }
  Value dx = x * 0.125;
  for (int i = layers; i-- > 0;) {
    const Value d = dx * (1.0 - hidden[i] * hidden[i]);
    if (odd && i == layers - 1) dx = hlo::negate(d);
    gradients[i] = matmul(hlo::transpose(inputs[i], {1, 0}), d);
    dx = dx + matmul(d, hlo::transpose(weights[i], {1, 0}));
  }
  if (clipped) {
    Values norms;
    for (const Value& g : gradients)
      norms.push_back(hlo::reshape(hlo::reduce(g * g, {0, 1}, hlo::Reduce::Add), {1}));
    const Value norm = hlo::sqrt(hlo::reduce(hlo::concatenate(norms, 0), {0}, hlo::Reduce::Add));
    for (Value& g : gradients) g = g / (norm + 1.0);
  }
  Values results = {x, dx};
  auto decay = [&](int i) { momenta[i] = momenta[i] * 0.9; };
  auto gain = [&](int i) { momenta[i] = momenta[i] + gradients[i]; };
  auto update = [&](int i) { weights[i] = weights[i] - momenta[i] * 0.1; };
  if (by_parameter) {
    for (int i = 0; i < layers; ++i) decay(i), gain(i), update(i);
  } else {
    for (int i = 0; i < layers; ++i) decay(i);
    for (int i = 0; i < layers; ++i) gain(i);
    for (int i = 0; i < layers; ++i) update(i);
  }
  for (const Values& all : {weights, momenta, gradients})
    results.insert(results.end(), all.begin(), all.end());
  return b.finish(results);
}

TEST(Loops, TrainingStepsKeepTheirStateStacked) {
  for (const bool by_parameter : {false, true}) {
    for (const bool clipped : {false, true}) {
      const Function fn = training_step(6, by_parameter, clipped);
      const auto made = compare(fn, {.turns = 3, .saved = 10});
      ASSERT_TRUE(made);
      EXPECT_EQ(made->loops.size(), 2);
      EXPECT_EQ(made->params.size(), 3);   // x, weights, momenta
      EXPECT_EQ(made->results.size(), 5);  // x, dx, weights, momenta, gradients
      EXPECT_EQ(stacks(made->params), 2);
      EXPECT_EQ(stacks(made->results), 3);
      // The update is done to all weights at once.
      EXPECT_LT(made->function.body.size(), fn.body.size() / 2);
    }
  }
}

TEST(Loops, ALayerThatIsOddInOnePassIsInNoLoop) {
  const auto made = compare(training_step(6, false, false, true), {.turns = 3, .saved = 10});
  ASSERT_TRUE(made);
  ASSERT_EQ(made->loops.size(), 2);
  EXPECT_EQ(made->loops[0].turns, 5);
  EXPECT_EQ(made->loops[1].turns, 5);
  EXPECT_EQ(made->params.size(), 5);  // and the last layer's
  EXPECT_EQ(stacks(made->params), 2);
  EXPECT_EQ(stacks(made->results), 3);
}

// Gradients that lie in one buffer for each layer, as those of sharded weights do.
TEST(Loops, PartsOfABufferAreReadForAllLayers) {
  Builder b;
  Value x = b.param(kMatrix);
  const Value places = b.param({DType::F32, {6}});
  Values weights, outputs, results;
  for (int i = 0; i < 6; ++i) weights.push_back(b.param(kMatrix));
  for (const Value& w : weights) {
    x = x + hlo::tanh(matmul(x, w));
    outputs.push_back(hlo::reshape(x * 0.5, {16}));
  }
  const Value one = hlo::constant_int(b, {DType::S32, {}}, 1);
  for (int i = 0; i < 6; ++i) {
    const Value place = hlo::convert(
        hlo::reshape(hlo::slice_dim(hlo::abs(places), 0, i, i + 1), {}) * 8.0, DType::S32);
    results.push_back(weights[i] -
                      hlo::reshape(hlo::dynamic_slice(outputs[i], {{place + one}}, {4}), {1, 4}));
  }
  const auto made = compare(b.finish(results), {.turns = 3, .saved = 10});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->params.size(), 3);
  EXPECT_EQ(made->results.size(), 1);
}

TEST(Loops, LayersWithinBatchesAreTheLoops) {
  Builder b;
  Values batches, weights, gradients(8), last;
  for (int i = 0; i < 3; ++i) batches.push_back(b.param(kMatrix));
  for (int i = 0; i < 8; ++i) weights.push_back(b.param(kMatrix));
  for (Value x : batches) {
    Values inputs;
    for (const Value& w : weights) {
      inputs.push_back(x);
      x = x + hlo::tanh(matmul(x, w));
    }
    for (int i = 8; i-- > 0;) {
      const Value g = matmul(hlo::transpose(inputs[i], {1, 0}), x);
      gradients[i] = gradients[i] ? gradients[i] + g : g;
      x = hlo::tanh(matmul(x, weights[i])) - x;
    }
    last.push_back(x);
  }
  last.insert(last.end(), gradients.begin(), gradients.end());
  const auto made = compare(b.finish(last), {.turns = 3, .saved = 10});
  ASSERT_TRUE(made);
  EXPECT_EQ(made->loops.size(), 6);
  for (const Looped::Loop& loop : made->loops) EXPECT_EQ(loop.turns, 8);
  EXPECT_EQ(made->params.size(), 4);
  EXPECT_EQ(made->results.size(), 4);
}

TEST(Loops, WhatTheTurnsShareAndHandOnInOtherWays) {
  Builder b;
  Value x = b.param(kMatrix), y = b.param(kMatrix);
  const Value shared = b.param(kMatrix);
  const Value first = x;
  Values weights, kept;
  for (int i = 0; i < 6; ++i) weights.push_back(b.param(kMatrix));
  for (int i = 0; i < 6; ++i) {
    const Value z = hlo::tanh(matmul(x, weights[i / 2 * 2]) + matmul(y, shared) + first);
    y = x * 0.5;  // two turns' worth of memory
    x = z - hlo::broadcast_to(hlo::reduce(z, {0}, hlo::Reduce::Maximum), {4, 4});
    if (i % 3 == 0) kept.push_back(z);
  }
  Values results = {x, y};
  results.insert(results.end(), kept.begin(), kept.end());
  ASSERT_TRUE(compare(b.finish(results), {.turns = 3, .saved = 3}));
}

TEST(Loops, NothingIsMadeOfWhatDoesNotRepeat) {
  Builder b;
  Value x = b.param(kMatrix);
  x = hlo::tanh(matmul(x, x) + 1.0);
  EXPECT_FALSE(make_loops(b.finish({{x}}), {.turns = 3, .saved = 1}));
  const Function fn = training_step(6, false, false);
  EXPECT_FALSE(make_loops(fn, {.turns = 7, .saved = 10}));
  EXPECT_FALSE(make_loops(fn, {.turns = 3, .saved = 10, .worth = 1000}));
}

// Layers of random instructions on what is at hand, passes over them in both directions, updates.
Function random_program(uint32_t seed) {
  std::mt19937 random(seed);
  auto below = [&](size_t n) { return static_cast<int>(random() % n); };
  const int layers = 3 + below(3), own = 1 + below(2), passes = 1 + below(3);
  Builder b;
  Values carried = {b.param(kMatrix), b.param(kMatrix)}, shared = {b.param(kMatrix)};
  std::vector<Values> state;
  for (int i = 0; i < layers; ++i) {
    state.emplace_back();
    for (int k = 0; k < own; ++k) state.back().push_back(b.param(kMatrix));
  }
  Values results;
  for (int pass = 0; pass < passes; ++pass) {
    const uint32_t body = random();
    const bool backwards = below(2) != 0, odd_first = below(4) == 0;
    std::vector<Values> next = state;
    for (int turn = 0; turn < layers; ++turn) {
      const int i = backwards ? layers - 1 - turn : turn;
      std::mt19937 same(body);
      Values at_hand = carried;
      at_hand.insert(at_hand.end(), state[i].begin(), state[i].end());
      at_hand.insert(at_hand.end(), shared.begin(), shared.end());
      auto any = [&] { return at_hand[same() % at_hand.size()]; };
      if (odd_first && turn == 0) carried[0] = hlo::negate(carried[0]);
      for (int step = 0; step < 6; ++step) {
        const Value x = any(), y = any();
        Value z;
        switch (same() % 7) {
          case 0:
            z = x + y;
            break;
          case 1:
            z = hlo::tanh(x * y);
            break;
          case 2:
            z = hlo::tanh(matmul(x, y));
            break;
          case 3:
            z = hlo::transpose(x, {1, 0});
            break;
          case 4:
            z = hlo::select(hlo::lt(x, y), x, 0.25);
            break;
          case 5:
            z = hlo::broadcast_to(hlo::reduce(x, {1}, hlo::Reduce::Maximum), {4, 4});
            break;
          default:
            z = hlo::maximum(x, y) * 0.5;
        }
        at_hand.push_back(z);
      }
      for (Value& c : carried) c = hlo::tanh(any());
      next[i].push_back(at_hand.back());
      if (same() % 3 == 0) results.push_back(at_hand[at_hand.size() - 2]);
    }
    state = std::move(next);
    if (below(2) != 0) shared.push_back(carried[0] * 0.5);
  }
  for (int k = 0; k < own; ++k)
    for (const Values& s : state) results.push_back(s[k] - s.back() * 0.1);
  results.insert(results.end(), carried.begin(), carried.end());
  return b.finish(results);
}

TEST(Loops, RandomProgramsComputeTheSame) {
  int made = 0;
  for (uint32_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(seed);
    if (compare(random_program(seed), {.turns = 3, .saved = 4})) ++made;
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
  EXPECT_GT(made, 8);
}

}  // namespace
}  // namespace torch_tpu::graph
