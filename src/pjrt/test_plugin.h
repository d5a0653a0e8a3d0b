// SPDX-License-Identifier: Apache-2.0 - the plugin that the C++ tests run against.
//
// TORCH_TPU_TEST_PLUGIN names its file; without it the CPU plugin that the `python3` on PATH has
// installed is taken.
#pragma once

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "src/pjrt/client.h"
#include "src/pjrt/error.h"
#include "src/pjrt/plugin.h"

namespace torch_tpu::pjrt::testing {

inline std::string site_packages() {
  std::string directory;
  FILE* out =
      popen("python3 -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])'", "r");
  if (out != nullptr) {
    std::array<char, 4096> line{};
    if (fgets(line.data(), line.size(), out) != nullptr) directory = line.data();
    pclose(out);
  }
  while (!directory.empty() && directory.back() == '\n') directory.pop_back();
  return directory;
}

inline std::string test_plugin_path() {
  if (const char* path = std::getenv("TORCH_TPU_TEST_PLUGIN")) return path;
  Plugin::set_search_paths({site_packages()});
  for (const char* package : {"fastatomstruct-xla-cpu", "lammps-jax-pjrt-cpu", "xla-cpu-pjrt"}) {
    const std::string path = Plugin::find(package);
    if (!path.empty()) return path;
  }
  throw Error(kNotFound,
              "the C++ tests need a CPU plugin: `pip install fastatomstruct-xla-cpu`, or let "
              "TORCH_TPU_TEST_PLUGIN name one's .so file");
}

inline std::shared_ptr<const Plugin> test_plugin() { return Plugin::load(test_plugin_path()); }

// One client for all tests of a process: each owns threads.
inline const std::shared_ptr<Client>& test_client() {
  static const std::shared_ptr<Client> client = [] {
    ClientOptions options;
    options.cpu_device_count = 2;
    return Client::create(test_plugin(), options);
  }();
  return client;
}

// func main(a, b) -> a + b of f32[n].
inline std::string add_module(int n, const std::string& first_argument_attributes = "") {
  const std::string type = "tensor<" + std::to_string(n) + "xf32>";
  return "module @add {\n  func.func public @main(%a: " + type + first_argument_attributes +
         ", %b: " + type + ") -> " + type + " {\n    %0 = stablehlo.add %a, %b : " + type +
         "\n    return %0 : " + type + "\n  }\n}\n";
}

inline Buffer floats(const std::vector<float>& values, PJRT_Device* device = nullptr) {
  const std::array<int64_t, 1> dims = {static_cast<int64_t>(values.size())};
  const auto& client = test_client();
  return client->from_host(values.data(), kF32, dims, device ? device : client->device(0));
}

inline std::vector<float> read_floats(const Buffer& buffer) {
  std::vector<float> values(buffer.host_nbytes() / sizeof(float));
  buffer.to_host(values.data(), values.size() * sizeof(float));
  return values;
}

// What() of the Error that `body` throws; fails the test's expectation by being empty otherwise.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace torch_tpu::pjrt::testing
