// SPDX-License-Identifier: Apache-2.0 - options and attributes as PJRT passes them: name and value.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/pjrt/api.h"
#include "src/pjrt/compile_options.h"

namespace torch_tpu::pjrt {

using NamedOptions = std::vector<std::pair<std::string, OptionValue>>;

// Views of `options`, which must outlive them. Doubles become floats: PJRT has no doubles here.
std::vector<PJRT_NamedValue> to_named_values(const NamedOptions& options);

// A value in words: "42", "true", "[0, 1, 2]".
std::string to_text(const PJRT_NamedValue& value);
std::string name_of(const PJRT_NamedValue& value);

}  // namespace torch_tpu::pjrt
