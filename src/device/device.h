// SPDX-License-Identifier: Apache-2.0 - Which devices there are, without waking one.
#pragma once

#include <c10/core/Device.h>

namespace torch_tpu::device {

// One process, one chip: the device of this process is always index 0.
inline c10::Device the_device() { return c10::Device(c10::DeviceType::PrivateUse1, 0); }

// True when a plugin is installed. Neither loads it nor makes a client, and never throws.
bool available() noexcept;

}  // namespace torch_tpu::device
