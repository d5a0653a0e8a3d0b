// SPDX-License-Identifier: Apache-2.0 - Run-time checks of submitted calls (index in range ...): what became of them, and who is told.
//
// A program yields error words for those of its calls that carry checks. One that failed is told,
// once to each thread and to nobody else,
//  - to the thread that submitted the call, when it next waits for the device: reads a tensor,
//    any tensor, or synchronizes; in Debug mode at once;
//  - to a thread that reads a tensor computed from the call's results, through however many
//    programs.
// What a backward pass submits counts as submitted by the thread that ran the forward one. If that
// thread has ended or is not known, the next torch.tpu.synchronize() of any thread tells.
//
// After that the device works on, and so does the tensor: its values are those of indices clamped
// into range, and a thread that has been told may read them, overwrite them or drop them. (CUDA
// refuses everything from then on; a tensor that refuses for ever would make a model useless whose
// parameters one bad batch has reached.)
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "src/graph/call.h"
#include "src/graph/record.h"
#include "src/pjrt/buffer.h"

namespace torch_tpu::run {

class CheckFailure : public graph::UserError {
 public:
  using UserError::UserError;
};

class Ledger;

// Who submitted a call that carries checks, and where ("file.py:12"; may be null, and outlives the
// process otherwise).
struct Origin {
  const std::string* line = nullptr;
  std::shared_ptr<Ledger> ledger;
};

// The error words of one execution of a program: two for each call that carries checks, the number
// of the check that failed (from 1; 0: all held) and the value that it complains of.
class ErrorWords {
 public:
  ErrorWords(pjrt::Buffer buffer, size_t calls) : buffer_(std::move(buffer)), words_(2 * calls) {}
  // Whether the words are there; does not wait.
  bool known();
  void wait();
  // Once known.
  bool all_held() const;
  int64_t check(size_t call) const { return words_[2 * call]; }
  int64_t value(size_t call) const { return words_[2 * call + 1]; }

 private:
  void fetch();  // mutex_ must be held

  std::mutex mutex_;
  std::atomic<bool> known_{false};
  pjrt::Buffer buffer_;
  std::vector<int64_t> words_;
};

// The checks of one submitted call.
class Check {
 public:
  enum State : uint8_t { Open, Held, Failed };

  Check(uint64_t number, std::shared_ptr<ErrorWords> words, size_t call, graph::RecordPtr record,
        const std::string* line)
      : number(number),
        words_(std::move(words)),
        call_(call),
        record_(std::move(record)),
        line_(line) {}

  State state();   // does not wait
  State settle();  // waits
  // Of a failed check: whether this thread has not been told yet. From now on it has.
  bool tell(const Ledger& thread);
  // What the user reads; `more` others are told with it.
  CheckFailure failure(size_t more) const;

  const uint64_t number;  // in the order of execution

 private:
  std::shared_ptr<ErrorWords> words_;
  size_t call_;
  graph::RecordPtr record_;
  const std::string* line_;
  std::mutex mutex_;
  std::vector<uint64_t> told_;  // ledgers
};

// Those that an array depends on and that are not known to have held. Immutable, oldest first.
using Checks = std::vector<std::shared_ptr<Check>>;
using ChecksPtr = std::shared_ptr<const Checks>;
// Their union, without those that have held meanwhile; null if nothing is left.
ChecksPtr join(const std::vector<ChecksPtr>& sets);

// What one thread has submitted and not been told of. Kept alive by the calls in flight.
class Ledger {
 public:
  Ledger();
  // The calling thread's.
  static const std::shared_ptr<Ledger>& mine();
  static Ledger* mine_or_null();
  // Of threads that have ended, or are not known.
  static const std::shared_ptr<Ledger>& nobodys();

  const uint64_t id;
  // Number of the last program submitted with a call of this thread that carries checks.
  std::atomic<uint64_t> last{0};

  void add(std::shared_ptr<Check> check);
  Checks take();
  // The thread ends.
  void abandon();

 private:
  std::mutex mutex_;
  Checks open_;
  size_t sweep_at_ = 1024;
  bool abandoned_ = false;
};

// Throws if checks that the calling thread is to be told of have failed: its own, those of `read`
// (may be null), and nobody's too if asked. Waits for their outcome.
void tell_failed_checks(const Checks* read, bool nobodys = false);

}  // namespace torch_tpu::run
