// SPDX-License-Identifier: Apache-2.0 - what a program is compiled for, and its wire form for PJRT.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace torch_tpu::pjrt {

using OptionValue = std::variant<std::string, bool, int64_t, double>;

struct CompileOptions {
  int64_t num_replicas = 1;
  int64_t num_partitions = 1;
  // Index of the device to run on, for a program of one replica and one partition; -1: the plugin's
  // choice.
  int64_t device_ordinal = -1;
  // Device of each (replica, partition), row major; empty: the plugin's choice.
  std::vector<int64_t> device_ids;
  // Let the compiler split the program over the partitions (else it must be written per partition).
  bool use_spmd_partitioning = true;
  bool use_shardy_partitioner = false;
  // XLA flags by name, such as {"xla_backend_optimization_level", int64_t{0}}.
  std::vector<std::pair<std::string, OptionValue>> env_overrides;

  // CompileOptionsProto of xla/pjrt/proto/compile_options.proto, encoded by hand: that spares the
  // library a protobuf dependency. Deterministic, so it may be part of a cache key.
  std::string encode() const;
};

}  // namespace torch_tpu::pjrt
