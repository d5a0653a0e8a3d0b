// SPDX-License-Identifier: Apache-2.0 - where plugins are looked for and how one is loaded.
#include "src/pjrt/plugin.h"

#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>

#include "src/pjrt/call.h"
#include "src/pjrt/check_api.h"
#include "src/pjrt/error.h"
#include "src/pjrt/file_hash.h"
#include "src/pjrt/named_value.h"
#include "src/pjrt/stderr_capture.h"

namespace torch_tpu::pjrt {

namespace fs = std::filesystem;

namespace {

struct KnownPlugin {
  const char* package;  // on PyPI
  const char* file;     // in site-packages
};

constexpr KnownPlugin kLibtpu = {"libtpu", "libtpu/libtpu.so"};
// In the order of preference.
constexpr std::array<KnownPlugin, 3> kCpuPlugins = {{
    {"fastatomstruct-xla-cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so"},
    {"lammps-jax-pjrt-cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"},
    {"xla-cpu-pjrt", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so"},
}};

constexpr const char* kInstallCpu = "pip install fastatomstruct-xla-cpu";
constexpr const char* kVariable = "TORCH_TPU_PJRT_PLUGIN";

std::mutex g_mutex;
std::vector<std::string> g_search_paths;
std::map<std::string, std::shared_ptr<const Plugin>> g_loaded;

std::string find_known(const KnownPlugin& known) {
  for (const std::string& directory : g_search_paths) {
    const fs::path file = fs::path(directory) / known.file;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) return file.string();
  }
  return {};
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// Device files: /dev/accel0 (TPU v2 to v4) or /dev/vfio/0 (later ones).
bool has_device_file(const std::string& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("accel") && name.size() > 5) return true;
  }
  for (const auto& entry : fs::directory_iterator(root + "/dev/vfio", ignored)) {
    if (entry.path().filename() != "vfio") return true;
  }
  return false;
}

[[noreturn]] void cannot_load(const std::string& path, const std::string& why) {
  throw Error(kNotFound, "cannot load the PJRT plugin " + path + ": " + why);
}

void check_is_library(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    cannot_load(path, std::string("there is no such file. Install XLA's CPU plugin with `") +
                          kInstallCpu + "`, or let " + kVariable + " name a plugin's .so file");
  }
  if (fs::is_directory(status)) {
    cannot_load(path, "it is a directory; expected the plugin's .so file");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) cannot_load(path, std::string("it cannot be read: ") + std::strerror(errno));
  Elf64_Ehdr header{};
  in.read(reinterpret_cast<char*>(&header), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    cannot_load(path, "it is not a shared library (it doesn't start as an ELF file does)");
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return;  // dlopen() will say what it thinks of that
  // A truncated library - a download that broke off - is mapped all the same, and kills the process
  // at the first touch of a page that isn't there.
  const uintmax_t size = fs::file_size(path, error);
  bool whole = header.e_phentsize == sizeof(Elf64_Phdr) && static_cast<bool>(in);
  in.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (int i = 0; whole && i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    in.read(reinterpret_cast<char*>(&segment), sizeof segment);
    whole = in && (segment.p_type != PT_LOAD || segment.p_offset + segment.p_filesz <= size);
  }
  if (!whole) {
    cannot_load(path, "the file is incomplete (" + std::to_string(size) +
                          " bytes, less than its own headers speak of). Install it again");
  }
}

// Sets an environment variable for as long as it lives, unless the user has set it.
class DefaultVariable {
 public:
  DefaultVariable(const char* name, const char* value)
      : name_(std::getenv(name) == nullptr ? name : nullptr) {
    if (name_ != nullptr) setenv(name_, value, 1);
  }
  ~DefaultVariable() {
    if (name_ != nullptr) unsetenv(name_);
  }
  DefaultVariable(const DefaultVariable&) = delete;
  DefaultVariable& operator=(const DefaultVariable&) = delete;

 private:
  const char* name_;
};

}  // namespace

void check_api(const PJRT_Api* api, const std::string& path) {
  if (api == nullptr) cannot_load(path, "its GetPjrtApi() returned nothing");
  const int major = api->pjrt_api_version.major_version;
  const int minor = api->pjrt_api_version.minor_version;
  const auto version = [](int a, int b) { return std::to_string(a) + "." + std::to_string(b); };
  const std::string needed = version(PJRT_API_MAJOR, kOldestMinor) +
                             " or a later 0.x (built against " +
                             version(PJRT_API_MAJOR, PJRT_API_MINOR) + ")";
  if (major > PJRT_API_MAJOR) {
    cannot_load(path, "it is too new: it speaks PJRT C API " + version(major, minor) +
                          ", this torch_tpu needs " + needed +
                          ". Upgrade torch_tpu, or install an older plugin: `" + kInstallCpu + "`");
  }
  if (major < PJRT_API_MAJOR || minor < kOldestMinor) {
    cannot_load(path, "it is too old: it speaks PJRT C API " + version(major, minor) +
                          ", this torch_tpu needs " + needed + ". Install a newer plugin: `" +
                          kInstallCpu + "`");
  }
}

bool tpu_attached(const std::string& root, std::string* why) {
  const auto say = [why](const std::string& text) {
    if (why != nullptr) *why = text;
  };
  std::error_code ignored;
  std::string found;
  int count = 0;
  for (const auto& entry : fs::directory_iterator(root + "/sys/bus/pci/devices", ignored)) {
    if (first_line(entry.path() / "vendor") != "0x1ae0") continue;
    // Google's cloud machines also have its network (class 2) and storage (class 1) controllers.
    const std::string kind = first_line(entry.path() / "class");
    if (kind.starts_with("0x01") || kind.starts_with("0x02")) continue;
    ++count;
    found = first_line(entry.path() / "device");
  }
  if (count == 0) {
    say("no TPU on the PCI bus");
    return false;
  }
  const std::string devices = std::to_string(count) + " TPU chip" + (count == 1 ? "" : "s") +
                              " on the PCI bus (vendor 0x1ae0, device " + found + ")";
  if (!has_device_file(root)) {
    say(devices +
        ", but neither /dev/accel* nor /dev/vfio/* is there: this process (a container?) "
        "cannot reach them");
    return false;
  }
  say(devices);
  return true;
}

void Plugin::set_search_paths(std::vector<std::string> directories) {
  const std::lock_guard lock(g_mutex);
  g_search_paths = std::move(directories);
}

std::string Plugin::find(std::string_view package) {
  const std::lock_guard lock(g_mutex);
  if (package == kLibtpu.package) return find_known(kLibtpu);
  for (const KnownPlugin& known : kCpuPlugins) {
    if (package == known.package) return find_known(known);
  }
  return {};
}

PluginChoice Plugin::choose() {
  if (const char* path = std::getenv(kVariable); path != nullptr && *path != '\0') {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) {
      throw Error(kNotFound,
                  std::string(kVariable) + " names " + path +
                      ", but there is no such file. Unset it to use the installed plugin");
    }
    return {path, std::string(kVariable) + " is set"};
  }
  const std::lock_guard lock(g_mutex);
  std::string why;
  if (tpu_attached("", &why)) {
    std::string path = find_known(kLibtpu);
    if (!path.empty()) return {std::move(path), why};
    throw Error(kNotFound, why +
                               ", but libtpu is not installed: `pip install libtpu`. To use "
                               "the CPU all the same, let " +
                               kVariable + " name a CPU plugin's .so file");
  }
  for (const KnownPlugin& known : kCpuPlugins) {
    std::string path = find_known(known);
    if (!path.empty()) return {std::move(path), why + "; XLA's CPU plugin of " + known.package};
  }
  std::ostringstream message;
  message << "no PJRT plugin is installed (" << why << "). Install XLA's CPU plugin with `"
          << kInstallCpu << "`, or let " << kVariable << " name a plugin's .so file. Looked for";
  for (const KnownPlugin& known : kCpuPlugins) message << ' ' << known.file;
  message << " in";
  if (g_search_paths.empty()) message << " no directory (none was given)";
  for (const std::string& directory : g_search_paths) message << ' ' << directory;
  throw Error(kNotFound, message.str());
}

std::shared_ptr<const Plugin> Plugin::load(const std::string& path) {
  const std::lock_guard lock(g_mutex);
  check_is_library(path);
  std::error_code ignored;
  const std::string real = fs::canonical(path, ignored).string();
  if (const auto known = g_loaded.find(real); known != g_loaded.end()) return known->second;

  std::shared_ptr<Plugin> plugin(new Plugin);
  plugin->path_ = real;
  const std::string name = fs::path(real).filename().string();
  plugin->is_libtpu_ = name.find("libtpu") != std::string::npos;
  plugin->is_cpu_plugin_ = !plugin->is_libtpu_ && name.find("cpu") != std::string::npos;
  if (plugin->is_libtpu_ && !tpu_attached()) {
    // Without a TPU libtpu is a compiler. Else it waits minutes for a cloud machine's metadata
    // server, and a second process fails on the first one's lock file.
    setenv("TPU_SKIP_MDS_QUERY", "1", 0);
    setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1", 0);
  }

  // Read once by the plugin's logger. Errors come back as Error, so their copies on stderr are
  // noise (0.106 logs 5 KB for every program it loads); what ends the process is still printed.
  const DefaultVariable quiet("TF_CPP_MIN_LOG_LEVEL", "3");
  const StderrCapture capture(true);
  void* handle = dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    cannot_load(path, reason != nullptr ? reason : "dlopen failed without a reason");
  }
  using GetPjrtApi = const PJRT_Api* (*)();
  auto* get_api = reinterpret_cast<GetPjrtApi>(dlsym(handle, "GetPjrtApi"));
  if (get_api == nullptr) {
    dlclose(handle);
    cannot_load(
        path,
        "it is a shared library but no PJRT plugin: it has no function GetPjrtApi. Expected "
        "something like libpjrt_cpu.so (`" +
            std::string(kInstallCpu) + "`) or libtpu.so");
  }
  // From here on the library stays mapped, also when it turns out unfit: it may have started
  // threads.
  const PJRT_Api* api = get_api();
  check_api(api, path);
  plugin->api_ = api;
  plugin->api_major_ = api->pjrt_api_version.major_version;
  plugin->api_minor_ = api->pjrt_api_version.minor_version;
  try {
    PJRT_Plugin_Initialize_Args args{};
    call<&PJRT_Api::PJRT_Plugin_Initialize>(api, args);
  } catch (const Error& error) {
    const std::string log = capture.text();
    throw Error(error.code(), "the PJRT plugin " + path + " does not start: " + error.what() +
                                  (log.empty() ? "" : "\nIt logged:\n" + log));
  }
  g_loaded.emplace(real, plugin);
  return plugin;
}

const std::string& Plugin::identity() const {
  std::call_once(identity_once_, [this] { identity_ = hash_file(path_); });
  return identity_;
}

std::map<std::string, std::string> Plugin::attributes() const {
  std::map<std::string, std::string> found;
  PJRT_Plugin_Attributes_Args args{};
  if (!try_call<&PJRT_Api::PJRT_Plugin_Attributes>(api_, args)) return found;
  for (size_t i = 0; i < args.num_attributes; ++i) {
    found.emplace(name_of(args.attributes[i]), to_text(args.attributes[i]));
  }
  return found;
}

const PJRT_Extension_Base* Plugin::extension(int type) const {
  for (const PJRT_Extension_Base* at = api_->extension_start; at != nullptr; at = at->next) {
    if (number(at->type) == type) return at;
  }
  return nullptr;
}

}  // namespace torch_tpu::pjrt
