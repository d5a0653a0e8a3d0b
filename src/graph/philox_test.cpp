// SPDX-License-Identifier: Apache-2.0 - Philox against the known answers that Random123 publishes.
#include "src/graph/philox.h"

#include <gtest/gtest.h>

namespace torch_tpu::graph {
namespace {

using Four = std::array<uint32_t, 4>;

TEST(Philox, KnownAnswersOfRandom123) {
  using philox::HostWords;
  EXPECT_EQ(philox::rounds<HostWords>({0, 0, 0, 0}, {0, 0}),
            (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox::rounds<HostWords>({ones, ones, ones, ones}, {ones, ones}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox::rounds<HostWords>({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                      {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, StreamIsTheWordsOfSuccessiveBlocks) {
  EXPECT_EQ(philox_u32(0, 0, 0), 0x6627e8d5u);
  EXPECT_EQ(philox_u32(0, 0, 3), 0x9b00dbd8u);
  // An offset moves along the same stream, also across the low counter word's end.
  EXPECT_EQ(philox_u32(7, 8, 1), philox_u32(7, 0, 9));
  const uint64_t far = uint64_t{4} << 32;
  EXPECT_EQ(philox_u32(7, far - 4, 5), philox_u32(7, far, 1));
  EXPECT_NE(philox_u32(7, far, 0), philox_u32(7, 0, 0));
}

}  // namespace
}  // namespace torch_tpu::graph
