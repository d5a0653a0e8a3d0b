// SPDX-License-Identifier: Apache-2.0 - the executable cache's files: damage is a miss, size is bounded.
#include "src/run/disk_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace torch_tpu::run {
namespace {

namespace fs = std::filesystem;

class DiskCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "torch_tpu_cache_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  DiskCache make(int64_t max_bytes = 1 << 30) const {
    DiskCache::Options options;
    options.directory = folder_.string();
    options.max_bytes = max_bytes;
    return DiskCache(options);
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path());
    return found;
  }

  fs::path folder_;
};

TEST_F(DiskCacheTest, GivesBackWhatWasWritten) {
  const std::string bytes(100000, '\x5a');
  make().write("key", "plugin", bytes);
  DiskCache other = make();  // another process
  EXPECT_EQ(other.read("key", "plugin"), bytes);
  EXPECT_EQ(other.read("another key", "plugin"), std::nullopt);
  EXPECT_EQ(other.take_warning(), "");
  EXPECT_EQ(files().size(), 1u);
  EXPECT_EQ(other.size_on_disk(), static_cast<int64_t>(fs::file_size(files()[0])));
  other.write("empty", "plugin", "");
  EXPECT_EQ(other.read("empty", "plugin"), "");
}

TEST_F(DiskCacheTest, ADamagedEntryIsAMissAndOneWarning) {
  DiskCache cache = make();
  int damaged = 0;
  auto damage = [&](const char* key, auto how) {
    cache.write(key, "plugin", "some bytes of a program");
    const fs::path path = folder_ / (std::string(key) + ".tpux");
    ASSERT_TRUE(fs::exists(path));
    how(path);
    EXPECT_EQ(cache.read(key, "plugin"), std::nullopt) << key;
    EXPECT_FALSE(fs::exists(path)) << key;
    const std::string warning = cache.take_warning();
    EXPECT_EQ(warning.find(path.string()) != std::string::npos, damaged++ == 0) << warning;
  };
  damage("truncated", [](const fs::path& p) { fs::resize_file(p, fs::file_size(p) - 1); });
  damage("header only", [](const fs::path& p) { fs::resize_file(p, 64); });
  damage("part of a header", [](const fs::path& p) { fs::resize_file(p, 10); });
  damage("empty", [](const fs::path& p) { fs::resize_file(p, 0); });
  damage("longer", [](const fs::path& p) { std::ofstream(p, std::ios::app) << "x"; });
  damage("garbage", [](const fs::path& p) { std::ofstream(p) << std::string(500, 'g'); });
  damage("one bit", [](const fs::path& p) {
    std::fstream file(p, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(70);
    file.put('X');
  });
  EXPECT_TRUE(files().empty());
}

TEST_F(DiskCacheTest, AnEntryOfAnotherPluginIsAMiss) {
  DiskCache cache = make();
  cache.write("key", "0123456789abcdef0123456789abcdef", "program");
  EXPECT_EQ(cache.read("key", "0123456789abcdef0123456789abcdeF"), std::nullopt);
}

TEST_F(DiskCacheTest, TheLeastRecentlyUsedGoFirst) {
  DiskCache cache = make();
  const std::string bytes(1000, 'x');
  const auto now = fs::file_time_type::clock::now();
  for (int i = 0; i < 10; ++i) {
    const std::string key = std::to_string(i);
    cache.write(key, "plugin", bytes);
    fs::last_write_time(folder_ / (key + ".tpux"), now - std::chrono::minutes(100 - i));
  }
  ASSERT_TRUE(cache.read("0", "plugin"));  // the oldest is now the youngest
  cache.prune(cache.size_on_disk() / 2);
  EXPECT_EQ(files().size(), 5u);
  for (const char* kept : {"0", "6", "7", "8", "9"})
    EXPECT_TRUE(cache.read(kept, "plugin")) << kept;
  for (const char* gone : {"1", "5"}) EXPECT_FALSE(cache.read(gone, "plugin")) << gone;
  EXPECT_EQ(cache.take_warning(), "");
}

TEST_F(DiskCacheTest, StaysBelowItsLimitWhileWriting) {
  const int64_t limit = 64 * 1024;
  DiskCache cache = make(limit);
  const std::string bytes(1000, 'x');
  for (int i = 0; i < 500; ++i) {
    cache.write("k" + std::to_string(i), "plugin", bytes);
    EXPECT_LE(cache.size_on_disk(), limit + limit / 8);
  }
  EXPECT_GT(cache.size_on_disk(), limit / 2);
}

TEST_F(DiskCacheTest, WhatADeadWriterLeftIsSweptUpAndAnothersIsNot) {
  const fs::path old = folder_ / ".key.1.0.tmp", fresh = folder_ / ".key.2.0.tmp";
  std::ofstream(old) << "half";
  std::ofstream(fresh) << "half";
  std::ofstream(folder_ / "notes.txt") << "somebody else's file";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  DiskCache cache = make();
  cache.prune(0);
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_TRUE(fs::exists(folder_ / "notes.txt"));
}

TEST_F(DiskCacheTest, ManyWritersAndReadersOfOneKey) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0}, found{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      DiskCache cache = make();
      for (int i = 0; i < 50; ++i) {
        const std::string key = "k" + std::to_string(i % 3);
        cache.write(key, "plugin", std::string(20000, static_cast<char>('a' + t)));
        const auto read = cache.read(key, "plugin");
        if (!read) continue;
        ++found;
        if (read->size() != 20000 || read->find_first_not_of((*read)[0]) != std::string::npos)
          ++wrong;
      }
      if (!cache.take_warning().empty()) ++wrong;
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(found, 200);
  EXPECT_EQ(files().size(), 3u);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeMadeIsNoCacheAndOneWarning) {
  std::ofstream(folder_ / "file") << "";
  DiskCache::Options options;
  options.directory = (folder_ / "file" / "cache").string();
  DiskCache cache(options);
  EXPECT_NE(cache.take_warning().find(options.directory), std::string::npos);
  cache.write("key", "plugin", "bytes");
  EXPECT_EQ(cache.read("key", "plugin"), std::nullopt);
  EXPECT_EQ(cache.size_on_disk(), 0);
  EXPECT_EQ(cache.take_warning(), "");
}

TEST_F(DiskCacheTest, AFolderThatDisappearsIsOneWarning) {
  DiskCache cache = make();
  fs::remove_all(folder_);
  cache.write("key", "plugin", "bytes");
  cache.write("key", "plugin", "bytes");
  EXPECT_NE(cache.take_warning().find(folder_.string()), std::string::npos);
  EXPECT_EQ(cache.read("key", "plugin"), std::nullopt);
}

}  // namespace
}  // namespace torch_tpu::run
