// SPDX-License-Identifier: Apache-2.0 - Collectives between the replicas of a program: their builders.
#include "src/hlo/collective.h"

#include <algorithm>
#include <string_view>

#include "src/hlo/attributes.h"

namespace torch_tpu::hlo {
namespace {

int64_t group_size(std::string_view op, const Groups& groups) {
  if (groups.empty() || groups[0].empty()) fail(op, "there are no replica groups");
  for (const Dims& g : groups) {
    if (g.size() != groups[0].size()) fail(op, "replica groups of different sizes");
  }
  return static_cast<int64_t>(groups[0].size());
}

// The size of a part, if dim is divided among a group.
int64_t part(std::string_view op, const Value& x, int64_t dim, int64_t count) {
  if (x.dim(dim) % count != 0) {
    fail(op, "dimension " + std::to_string(dim) + " of " + x.type().str() +
                 " is no multiple of the group's size " + std::to_string(count));
  }
  return x.dim(dim) / count;
}

Value append_reduction(const char* op, const Value& x, std::string attributes, Type result,
                       Reduce how) {
  Builder& b = x.builder();
  std::vector<Region> regions;
  regions.push_back(reduce_region(b, x.dtype(), how));
  return b.append(op, {&x, 1}, std::move(attributes), {std::move(result)}, std::move(regions))[0];
}

}  // namespace

Value all_reduce(const Value& x, const Groups& groups, Reduce how) {
  constexpr const char* kOp = "stablehlo.all_reduce";
  builder_of(kOp, x);
  group_size(kOp, groups);
  return append_reduction(kOp, x, Attributes().table("replica_groups", groups).take(), x.type(),
                          how);
}

Value all_gather(const Value& x, int64_t dim, const Groups& groups) {
  constexpr const char* kOp = "stablehlo.all_gather";
  Builder& b = builder_of(kOp, x);
  dim = check_dim(kOp, dim, x.rank());
  Type result = x.type();
  result.dims[dim] *= group_size(kOp, groups);
  return b.append1(kOp, {&x, 1},
                   Attributes().i64("all_gather_dim", dim).table("replica_groups", groups).take(),
                   std::move(result));
}

Value reduce_scatter(const Value& x, int64_t dim, const Groups& groups, Reduce how) {
  constexpr const char* kOp = "stablehlo.reduce_scatter";
  builder_of(kOp, x);
  dim = check_dim(kOp, dim, x.rank());
  Type result = x.type();
  result.dims[dim] = part(kOp, x, dim, group_size(kOp, groups));
  return append_reduction(
      kOp, x, Attributes().i64("scatter_dimension", dim).table("replica_groups", groups).take(),
      std::move(result), how);
}

Value all_to_all(const Value& x, int64_t split_dim, int64_t concat_dim, const Groups& groups) {
  constexpr const char* kOp = "stablehlo.all_to_all";
  Builder& b = builder_of(kOp, x);
  split_dim = check_dim(kOp, split_dim, x.rank());
  concat_dim = check_dim(kOp, concat_dim, x.rank());
  const int64_t count = group_size(kOp, groups);
  Type result = x.type();
  result.dims[split_dim] = part(kOp, x, split_dim, count);
  result.dims[concat_dim] *= count;
  return b.append1(kOp, {&x, 1},
                   Attributes()
                       .i64("split_dimension", split_dim)
                       .i64("concat_dimension", concat_dim)
                       .i64("split_count", count)
                       .table("replica_groups", groups)
                       .take(),
                   std::move(result));
}

Value collective_permute(const Value& x, const Dims& sources, const Dims& targets) {
  constexpr const char* kOp = "stablehlo.collective_permute";
  Builder& b = builder_of(kOp, x);
  check_size(kOp, "the list of targets", targets.size(), sources.size());
  std::vector<Dims> pairs;
  for (size_t i = 0; i < sources.size(); ++i) pairs.push_back({sources[i], targets[i]});
  return b.append1(kOp, {&x, 1}, Attributes().table("source_target_pairs", pairs).take(), x.type());
}

Value replica_id(Builder& b) { return b.append1("stablehlo.replica_id", {}, "", {DType::U32, {}}); }

std::vector<Exchange> exchanges(const Function& fn) {
  std::vector<Exchange> all;
  for (const Instr& i : fn.body) {
    constexpr std::string_view kDialect = "stablehlo.", kGroups = "replica_groups = ";
    const std::string kind = i.name.substr(std::min(kDialect.size(), i.name.size()));
    if (kind == "collective_permute") {
      all.push_back({kind, 0, fn.types[i.operands[0]].bytes()});
      continue;
    }
    const size_t at = i.attributes.find(kGroups);
    if (at == std::string::npos) continue;
    // "... : tensor<4x2xi64>": two in each group.
    const size_t type = i.attributes.find("tensor<", at);
    const size_t cross = i.attributes.find('x', type);
    const int64_t size = std::stoll(i.attributes.substr(cross + 1));
    const int64_t whole =
        std::max(fn.types[i.operands[0]].bytes(), fn.types[i.first_result].bytes());
    all.push_back({kind, size, whole / size * (size - 1) * (kind == "all_reduce" ? 2 : 1)});
  }
  return all;
}

}  // namespace torch_tpu::hlo
