// SPDX-License-Identifier: Apache-2.0 - Outcomes of run-time checks, the threads' ledgers, the error that is thrown.
#include "src/run/check.h"

#include <algorithm>

namespace torch_tpu::run {

using graph::UserError;

// ---- one program's words -----------------------------------------------------------------------

bool ErrorWords::known() {
  if (known_.load(std::memory_order_acquire)) return true;
  std::lock_guard lock(mutex_);
  if (known_.load(std::memory_order_relaxed)) return true;
  if (!buffer_.ready()) return false;
  fetch();
  return true;
}

void ErrorWords::wait() {
  if (known_.load(std::memory_order_acquire)) return;
  std::lock_guard lock(mutex_);
  if (!known_.load(std::memory_order_relaxed)) fetch();
}

void ErrorWords::fetch() {
  try {
    buffer_.to_host(words_.data(), words_.size() * sizeof(int64_t));
  } catch (const std::exception&) {
    // The program as a whole failed, which its results tell.
    std::fill(words_.begin(), words_.end(), 0);
  }
  buffer_ = {};
  known_.store(true, std::memory_order_release);
}

bool ErrorWords::all_held() const {
  for (size_t i = 0; i < words_.size(); i += 2)
    if (words_[i] != 0) return false;
  return true;
}

// ---- one call's checks -------------------------------------------------------------------------

Check::State Check::state() {
  if (!words_->known()) return Open;
  return words_->check(call_) == 0 ? Held : Failed;
}

Check::State Check::settle() {
  words_->wait();
  return state();
}

bool Check::tell(const Ledger& thread) {
  std::lock_guard lock(mutex_);
  if (std::find(told_.begin(), told_.end(), thread.id) != told_.end()) return false;
  told_.push_back(thread.id);
  return true;
}

CheckFailure Check::failure(size_t more) const {
  const graph::CheckSpec& spec = record_->checks[words_->check(call_) - 1];
  std::string text = (spec.op.empty() ? record_->op : spec.op) + "(): " + spec.message;
  if (size_t at = text.find("{}"); at != std::string::npos)
    text.replace(at, 2, std::to_string(words_->value(call_)));
  if (!spec.line.empty()) {
    text += " [" + spec.line + "]";
  } else if (line_ != nullptr) {
    text += " [" + *line_ + "]";
  }
  if (more != 0)
    text += " (and " + std::to_string(more) + (more == 1 ? " more call" : " more calls") +
            " failed a check)";
  UserError::Kind kind = spec.error == graph::CheckSpec::Index   ? UserError::Index
                         : spec.error == graph::CheckSpec::Value ? UserError::Value
                                                                 : UserError::Runtime;
  return {kind, text};
}

ChecksPtr join(const std::vector<ChecksPtr>& sets) {
  // However often a loop goes on after an error, its tensors remember this many.
  constexpr size_t kFailed = 16;
  auto all = std::make_shared<Checks>();
  for (const ChecksPtr& set : sets)
    for (const std::shared_ptr<Check>& c : *set)
      if (c->state() != Check::Held) all->push_back(c);
  if (all->empty()) return nullptr;
  if (sets.size() > 1) {
    std::sort(all->begin(), all->end(),
              [](const auto& a, const auto& b) { return a->number < b->number; });
    all->erase(std::unique(all->begin(), all->end()), all->end());
  }
  for (const ChecksPtr& set : sets)
    if (set->size() == all->size() && *set == *all) return set;
  size_t failed = 0;
  for (const auto& c : *all) failed += c->state() == Check::Failed;
  std::erase_if(*all, [&](const auto& c) {
    return failed > kFailed && c->state() == Check::Failed && failed--;
  });
  return all;
}

// ---- threads -----------------------------------------------------------------------------------

namespace {

std::atomic<uint64_t> next_id{1};

struct Mine {
  std::shared_ptr<Ledger> ledger;
  ~Mine() {
    if (ledger) ledger->abandon();
  }
};
thread_local Mine mine_of_thread;

}  // namespace

Ledger::Ledger() : id(next_id++) {}

const std::shared_ptr<Ledger>& Ledger::mine() {
  std::shared_ptr<Ledger>& mine = mine_of_thread.ledger;
  if (!mine) mine = std::make_shared<Ledger>();
  return mine;
}

Ledger* Ledger::mine_or_null() { return mine_of_thread.ledger.get(); }

const std::shared_ptr<Ledger>& Ledger::nobodys() {
  static auto* ledger = new std::shared_ptr<Ledger>(std::make_shared<Ledger>());
  return *ledger;
}

void Ledger::add(std::shared_ptr<Check> check) {
  std::unique_lock lock(mutex_);
  if (abandoned_) {
    lock.unlock();
    nobodys()->add(std::move(check));
    return;
  }
  open_.push_back(std::move(check));
  // The thread may never wait, so those that have held are let go now and then.
  if (open_.size() < sweep_at_) return;
  std::erase_if(open_, [](const auto& c) { return c->state() == Check::Held; });
  sweep_at_ = open_.size() + 1024;
}

Checks Ledger::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(open_, {});
}

void Ledger::abandon() {
  Checks left;
  {
    std::lock_guard lock(mutex_);
    abandoned_ = true;
    left = std::exchange(open_, {});
  }
  for (std::shared_ptr<Check>& c : left) nobodys()->add(std::move(c));
}

void tell_failed_checks(const Checks* read, bool nobodys) {
  Checks own;
  if (Ledger* mine = Ledger::mine_or_null()) own = mine->take();
  if (nobodys) {
    Checks lost = Ledger::nobodys()->take();
    own.insert(own.end(), lost.begin(), lost.end());
  }
  const Check* first = nullptr;
  size_t told = 0;
  auto look = [&](const std::shared_ptr<Check>& c) {
    if (c->settle() != Check::Failed || !c->tell(*Ledger::mine())) return;
    ++told;
    if (first == nullptr || c->number < first->number) first = c.get();
  };
  for (const auto& c : own) look(c);
  if (read != nullptr)
    for (const auto& c : *read) look(c);
  if (first != nullptr) throw first->failure(told - 1);
}

}  // namespace torch_tpu::run
