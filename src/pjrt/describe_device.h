// SPDX-License-Identifier: Apache-2.0 - reads a PJRT device description.
#pragma once

#include "src/pjrt/api.h"
#include "src/pjrt/client.h"

namespace torch_tpu::pjrt {

DeviceDescription describe_device(const PJRT_Api* api, PJRT_DeviceDescription* raw);

}  // namespace torch_tpu::pjrt
