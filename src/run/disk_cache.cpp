// SPDX-License-Identifier: Apache-2.0 - Reading, writing and pruning of the executable cache's files.
#include "src/run/disk_cache.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "src/graph/key.h"

namespace torch_tpu::run {
namespace fs = std::filesystem;
namespace {

constexpr char kMagic[8] = {'T', 'P', 'U', 'X', 'C', '0', '0', '2'};
constexpr char kSuffix[] = ".tpux";
constexpr size_t kPluginSize = 32;

struct Header {
  char magic[8];
  char plugin[kPluginSize];
  uint64_t about_size, size;    // what follows the header
  uint64_t check_hi, check_lo;  // of what follows the header
};

graph::Key checksum(std::string_view bytes) {
  graph::KeyHasher h;
  h.bytes(bytes);
  return h.finish();
}

std::optional<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return {};
  std::string file(static_cast<size_t>(in.tellg()), 0);
  in.seekg(0);
  if (!in.read(file.data(), static_cast<std::streamsize>(file.size()))) file.clear();
  return file;
}

bool same_plugin(const CacheEntry& entry, std::string_view plugin) {
  return entry.plugin == plugin.substr(0, kPluginSize);
}

}  // namespace

std::string entry_file_name(const std::string& key) { return key + kSuffix; }

std::string encode_entry(const CacheEntry& entry) {
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::memset(header.plugin, 0, sizeof header.plugin);
  std::memcpy(header.plugin, entry.plugin.data(), std::min(entry.plugin.size(), kPluginSize));
  header.about_size = entry.about.size();
  header.size = entry.bytes.size();
  std::string file(sizeof header, 0);
  file += entry.about;
  file += entry.bytes;
  const graph::Key check = checksum(std::string_view(file).substr(sizeof header));
  header.check_hi = check.hi;
  header.check_lo = check.lo;
  std::memcpy(file.data(), &header, sizeof header);
  return file;
}

std::optional<CacheEntry> decode_entry(std::string_view file) {
  Header header;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  file.remove_prefix(sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.about_size > file.size() ||
      header.size != file.size() - header.about_size) {
    return {};
  }
  const graph::Key check = checksum(file);
  if (check.hi != header.check_hi || check.lo != header.check_lo) return {};
  CacheEntry entry;
  entry.plugin.assign(header.plugin, strnlen(header.plugin, kPluginSize));
  entry.about = file.substr(0, header.about_size);
  entry.bytes = file.substr(header.about_size);
  return entry;
}

void ExecutableCache::report(const std::string& problem) {
  std::lock_guard lock(mutex_);
  if (warned_) return;
  warned_ = true;
  warning_ = "torch_tpu executable cache: " + problem;
}

std::string ExecutableCache::take_warning() {
  std::lock_guard lock(mutex_);
  return std::exchange(warning_, {});
}

// ---- a folder ----------------------------------------------------------------------------------

DiskCache::Options DiskCache::Options::from_environment() {
  Options o;
  const char* off = std::getenv("TORCH_TPU_CACHE");
  if (off != nullptr && std::string_view(off) == "0") return o;
  if (const char* mb = std::getenv("TORCH_TPU_CACHE_MAX_MB")) {
    int64_t n = std::atoll(mb);
    if (n > 0) o.max_bytes = n << 20;
  }
  if (const char* dir = std::getenv("TORCH_TPU_CACHE_DIR"); dir != nullptr && *dir != 0) {
    o.directory = dir;
  } else if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != 0) {
    o.directory = std::string(xdg) + "/torch_tpu/executables";
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != 0) {
    o.directory = std::string(home) + "/.cache/torch_tpu/executables";
  }
  return o;
}

DiskCache::DiskCache(Options options) : options_(std::move(options)) {
  if (options_.directory.empty()) return;
  std::error_code ec;
  fs::create_directories(options_.directory, ec);
  if (ec) {
    report("cannot make the folder " + options_.directory + " (" + ec.message() +
           "); nothing is cached on disk");
    options_.directory.clear();
  }
}

std::string DiskCache::path_of(const std::string& key) const {
  return options_.directory + "/" + entry_file_name(key);
}

std::optional<std::string> DiskCache::read(const std::string& key, std::string_view plugin) {
  if (options_.directory.empty()) return {};
  const std::string path = path_of(key);
  std::optional<std::string> file = read_file(path);
  if (!file) return {};
  std::optional<CacheEntry> entry = decode_entry(*file);
  if (!entry || !same_plugin(*entry, plugin)) {
    remove(key);
    report("entry " + path +
           " was damaged or made by another plugin; it was removed and will be "
           "made again");
    return {};
  }
  // The time of last use, for pruning.
  std::error_code ec;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ec);
  return std::move(entry->bytes);
}

void DiskCache::write(const std::string& key, std::string_view plugin, std::string_view bytes,
                      std::string_view about) {
  if (options_.directory.empty()) return;
  const std::string file =
      encode_entry({std::string(plugin), std::string(about), std::string(bytes)});
  static std::atomic<uint64_t> serial{0};
  std::string temporary = options_.directory + "/." + key + "." + std::to_string(getpid()) + "." +
                          std::to_string(serial++) + ".tmp";
  bool good = false;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    good = out && out.write(file.data(), static_cast<std::streamsize>(file.size())) && out.flush();
  }
  std::error_code ec;
  if (good) fs::rename(temporary, path_of(key), ec);
  if (!good || ec) {
    fs::remove(temporary, ec);
    report("cannot write to " + options_.directory + "; new programs are not kept on disk");
    return;
  }
  if (options_.max_bytes == 0) return;
  bool due;
  {
    std::lock_guard lock(mutex_);
    written_since_prune_ += static_cast<int64_t>(file.size());
    due = !pruned_ || written_since_prune_ > options_.max_bytes / 16;
    if (due) written_since_prune_ = 0, pruned_ = true;
  }
  if (due) prune(options_.max_bytes);
}

void DiskCache::remove(const std::string& key) {
  std::error_code ec;
  fs::remove(path_of(key), ec);
}

void DiskCache::prune(int64_t max_bytes) {
  if (options_.directory.empty()) return;
  struct Entry {
    fs::file_time_type used;
    int64_t size;
    fs::path path;
  };
  std::vector<Entry> entries;
  int64_t total = 0;
  std::error_code ec;
  auto stale = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (fs::directory_iterator it(options_.directory, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code e;
    int64_t size = static_cast<int64_t>(it->file_size(e));
    auto used = it->last_write_time(e);
    if (e) continue;  // another process was faster
    if (it->path().extension() == ".tmp") {
      if (used < stale) fs::remove(it->path(), e);  // its writer died
      continue;
    }
    if (it->path().extension() != kSuffix) continue;
    total += size;
    entries.push_back({used, size, it->path()});
  }
  if (total <= max_bytes) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& e : entries) {
    if (total <= max_bytes) break;
    std::error_code gone;
    fs::remove(e.path, gone);
    total -= e.size;
  }
}

int64_t DiskCache::size_on_disk() const {
  int64_t total = 0;
  std::error_code ec;
  if (options_.directory.empty()) return 0;
  for (fs::directory_iterator it(options_.directory, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code e;
    if (it->path().extension() == kSuffix) total += static_cast<int64_t>(it->file_size(e));
  }
  return total;
}

std::vector<CacheEntry> DiskCache::entries_of(const std::string& key_begin) const {
  std::vector<CacheEntry> found;
  std::error_code ec;
  if (options_.directory.empty()) return found;
  for (fs::directory_iterator it(options_.directory, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() != kSuffix) continue;
    if (!it->path().filename().string().starts_with(key_begin)) continue;
    std::optional<std::string> file = read_file(it->path().string());
    std::optional<CacheEntry> entry = file ? decode_entry(*file) : std::nullopt;
    if (!entry) continue;
    entry->bytes.clear();
    found.push_back(std::move(*entry));
  }
  return found;
}

// ---- somewhere else ----------------------------------------------------------------------------

template <typename F>
void RemoteCache::attempt(const char* what, F&& f) {
  if (down_) return;
  try {
    f();
  } catch (const std::exception& e) {
    down_ = true;
    report(std::string("the shared root could not be ") + what +
           " and is not used any more: " + e.what());
  }
}

std::optional<std::string> RemoteCache::read(const std::string& key, std::string_view plugin) {
  std::optional<std::string> bytes;
  attempt("read", [&] {
    const std::optional<std::string> file = fetch_(entry_file_name(key));
    if (!file) return;
    std::optional<CacheEntry> entry = decode_entry(*file);
    if (entry && same_plugin(*entry, plugin)) {
      bytes = std::move(entry->bytes);
    } else {
      report("entry " + entry_file_name(key) +
             " of the shared root is damaged or made by another plugin; it will be made again");
    }
  });
  return bytes;
}

void RemoteCache::write(const std::string& key, std::string_view plugin, std::string_view bytes,
                        std::string_view about) {
  attempt("written", [&] {
    store_(entry_file_name(key),
           encode_entry({std::string(plugin), std::string(about), std::string(bytes)}));
  });
}

}  // namespace torch_tpu::run
