// SPDX-License-Identifier: Apache-2.0 - Turns the core's errors into PyTorch's exceptions at the boundary.
#pragma once

#include <c10/util/Exception.h>

#include <exception>

namespace torch_tpu::tensor {

// Rethrows the exception in flight as the matching c10 error (IndexError, ValueError, ...).
[[noreturn]] void rethrow_as_torch();

template <typename F>
auto guard(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::Error&) {
    throw;
  } catch (...) {
    rethrow_as_torch();
  }
}

}  // namespace torch_tpu::tensor
