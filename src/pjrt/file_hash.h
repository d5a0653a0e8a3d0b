// SPDX-License-Identifier: Apache-2.0 - a fast 128-bit hash of a file's contents.
#pragma once

#include <cstddef>
#include <string>

namespace torch_tpu::pjrt {

// 32 hex digits. Not for security; the same on every machine.
std::string hash_bytes(const void* data, std::size_t size);
// Throws Error when the file can't be read.
std::string hash_file(const std::string& path);

}  // namespace torch_tpu::pjrt
