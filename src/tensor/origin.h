// SPDX-License-Identifier: Apache-2.0 - Who submits a call that carries run-time checks, and where in Python.
#pragma once

#include <string>

#include "src/run/check.h"

namespace torch_tpu::tensor {

// Of the call that this thread is about to submit. May take the GIL, so runtime's mutex must not be
// held.
run::Origin call_origin();
// Where in Python the running call was made ("file.py:12"), or null; set by the Python layer.
void set_line_source(const std::string* (*source)());

}  // namespace torch_tpu::tensor
