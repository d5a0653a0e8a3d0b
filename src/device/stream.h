// SPDX-License-Identifier: Apache-2.0 - Streams and events on top of the one queue that runs in order.
//
// All streams of a process share one queue, which runs programs in the order in which they were
// submitted. So whatever was submitted before a wait has run before whatever comes after it, on
// every stream: waits order by construction and need not do anything. What streams and events add
// is knowledge: which part of the queue was submitted through them, and whether it has finished.
// They hold numbers of that sequence (Runtime::submitted()).
#pragma once

#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace torch_tpu::device {

c10::Stream default_stream();
// Of the calling thread; the default stream until it chose another.
c10::Stream current_stream();
// Returns the previous one.
c10::Stream exchange_stream(c10::Stream stream);
c10::Stream new_stream();

// What the stream was given up to now has finished.
bool query(c10::Stream stream);
void synchronize(c10::Stream stream);

// Events as c10::impl::InlineEvent holds them: an opaque pointer, made by the first record().
void record(void** event, c10::Stream stream, c10::EventFlag flag);
bool query_event(void* event);
void synchronize_event(void* event);
void destroy_event(void* event) noexcept;
// Milliseconds between the moments at which the host saw both events' work finished.
double elapsed_time(void* begin, void* end);

}  // namespace torch_tpu::device
