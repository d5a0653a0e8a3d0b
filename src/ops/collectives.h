// SPDX-License-Identifier: Apache-2.0 - How devices are grouped in a collective, and its form in a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/hlo/collective.h"

namespace torch_tpu::ops {

// All devices from 0 to world - 1, divided into groups that are each other's translations: a group
// is a first device plus every sum of multiples 0 .. count - 1 of the strides. The groups of every
// dimension of a mesh are such, and of several dimensions taken together.
struct DeviceGroups {
  struct Axis {
    int64_t count, stride;
  };
  int64_t world = 1;
  std::vector<Axis> axes;  // ascending strides; none: each device by itself

  // From one group, in ascending order. Throws std::invalid_argument where its translations do not
  // divide the world.
  static DeviceGroups from(const hlo::Dims& ranks, int64_t world);
  // "64 8*1" is eight neighbours among 64 devices.
  std::string text() const;
  static DeviceGroups parse(std::string_view text);
  int64_t size() const;
  hlo::Groups all() const;
};

}  // namespace torch_tpu::ops
