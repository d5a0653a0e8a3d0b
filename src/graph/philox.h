// SPDX-License-Identifier: Apache-2.0 - Philox 4x32-10, the counter-based generator behind every
// random fill.
//
// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

#include "src/hlo/builder.h"

namespace torch_tpu::graph {

namespace philox {

// The two operations of a round, for words that are numbers of the host.
struct HostWords {
  using Word = uint32_t;
  static Word xor_(Word a, Word b) { return a ^ b; }
  static Word bump(Word key, uint32_t by) { return key + by; }
  static void multiply(Word a, uint32_t by, Word& high, Word& low) {
    uint64_t p = uint64_t{a} * by;
    high = static_cast<uint32_t>(p >> 32);
    low = static_cast<uint32_t>(p);
  }
};

// The same for U32 values of a program.
struct ProgramWords {
  using Word = hlo::Value;
  static Word xor_(const Word& a, const Word& b);
  static Word bump(const Word& key, uint32_t by);
  static void multiply(const Word& a, uint32_t by, Word& high, Word& low);
};

template <typename Ops>
std::array<typename Ops::Word, 4> rounds(std::array<typename Ops::Word, 4> x,
                                         std::array<typename Ops::Word, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) {
      key[0] = Ops::bump(key[0], 0x9E3779B9u);
      key[1] = Ops::bump(key[1], 0xBB67AE85u);
    }
    typename Ops::Word high0, low0, high1, low1;
    Ops::multiply(x[0], 0xD2511F53u, high0, low0);
    Ops::multiply(x[2], 0xCD9E8D57u, high1, low1);
    x = {Ops::xor_(Ops::xor_(high1, x[1]), key[0]), low1, Ops::xor_(Ops::xor_(high0, x[3]), key[1]),
         low0};
  }
  return x;
}

}  // namespace philox

// `count` random words, U32[count]. The seed is the key; block i has the counter offset / 4 + i in
// words 0 and 1 (words 2 and 3 are zero) and yields elements 4i..4i+3. The four arguments are 0-dim
// U32 values; the caller advances the offset by count rounded up to a multiple of 4.
hlo::Value philox_u32(hlo::Builder& b, const hlo::Value& seed_lo, const hlo::Value& seed_hi,
                      const hlo::Value& offset_lo, const hlo::Value& offset_hi, int64_t count);

// The same on the host, for tests and for single numbers: element `index` of that stream.
uint32_t philox_u32(uint64_t seed, uint64_t offset, uint64_t index);

}  // namespace torch_tpu::graph
