// SPDX-License-Identifier: Apache-2.0 - The submitting thread, also of a backward pass, and the line that is blamed.
#include "src/tensor/origin.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <mutex>
#include <string_view>
#include <typeindex>
#include <unordered_map>

#include "src/run/runtime.h"

namespace torch_tpu::tensor {

using run::Ledger;

namespace {

const std::string* (*line_source)() = nullptr;

// Ledgers by the number that PyTorch gives a thread, which autograd's nodes remember.
struct Threads {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::weak_ptr<Ledger>> ledgers;

  void add(uint64_t thread, const std::shared_ptr<Ledger>& ledger) {
    std::lock_guard lock(mutex);
    if (ledgers.size() > 256) std::erase_if(ledgers, [](auto& t) { return t.second.expired(); });
    ledgers[thread] = ledger;
  }
  std::shared_ptr<Ledger> find(uint64_t thread) {
    std::lock_guard lock(mutex);
    auto found = ledgers.find(thread);
    return found == ledgers.end() ? nullptr : found->second.lock();
  }
};
Threads& threads() {
  static auto* t = new Threads;
  return *t;
}

const std::shared_ptr<Ledger>& my_ledger() {
  thread_local bool known = false;
  const std::shared_ptr<Ledger>& mine = Ledger::mine();
  if (!known) {
    threads().add(at::RecordFunction::currentThreadId(), mine);
    known = true;
  }
  return mine;
}

// "the backward pass, EmbeddingBackward0": for calls that no line of Python makes. Null for nodes
// that are written in Python.
const std::string* backward_line(const torch::autograd::Node& node) {
  static std::mutex mutex;
  static auto* texts = new std::map<std::type_index, const std::string*>;
  std::lock_guard lock(mutex);
  auto [found, is_new] = texts->try_emplace(typeid(node), nullptr);
  if (is_new && std::string_view(typeid(node).name()).find("PyNode") == std::string_view::npos)
    found->second = new std::string("the backward pass, " + node.name());
  return found->second;
}

}  // namespace

void set_line_source(const std::string* (*source)()) { line_source = source; }

run::Origin call_origin() {
  run::Origin origin;
  auto node = torch::autograd::get_current_node();
  const bool at_home =
      node == nullptr || node->thread_id() == at::RecordFunction::currentThreadId();
  // Autograd's own thread has no Python frame, unless the node is written in Python.
  if (!at_home) origin.line = backward_line(*node);
  if (origin.line == nullptr && line_source != nullptr) origin.line = line_source();
  // In Debug mode it is this thread that waits, and autograd carries the exception on.
  if (at_home || run::Runtime::instance().mode() == run::Mode::Debug) {
    origin.ledger = my_ledger();
  } else {
    origin.ledger = threads().find(node->thread_id());
    if (!origin.ledger) origin.ledger = Ledger::nobodys();
  }
  return origin;
}

}  // namespace torch_tpu::tensor
