// SPDX-License-Identifier: Apache-2.0 - 128-bit keys of op calls and programs, equal on every host and in every process.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace torch_tpu::graph {

struct Key {
  uint64_t hi = 0, lo = 0;
  bool operator==(const Key&) const = default;
  std::string hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string s(32, '0');
    for (int i = 0; i < 16; ++i) {
      s[15 - i] = kDigits[(hi >> (4 * i)) & 15];
      s[31 - i] = kDigits[(lo >> (4 * i)) & 15];
    }
    return s;
  }
};

struct KeyHash {
  size_t operator()(const Key& k) const { return static_cast<size_t>(k.lo ^ (k.hi >> 7)); }
};

// Two independent 64x64 -> 128 bit multiply-and-fold lanes. Not cryptographic: keys protect
// against mistakes, not against an adversary.
class KeyHasher {
 public:
  void word(uint64_t w) {
    a_ = fold(a_ ^ w, 0x9E3779B97F4A7C15ull);
    b_ = fold(b_ + w, 0xD6E8FEB86659FD93ull) ^ (w << 1);
  }
  void words(const uint64_t* w, size_t n) {
    for (size_t i = 0; i < n; ++i) word(w[i]);
  }
  void bytes(std::string_view s) {
    word(s.size());
    size_t i = 0;
    for (; i + 8 <= s.size(); i += 8) {
      uint64_t w;
      std::memcpy(&w, s.data() + i, 8);
      word(w);
    }
    if (i < s.size()) {
      uint64_t w = 0;
      std::memcpy(&w, s.data() + i, s.size() - i);
      word(w);
    }
  }
  Key finish() const {
    return {fold(a_ ^ 0xA0761D6478BD642Full, b_ | 1), fold(b_ ^ 0xE7037ED1A0B428DBull, a_ | 1)};
  }

 private:
  static uint64_t fold(uint64_t x, uint64_t y) {
    unsigned __int128 p = static_cast<unsigned __int128>(x) * y;
    return static_cast<uint64_t>(p) ^ static_cast<uint64_t>(p >> 64);
  }
  uint64_t a_ = 0x243F6A8885A308D3ull, b_ = 0x13198A2E03707344ull;
};

}  // namespace torch_tpu::graph
