// SPDX-License-Identifier: Apache-2.0 - compiling, running, donating, serializing on a real plugin.
#include "src/pjrt/executable.h"

#include <gtest/gtest.h>

#include <thread>

#include "src/pjrt/test_plugin.h"

namespace torch_tpu::pjrt {
namespace {

using testing::add_module;
using testing::error_of;
using testing::floats;
using testing::read_floats;
using testing::test_client;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Buffer run_add(const Executable& program, const Buffer& a, const Buffer& b,
               std::span<const int64_t> non_donatable = {}) {
  const std::array<PJRT_Buffer*, 2> in = {a.raw(), b.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  program.execute(in, non_donatable, out);
  return Buffer(test_client()->api(), out[0]);
}

TEST(Executable, Runs) {
  const Executable program = test_client()->compile(add_module(3));
  EXPECT_EQ(program.num_outputs(), 1u);
  EXPECT_EQ(program.output_types(), std::vector<int>({kF32}));
  EXPECT_EQ(program.output_dims(), std::vector<std::vector<int64_t>>({{3}}));
  EXPECT_FALSE(program.name().empty());
  const Buffer sum = run_add(program, floats({1, 2, 3}), floats({10, 20, 30}));
  EXPECT_EQ(read_floats(sum), std::vector<float>({11, 22, 33}));
}

TEST(Executable, SeveralOutputsOfSeveralShapes) {
  const Executable program = test_client()->compile(
      "module @m { func.func public @main(%a: tensor<2x3xf32>) -> (tensor<3x2xf32>, tensor<i64>) { "
      "%0 = stablehlo.transpose %a, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32> "
      "%1 = stablehlo.constant dense<7> : tensor<i64> "
      "return %0, %1 : tensor<3x2xf32>, tensor<i64> } }");
  EXPECT_EQ(program.output_types(), std::vector<int>({kF32, kS64}));
  EXPECT_EQ(program.output_dims(), std::vector<std::vector<int64_t>>({{3, 2}, {}}));
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::array<int64_t, 2> dims = {2, 3};
  const Buffer input =
      test_client()->from_host(values.data(), kF32, dims, test_client()->device(0));
  const std::array<PJRT_Buffer*, 1> in = {input.raw()};
  std::array<PJRT_Buffer*, 2> out = {};
  program.execute(in, {}, out);
  const Buffer transposed(test_client()->api(), out[0]);
  const Buffer seven(test_client()->api(), out[1]);
  EXPECT_EQ(read_floats(transposed), std::vector<float>({1, 4, 2, 5, 3, 6}));
  int64_t number = 0;
  seven.to_host(&number, sizeof number);
  EXPECT_EQ(number, 7);
}

TEST(Executable, CompileErrorsQuoteTheCompiler) {
  const std::string syntax = error_of([] { test_client()->compile("module @m { nonsense }"); });
  EXPECT_TRUE(contains(syntax, "PJRT_Client_Compile")) << syntax;
  const std::string types = error_of([] {
    test_client()->compile(
        "module @m { func.func public @main(%a: tensor<2xf32>) -> tensor<3xf32> { "
        "%0 = stablehlo.add %a, %a : tensor<3xf32> return %0 : tensor<3xf32> } }");
  });
  EXPECT_TRUE(contains(types, "tensor<2xf32>")) << types;
  EXPECT_NE(error_of([] { test_client()->compile(""); }), "");
}

TEST(Executable, WrongArgumentsAreErrors) {
  const Executable program = test_client()->compile(add_module(3));
  const Buffer a = floats({1, 2, 3});
  const std::array<PJRT_Buffer*, 2> in = {a.raw(), a.raw()};
  std::array<PJRT_Buffer*, 2> out = {};
  EXPECT_TRUE(contains(error_of([&] { program.execute(in, {}, out); }),
                       "there is room for 2 outputs, the program has 1"));
  const auto execute = [&](std::span<PJRT_Buffer* const> inputs) {
    std::array<PJRT_Buffer*, 1> one = {};
    program.execute(inputs, {}, one);
    Buffer(test_client()->api(), one[0]).await();
  };
  EXPECT_NE(error_of([&] { execute(std::span(in).first(1)); }), "");
  const Buffer wrong_shape = floats({1, 2, 3, 4});
  const std::array<PJRT_Buffer*, 2> wrong = {a.raw(), wrong_shape.raw()};
  EXPECT_NE(error_of([&] { execute(wrong); }), "");
  EXPECT_EQ(read_floats(run_add(program, a, a)), std::vector<float>({2, 4, 6}));
}

TEST(Executable, DonationConsumesTheArgument) {
  const Executable program =
      test_client()->compile(add_module(1024, " {tf.aliasing_output = 0 : i32}"));
  const std::vector<float> ones(1024, 1);
  const Buffer a = floats(ones);
  const Buffer b = floats(ones);
  a.await();
  const void* before = a.host_pointer();
  const Buffer sum = run_add(program, a, b);
  sum.await();
  EXPECT_TRUE(a.is_deleted());
  EXPECT_FALSE(b.is_deleted());
  EXPECT_EQ(sum.host_pointer(), before);
  EXPECT_EQ(read_floats(sum)[1023], 2);
  EXPECT_NE(error_of([&] { run_add(program, a, b).await(); }), "");  // it is gone
  EXPECT_GE(program.memory_stats().alias_bytes, 4096);
}

TEST(Executable, NonDonatableArgumentsSurvive) {
  const Executable program =
      test_client()->compile(add_module(1024, " {tf.aliasing_output = 0 : i32}"));
  const Buffer a = floats(std::vector<float>(1024, 1));
  const std::array<int64_t, 1> keep = {0};
  const Buffer sum = run_add(program, a, a, keep);
  EXPECT_EQ(read_floats(sum)[0], 2);
  EXPECT_FALSE(a.is_deleted());
  EXPECT_EQ(read_floats(a)[0], 1);
}

TEST(Executable, SerializesAndLoads) {
  const Executable program = test_client()->compile(add_module(2));
  const std::string bytes = program.serialize();
  ASSERT_FALSE(bytes.empty());
  const Executable again = test_client()->load(bytes);
  EXPECT_EQ(again.num_outputs(), 1u);
  EXPECT_EQ(read_floats(run_add(again, floats({1, 2}), floats({3, 4}))),
            std::vector<float>({4, 6}));
}

TEST(Executable, DamagedBytesAreErrors) {
  const std::string bytes = test_client()->compile(add_module(2)).serialize();
  EXPECT_NE(error_of([] { test_client()->load(""); }), "");
  EXPECT_NE(error_of([] { test_client()->load("these are no programs"); }), "");
  EXPECT_NE(
      error_of([&] { test_client()->load(std::string_view(bytes).substr(0, bytes.size() / 2)); }),
      "");
  EXPECT_NE(error_of([&] { test_client()->load(std::string(bytes.size(), '\xff')); }), "");
}

TEST(Executable, ErrorsAndLoadsLeaveStderrAlone) {
  const Executable program = test_client()->compile(add_module(2));
  const std::string bytes = program.serialize();
  const Buffer a = floats({1, 2});
  const std::array<PJRT_Buffer*, 1> too_few = {a.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  ::testing::internal::CaptureStderr();
  test_client()->load(bytes);
  EXPECT_NE(error_of([&] { test_client()->load(std::string(bytes.size(), '\xff')); }), "");
  EXPECT_NE(error_of([&] { program.execute(too_few, {}, out); }), "");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Executable, SaysWhatItNeeds) {
  const Executable program = test_client()->compile(add_module(1024));
  const auto stats = program.memory_stats();
  EXPECT_EQ(stats.argument_bytes, 8192);
  EXPECT_EQ(stats.output_bytes, 4096);
  const auto cost = program.cost();
  if (!cost.empty()) {
    EXPECT_EQ(cost.at("flops"), 1024);
  }
  EXPECT_EQ(program.fingerprint(), test_client()->compile(add_module(1024)).fingerprint());
  const auto optimized = program.optimized_program();
  EXPECT_EQ(optimized.format.empty(), optimized.code.empty());
}

TEST(Executable, RunsOnTheDeviceItWasCompiledFor) {
  CompileOptions options;
  options.device_ordinal = 1;
  const Executable program = test_client()->compile(add_module(2), options);
  PJRT_Device* second = test_client()->device(1);
  EXPECT_EQ(program.devices(), std::vector<PJRT_Device*>({second}));
  const Buffer sum = run_add(program, floats({1, 2}, second), floats({3, 4}, second));
  EXPECT_EQ(sum.device(), second);
  EXPECT_EQ(read_floats(sum), std::vector<float>({4, 6}));
}

TEST(Executable, RunsOnSeveralDevices) {
  CompileOptions options;
  options.num_replicas = 2;
  const Executable program = test_client()->compile(
      "module @m attributes {mhlo.num_replicas = 2 : i32} { "
      "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> { "
      "%0 = \"stablehlo.all_reduce\"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>): "
      "%s = stablehlo.add %x, %y : tensor<f32> stablehlo.return %s : tensor<f32> }) "
      "{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32> "
      "return %0 : tensor<2xf32> } }",
      options);
  ASSERT_EQ(program.devices().size(), 2u);
  const Buffer a = floats({1, 2}, program.devices()[0]);
  const Buffer b = floats({10, 20}, program.devices()[1]);
  const std::vector<std::vector<PJRT_Buffer*>> in = {{a.raw()}, {b.raw()}};
  std::vector<std::vector<PJRT_Buffer*>> out(2);
  std::array<PJRT_Buffer*, 1> one = {};
  EXPECT_TRUE(contains(error_of([&] { program.execute(in[0], {}, one); }), "use execute_sharded"));
  program.execute_sharded(in, {}, out);
  for (const auto& row : out) {
    const Buffer sum(test_client()->api(), row.at(0));
    EXPECT_EQ(read_floats(sum), std::vector<float>({11, 22}));
  }
}

TEST(Executable, ThreadsMayShareAProgram) {
  const Executable program = test_client()->compile(add_module(64));
  const Buffer one = floats(std::vector<float>(64, 1));
  std::vector<std::thread> threads;
  std::array<float, 4> results{};
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Buffer sum = run_add(program, one, one);
      for (int i = 0; i < 200; ++i) sum = run_add(program, sum, one);
      results[t] = read_floats(sum)[63];
    });
  }
  for (auto& thread : threads) thread.join();
  for (const float result : results) EXPECT_EQ(result, 202);
}

TEST(Executable, KeepsItsClientAlive) {
  auto client = Client::create(testing::test_plugin());
  const Executable program = client->compile(add_module(2));
  const std::weak_ptr<Client> watch = client;
  client.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_FALSE(program.serialize().empty());
}

}  // namespace
}  // namespace torch_tpu::pjrt
