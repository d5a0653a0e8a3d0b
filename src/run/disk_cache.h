// SPDX-License-Identifier: Apache-2.0 - Serialized executables on disk: bounded, shared by processes, verified before use.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace torch_tpu::run {

// One file an entry, named by its key. Writers make a temporary file and rename it, so readers see
// whole entries or none. An entry that is cut short, changed or from another plugin is a miss: it
// is removed, and the first one is reported once.
class DiskCache {
 public:
  struct Options {
    std::string directory;          // empty: no cache
    int64_t max_bytes = 2LL << 30;  // of all entries; the least recently used go first
    // TORCH_TPU_CACHE_DIR (default $XDG_CACHE_HOME or ~/.cache, then torch_tpu/executables),
    // TORCH_TPU_CACHE_MAX_MB, TORCH_TPU_CACHE=0 to turn it off.
    static Options from_environment();
  };
  explicit DiskCache(Options options);

  // plugin: identity of the plugin file; part of the entry, checked at reading.
  std::optional<std::string> read(const std::string& key, std::string_view plugin);
  void write(const std::string& key, std::string_view plugin, std::string_view bytes);
  void remove(const std::string& key);
  // Removes least recently used entries until at most max_bytes remain.
  void prune(int64_t max_bytes);
  int64_t size_on_disk() const;
  const std::string& directory() const { return options_.directory; }
  // What was wrong with an entry, for the one warning; empty when nothing was. Clears it.
  std::string take_warning();

 private:
  std::string path_of(const std::string& key) const;
  void report(const std::string& problem);

  Options options_;
  mutable std::mutex mutex_;
  std::string warning_;
  bool warned_ = false;
  int64_t written_since_prune_ = 0;
  bool pruned_ = false;
};

}  // namespace torch_tpu::run
