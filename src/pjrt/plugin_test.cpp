// SPDX-License-Identifier: Apache-2.0 - choosing and loading plugins, and failing to.
#include "src/pjrt/plugin.h"

#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "src/pjrt/check_api.h"
#include "src/pjrt/file_hash.h"
#include "src/pjrt/test_plugin.h"

namespace torch_tpu::pjrt {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::TempDir;
using testing::test_plugin;
using testing::test_plugin_path;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class Scratch {
 public:
  Scratch() {
    std::string name = TempDir() + "pjrt_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Scratch() { fs::remove_all(path_); }
  std::string write(const std::string& name, const std::string& content) const {
    const fs::path file = fs::path(path_) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << content;
    return file.string();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class Variable {
 public:
  explicit Variable(const char* value) {
    if (const char* old = std::getenv(kName)) {
      had_ = true;
      old_ = old;
    }
    if (value != nullptr) {
      setenv(kName, value, 1);
    } else {
      unsetenv(kName);
    }
  }
  ~Variable() { had_ ? setenv(kName, old_.c_str(), 1) : unsetenv(kName); }

 private:
  static constexpr const char* kName = "TORCH_TPU_PJRT_PLUGIN";
  bool had_ = false;
  std::string old_;
};

TEST(Plugin, LoadsOnce) {
  const auto plugin = test_plugin();
  EXPECT_EQ(plugin->api_major(), 0);
  EXPECT_GE(plugin->api_minor(), kOldestMinor);
  EXPECT_TRUE(plugin->is_cpu_plugin());
  EXPECT_EQ(Plugin::load(test_plugin_path()), plugin);
  EXPECT_FALSE(plugin->attributes().empty());
  EXPECT_EQ(plugin->extension(9999), nullptr);
}

TEST(Plugin, IdentityIsTheHashOfTheFile) {
  const auto plugin = test_plugin();
  EXPECT_EQ(plugin->identity().size(), 32u);
  EXPECT_EQ(plugin->identity(), hash_file(test_plugin_path()));
}

TEST(Plugin, LoadErrorsSayWhatIsWrong) {
  const Scratch scratch;
  const auto load_error = [](const std::string& path) {
    return error_of([&] { Plugin::load(path); });
  };
  const std::string missing = load_error(scratch.path() + "/nothing.so");
  EXPECT_TRUE(contains(missing, "there is no such file")) << missing;
  EXPECT_TRUE(contains(missing, "pip install fastatomstruct-xla-cpu")) << missing;
  EXPECT_TRUE(contains(load_error(scratch.path()), "it is a directory"));
  EXPECT_TRUE(contains(load_error(scratch.write("text.so", "hello")), "not a shared library"));
  EXPECT_TRUE(contains(load_error(scratch.write("empty.so", "")), "not a shared library"));

  // The start of a real plugin: the loader would map it, and the process die of it.
  for (const size_t size : {size_t{5}, size_t{100}, size_t{4096}, size_t{1} << 20}) {
    std::string start(size, '\0');
    std::ifstream(test_plugin_path(), std::ios::binary)
        .read(start.data(), static_cast<std::streamsize>(size));
    const std::string error = load_error(scratch.write("truncated.so", start));
    EXPECT_TRUE(contains(error, "the file is incomplete")) << size << ": " << error;
  }

  Dl_info where{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&gnu_get_libc_version), &where), 0);
  const std::string libc = load_error(where.dli_fname);
  EXPECT_TRUE(contains(libc, "no function GetPjrtApi")) << libc;

  EXPECT_NE(test_plugin(), nullptr);  // none of that is in the way of a good one
}

TEST(Plugin, ApiVersionsThatWontDo) {
  PJRT_Api api{};
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  const auto version_error = [&](int major, int minor) {
    api.pjrt_api_version.major_version = major;
    api.pjrt_api_version.minor_version = minor;
    return error_of([&] { check_api(&api, "x.so"); });
  };
  EXPECT_EQ(version_error(0, PJRT_API_MINOR), "");
  EXPECT_EQ(version_error(0, 900), "");
  const std::string old = version_error(0, 12);
  EXPECT_TRUE(contains(old, "too old") && contains(old, "0.12")) << old;
  const std::string young = version_error(1, 0);
  EXPECT_TRUE(contains(young, "too new") && contains(young, "1.0")) << young;
  EXPECT_TRUE(contains(error_of([] { check_api(nullptr, "x.so"); }), "returned nothing"));
}

TEST(Plugin, ChoosesByVariableThenByWhatIsInstalled) {
  const Scratch scratch;
  const std::string second = scratch.write("lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "x");
  {
    const Variable set("/no/such/plugin.so");
    const std::string error = error_of([] { Plugin::choose(); });
    EXPECT_TRUE(contains(error, "TORCH_TPU_PJRT_PLUGIN names /no/such/plugin.so")) << error;
  }
  {
    const Variable set(second.c_str());
    EXPECT_EQ(Plugin::choose().path, second);
  }
  if (tpu_attached()) GTEST_SKIP() << "a TPU is attached: libtpu comes first";
  const Variable unset(nullptr);
  Plugin::set_search_paths({scratch.path() + "/not_there"});
  const std::string none = error_of([] { Plugin::choose(); });
  EXPECT_TRUE(contains(none, "no PJRT plugin is installed")) << none;
  EXPECT_TRUE(contains(none, "pip install fastatomstruct-xla-cpu")) << none;
  EXPECT_TRUE(contains(none, scratch.path() + "/not_there")) << none;
  Plugin::set_search_paths({scratch.path() + "/not_there", scratch.path()});
  EXPECT_EQ(Plugin::choose().path, second);
  const std::string first = scratch.write("fastatomstruct_xla_cpu/libpjrt_cpu.so", "x");
  EXPECT_EQ(Plugin::choose().path, first);
  EXPECT_TRUE(contains(Plugin::choose().reason, "fastatomstruct-xla-cpu"));
  EXPECT_EQ(Plugin::find("libtpu"), "");
  EXPECT_EQ(Plugin::find("fastatomstruct-xla-cpu"), first);
}

TEST(Plugin, SeesATpuOnlyWhenItIsReachable) {
  const Scratch machine;
  std::string why;
  EXPECT_FALSE(tpu_attached(machine.path(), &why));
  EXPECT_EQ(why, "no TPU on the PCI bus");
  const std::string pci = "sys/bus/pci/devices/";
  machine.write(pci + "0000:00:04.0/vendor", "0x1ae0\n");
  machine.write(pci + "0000:00:04.0/class", "0x020000\n");  // a network card of the same vendor
  machine.write(pci + "0000:00:04.0/device", "0x0042\n");
  EXPECT_FALSE(tpu_attached(machine.path()));
  machine.write(pci + "0000:00:05.0/vendor", "0x1ae0\n");
  machine.write(pci + "0000:00:05.0/class", "0xff0000\n");
  machine.write(pci + "0000:00:05.0/device", "0x0063\n");
  EXPECT_FALSE(tpu_attached(machine.path(), &why));
  EXPECT_TRUE(contains(why, "cannot reach them")) << why;
  machine.write("dev/vfio/vfio", "");
  EXPECT_FALSE(tpu_attached(machine.path()));
  machine.write("dev/vfio/0", "");
  EXPECT_TRUE(tpu_attached(machine.path(), &why));
  EXPECT_TRUE(contains(why, "1 TPU chip on the PCI bus")) << why;
}

TEST(FileHash, EveryBitAndTheLengthCount) {
  std::string data(1000, 'a');
  const std::string hash = hash_bytes(data.data(), data.size());
  EXPECT_EQ(hash, hash_bytes(data.data(), data.size()));
  for (const size_t at : {size_t{0}, size_t{127}, size_t{128}, size_t{511}, size_t{999}}) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = data;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      EXPECT_NE(hash, hash_bytes(other.data(), other.size())) << at << ' ' << bit;
    }
  }
  EXPECT_NE(hash, hash_bytes(data.data(), data.size() - 1));
  const std::string zeros(64, '\0');
  EXPECT_NE(hash_bytes(zeros.data(), 32), hash_bytes(zeros.data(), 64));
  EXPECT_NE(hash_bytes(nullptr, 0), hash_bytes(zeros.data(), 1));
  EXPECT_TRUE(contains(error_of([] { hash_file("/no/such/file"); }), "cannot read /no/such/file"));
}

}  // namespace
}  // namespace torch_tpu::pjrt
