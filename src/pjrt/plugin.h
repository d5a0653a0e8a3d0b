// SPDX-License-Identifier: Apache-2.0 - finding and loading a PJRT plugin (a shared library with
// GetPjrtApi).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct PJRT_Api;
struct PJRT_Extension_Base;

namespace torch_tpu::pjrt {

// The plugin to use and why, in words for people.
struct PluginChoice {
  std::string path;
  std::string reason;
};

class Plugin {
 public:
  // Loads, checks and initializes; the second load of a file returns the first one's plugin. A
  // plugin stays mapped until the process ends. Throws Error with advice; a failed load leaves
  // nothing behind.
  static std::shared_ptr<const Plugin> load(const std::string& path);

  // Order: TORCH_TPU_PJRT_PLUGIN; libtpu when a TPU is attached; XLA's CPU plugin. Loads nothing.
  static PluginChoice choose();

  // Directories that hold the plugins' packages (Python's site-packages), first match wins.
  static void set_search_paths(std::vector<std::string> directories);
  // The file of one package of the table in plugin.cpp ("libtpu", "fastatomstruct-xla-cpu", ...) in
  // those directories; empty when it isn't installed.
  static std::string find(std::string_view package);

  const std::string& path() const { return path_; }
  int api_major() const { return api_major_; }
  int api_minor() const { return api_minor_; }
  // Judged by the file's name, before there is a client; Client::is_cpu() knows for certain.
  bool is_cpu_plugin() const { return is_cpu_plugin_; }
  bool is_libtpu() const { return is_libtpu_; }
  // 128-bit hash of the file's contents, as 32 hex digits: the same plugin on another host has the
  // same.
  const std::string& identity() const;
  // What the plugin says of itself: "xla_version", "stablehlo_current_version", ...
  std::map<std::string, std::string> attributes() const;

  const PJRT_Api* api() const { return api_; }
  // First extension of that PJRT_Extension_Type, or nullptr.
  const PJRT_Extension_Base* extension(int type) const;

 private:
  Plugin() = default;

  std::string path_;
  const PJRT_Api* api_ = nullptr;
  int api_major_ = 0;
  int api_minor_ = 0;
  bool is_cpu_plugin_ = false;
  bool is_libtpu_ = false;
  mutable std::once_flag identity_once_;
  mutable std::string identity_;
};

// True when a TPU is on the PCI bus and this process can reach its device file. `root` is put
// before /sys and /dev (tests use a made-up tree); `why`, when given, receives what was found.
bool tpu_attached(const std::string& root = "", std::string* why = nullptr);

}  // namespace torch_tpu::pjrt
