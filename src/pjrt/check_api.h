// SPDX-License-Identifier: Apache-2.0 - which versions of the PJRT C API will do.
#pragma once

#include <string>

#include "src/pjrt/api.h"

namespace torch_tpu::pjrt {

// The oldest minor version whose function table and structs have all that Client needs. The oldest
// one tried is 0.81.
inline constexpr int kOldestMinor = 70;

// Throws Error, with what was found and what is needed, unless the plugin's API is one we can
// speak.
void check_api(const PJRT_Api* api, const std::string& path);

}  // namespace torch_tpu::pjrt
