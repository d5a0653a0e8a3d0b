// SPDX-License-Identifier: Apache-2.0 - RAII handle of a PJRT event: something that will be done.
#pragma once

#include <functional>
#include <utility>

struct PJRT_Api;
struct PJRT_Event;

namespace torch_tpu::pjrt {

class Error;

// Move-only. Must not outlive the client it came from. An empty Event counts as done.
class Event {
 public:
  Event() = default;
  Event(const PJRT_Api* api, PJRT_Event* raw) : api_(api), raw_(raw) {}
  Event(Event&& other) noexcept : api_(other.api_), raw_(std::exchange(other.raw_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(raw_, other.raw_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (raw_ != nullptr) destroy();
  }

  explicit operator bool() const { return raw_ != nullptr; }
  PJRT_Event* raw() const { return raw_; }

  // Done, well or badly.
  bool ready() const;
  // Blocks; throws Error when what was awaited failed.
  void await() const;
  // Calls back once, with nullptr or the error, in whichever thread finishes the work (perhaps this
  // one, before on_ready returns). The Event itself may be destroyed before that. The callback must
  // neither throw nor wait for other work of the same client.
  void on_ready(std::function<void(const Error*)> callback) const;

 private:
  void destroy() noexcept;

  const PJRT_Api* api_ = nullptr;
  PJRT_Event* raw_ = nullptr;
};

}  // namespace torch_tpu::pjrt
