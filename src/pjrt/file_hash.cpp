// SPDX-License-Identifier: Apache-2.0 - multiply-and-fold in eight lanes.
#include "src/pjrt/file_hash.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "src/pjrt/error.h"

namespace torch_tpu::pjrt {

namespace {

__extension__ typedef unsigned __int128 Wide;

uint64_t fold(uint64_t a, uint64_t b) {
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t word(const unsigned char* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Odd, with about as many ones as zeros: the fractional parts of square roots of primes.
constexpr std::array<uint64_t, 8> kKeys = {
    0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr size_t kBlock = 8 * 16;

void absorb(std::array<uint64_t, 8>& lanes, const unsigned char* block) {
  for (size_t i = 0; i < 8; ++i) {
    // The second word is added too: a product alone would forget it when the first factor is 0.
    const uint64_t first = word(block + 16 * i);
    const uint64_t second = word(block + 16 * i + 8);
    lanes[i] = fold(first ^ lanes[i], second ^ kKeys[i]) + second;
  }
}

class Hasher {
 public:
  // Whole blocks, but for the last call.
  void add(const unsigned char* bytes, size_t size) {
    size_ += size;
    size_t done = 0;
    for (; done + kBlock <= size; done += kBlock) absorb(lanes_, bytes + done);
    tail_ = {};
    if (done < size) std::memcpy(tail_.data(), bytes + done, size - done);
  }
  std::string finish() {
    absorb(lanes_, tail_.data());
    uint64_t low = size_;
    uint64_t high = ~static_cast<uint64_t>(size_);
    for (size_t i = 0; i < 8; ++i) {
      low = fold(low ^ lanes_[i], kKeys[i]) + lanes_[7 - i];
      high = fold(high ^ lanes_[7 - i], kKeys[i] ^ kKeys[0]) + lanes_[i];
    }
    std::array<char, 33> text{};
    std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(high),
                  static_cast<unsigned long long>(low));
    return text.data();
  }

 private:
  std::array<uint64_t, 8> lanes_ = kKeys;
  std::array<unsigned char, kBlock> tail_{};
  size_t size_ = 0;
};

}  // namespace

std::string hash_bytes(const void* data, size_t size) {
  Hasher hasher;
  hasher.add(static_cast<const unsigned char*>(data), size);
  return hasher.finish();
}

// Read in pieces: a mapping of the whole file would be the largest part of the process's peak
// memory.
std::string hash_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(kNotFound, "cannot read " + path + ": " + std::strerror(errno));
  constexpr size_t kPiece = 2048 * kBlock;
  std::vector<unsigned char> piece(kPiece);
  Hasher hasher;
  while (true) {
    size_t filled = 0;
    while (filled < kPiece) {
      const ssize_t got = read(fd, piece.data() + filled, kPiece - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) {
        const int reason = errno;
        close(fd);
        throw Error(kNotFound, "cannot read " + path + ": " + std::strerror(reason));
      }
      if (got == 0) break;
      filled += static_cast<size_t>(got);
    }
    hasher.add(piece.data(), filled);
    if (filled < kPiece) break;
  }
  close(fd);
  return hasher.finish();
}

}  // namespace torch_tpu::pjrt
