// SPDX-License-Identifier: Apache-2.0 - Serialized executables on disk: bounded, shared by processes, verified before use.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_tpu::run {

// A compiled program as it lies in a cache: one file, checked from end to end before it is used.
struct CacheEntry {
  std::string plugin;  // identity of the plugin file that made it; its first 32 characters
  std::string about;   // for people: operators and input types
  std::string bytes;   // the serialized executable
};
std::string encode_entry(const CacheEntry& entry);
// Nothing for a file that is cut short, changed, or of another format.
std::optional<CacheEntry> decode_entry(std::string_view file);
// "<key>.tpux"
std::string entry_file_name(const std::string& key);

// Entries by key; the key's part before '-' is the program's, the rest what it was compiled for.
class ExecutableCache {
 public:
  virtual ~ExecutableCache() = default;
  // plugin: identity of the plugin file; an entry of another one is a miss.
  virtual std::optional<std::string> read(const std::string& key, std::string_view plugin) = 0;
  virtual void write(const std::string& key, std::string_view plugin, std::string_view bytes,
                     std::string_view about = {}) = 0;
  // What was wrong, for the one warning; empty when nothing was. Clears it.
  std::string take_warning();

 protected:
  // Only the first report is kept.
  void report(const std::string& problem);

  mutable std::mutex mutex_;

 private:
  std::string warning_;
  bool warned_ = false;
};

// A folder, one file an entry. Writers make a temporary file and rename it, so readers see
// whole entries or none. An entry that is cut short, changed or from another plugin is a miss: it
// is removed, and the first one is reported once.
class DiskCache : public ExecutableCache {
 public:
  struct Options {
    std::string directory;          // empty: no cache
    int64_t max_bytes = 2LL << 30;  // of all entries; the least recently used go first. 0: no bound
    // TORCH_TPU_CACHE_DIR (default $XDG_CACHE_HOME or ~/.cache, then torch_tpu/executables),
    // TORCH_TPU_CACHE_MAX_MB, TORCH_TPU_CACHE=0 to turn it off.
    static Options from_environment();
  };
  explicit DiskCache(Options options);

  std::optional<std::string> read(const std::string& key, std::string_view plugin) override;
  void write(const std::string& key, std::string_view plugin, std::string_view bytes,
             std::string_view about = {}) override;
  void remove(const std::string& key);
  // Removes least recently used entries until at most max_bytes remain.
  void prune(int64_t max_bytes);
  int64_t size_on_disk() const;
  // The entries (without their bytes) whose keys begin so.
  std::vector<CacheEntry> entries_of(const std::string& key_begin) const;
  const std::string& directory() const { return options_.directory; }

 private:
  std::string path_of(const std::string& key) const;

  Options options_;
  int64_t written_since_prune_ = 0;
  bool pruned_ = false;
};

// Somewhere else, such as an object store: two functions get and put whole files by name.
class RemoteCache : public ExecutableCache {
 public:
  // Nothing when there is no such file. Both may throw; the first failure is reported, and the
  // remote is left alone from then on.
  using Fetch = std::function<std::optional<std::string>(const std::string& name)>;
  using Store = std::function<void(const std::string& name, const std::string& file)>;
  RemoteCache(Fetch fetch, Store store) : fetch_(std::move(fetch)), store_(std::move(store)) {}

  std::optional<std::string> read(const std::string& key, std::string_view plugin) override;
  void write(const std::string& key, std::string_view plugin, std::string_view bytes,
             std::string_view about = {}) override;

 private:
  template <typename F>
  void attempt(const char* what, F&& f);

  Fetch fetch_;
  Store store_;
  std::atomic<bool> down_{false};
};

}  // namespace torch_tpu::run
