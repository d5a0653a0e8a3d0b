// SPDX-License-Identifier: Apache-2.0 - Reductions over dimensions and over windows.
#include <algorithm>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

using Combine = std::function<Values(const Values&, const Values&)>;

// On bool a sum is "any" and a product is "all".
Reduce on_type(DType dtype, Reduce how) {
  if (dtype != DType::Pred) return how;
  if (how == Reduce::Add || how == Reduce::Maximum) return Reduce::Or;
  if (how == Reduce::Multiply || how == Reduce::Minimum) return Reduce::And;
  return how;
}

Value combine(const Value& a, const Value& b, Reduce how) {
  switch (on_type(a.dtype(), how)) {
    case Reduce::Add:
      return add(a, b);
    case Reduce::Multiply:
      return multiply(a, b);
    case Reduce::Maximum:
      return maximum(a, b);
    case Reduce::Minimum:
      return minimum(a, b);
    case Reduce::And:
      return and_(a, b);
    case Reduce::Or:
      break;
  }
  return or_(a, b);
}

void check_operands(const char* op, std::span<const Value> xs, std::span<const Value> inits) {
  builder_of(op, xs);
  check_size(op, "the list of initial values", inits.size(), xs.size());
  for (size_t i = 0; i < xs.size(); ++i) {
    builder_of(op, inits[i]);
    if (xs[i].dims() != xs[0].dims()) {
      fail(op, "operands " + xs[0].type().str() + " and " + xs[i].type().str() +
                   " have different shapes");
    }
    if (inits[i].type() != Type{xs[i].dtype(), {}}) {
      fail(op, "initial value " + inits[i].type().str() + " of operand " + xs[i].type().str() +
                   " is not a 0-dim one of its type");
    }
  }
}

Region combiner(const char* op, std::span<const Value> xs, const Combine& fn) {
  std::vector<Type> args;
  for (int side = 0; side < 2; ++side) {
    for (const Value& x : xs) args.push_back({x.dtype(), {}});
  }
  const auto n = static_cast<std::ptrdiff_t>(xs.size());
  return xs[0].builder().region(args, [&](const Values& both) {
    Values results =
        fn(Values(both.begin(), both.begin() + n), Values(both.begin() + n, both.end()));
    check_size(op, "the combiner's result", results.size(), xs.size());
    for (size_t i = 0; i < results.size(); ++i) {
      builder_of(op, results[i]);
      if (results[i].type() != args[i]) {
        fail(op, "the combiner returns " + results[i].type().str() + ", expected " + args[i].str());
      }
    }
    return results;
  });
}

}  // namespace

Region reduce_region(Builder& b, DType dtype, Reduce how) {
  return b.region({{dtype, {}}, {dtype, {}}},
                  [&](const Values& v) { return Values{combine(v[0], v[1], how)}; });
}

Value reduce_identity(Builder& b, DType dtype, Reduce how) {
  switch (on_type(dtype, how)) {
    case Reduce::Add:
      return scalar(b, dtype, 0);
    case Reduce::Multiply:
      return scalar(b, dtype, 1);
    case Reduce::Maximum:
      return lowest(b, dtype);
    case Reduce::Minimum:
      return highest(b, dtype);
    case Reduce::And:
      return constant_int(b, {dtype, {}}, -1);
    case Reduce::Or:
      break;
  }
  return constant_int(b, {dtype, {}}, 0);
}

Values reduce_general(std::span<const Value> xs, std::span<const Value> inits, const Dims& dims,
                      const Combine& fn) {
  constexpr const char* kOp = "stablehlo.reduce";
  check_operands(kOp, xs, inits);
  const Dims which = check_dims(kOp, dims, xs[0].rank());
  Dims kept;
  for (int64_t d = 0; d < xs[0].rank(); ++d) {
    if (!std::binary_search(which.begin(), which.end(), d)) kept.push_back(xs[0].dims()[d]);
  }
  std::vector<Type> results;
  for (const Value& x : xs) results.push_back({x.dtype(), kept});
  std::vector<Region> regions;
  regions.push_back(combiner(kOp, xs, fn));
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), inits.begin(), inits.end());
  return xs[0].builder().append(kOp, operands, Attributes().ints("dimensions", which).take(),
                                std::move(results), std::move(regions));
}

Value reduce(const Value& x, const Dims& dims, Reduce how, bool keepdim) {
  Builder& b = builder_of("stablehlo.reduce", x);
  if (dims.empty()) return x;
  const Value init = reduce_identity(b, x.dtype(), how);
  const Value result = reduce_general(
      {&x, 1}, {&init, 1}, dims,
      [&](const Values& acc, const Values& v) { return Values{combine(acc[0], v[0], how)}; })[0];
  if (!keepdim) return result;
  Dims full = x.dims();
  for (int64_t d : check_dims("stablehlo.reduce", dims, x.rank())) full[d] = 1;
  return reshape(result, std::move(full));
}

Values reduce_window_general(std::span<const Value> xs, std::span<const Value> inits,
                             const Window& window, const Combine& fn) {
  constexpr const char* kOp = "stablehlo.reduce_window";
  check_operands(kOp, xs, inits);
  const size_t rank = static_cast<size_t>(xs[0].rank());
  const auto filled = [&](const Dims& dims, int64_t value, const char* what) {
    Dims result = dims.empty() ? Dims(rank, value) : dims;
    check_size(kOp, what, result.size(), rank);
    if (std::any_of(result.begin(), result.end(), [&](int64_t d) { return value == 1 && d < 1; })) {
      fail(kOp, std::string(what) + " " + list_text(result) + " must be positive");
    }
    return result;
  };
  const Dims size = filled(window.size, 1, "window.size");
  const Dims strides = filled(window.strides, 1, "window.strides");
  const Dims base = filled(window.base_dilation, 1, "window.base_dilation");
  const Dims dilation = filled(window.window_dilation, 1, "window.window_dilation");
  const Dims low = filled(window.pad_low, 0, "window.pad_low");
  const Dims high = filled(window.pad_high, 0, "window.pad_high");
  if (rank == 0) return fn(Values(inits.begin(), inits.end()), Values(xs.begin(), xs.end()));
  Dims dims(rank);
  for (size_t i = 0; i < rank; ++i) {
    dims[i] =
        window_count(xs[0].dims()[i], size[i], strides[i], base[i], dilation[i], low[i] + high[i]);
  }
  std::vector<Type> results;
  for (const Value& x : xs) results.push_back({x.dtype(), dims});
  std::vector<Region> regions;
  regions.push_back(combiner(kOp, xs, fn));
  Values operands(xs.begin(), xs.end());
  operands.insert(operands.end(), inits.begin(), inits.end());
  return xs[0].builder().append(kOp, operands,
                                Attributes()
                                    .ints("base_dilations", base)
                                    .padding(low, high)
                                    .ints("window_dilations", dilation)
                                    .ints("window_dimensions", size)
                                    .ints("window_strides", strides)
                                    .take(),
                                std::move(results), std::move(regions));
}

Value reduce_window(const Value& x, const Value& init, const Window& window, Reduce how) {
  return reduce_window_general(
      {&x, 1}, {&init, 1}, window,
      [&](const Values& acc, const Values& v) { return Values{combine(acc[0], v[0], how)}; })[0];
}

}  // namespace torch_tpu::hlo
