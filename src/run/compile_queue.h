// SPDX-License-Identifier: Apache-2.0 - Compile threads: a new program comes from the disk cache, the shared root, or the compiler.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "src/pjrt/client.h"
#include "src/run/disk_cache.h"
#include "src/run/program.h"

namespace torch_tpu::run {

// How every program is compiled for this client.
pjrt::CompileOptions compile_options_for(const pjrt::Client& client);

// "aten::add.Tensor, aten::mul.Tensor, ... (64 calls)"
std::string describe(const Program& program, size_t limit);

struct CompileStats {
  uint64_t compiled = 0;   // programs compiled
  uint64_t disk_hits = 0;  // programs loaded from the local folder
  uint64_t root_hits = 0;  // programs loaded from the shared root
  double compile_seconds = 0;
  double load_seconds = 0;
};

class CompileQueue {
 public:
  // Makes the caches that the environment asks for, and the threads.
  explicit CompileQueue(std::shared_ptr<pjrt::Client> client);
  ~CompileQueue() { stop(); }
  // Ends the threads; programs still waiting are broken.
  void stop();

  void add(std::shared_ptr<Program> program);
  // Told every program that is compiled or loaded from now on.
  void on_program(std::function<void(const Program&)> observer);

  DiskCache& disk_cache() { return disk_; }
  // What was wrong with the caches, for one warning; clears it.
  std::string take_warning();
  CompileStats stats() const;
  void reset_stats();

  // Where TORCH_TPU_CACHE_ROOT is no folder: how to get and put files there. Before the queue is
  // made.
  static void set_remote_root(RemoteCache::Fetch fetch, RemoteCache::Store store);

 private:
  using Clock = std::chrono::steady_clock;

  void loop();
  void compile(Program& program);
  std::optional<pjrt::Executable> load(const std::string& key, const Program& program);
  void log(const Program& program, const std::string& what, Clock::time_point begin) const;
  std::string why_new(const std::string& key, const std::string& text, const Program& program);
  void show_progress();

  std::shared_ptr<pjrt::Client> client_;
  std::string
      environment_;  // all that a compilation depends on beside the program; made when needed
  std::once_flag environment_once_;
  DiskCache disk_;
  std::unique_ptr<ExecutableCache> root_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Program>> waiting_;
  bool stopping_ = false;
  std::vector<std::function<void(const Program&)>> observers_;
  // Of the busy period that lasts until nothing waits: for the progress line.
  Clock::time_point busy_since_;
  uint64_t busy_threads_ = 0, busy_done_ = 0;
  bool progress_shown_ = false;
  // With TORCH_TPU_LOG=cache: the last text compiled for a sequence of operators.
  std::unordered_map<std::string, std::string> last_texts_;

  mutable std::mutex stats_mutex_;
  CompileStats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace torch_tpu::run
