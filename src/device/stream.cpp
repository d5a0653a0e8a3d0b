// SPDX-License-Identifier: Apache-2.0 - Streams and events on top of the one queue that runs in order.
#include "src/device/stream.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "src/device/device.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/factory.h"

namespace torch_tpu::device {
namespace {

using Clock = std::chrono::steady_clock;
using run::Runtime;

// What is known of a stream: the end of the part of the queue that was submitted through it.
struct StreamState {
  uint64_t last = 0;
  int current_in = 0;      // threads whose current stream it is
  bool abandoned = false;  // a thread ended with it: where its work ends is not known exactly
};

struct Streams {
  std::mutex mutex;
  std::unordered_map<c10::StreamId, StreamState> states;
  c10::StreamId next = 1;
};

Streams& streams() {
  static auto* s = new Streams;  // threads may end after static destructors ran
  return *s;
}

// Programs submitted so far; 0 while the device sleeps.
uint64_t submitted() {
  Runtime& r = Runtime::instance();
  if (!r.initialized()) return 0;
  return tensor::guard([&] {
    r.require_usable();
    return r.submitted();
  });
}

// The calling thread's stream; a thread that ends leaves its stream.
struct ThreadStream {
  c10::StreamId id = 0;
  ~ThreadStream() {
    if (id == 0) return;
    std::lock_guard lock(streams().mutex);
    StreamState& s = streams().states[id];
    --s.current_in;
    s.abandoned = true;
  }
};
thread_local ThreadStream thread_stream;

void check(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::DeviceType::PrivateUse1,
              "expected a stream of a tpu device, got one of ", stream.device());
  tensor::check_device_index(stream.device_index());
}

// The end of what the stream was given. Every thread that never chose a stream submits through the
// default one, so that one is always in use; so is a stream some thread has chosen.
uint64_t end_of(c10::Stream stream) {
  if (stream.id() != 0) {
    std::lock_guard lock(streams().mutex);
    const StreamState& s = streams().states[stream.id()];
    if (s.current_in == 0 && !s.abandoned) return s.last;
  }
  return submitted();
}

c10::Stream stream_of(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, the_device(), id);
}

// ---- events ------------------------------------------------------------------------------------

struct Recording {
  uint64_t sequence = 0;
  bool timed = false;
  std::mutex mutex;
  bool stamped = false;
  Clock::time_point when;

  // Whoever sees the work finished first notes the time.
  void stamp() {
    if (!timed) return;
    std::lock_guard lock(mutex);
    if (!stamped) when = Clock::now();
    stamped = true;
  }
};

struct Event {
  std::shared_ptr<Recording> recording;
};

// Watches for recordings with timing to finish. PJRT has no device clock that programs could read,
// so the host looks; on a busy machine its view lags.
class Stopwatch {
 public:
  static Stopwatch& instance() {
    static auto* s = new Stopwatch;
    return *s;
  }
  void watch(std::shared_ptr<Recording> r) {
    if (Runtime::instance().finished(r->sequence)) return r->stamp();
    std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(r));
    if (!running_) {
      running_ = true;
      std::thread([this] { loop(); }).detach();
    }
  }

 private:
  // Ends when there is nothing left to watch.
  void loop() {
    while (true) {
      std::shared_ptr<Recording> r;
      {
        std::lock_guard lock(mutex_);
        if (waiting_.empty()) {
          running_ = false;
          return;
        }
        r = std::move(waiting_.front());
        waiting_.pop_front();
      }
      try {
        Runtime::instance().wait_for(r->sequence);
      } catch (const std::exception&) {
        // Whoever reads the results is told; the time of the failure is the time asked for.
      }
      r->stamp();
    }
  }

  std::mutex mutex_;
  std::deque<std::shared_ptr<Recording>> waiting_;
  bool running_ = false;
};

void wait_until(uint64_t sequence, Recording* recording = nullptr) {
  Runtime& r = Runtime::instance();
  if (sequence == 0) return;
  tensor::guard([&] {
    r.require_usable();
    r.wait_for(sequence);
    if (recording != nullptr) recording->stamp();
    r.raise_failed_checks();
  });
}

}  // namespace

c10::Stream default_stream() { return stream_of(0); }

c10::Stream current_stream() { return stream_of(thread_stream.id); }

c10::Stream new_stream() {
  std::lock_guard lock(streams().mutex);
  c10::StreamId id = streams().next++;
  streams().states[id];
  return stream_of(id);
}

c10::Stream exchange_stream(c10::Stream stream) {
  check(stream);
  c10::Stream previous = current_stream();
  if (stream.id() == thread_stream.id) return previous;
  // Also in DeferAndFuse: what is pending belongs to the stream that is left.
  uint64_t last = submitted();
  std::lock_guard lock(streams().mutex);
  if (thread_stream.id != 0) {
    StreamState& s = streams().states[thread_stream.id];
    s.last = std::max(s.last, last);
    --s.current_in;
  }
  thread_stream.id = stream.id();
  if (stream.id() != 0) ++streams().states[stream.id()].current_in;
  return previous;
}

bool query(c10::Stream stream) {
  check(stream);
  uint64_t end = end_of(stream);
  return end == 0 || Runtime::instance().finished(end);
}

void synchronize(c10::Stream stream) {
  check(stream);
  wait_until(end_of(stream));
}

void record(void** event, c10::Stream stream, c10::EventFlag flag) {
  check(stream);
  auto recording = std::make_shared<Recording>();
  recording->sequence = end_of(stream);
  recording->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
  if (*event == nullptr) *event = new Event;
  static_cast<Event*>(*event)->recording = recording;
  if (recording->timed) Stopwatch::instance().watch(std::move(recording));
}

bool query_event(void* event) {
  Recording& r = *static_cast<Event*>(event)->recording;
  if (r.sequence != 0 && !Runtime::instance().finished(r.sequence)) return false;
  r.stamp();
  return true;
}

void synchronize_event(void* event) {
  std::shared_ptr<Recording> r = static_cast<Event*>(event)->recording;
  wait_until(r->sequence, r.get());
}

void destroy_event(void* event) noexcept { delete static_cast<Event*>(event); }

double elapsed_time(void* begin, void* end) {
  // PyTorch has made sure that both are timed, recorded and finished.
  Clock::time_point times[2];
  int i = 0;
  for (void* event : {begin, end}) {
    Recording& r = *static_cast<Event*>(event)->recording;
    r.stamp();
    std::lock_guard lock(r.mutex);
    times[i++] = r.when;
  }
  return std::chrono::duration<double, std::milli>(times[1] - times[0]).count();
}

}  // namespace torch_tpu::device
