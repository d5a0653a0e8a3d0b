// SPDX-License-Identifier: Apache-2.0 - The numbers that an abstract step was called with.
#pragma once

#include <cstdint>
#include <vector>

namespace torch_tpu::run {

// The run-time scalars of the last step that Runtime::end_abstract_step() ended, in the order of
// its program's nodes. Under Runtime::mutex().
std::vector<uint64_t>& last_step_scalars();

}  // namespace torch_tpu::run
