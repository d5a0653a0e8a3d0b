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

constexpr char kMagic[8] = {'T', 'P', 'U', 'X', 'C', '0', '0', '1'};
constexpr char kSuffix[] = ".tpux";

struct Header {
  char magic[8];
  char plugin[32];
  uint64_t size;
  uint64_t check_hi, check_lo;
};

graph::Key checksum(std::string_view bytes) {
  graph::KeyHasher h;
  h.bytes(bytes);
  return h.finish();
}

void set_plugin(Header& header, std::string_view plugin) {
  std::memset(header.plugin, 0, sizeof header.plugin);
  std::memcpy(header.plugin, plugin.data(), std::min(plugin.size(), sizeof header.plugin));
}

}  // namespace

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
  return options_.directory + "/" + key + kSuffix;
}

void DiskCache::report(const std::string& problem) {
  std::lock_guard lock(mutex_);
  if (warned_) return;
  warned_ = true;
  warning_ = "torch_tpu executable cache: " + problem;
}

std::string DiskCache::take_warning() {
  std::lock_guard lock(mutex_);
  return std::exchange(warning_, {});
}

std::optional<std::string> DiskCache::read(const std::string& key, std::string_view plugin) {
  if (options_.directory.empty()) return {};
  std::string path = path_of(key);
  std::ifstream in(path, std::ios::binary);
  if (!in) return {};
  Header header, expected;
  set_plugin(expected, plugin);
  std::string bytes;
  bool good = static_cast<bool>(in.read(reinterpret_cast<char*>(&header), sizeof header)) &&
              std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
              std::memcmp(header.plugin, expected.plugin, sizeof header.plugin) == 0;
  if (good) {
    std::error_code ec;
    uint64_t file = fs::file_size(path, ec);
    good = !ec && file == sizeof header + header.size;
  }
  if (good) {
    bytes.resize(header.size);
    good = static_cast<bool>(in.read(bytes.data(), static_cast<std::streamsize>(bytes.size())));
  }
  if (good) {
    graph::Key check = checksum(bytes);
    good = check.hi == header.check_hi && check.lo == header.check_lo;
  }
  if (!good) {
    remove(key);
    report("entry " + path +
           " was damaged or made by another plugin; it was removed and will be "
           "made again");
    return {};
  }
  // The time of last use, for pruning.
  std::error_code ec;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ec);
  return bytes;
}

void DiskCache::write(const std::string& key, std::string_view plugin, std::string_view bytes) {
  if (options_.directory.empty()) return;
  Header header;
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  set_plugin(header, plugin);
  header.size = bytes.size();
  graph::Key check = checksum(bytes);
  header.check_hi = check.hi;
  header.check_lo = check.lo;
  static std::atomic<uint64_t> serial{0};
  std::string temporary = options_.directory + "/." + key + "." + std::to_string(getpid()) + "." +
                          std::to_string(serial++) + ".tmp";
  bool good = false;
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    good = out && out.write(reinterpret_cast<const char*>(&header), sizeof header) &&
           out.write(bytes.data(), static_cast<std::streamsize>(bytes.size())) && out.flush();
  }
  std::error_code ec;
  if (good) fs::rename(temporary, path_of(key), ec);
  if (!good || ec) {
    fs::remove(temporary, ec);
    report("cannot write to " + options_.directory + "; new programs are not kept on disk");
    return;
  }
  bool due;
  {
    std::lock_guard lock(mutex_);
    written_since_prune_ += static_cast<int64_t>(bytes.size());
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

}  // namespace torch_tpu::run
