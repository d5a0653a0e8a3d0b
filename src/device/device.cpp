// SPDX-License-Identifier: Apache-2.0 - Which devices there are, without waking one.
#include "src/device/device.h"

#include <atomic>

#include "src/pjrt/plugin.h"
#include "src/run/runtime.h"

namespace torch_tpu::device {

bool available() noexcept {
  // Asked often, and a plugin that was found stays installed. The other answer is looked up again:
  // the environment may name a plugin later.
  static std::atomic<bool> found{false};
  if (found.load(std::memory_order_relaxed)) return true;
  try {
    if (!run::Runtime::instance().initialized()) pjrt::Plugin::choose();
    found.store(true, std::memory_order_relaxed);
    return true;
  } catch (...) {
    return false;  // using the device tells why
  }
}

}  // namespace torch_tpu::device
