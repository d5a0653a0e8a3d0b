// SPDX-License-Identifier: Apache-2.0 - A tensor's current value as host memory, for DLPack.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_tpu::device {

struct HostValue {
  at::Tensor tensor;    // on the CPU
  bool shared = false;  // its memory is the device's: it must not be written
};

// The value a tensor has now. Where the device's memory is the host's (the CPU plugin) it is shared
// and stays as it is: device buffers are immutable, so later writes to the tensor go to other
// memory. Elsewhere, or when `copy` is true, it is a copy; `copy` false forbids one.
HostValue host_value(const at::Tensor& tensor, std::optional<bool> copy);

// A tensor on the device with the contents of a CPU tensor, sharing its memory where the plugin can
// and `copy` is false. Shared memory must not change while the result is in use.
at::Tensor device_value(const at::Tensor& host, bool copy);

}  // namespace torch_tpu::device
