// SPDX-License-Identifier: Apache-2.0 - multiply-and-fold in eight lanes.
#include "src/pjrt/file_hash.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>

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

}  // namespace

std::string hash_bytes(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::array<uint64_t, 8> lanes = kKeys;
  size_t done = 0;
  for (; done + kBlock <= size; done += kBlock) absorb(lanes, bytes + done);
  std::array<unsigned char, kBlock> tail{};
  if (done < size) std::memcpy(tail.data(), bytes + done, size - done);
  absorb(lanes, tail.data());
  uint64_t low = size;
  uint64_t high = ~static_cast<uint64_t>(size);
  for (size_t i = 0; i < 8; ++i) {
    low = fold(low ^ lanes[i], kKeys[i]) + lanes[7 - i];
    high = fold(high ^ lanes[7 - i], kKeys[i] ^ kKeys[0]) + lanes[i];
  }
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(high),
                static_cast<unsigned long long>(low));
  return text.data();
}

std::string hash_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info{};
  if (fd < 0 || fstat(fd, &info) != 0) {
    const int reason = errno;
    if (fd >= 0) close(fd);
    throw Error(kNotFound, "cannot read " + path + ": " + std::strerror(reason));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    close(fd);
    return hash_bytes(nullptr, 0);
  }
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int reason = errno;
  close(fd);
  if (data == MAP_FAILED) {
    throw Error(kNotFound, "cannot read " + path + ": " + std::strerror(reason));
  }
  std::string hash = hash_bytes(data, size);
  munmap(data, size);
  return hash;
}

}  // namespace torch_tpu::pjrt
