// SPDX-License-Identifier: Apache-2.0 - what a plugin's execute call costs.
//
// Usage: pjrt_floor [plugin.so]; without an argument, the plugin that TORCH_TPU_PJRT_PLUGIN names.
// Prints one JSON object: nanoseconds per op, the median of several rounds.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/pjrt/client.h"
#include "src/pjrt/error.h"
#include "src/pjrt/ffi.h"
#include "src/pjrt/plugin.h"

namespace {

using namespace torch_tpu::pjrt;

constexpr int kChain = 100;
constexpr int kRounds = 200;

double median_ns(int ops, const std::function<void()>& body) {
  std::vector<double> times;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    times.push_back(took.count() / ops);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::string add_module(const char* attributes, const char* body) {
  return std::string("module @m { func.func public @main(%a: tensor<8x8xf32>") + attributes +
         ", %b: tensor<8x8xf32>) -> tensor<8x8xf32> { %0 = " + body +
         " return %0 : tensor<8x8xf32> } }";
}

constexpr const char* kAdd = "stablehlo.add %a, %b : tensor<8x8xf32>";
constexpr const char* kCall =
    "stablehlo.custom_call @floor_add(%a, %b) {api_version = 4 : i32} : (tensor<8x8xf32>, "
    "tensor<8x8xf32>) -> tensor<8x8xf32>";

void floor_add(FfiCall& call) {
  const auto* a = call.arg(0).as<float>();
  const auto* b = call.arg(1).as<float>();
  auto* out = call.result(0).as<float>();
  for (int i = 0; i < 64; ++i) out[i] = a[i] + b[i];
}

Buffer step(const PJRT_Api* api, const Executable& program, const Buffer& a, const Buffer& b) {
  const std::array<PJRT_Buffer*, 2> in = {a.raw(), b.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  program.execute(in, {}, out);
  return Buffer(api, out[0]);
}

void measure(const std::shared_ptr<const Plugin>& plugin, std::optional<bool> asynchronous,
             const char* label, bool last) {
  ClientOptions options;
  options.asynchronous = asynchronous;
  const auto client = Client::create(plugin, options);
  const PJRT_Api* api = client->api();
  const std::vector<float> zeros(64, 0);
  const std::array<int64_t, 2> dims = {8, 8};
  const auto fresh = [&] { return client->from_host(zeros.data(), kF32, dims, client->device(0)); };
  const Buffer one = fresh();
  one.await();

  const Executable add = client->compile(add_module("", kAdd));
  const Executable donating = client->compile(add_module(" {tf.aliasing_output = 0 : i32}", kAdd));

  const double waiting = median_ns(kChain, [&] {
    for (int i = 0; i < kChain; ++i) step(api, add, one, one).await();
  });
  const auto chain = [&](const Executable& program) {
    return median_ns(kChain, [&] {
      Buffer x = fresh();
      for (int i = 0; i < kChain; ++i) x = step(api, program, x, one);
      x.await();
    });
  };
  const double chained = chain(add);
  const double donated = chain(donating);
  double host_call = 0;
  if (ffi_supported(*plugin)) {
    register_handler(*plugin, "floor_add", floor_add);
    host_call = chain(client->compile(add_module("", kCall)));
  }
  std::array<float, 64> host{};
  const double read = median_ns(kChain, [&] {
    for (int i = 0; i < kChain; ++i) one.to_host(host.data(), sizeof host);
  });
  std::printf(
      "  \"%s\": {\"waiting\": %.0f, \"chain\": %.0f, \"chain_donated\": %.0f, "
      "\"chain_host_kernel\": "
      "%.0f, \"read_256_bytes\": %.0f}%s\n",
      label, waiting, chained, donated, host_call, read, last ? "" : ",");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const auto plugin = Plugin::load(argc > 1 ? argv[1] : Plugin::choose().path);
    std::printf(
        "{\n  \"plugin\": \"%s\",\n  \"api\": \"%d.%d\",\n  \"unit\": \"ns per add of 8x8 f32\",\n",
        plugin->path().c_str(), plugin->api_major(), plugin->api_minor());
    measure(plugin, std::nullopt, "default", false);
    measure(plugin, false, "synchronous", true);
    std::printf("}\n");
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
