// SPDX-License-Identifier: Apache-2.0 - the hand-made protobuf of CompileOptions.
#include "src/pjrt/compile_options.h"

#include <gtest/gtest.h>

#include "src/pjrt/test_plugin.h"

namespace torch_tpu::pjrt {
namespace {

using testing::add_module;
using testing::error_of;
using testing::test_client;

std::string bytes(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += static_cast<char>(value);
  return text;
}

TEST(CompileOptions, DefaultIsOneReplicaOfOnePartition) {
  // Field 3 { 1: -1, 4: 1, 5: 1 }; a negative varint takes ten bytes.
  EXPECT_EQ(CompileOptions{}.encode(), bytes({0x1a, 15, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                              0xff, 0xff, 0xff, 0x01, 0x20, 1, 0x28, 1}));
}

TEST(CompileOptions, DeviceOrdinalBecomesAnAssignment) {
  CompileOptions options;
  options.device_ordinal = 1;
  // Field 3 { 1: 1, 4: 1, 5: 1, 9 { 1: 1, 2: 1, 3 { 1: 1 } } }
  EXPECT_EQ(options.encode(), bytes({0x1a, 16, 0x08, 1, 0x20, 1, 0x28, 1, 0x4a, 8, 0x08, 1, 0x10, 1,
                                     0x1a, 2, 0x08, 1}));
}

TEST(CompileOptions, OverridesOfEveryKind) {
  CompileOptions options;
  const size_t start = options.encode().size();
  options.env_overrides = {{"s", std::string("x")}, {"b", true}, {"i", int64_t{300}}, {"d", 1.5}};
  EXPECT_EQ(options.encode().substr(start),
            bytes({0x3a, 8,  0x0a, 1, 's', 0x12, 3, 0x0a, 1,    'x',   //
                   0x3a, 7,  0x0a, 1, 'b', 0x12, 2, 0x10, 1,           //
                   0x3a, 8,  0x0a, 1, 'i', 0x12, 3, 0x18, 0xac, 0x02,  //
                   0x3a, 14, 0x0a, 1, 'd', 0x12, 9, 0x21, 0,    0,    0, 0, 0, 0, 0xf8, 0x3f}));
}

TEST(CompileOptions, PartitionsAskForSpmd) {
  CompileOptions options;
  options.num_partitions = 4;
  // ... 5: 4, 6: 1
  EXPECT_TRUE(options.encode().ends_with(bytes({0x20, 1, 0x28, 4, 0x30, 1})));
}

TEST(CompileOptions, WrongCountsAreErrors) {
  CompileOptions options;
  options.num_replicas = 0;
  EXPECT_NE(error_of([&] { options.encode(); }).find("num_replicas is 0"), std::string::npos);
  options.num_replicas = 2;
  options.device_ids = {0, 1, 2};
  EXPECT_NE(error_of([&] { options.encode(); }).find("3 device_ids for 2 replicas"),
            std::string::npos);
}

TEST(CompileOptions, ThePluginReadsTheOverrides) {
  CompileOptions options;
  options.env_overrides = {{"xla_backend_optimization_level", int64_t{0}}};
  test_client()->compile(add_module(4), options);
  options.env_overrides = {{"xla_no_such_flag_at_all", true}};
  EXPECT_NE(error_of([&] {
              test_client()->compile(add_module(4), options);
            }).find("xla_no_such_flag_at_all"),
            std::string::npos);
}

}  // namespace
}  // namespace torch_tpu::pjrt
