// SPDX-License-Identifier: Apache-2.0 - encodes CompileOptions as protobuf wire format.
#include "src/pjrt/compile_options.h"

#include <cstring>
#include <string_view>

#include "src/pjrt/error.h"

namespace torch_tpu::pjrt {

namespace {

// The four shapes of protobuf's wire format that we need.
class Message {
 public:
  void integer(int field, int64_t value) {
    tag(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void floating(int field, double value) {
    tag(field, 1);
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 8; ++i) bytes_ += static_cast<char>(bits >> (8 * i));
  }
  void text(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { text(field, value.bytes_); }

  std::string take() { return std::move(bytes_); }

 private:
  void tag(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | wire_type); }
  void varint(uint64_t value) {
    while (value >= 0x80) {
      bytes_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// Field numbers: DeviceAssignmentProto in xla/xla_data.proto.
Message device_assignment(int64_t replicas, int64_t partitions, const std::vector<int64_t>& ids) {
  Message assignment;
  assignment.integer(1, replicas);
  assignment.integer(2, partitions);
  for (int64_t partition = 0; partition < partitions; ++partition) {
    Message computation;
    for (int64_t replica = 0; replica < replicas; ++replica) {
      computation.integer(1, ids[replica * partitions + partition]);
    }
    assignment.message(3, computation);
  }
  return assignment;
}

}  // namespace

std::string CompileOptions::encode() const {
  if (num_replicas < 1 || num_partitions < 1) {
    throw Error(kInvalidArgument, "compile options: num_replicas is " +
                                      std::to_string(num_replicas) + " and num_partitions is " +
                                      std::to_string(num_partitions) + "; both must be at least 1");
  }
  std::vector<int64_t> ids = device_ids;
  if (ids.empty() && device_ordinal >= 0 && num_replicas * num_partitions == 1) {
    ids.push_back(device_ordinal);
  }
  if (!ids.empty() && static_cast<int64_t>(ids.size()) != num_replicas * num_partitions) {
    throw Error(kInvalidArgument, "compile options: " + std::to_string(ids.size()) +
                                      " device_ids for " + std::to_string(num_replicas) +
                                      " replicas of " + std::to_string(num_partitions) +
                                      " partitions; expected " +
                                      std::to_string(num_replicas * num_partitions));
  }

  // ExecutableBuildOptionsProto.
  Message build;
  build.integer(1, device_ordinal);
  build.integer(4, num_replicas);
  build.integer(5, num_partitions);
  if (num_partitions > 1 && use_spmd_partitioning) build.integer(6, 1);
  if (!ids.empty()) build.message(9, device_assignment(num_replicas, num_partitions, ids));
  if (use_shardy_partitioner) build.integer(19, 1);

  // CompileOptionsProto.
  Message options;
  options.message(3, build);
  for (const auto& [name, value] : env_overrides) {
    Message override_value;
    if (const auto* text = std::get_if<std::string>(&value)) {
      override_value.text(1, *text);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      override_value.integer(2, *flag ? 1 : 0);
    } else if (const auto* number = std::get_if<int64_t>(&value)) {
      override_value.integer(3, *number);
    } else {
      override_value.floating(4, std::get<double>(value));
    }
    Message entry;
    entry.text(1, name);
    entry.message(2, override_value);
    options.message(7, entry);
  }
  return options.take();
}

}  // namespace torch_tpu::pjrt
