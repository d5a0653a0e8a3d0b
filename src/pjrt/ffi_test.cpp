// SPDX-License-Identifier: Apache-2.0 - host kernels called from compiled programs.
#include "src/pjrt/ffi.h"

#include <gtest/gtest.h>

#include <atomic>

#include "src/pjrt/test_plugin.h"

namespace torch_tpu::pjrt {
namespace {

using testing::error_of;
using testing::floats;
using testing::read_floats;
using testing::test_client;
using testing::test_plugin;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string custom_call(const std::string& name, const std::string& config) {
  return "module @m { func.func public @main(%a: tensor<2x2xf32>, %b: tensor<2x2xf32>) -> "
         "tensor<2x2xf32> { %0 = stablehlo.custom_call @" +
         name + "(%a, %b) {api_version = 4 : i32, backend_config = {" + config +
         "}} : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x2xf32> return %0 : tensor<2x2xf32> } "
         "}";
}

std::vector<float> run(const Executable& program) {
  const std::vector<float> a = {1, 2, 3, 4};
  const std::vector<float> b = {10, 20, 30, 40};
  const std::array<int64_t, 2> dims = {2, 2};
  const auto& client = test_client();
  const Buffer first = client->from_host(a.data(), kF32, dims, client->device(0));
  const Buffer second = client->from_host(b.data(), kF32, dims, client->device(0));
  const std::array<PJRT_Buffer*, 2> in = {first.raw(), second.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  program.execute(in, {}, out);
  return read_floats(Buffer(client->api(), out[0]));
}

// result = scale * a + bias * b
void scaled_add(FfiCall& call) {
  const FfiBuffer a = call.arg(0);
  const FfiBuffer b = call.arg(1);
  const FfiBuffer result = call.result(0);
  const auto scale = static_cast<float>(call.float_attr("scale").value_or(0));
  const auto bias = static_cast<float>(call.int_attr("bias").value_or(0));
  for (size_t i = 0; i < result.num_elements; ++i) {
    result.as<float>()[i] = scale * a.as<float>()[i] + bias * b.as<float>()[i];
  }
}

// The same, an element a piece.
void scaled_add_in_pieces(FfiCall& call) {
  EXPECT_GE(call.num_threads(), 1);
  std::array<std::atomic<int>, 4> runs{};
  call.run_pieces(4, [&](int64_t i) {
    ++runs[i];
    call.result(0).as<float>()[i] = 2 * call.arg(0).as<float>()[i] + call.arg(1).as<float>()[i];
  });
  for (const auto& n : runs) EXPECT_EQ(n, 1);
  call.run_pieces(0, [](int64_t) { FAIL(); });
}
void one_piece_throws(FfiCall& call) {
  call.run_pieces(4, [](int64_t i) {
    if (i == 2) throw std::runtime_error("piece 2 is broken");
  });
}

std::string g_seen;

void look(FfiCall& call) {
  const FfiBuffer a = call.arg(1);
  g_seen = std::to_string(call.num_args()) + "/" + std::to_string(call.num_results()) + " " +
           element_name(a.type) + "[" + std::to_string(a.dims[0]) + "," +
           std::to_string(a.dims[1]) + "] " + std::to_string(a.bytes);
  g_seen += " text=" + std::string(call.string_attr("text").value_or("none"));
  g_seen += " small=" + std::to_string(call.int_attr("small").value_or(-1));
  g_seen += " flag=" + std::to_string(call.int_attr("flag").value_or(-1));
  g_seen += " half=" + std::to_string(call.float_attr("half").value_or(-1));
  for (const int64_t dim : call.int_array_attr("dims").value_or(std::span<const int64_t>())) {
    g_seen += " " + std::to_string(dim);
  }
  // The name or the kind doesn't fit.
  g_seen += call.int_attr("text") || call.string_attr("small") || call.float_attr("small") ||
                    call.int_attr("absent") || call.int_array_attr("half")
                ? " confused"
                : " ok";
  std::fill_n(call.result(0).as<float>(), 4, 0.0f);
}

void fails(FfiCall& call) { call.fail("the matrix is singular"); }
void throws(FfiCall& call) { call.arg(2); }

TEST(Ffi, CallsTheKernel) {
  std::string why;
  if (!ffi_supported(*test_plugin(), &why)) GTEST_SKIP() << why;
  register_handler(*test_plugin(), "test_scaled_add", scaled_add);
  register_handler(*test_plugin(), "test_scaled_add", scaled_add);
  const Executable program =
      test_client()->compile(custom_call("test_scaled_add", "scale = 2.0 : f32, bias = 1 : i64"));
  EXPECT_EQ(run(program), std::vector<float>({12, 24, 36, 48}));
  const Executable loaded = test_client()->load(program.serialize());
  EXPECT_EQ(run(loaded), std::vector<float>({12, 24, 36, 48}));
}

TEST(Ffi, ShowsBuffersAndAttributes) {
  std::string why;
  if (!ffi_supported(*test_plugin(), &why)) GTEST_SKIP() << why;
  register_handler(*test_plugin(), "test_look", look);
  run(test_client()->compile(custom_call("test_look",
                                         "text = \"hello\", small = -3 : i32, flag = true, half = "
                                         "0.5 : f64, dims = array<i64: 4, 5>")));
  EXPECT_EQ(g_seen, "2/1 f32[2,2] 16 text=hello small=-3 flag=1 half=0.500000 4 5 ok");
}

TEST(Ffi, FailuresBecomeErrors) {
  std::string why;
  if (!ffi_supported(*test_plugin(), &why)) GTEST_SKIP() << why;
  register_handler(*test_plugin(), "test_fails", fails);
  register_handler(*test_plugin(), "test_throws", throws);
  const Executable failing = test_client()->compile(custom_call("test_fails", ""));
  const std::string said = error_of([&] { run(failing); });
  EXPECT_TRUE(contains(said, "the matrix is singular")) << said;
  const Executable throwing = test_client()->compile(custom_call("test_throws", ""));
  const std::string thrown = error_of([&] { run(throwing); });
  EXPECT_TRUE(contains(thrown, "argument 2 of a host kernel that was called with 2")) << thrown;
  EXPECT_EQ(read_floats(floats({1})), std::vector<float>({1}));
}

TEST(Ffi, SplitsWorkOverThreads) {
  std::string why;
  if (!ffi_supported(*test_plugin(), &why)) GTEST_SKIP() << why;
  register_handler(*test_plugin(), "test_pieces", scaled_add_in_pieces);
  register_handler(*test_plugin(), "test_broken_piece", one_piece_throws);
  const Executable program = test_client()->compile(custom_call("test_pieces", ""));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run(program), std::vector<float>({12, 24, 36, 48}));
  const Executable broken = test_client()->compile(custom_call("test_broken_piece", ""));
  const std::string said = error_of([&] { run(broken); });
  EXPECT_TRUE(contains(said, "piece 2 is broken")) << said;
}

TEST(Ffi, WrongNamesAreErrors) {
  std::string why;
  if (!ffi_supported(*test_plugin(), &why)) GTEST_SKIP() << why;
  register_handler(*test_plugin(), "test_taken", fails);
  EXPECT_TRUE(contains(error_of([] { register_handler(*test_plugin(), "test_taken", throws); }),
                       "already registered"));
  EXPECT_NE(error_of([] { register_handler(*test_plugin(), "", fails); }), "");
  EXPECT_TRUE(contains(error_of([] { test_client()->compile(custom_call("test_unknown", "")); }),
                       "test_unknown"));
}

}  // namespace
}  // namespace torch_tpu::pjrt
