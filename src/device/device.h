// SPDX-License-Identifier: Apache-2.0 - Which devices there are, without waking one.
#pragma once

#include <c10/core/Device.h>

namespace torch_tpu::device {

// One process, one chip: the device of this process is always index 0.
inline c10::Device the_device() { return c10::Device(c10::DeviceType::PrivateUse1, 0); }

// True when a plugin is installed. Neither loads it nor makes a client, and never throws.
bool available() noexcept;

// Accepts 0, no index (-1), and this process's LOCAL_RANK: a launcher that starts one process per
// chip tells each to use "its" index, and the only chip a process sees is the right one. Throws
// otherwise.
void check_index(c10::DeviceIndex index);

}  // namespace torch_tpu::device
