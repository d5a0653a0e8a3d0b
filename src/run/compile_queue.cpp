// SPDX-License-Identifier: Apache-2.0 - Keys of compiled programs, the order of the caches, progress.
#include "src/run/compile_queue.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include "src/graph/key.h"
#include "src/pjrt/compile_options.h"
#include "src/pjrt/plugin.h"

namespace torch_tpu::run {
namespace {

constexpr double kQuietSeconds = 2;  // before a progress line appears

bool log_cache() {
  static const bool on = [] {
    const char* v = std::getenv("TORCH_TPU_LOG");
    return v != nullptr && std::string_view(v).find("cache") != std::string_view::npos;
  }();
  return on;
}

// A progress line is for somebody who watches a terminal.
bool show_progress_lines() {
  static const bool on = [] {
    const char* v = std::getenv("TORCH_TPU_PROGRESS");
    return v != nullptr ? std::string_view(v) != "0" : isatty(STDERR_FILENO) == 1;
  }();
  return on;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// What machine code was made for. XLA's CPU plugin compiles for the host's instruction set, and its
// executables, moved to a lesser one, die of an illegal instruction.
std::string target(const pjrt::Client& client) {
  const pjrt::DeviceDescription device = client.describe(client.device(0));
  std::string text =
      client.platform_name() + " " + device.kind + " " + std::to_string(client.device_count());
  if (client.is_cpu()) {
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
      if (line.starts_with("flags") || line.starts_with("Features")) {
        text += line;
        break;
      }
    }
  }
  return text;
}

std::string hash_of(std::string_view text) {
  graph::KeyHasher hash;
  hash.bytes(text);
  return hash.finish().hex();
}

struct Remote {
  RemoteCache::Fetch fetch;
  RemoteCache::Store store;
};
Remote& remote() {
  static Remote functions;
  return functions;
}

std::unique_ptr<ExecutableCache> shared_root() {
  const char* root = std::getenv("TORCH_TPU_CACHE_ROOT");
  if (root == nullptr || *root == 0) return nullptr;
  if (std::string_view(root).find("://") == std::string_view::npos) {
    DiskCache::Options options;
    options.directory = root;
    options.max_bytes = 0;  // whoever keeps the root decides what goes
    return std::make_unique<DiskCache>(std::move(options));
  }
  if (!remote().fetch) return nullptr;
  return std::make_unique<RemoteCache>(remote().fetch, remote().store);
}

// Where two texts part: the first lines that differ.
std::string difference(const std::string& before, const std::string& now) {
  size_t at =
      std::mismatch(before.begin(), before.end(), now.begin(), now.end()).first - before.begin();
  const auto line_at = [&](const std::string& text) {
    size_t begin = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    begin = begin == std::string::npos ? 0 : begin + 1;
    std::string line = text.substr(begin, text.find('\n', begin) - begin);
    line.erase(0, line.find_first_not_of(' '));
    return line.size() > 200 ? line.substr(0, 200) + "..." : line;
  };
  return line_at(before) + "  ->  " + line_at(now);
}

std::string input_types(const Program& program) {
  std::string text;
  for (const hlo::Type& t : program.inputs()) text += (text.empty() ? "" : " ") + t.str().substr(6);
  return text;
}

}  // namespace

pjrt::CompileOptions compile_options_for(const pjrt::Client& client) {
  pjrt::CompileOptions options;
  // Left alone, XLA's CPU plugin loses NaNs in maximum and minimum.
  if (client.is_cpu()) options.env_overrides.emplace_back("xla_cpu_enable_fast_min_max", false);
  return options;
}

std::string describe(const Program& program, size_t limit) {
  std::string ops;
  for (const ProgramNode& n : program.nodes()) {
    if (ops.size() > limit) {
      ops += ", ...";
      break;
    }
    if (!ops.empty()) ops += ", ";
    ops += n.record->op;
  }
  if (program.nodes().size() > 1) ops += " (" + std::to_string(program.nodes().size()) + " calls)";
  return ops;
}

void CompileQueue::set_remote_root(RemoteCache::Fetch fetch, RemoteCache::Store store) {
  remote() = {std::move(fetch), std::move(store)};
}

CompileQueue::CompileQueue(std::shared_ptr<pjrt::Client> client)
    : client_(std::move(client)),
      disk_(DiskCache::Options::from_environment()),
      root_(shared_root()) {
  const unsigned count = std::clamp(std::thread::hardware_concurrency(), 2u, 8u);
  // Hashing the plugin takes longer than loading a small program: it starts before there is one.
  threads_.emplace_back([this] {
    try {
      client_->plugin()->identity();
    } catch (const std::exception&) {
      // Whoever needs it next is told.
    }
    loop();
  });
  for (unsigned i = 1; i < count; ++i) threads_.emplace_back([this] { loop(); });
}

void CompileQueue::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
  // Nobody may wait for a program that will not be compiled any more.
  std::lock_guard lock(mutex_);
  for (auto& p : waiting_) p->broken("the tpu device was shut down");
  waiting_.clear();
}

void CompileQueue::add(std::shared_ptr<Program> program) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return program->broken("the tpu device was shut down");
    waiting_.push_back(std::move(program));
  }
  wake_.notify_one();
}

void CompileQueue::on_program(std::function<void(const Program&)> observer) {
  std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void CompileQueue::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    std::shared_ptr<Program> program = std::move(waiting_.front());
    waiting_.pop_front();
    if (busy_threads_++ == 0) busy_since_ = Clock::now(), busy_done_ = 0;
    lock.unlock();
    try {
      compile(*program);
    } catch (const std::exception& e) {
      program->broken("the compiler refused the program of " + describe(*program, 200) + ": " +
                      e.what());
    }
    program.reset();
    lock.lock();
    --busy_threads_;
    ++busy_done_;
    show_progress();
  }
}

// mutex_ is held.
void CompileQueue::show_progress() {
  if (!show_progress_lines()) return;
  const size_t left = waiting_.size() + busy_threads_;
  const double seconds = seconds_since(busy_since_);
  if (left > 0 && seconds > kQuietSeconds) {
    std::fprintf(stderr, "\rtorch_tpu: %llu programs made, %zu to go (%.0f s)\x1b[K",
                 static_cast<unsigned long long>(busy_done_), left, seconds);
    progress_shown_ = true;
  } else if (left == 0 && progress_shown_) {
    std::fprintf(stderr, "\r\x1b[K");
    progress_shown_ = false;
  }
}

void CompileQueue::compile(Program& program) {
  const std::string text = program.module_text();
  std::vector<std::function<void(const Program&)>> observers;
  {
    std::lock_guard lock(mutex_);
    observers = observers_;
  }
  for (auto& o : observers) o(program);

  const pjrt::CompileOptions options = compile_options_for(*client_);
  // Hashes the plugin's file the first time, so not before it is needed.
  const std::string& plugin = client_->plugin()->identity();
  std::call_once(environment_once_, [&] {
    environment_ =
        hash_of(plugin + "\n" + options.encode() + "\n" + target(*client_)).substr(0, 16);
  });
  const std::string key = hash_of(text) + "-" + environment_;
  if (auto loaded = load(key, program)) {
    program.compiled(std::move(*loaded));
    return;
  }
  const std::string why = log_cache() ? why_new(key, text, program) : "";
  const auto begin = Clock::now();
  pjrt::Executable made = client_->compile(text, options);
  log(program, "compiled" + why, begin);
  {
    std::lock_guard lock(stats_mutex_);
    ++stats_.compiled;
    stats_.compile_seconds += seconds_since(begin);
  }
  std::string bytes;
  try {
    bytes = made.serialize();
  } catch (const std::exception&) {
    // A plugin that can't serialize has no cache but memory.
  }
  program.compiled(std::move(made));
  if (bytes.empty()) return;
  const std::string about = describe(program, 160) + " | " + input_types(program);
  disk_.write(key, plugin, bytes, about);
  if (root_) root_->write(key, plugin, bytes, about);
}

std::optional<pjrt::Executable> CompileQueue::load(const std::string& key, const Program& program) {
  const std::string& plugin = client_->plugin()->identity();
  const auto begin = Clock::now();
  std::optional<std::string> bytes = disk_.read(key, plugin);
  const bool local = bytes.has_value();
  if (!bytes && root_) bytes = root_->read(key, plugin);
  if (!bytes) return {};
  try {
    pjrt::Executable loaded = client_->load(*bytes);
    log(program, local ? "loaded" : "loaded from the shared root", begin);
    {
      std::lock_guard lock(stats_mutex_);
      ++(local ? stats_.disk_hits : stats_.root_hits);
      stats_.load_seconds += seconds_since(begin);
    }
    if (!local)
      disk_.write(key, plugin, *bytes, describe(program, 160) + " | " + input_types(program));
    return loaded;
  } catch (const std::exception&) {
    if (local) disk_.remove(key);  // by a plugin that calls itself the same; compile instead
    return {};
  }
}

void CompileQueue::log(const Program& program, const std::string& what,
                       Clock::time_point begin) const {
  if (!log_cache()) return;
  std::fprintf(stderr, "[torch_tpu] %s in %.1f ms: %s, inputs %s, key %s\n", what.c_str(),
               seconds_since(begin) * 1e3, describe(program, 160).c_str(),
               input_types(program).c_str(), program.key().hex().c_str());
}

// Which part of the key is new, as the end of "compiled".
std::string CompileQueue::why_new(const std::string& key, const std::string& text,
                                  const Program& program) {
  const std::string ops = describe(program, 1000);
  std::string before;
  {
    std::lock_guard lock(mutex_);
    before = std::exchange(last_texts_[ops], text);
  }
  for (const CacheEntry& other : disk_.entries_of(key.substr(0, key.find('-')))) {
    const bool same_plugin = other.plugin == client_->plugin()->identity().substr(0, 32);
    return same_plugin ? " (cached for another machine, topology or set of compile options)"
                       : " (cached for another plugin)";
  }
  if (before.empty()) return " (the first program of these operators in this process)";
  return " (the program differs: " + difference(before, text) + ")";
}

std::string CompileQueue::take_warning() {
  std::string warning = disk_.take_warning();
  return warning.empty() && root_ ? root_->take_warning() : warning;
}

CompileStats CompileQueue::stats() const {
  std::lock_guard lock(stats_mutex_);
  return stats_;
}

void CompileQueue::reset_stats() {
  std::lock_guard lock(stats_mutex_);
  stats_ = {};
}

}  // namespace torch_tpu::run
