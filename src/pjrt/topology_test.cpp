// SPDX-License-Identifier: Apache-2.0 - compiling for libtpu's and a client's topologies.
#include "src/pjrt/topology.h"

#include <gtest/gtest.h>

#include "src/pjrt/ffi.h"
#include "src/pjrt/test_plugin.h"

namespace torch_tpu::pjrt {
namespace {

using testing::add_module;
using testing::error_of;
using testing::test_client;
using testing::test_plugin;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// libtpu from TORCH_TPU_TEST_LIBTPU or from site-packages; null where it isn't installed.
std::shared_ptr<const Plugin> libtpu() {
  const char* named = std::getenv("TORCH_TPU_TEST_LIBTPU");
  std::string path = named != nullptr ? named : "";
  if (path.empty()) {
    Plugin::set_search_paths({testing::site_packages()});
    path = Plugin::find("libtpu");
  }
  return path.empty() ? nullptr : Plugin::load(path);
}

TEST(Topology, OfAClient) {
  const Topology topology = Topology::of(test_client());
  EXPECT_EQ(topology.platform_name(), "cpu");
  EXPECT_EQ(topology.device_count(), 2u);
  EXPECT_EQ(topology.devices().at(1).id, 1);
}

TEST(Topology, ByNameNeedsLibtpu) {
  const std::string error = error_of([] { Topology::create(test_plugin(), "v5e:1x1x1"); });
  EXPECT_TRUE(contains(error, "cannot describe the topology 'v5e:1x1x1'")) << error;
}

TEST(Topology, CompilesForTpus) {
  const auto plugin = libtpu();
  if (plugin == nullptr) GTEST_SKIP() << "libtpu is not installed (pip install libtpu)";
  ::testing::internal::CaptureStderr();
  for (const char* name : {"v5e:1x1x1", "v6e:1x1x1", "tpu7x:1x1x1"}) {
    const Topology topology = Topology::create(plugin, name);
    EXPECT_EQ(topology.platform_name(), "tpu");
    EXPECT_GE(topology.device_count(), 1u);
    EXPECT_TRUE(topology.devices()[0].attributes.contains("coords")) << name;
    const CompiledProgram program = topology.compile(add_module(1024));
    EXPECT_EQ(program.num_outputs(), 1u);
    EXPECT_EQ(program.output_dims(), std::vector<std::vector<int64_t>>({{1024}}));
    EXPECT_FALSE(program.serialize().empty());
    EXPECT_GE(program.memory_stats().argument_bytes, 8192);
    EXPECT_TRUE(program.cost().contains("flops")) << name;
    EXPECT_TRUE(contains(error_of([&] { topology.compile("module @m { nonsense }"); }),
                         std::string("compiling for ") + name));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(Topology, SplitsAProgramOverAPod) {
  const auto plugin = libtpu();
  if (plugin == nullptr) GTEST_SKIP() << "libtpu is not installed (pip install libtpu)";
  const Topology topology = Topology::create(plugin, "v5e:2x2");
  EXPECT_EQ(topology.device_count(), 4u);
  CompileOptions options;
  options.num_partitions = 4;
  const CompiledProgram program = topology.compile(
      "module @m attributes {mhlo.num_partitions = 4 : i32} { func.func public @main(%a: "
      "tensor<4096xf32> {mhlo.sharding = \"{devices=[4]<=[4]}\"}) -> (tensor<4096xf32> "
      "{mhlo.sharding = \"{devices=[4]<=[4]}\"}) { %0 = stablehlo.add %a, %a : tensor<4096xf32> "
      "return %0 : tensor<4096xf32> } }",
      options);
  EXPECT_EQ(program.memory_stats().argument_bytes, 4096);  // a quarter of it on each chip
}

TEST(Topology, UnknownNamesGetAdvice) {
  const auto plugin = libtpu();
  if (plugin == nullptr) GTEST_SKIP() << "libtpu is not installed (pip install libtpu)";
  const std::string error = error_of([&] { Topology::create(plugin, "v99:1x1"); });
  EXPECT_TRUE(contains(error, "v99:1x1") && contains(error, "such as v5e:2x2")) << error;
  std::string why;
  EXPECT_FALSE(ffi_supported(*plugin, &why));
  EXPECT_TRUE(contains(why, "cannot call functions of the host"));
}

}  // namespace
}  // namespace torch_tpu::pjrt
