// SPDX-License-Identifier: Apache-2.0 - waiting for PJRT events.
#include "src/pjrt/event.h"

#include <memory>

#include "src/pjrt/call.h"

namespace torch_tpu::pjrt {

bool Event::ready() const {
  if (raw_ == nullptr) return true;
  PJRT_Event_IsReady_Args args{};
  args.event = raw_;
  call<&PJRT_Api::PJRT_Event_IsReady>(api_, args);
  return args.is_ready;
}

void Event::await() const {
  if (raw_ == nullptr) return;
  PJRT_Event_Await_Args args{};
  args.event = raw_;
  call<&PJRT_Api::PJRT_Event_Await>(api_, args);
}

void Event::on_ready(std::function<void(const Error*)> callback) const {
  if (raw_ == nullptr) {
    callback(nullptr);
    return;
  }
  struct Pending {
    const PJRT_Api* api;
    std::function<void(const Error*)> callback;
  };
  auto pending = std::make_unique<Pending>(Pending{api_, std::move(callback)});
  PJRT_Event_OnReady_Args args{};
  args.event = raw_;
  args.user_arg = pending.get();
  args.callback = [](PJRT_Error* error, void* user_arg) {
    std::unique_ptr<Pending> self(static_cast<Pending*>(user_arg));
    if (error == nullptr) {
      self->callback(nullptr);
    } else {
      const Error ours = take_error(self->api, error, "PJRT_Event");
      self->callback(&ours);
    }
  };
  call<&PJRT_Api::PJRT_Event_OnReady>(api_, args);
  pending.release();  // the callback owns it now, and may have freed it already
}

void Event::destroy() noexcept {
  PJRT_Event_Destroy_Args args{};
  args.event = raw_;
  call_quietly<&PJRT_Api::PJRT_Event_Destroy>(api_, args);
}

}  // namespace torch_tpu::pjrt
