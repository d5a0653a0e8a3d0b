// SPDX-License-Identifier: Apache-2.0 - Collectives of PyTorch's functional form, between the replicas of one program.
//
// The argument group_name is the text of a DeviceGroups here, as the caller of an entry has looked
// the name up: programs depend on who talks to whom, not on what a group is called.
#include "src/ops/collectives.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <stdexcept>

#include "src/ops/entry.h"

namespace torch_tpu::ops {

DeviceGroups DeviceGroups::from(const Dims& ranks, int64_t world) {
  DeviceGroups g;
  g.world = world;
  Dims firsts;  // what is left of the group: the first device of each run that was recognized
  for (int64_t r : ranks) firsts.push_back(r - ranks[0]);
  while (firsts.size() > 1) {
    const int64_t stride = firsts[1];
    size_t count = 2;
    while (count < firsts.size() && firsts[count] == static_cast<int64_t>(count) * stride) ++count;
    Dims next;
    bool regular = firsts.size() % count == 0 && stride > 0;
    for (size_t i = 0; i < firsts.size() && regular; ++i) {
      if (i % count == 0) next.push_back(firsts[i]);
      regular = firsts[i] == next.back() + static_cast<int64_t>(i % count) * stride;
    }
    if (!regular) throw std::invalid_argument("its ranks are not evenly spaced");
    g.axes.push_back({static_cast<int64_t>(count), stride});
    firsts = std::move(next);
  }
  int64_t whole = 1;  // an axis starts where the one inside it ends, or leaves room for others
  for (const Axis& a : g.axes) {
    if (a.stride % whole != 0) throw std::invalid_argument("its translations overlap");
    whole = a.count * a.stride;
  }
  if (world % whole != 0) throw std::invalid_argument("its translations do not cover all devices");
  for (const Axis& a : g.axes) {
    if (!ranks.empty() && ranks[0] / a.stride % a.count != 0)
      throw std::invalid_argument("it is out of step with the devices before it");
  }
  return g;
}

std::string DeviceGroups::text() const {
  std::string s = std::to_string(world);
  for (const Axis& a : axes) s += " " + std::to_string(a.count) + "*" + std::to_string(a.stride);
  return s;
}

DeviceGroups DeviceGroups::parse(std::string_view text) {
  const char* at = text.data();
  const char* end = at + text.size();
  const auto number = [&] {
    int64_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1) throw std::invalid_argument("not a text of device groups");
    at = next == end ? next : next + 1;
    return n;
  };
  DeviceGroups g;
  g.world = number();
  while (at != end) {
    const int64_t count = number();
    g.axes.push_back({count, number()});
  }
  return g;
}

int64_t DeviceGroups::size() const {
  int64_t n = 1;
  for (const Axis& a : axes) n *= a.count;
  return n;
}

hlo::Groups DeviceGroups::all() const {
  Dims members = {0};
  for (const Axis& a : axes) {
    const size_t inner = members.size();
    for (int64_t i = 1; i < a.count; ++i)
      for (size_t m = 0; m < inner; ++m) members.push_back(members[m] + i * a.stride);
  }
  hlo::Groups groups;
  for (int64_t first = 0; first < world; ++first) {
    if (std::any_of(axes.begin(), axes.end(),
                    [&](const Axis& a) { return first / a.stride % a.count != 0; }))
      continue;
    Dims group = members;
    for (int64_t& m : group) m += first;
    groups.push_back(std::move(group));
  }
  return groups;
}

namespace {

DeviceGroups groups_of(const Call& c) { return DeviceGroups::parse(c.text("group_name")); }

template <typename Apply>
Value reduced(const Call& c, const Value& x, int64_t size, const Apply& apply) {
  const std::string op = c.text("reduce_op");
  if (op == "sum") return apply(hlo::Reduce::Add);
  if (op == "avg") return apply(hlo::Reduce::Add) / static_cast<double>(size);
  if (op == "product") return apply(hlo::Reduce::Multiply);
  if (op == "max") return apply(hlo::Reduce::Maximum);
  if (op == "min") return apply(hlo::Reduce::Minimum);
  c.check_supported(
      hlo::is_integer(x.dtype()) && (op == "band" || op == "bor"), "the reduction '", op, "' of ",
      x.dtype(),
      " has no counterpart between TPUs; they have sum, avg, product, max and min, and "
      "band and bor of integers");
  return apply(op == "band" ? hlo::Reduce::And : hlo::Reduce::Or);
}

Value all_reduce(const Call& c, const Value& x) {
  const DeviceGroups g = groups_of(c);
  if (g.size() == 1) return x;
  return reduced(c, x, g.size(), [&](hlo::Reduce how) { return hlo::all_reduce(x, g.all(), how); });
}

// Collectives that cut or join are along the first dimension; a number has one of size 1.
Value with_dimension(const Value& x) { return x.rank() == 0 ? hlo::reshape(x, {1}) : x; }

Value all_gather(const Call& c, const Value& x) {
  const DeviceGroups g = groups_of(c);
  if (g.size() == 1) return with_dimension(x);
  return hlo::all_gather(with_dimension(x), 0, g.all());
}

Value reduce_scatter(const Call& c, const Value& x) {
  const DeviceGroups g = groups_of(c);
  c.check(x.rank() > 0 && x.dim(0) % g.size() == 0, "input of shape ", x.dims(),
          " cannot be divided along its first dimension among the ", g.size(),
          " devices of a group; pad it to a multiple");
  if (g.size() == 1) return x;
  return reduced(c, x, g.size(),
                 [&](hlo::Reduce how) { return hlo::reduce_scatter(x, 0, g.all(), how); });
}

Value from_source(const Call& c, const Value& x) {
  const DeviceGroups g = groups_of(c);
  const int64_t source = c.integer("src");
  c.check_value(source >= 0 && source < g.size(), "src is ", source, ", and the group has ",
                g.size(), " devices");
  if (g.size() == 1) return x;
  // A sum in which all but the source have zeros.
  hlo::Builder& b = x.builder();
  const auto number = [&](int64_t n) { return hlo::constant_int(b, {DType::U32, {}}, n); };
  const Value id = hlo::replica_id(b);
  Value is_source = hlo::constant_int(b, {DType::Pred, {}}, 1);
  int64_t inner = 1;
  for (const DeviceGroups::Axis& a : g.axes) {
    const Value place = hlo::remainder(id / number(a.stride), number(a.count));
    is_source = is_source & hlo::eq(place, number(source / inner % a.count));
    inner *= a.count;
  }
  return hlo::all_reduce(hlo::select(is_source, x, hlo::zeros_like(x)), g.all(), hlo::Reduce::Add);
}

// The only place where a list is not zero, or -1.
int64_t only_entry(const Dims& sizes) {
  int64_t at = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    if (at >= 0) return -1;
    at = static_cast<int64_t>(i);
  }
  return at;
}

bool even(const Dims& sizes) {
  return std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
}

template <typename F>
Values each(Call& c, const F& f) {
  Values out;
  for (const Value& x : c.tensors("inputs")) out.push_back(f(c, x));
  return out;
}

}  // namespace

TPU_OP("_c10d_functional::all_reduce(Tensor input, str reduce_op, str group_name) -> Tensor") {
  return {all_reduce(c, c.tensor("input"))};
}

TPU_OP(
    "_c10d_functional::all_reduce_coalesced(Tensor[] inputs, str reduce_op, str group_name) -> "
    "Tensor[]") {
  return each(c, all_reduce);
}

TPU_OP(
    "_c10d_functional::all_gather_into_tensor(Tensor input, int group_size, str group_name) -> "
    "Tensor") {
  return {all_gather(c, c.tensor("input"))};
}

TPU_OP(
    "_c10d_functional::all_gather_into_tensor_coalesced(Tensor[] inputs, int group_size, str "
    "group_name) -> Tensor[]") {
  return each(c, all_gather);
}

TPU_OP(
    "_c10d_functional::reduce_scatter_tensor(Tensor input, str reduce_op, int group_size, str "
    "group_name) -> Tensor") {
  return {reduce_scatter(c, c.tensor("input"))};
}

TPU_OP(
    "_c10d_functional::reduce_scatter_tensor_coalesced(Tensor[] inputs, str reduce_op, int "
    "group_size, str group_name) -> Tensor[]") {
  return each(c, reduce_scatter);
}

// The split sizes are those of the group's first device. What all devices can do with one program
// is to send parts of one size, or all of it to the device that is so many places further on.
TPU_OP(
    "_c10d_functional::all_to_all_single(Tensor input, SymInt[] output_split_sizes, SymInt[] "
    "input_split_sizes, str group_name) -> Tensor") {
  const Value x = c.tensor("input");
  const DeviceGroups g = groups_of(c);
  const Dims to = c.ints("input_split_sizes"), from = c.ints("output_split_sizes");
  if (g.size() == 1) return {x};
  if (even(to) && even(from)) {
    c.check(x.rank() > 0 && x.dim(0) % g.size() == 0, "input of shape ", x.dims(),
            " cannot be divided along its first dimension among the ", g.size(),
            " devices of a group");
    return {hlo::all_to_all(x, 0, 0, g.all())};
  }
  const int64_t shift = only_entry(to);
  c.check_supported(
      shift >= 0 && only_entry(from) == (g.size() - shift) % g.size() &&
          from[static_cast<size_t>((g.size() - shift) % g.size())] ==
              to[static_cast<size_t>(shift)],
      "split sizes ", to, " and ", from,
      " would give each device a program of its own; one program for all of them has parts of one "
      "size, or sends everything the same number of places on");
  Dims sources, targets;
  for (const Dims& group : g.all()) {
    for (int64_t i = 0; i < g.size(); ++i) {
      sources.push_back(group[static_cast<size_t>(i)]);
      targets.push_back(group[static_cast<size_t>((i + shift) % g.size())]);
    }
  }
  return {hlo::collective_permute(x, sources, targets)};
}

TPU_OP(
    "_dtensor::shard_dim_alltoall(Tensor input, int gather_dim, int shard_dim, str group_name) -> "
    "Tensor") {
  const Value x = c.tensor("input");
  const DeviceGroups g = groups_of(c);
  const int64_t gather = c.wrap(c.integer("gather_dim"), x.rank());
  const int64_t shard = c.wrap(c.integer("shard_dim"), x.rank());
  if (g.size() == 1) return {x};
  c.check(x.dim(shard) % g.size() == 0, "dimension ", shard, " of shape ", x.dims(),
          " cannot be divided among the ", g.size(), " devices of a group");
  return {hlo::all_to_all(x, shard, gather, g.all())};
}

TPU_OP("_c10d_functional::broadcast(Tensor input, int src, str group_name) -> Tensor") {
  return {from_source(c, c.tensor("input"))};
}

}  // namespace torch_tpu::ops
