// SPDX-License-Identifier: Apache-2.0 - Instructions with general regions: sort, while, if.
#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

std::vector<Type> types_of(const char* op, std::span<const Value> xs) {
  std::vector<Type> types;
  for (const Value& x : xs) {
    builder_of(op, x);
    types.push_back(x.type());
  }
  return types;
}

void check_types(const char* op, const char* what, std::span<const Value> got,
                 const std::vector<Type>& expected) {
  check_size(op, what, got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    builder_of(op, got[i]);
    if (got[i].type() != expected[i]) {
      fail(op, std::string(what) + " has " + got[i].type().str() + " at " + std::to_string(i) +
                   ", expected " + expected[i].str());
    }
  }
}

}  // namespace

Values sort(std::span<const Value> xs, int64_t dim, bool stable,
            const std::function<Value(const Values& lhs, const Values& rhs)>& less) {
  constexpr const char* kOp = "stablehlo.sort";
  Builder& b = builder_of(kOp, xs);
  std::vector<Type> types = types_of(kOp, xs);
  for (const Type& type : types) {
    if (type.dims != types[0].dims) {
      fail(kOp, "operands " + types[0].str() + " and " + type.str() + " have different shapes");
    }
  }
  if (types[0].rank() == 0) return Values(xs.begin(), xs.end());
  const int64_t d = check_dim(kOp, dim, types[0].rank());
  std::vector<Type> args;
  for (const Type& type : types) args.insert(args.end(), 2, Type{type.dtype, {}});
  std::vector<Region> regions;
  regions.push_back(b.region(args, [&](const Values& both) {
    Values lhs, rhs;
    for (size_t i = 0; i < both.size(); i += 2) {
      lhs.push_back(both[i]);
      rhs.push_back(both[i + 1]);
    }
    Values result = {less(lhs, rhs)};
    check_types(kOp, "the comparison's result", result, {Type{DType::Pred, {}}});
    return result;
  }));
  return b.append(kOp, xs, Attributes().i64("dimension", d).boolean("is_stable", stable).take(),
                  std::move(types), std::move(regions));
}

Values while_loop(std::span<const Value> init, const std::function<Value(const Values&)>& condition,
                  const std::function<Values(const Values&)>& body) {
  constexpr const char* kOp = "stablehlo.while";
  Builder& b = builder_of(kOp, init);
  std::vector<Type> types = types_of(kOp, init);
  std::vector<Region> regions;
  regions.push_back(b.region(types, [&](const Values& state) {
    Values result = {condition(state)};
    check_types(kOp, "the condition's result", result, {Type{DType::Pred, {}}});
    return result;
  }));
  regions.push_back(b.region(types, [&](const Values& state) {
    Values next = body(state);
    check_types(kOp, "the body's result", next, types);
    return next;
  }));
  return b.append(kOp, init, "", std::move(types), std::move(regions));
}

Values if_else(const Value& pred, const std::function<Values()>& on_true,
               const std::function<Values()>& on_false) {
  constexpr const char* kOp = "stablehlo.if";
  Builder& b = builder_of(kOp, pred);
  check_types(kOp, "the predicate", {&pred, 1}, {Type{DType::Pred, {}}});
  std::vector<Type> types;
  std::vector<Region> regions;
  regions.push_back(b.region({}, [&](const Values&) {
    Values results = on_true();
    types = types_of(kOp, results);
    return results;
  }));
  regions.push_back(b.region({}, [&](const Values&) {
    Values results = on_false();
    check_types(kOp, "the second branch's result", results, types);
    return results;
  }));
  return b.append(kOp, {&pred, 1}, "", std::move(types), std::move(regions));
}

}  // namespace torch_tpu::hlo
