// SPDX-License-Identifier: Apache-2.0 - Pinned host memory: page-aligned blocks that the device can read in place.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

namespace torch_tpu::device {

at::HostAllocator* host_allocator();
// True for addresses inside a block that is in use.
bool is_pinned(const void* address);

}  // namespace torch_tpu::device
