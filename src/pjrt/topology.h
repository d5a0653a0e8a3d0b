// SPDX-License-Identifier: Apache-2.0 - devices that need not be here: describe a pod, compile for
// it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/pjrt/client.h"
#include "src/pjrt/executable.h"

struct PJRT_TopologyDescription;

namespace torch_tpu::pjrt {

class Topology {
 public:
  // `name` as the plugin spells it; libtpu: "v5e:2x2", "v6e:4x4", "v5p:4x4x4", "tpu7x:16x16x16".
  static Topology create(std::shared_ptr<const Plugin> plugin, const std::string& name,
                         const std::vector<std::pair<std::string, OptionValue>>& options = {});
  // The devices of a client.
  static Topology of(std::shared_ptr<const Client> client);

  Topology(Topology&& other) noexcept;
  Topology& operator=(Topology&& other) noexcept;
  ~Topology();

  const std::string& name() const { return name_; }
  std::string platform_name() const;
  std::string platform_version() const;
  std::size_t device_count() const;
  std::vector<DeviceDescription> devices() const;
  // For a cache key.
  std::string serialize() const;

  // Compiles without a client; the result can be serialized, weighed, and loaded where the devices
  // are.
  CompiledProgram compile(std::string_view module_text, const CompileOptions& options = {}) const;

 private:
  Topology() = default;

  std::shared_ptr<const Plugin> plugin_;
  std::shared_ptr<const Client> client_;  // owner of raw_, when it came from a client
  PJRT_TopologyDescription* raw_ = nullptr;
  std::string name_;
};

}  // namespace torch_tpu::pjrt
