// SPDX-License-Identifier: Apache-2.0 - Host kernels: functions of the host that programs for the CPU plugin call instead of StableHLO.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

// One line of the table: which operators use the kernel, and why StableHLO is not good enough.
struct HostKernel {
  const char* name;
  const char* ops;
  const char* why;
};
std::span<const HostKernel> host_kernels();

// Attributes of a call, as the kernel reads them (pjrt::FfiCall::int_array_attr and so on).
class HostAttributes {
 public:
  HostAttributes& ints(std::string_view name, const hlo::Dims& values);
  HostAttributes& integer(std::string_view name, int64_t value);
  const std::string& text() const { return text_; }

 private:
  void add(std::string_view name, const std::string& value);

  std::string text_;
};

// Calls the kernel of that name, which must be in the table. Only where c.host_kernels().
hlo::Values host_call(Call& c, std::string_view name, const hlo::Values& operands,
                      std::vector<hlo::Type> results, const HostAttributes& attributes);

}  // namespace torch_tpu::ops
