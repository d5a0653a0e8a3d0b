// SPDX-License-Identifier: Apache-2.0 - Collectives between the replicas of a program.
//
// Groups partition all replicas and are equally large; a
// device's place in its group is its position there.
#pragma once

#include <compare>
#include <string>
#include <vector>

#include "src/hlo/builder.h"

namespace torch_tpu::hlo {

using Groups = std::vector<Dims>;
Value all_reduce(const Value& x, const Groups& groups, Reduce how);
// Concatenates the group's values along dim.
Value all_gather(const Value& x, int64_t dim, const Groups& groups);
// The reduced value's part along dim that belongs to the device's place; dim is a multiple of the
// group's size.
Value reduce_scatter(const Value& x, int64_t dim, const Groups& groups, Reduce how);
// Part i of x along split_dim goes to place i; what comes is concatenated along concat_dim.
Value all_to_all(const Value& x, int64_t split_dim, int64_t concat_dim, const Groups& groups);
// What the replica at the same position among the sources gives; zeros elsewhere.
Value collective_permute(const Value& x, const Dims& sources, const Dims& targets);
Value replica_id(Builder& b);  // 0-dim U32
// The collectives of a function.
struct Exchange {
  std::string kind;        // "all_gather"
  int64_t group_size = 1;  // 0 where there are no groups
  int64_t bytes = 0;       // that each device sends at the least
  auto operator<=>(const Exchange&) const = default;
};
std::vector<Exchange> exchanges(const Function& fn);

}  // namespace torch_tpu::hlo
