// SPDX-License-Identifier: Apache-2.0 - Instructions that move elements without computing.
#include <algorithm>
#include <numeric>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

bool is_iota(const Dims& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

// Start indices of dynamic slices: one 0-dim integer for each dimension, all of one type.
void check_starts(const char* op, const Value& x, std::span<const Value> starts) {
  check_size(op, "the list of start indices", starts.size(), static_cast<size_t>(x.rank()));
  for (const Value& s : starts) {
    builder_of(op, s);
    if (s.rank() != 0 || !is_integer(s.dtype()) || s.dtype() != starts[0].dtype()) {
      fail(op, "start index is " + s.type().str() + ", expected 0-dim integers of one type");
    }
  }
}

}  // namespace

Value reshape(const Value& x, Dims dims) {
  constexpr const char* kOp = "stablehlo.reshape";
  Builder& b = builder_of(kOp, x);
  if (dims == x.dims()) return x;
  if (element_count(dims) != x.elements()) {
    fail(kOp, x.type().str() + " has " + std::to_string(x.elements()) +
                  " elements, which do not fill " + list_text(dims));
  }
  return b.append1(kOp, {&x, 1}, "", {x.dtype(), std::move(dims)});
}

Value transpose(const Value& x, const Dims& permutation) {
  constexpr const char* kOp = "stablehlo.transpose";
  Builder& b = builder_of(kOp, x);
  check_size(kOp, "the permutation", permutation.size(), static_cast<size_t>(x.rank()));
  check_dims(kOp, permutation, x.rank());
  Dims order;
  Dims dims;
  for (int64_t p : permutation) {
    order.push_back(check_dim(kOp, p, x.rank()));
    dims.push_back(x.dims()[order.back()]);
  }
  if (is_iota(order)) return x;
  return b.append1(kOp, {&x, 1}, Attributes().ints("permutation", order).take(),
                   {x.dtype(), std::move(dims)});
}

Value broadcast_in_dim(const Value& x, Dims dims, const Dims& broadcast_dimensions) {
  constexpr const char* kOp = "stablehlo.broadcast_in_dim";
  Builder& b = builder_of(kOp, x);
  check_size(kOp, "broadcast_dimensions", broadcast_dimensions.size(),
             static_cast<size_t>(x.rank()));
  const int64_t rank = static_cast<int64_t>(dims.size());
  check_dims(kOp, broadcast_dimensions, rank);
  Dims where;
  for (size_t i = 0; i < broadcast_dimensions.size(); ++i) {
    where.push_back(check_dim(kOp, broadcast_dimensions[i], rank));
    const int64_t from = x.dims()[i];
    if (from != 1 && from != dims[where[i]]) {
      fail(kOp, x.type().str() + " does not broadcast to " + list_text(dims) +
                    " along dimensions " + list_text(broadcast_dimensions));
    }
  }
  if (dims == x.dims() && is_iota(where)) return x;
  return b.append1(kOp, {&x, 1}, Attributes().ints("broadcast_dimensions", where).take(),
                   {x.dtype(), std::move(dims)});
}

Value broadcast_to(const Value& x, const Dims& dims) {
  builder_of("broadcast_to", x);
  if (x.dims() == dims) return x;
  const int64_t extra = static_cast<int64_t>(dims.size()) - x.rank();
  if (extra < 0) {
    fail("broadcast_to", x.type().str() + " has more dimensions than " + list_text(dims));
  }
  Dims where(static_cast<size_t>(x.rank()));
  std::iota(where.begin(), where.end(), extra);
  return broadcast_in_dim(x, dims, where);
}

Dims broadcast_dims(const Dims& a, const Dims& b) {
  const Dims& longer = a.size() >= b.size() ? a : b;
  const Dims& shorter = a.size() >= b.size() ? b : a;
  Dims result = longer;
  const size_t extra = longer.size() - shorter.size();
  for (size_t i = 0; i < shorter.size(); ++i) {
    int64_t& d = result[extra + i];
    if (d == 1) {
      d = shorter[i];
    } else if (shorter[i] != 1 && shorter[i] != d) {
      fail("broadcast_dims", list_text(a) + " and " + list_text(b) + " do not fit");
    }
  }
  return result;
}

Value unsqueeze(const Value& x, int64_t dim) {
  builder_of("unsqueeze", x);
  const int64_t d = check_dim("unsqueeze", dim, x.rank() + 1);
  Dims dims = x.dims();
  dims.insert(dims.begin() + d, 1);
  return reshape(x, std::move(dims));
}

Value squeeze(const Value& x, int64_t dim) {
  builder_of("squeeze", x);
  const int64_t d = check_dim("squeeze", dim, x.rank());
  if (x.dims()[d] != 1) {
    fail("squeeze", "dimension " + std::to_string(dim) + " of " + x.type().str() + " is not 1");
  }
  Dims dims = x.dims();
  dims.erase(dims.begin() + d);
  return reshape(x, std::move(dims));
}

Value slice(const Value& x, const Dims& start, const Dims& limit, const Dims& strides) {
  constexpr const char* kOp = "stablehlo.slice";
  Builder& b = builder_of(kOp, x);
  const size_t rank = static_cast<size_t>(x.rank());
  check_size(kOp, "start", start.size(), rank);
  check_size(kOp, "limit", limit.size(), rank);
  check_size(kOp, "strides", strides.size(), rank);
  Dims dims(rank);
  for (size_t i = 0; i < rank; ++i) {
    if (start[i] < 0 || start[i] > limit[i] || limit[i] > x.dims()[i] || strides[i] < 1) {
      fail(kOp, "start " + list_text(start) + ", limit " + list_text(limit) + ", strides " +
                    list_text(strides) + " do not fit " + x.type().str());
    }
    dims[i] = (limit[i] - start[i] + strides[i] - 1) / strides[i];
  }
  if (dims == x.dims()) return x;  // strides of dimensions of size 1 do not matter
  return b.append1(kOp, {&x, 1},
                   Attributes()
                       .ints("limit_indices", limit)
                       .ints("start_indices", start)
                       .ints("strides", strides)
                       .take(),
                   {x.dtype(), std::move(dims)});
}

Value slice_dim(const Value& x, int64_t dim, int64_t start, int64_t limit, int64_t stride) {
  builder_of("stablehlo.slice", x);
  const int64_t d = check_dim("stablehlo.slice", dim, x.rank());
  Dims starts(static_cast<size_t>(x.rank()), 0);
  Dims limits = x.dims();
  Dims strides(static_cast<size_t>(x.rank()), 1);
  starts[d] = start;
  limits[d] = limit;
  strides[d] = stride;
  return slice(x, starts, limits, strides);
}

Value dynamic_slice(const Value& x, std::span<const Value> starts, const Dims& sizes) {
  constexpr const char* kOp = "stablehlo.dynamic_slice";
  Builder& b = builder_of(kOp, x);
  check_starts(kOp, x, starts);
  check_size(kOp, "sizes", sizes.size(), static_cast<size_t>(x.rank()));
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > x.dims()[i]) {
      fail(kOp, "sizes " + list_text(sizes) + " do not fit " + x.type().str());
    }
  }
  if (sizes == x.dims()) return x;  // starts are clamped to 0
  Values operands = {x};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return b.append1(kOp, operands, Attributes().ints("slice_sizes", sizes).take(),
                   {x.dtype(), sizes});
}

Value dynamic_update_slice(const Value& x, const Value& update, std::span<const Value> starts) {
  constexpr const char* kOp = "stablehlo.dynamic_update_slice";
  Builder& b = builder_of(kOp, x);
  builder_of(kOp, update);
  check_starts(kOp, x, starts);
  bool fits = update.dtype() == x.dtype() && update.rank() == x.rank();
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = update.dims()[i] <= x.dims()[i];
  if (!fits) fail(kOp, "update " + update.type().str() + " does not fit into " + x.type().str());
  if (update.dims() == x.dims()) return update;  // starts are clamped to 0
  Values operands = {x, update};
  operands.insert(operands.end(), starts.begin(), starts.end());
  return b.append1(kOp, operands, "", x.type());
}

Value pad(const Value& x, const Value& value, const Dims& low, const Dims& high,
          const Dims& interior) {
  constexpr const char* kOp = "stablehlo.pad";
  Builder& b = builder_of(kOp, x);
  builder_of(kOp, value);
  if (value.rank() != 0 || value.dtype() != x.dtype()) {
    fail(kOp, "padding value is " + value.type().str() + ", expected a 0-dim one of the type of " +
                  x.type().str());
  }
  const size_t rank = static_cast<size_t>(x.rank());
  const Dims inner = interior.empty() ? Dims(rank, 0) : interior;
  check_size(kOp, "low", low.size(), rank);
  check_size(kOp, "high", high.size(), rank);
  check_size(kOp, "interior", inner.size(), rank);
  Dims dims(rank);
  bool identity = true;
  for (size_t i = 0; i < rank; ++i) {
    const int64_t d = x.dims()[i];
    dims[i] = low[i] + high[i] + d + std::max<int64_t>(d - 1, 0) * inner[i];
    if (dims[i] < 0 || inner[i] < 0) {
      fail(kOp, "low " + list_text(low) + ", high " + list_text(high) + ", interior " +
                    list_text(inner) + " do not fit " + x.type().str());
    }
    identity = identity && low[i] == 0 && high[i] == 0 && dims[i] == d;
  }
  if (identity) return x;
  const Value operands[] = {x, value};
  return b.append1(kOp, operands,
                   Attributes()
                       .ints("edge_padding_high", high)
                       .ints("edge_padding_low", low)
                       .ints("interior_padding", inner)
                       .take(),
                   {x.dtype(), std::move(dims)});
}

Value concatenate(std::span<const Value> xs, int64_t dim) {
  constexpr const char* kOp = "stablehlo.concatenate";
  Builder& b = builder_of(kOp, xs);
  Type type = xs[0].type();
  const int64_t d = check_dim(kOp, dim, type.rank());
  type.dims[d] = 0;
  for (const Value& x : xs) {
    Type other = x.type();
    if (other.rank() == type.rank()) other.dims[d] = type.dims[d];
    if (other != type) {
      fail(kOp, xs[0].type().str() + " and " + x.type().str() + " differ outside dimension " +
                    std::to_string(d));
    }
    type.dims[d] += x.dims()[d];
  }
  if (xs.size() == 1) return xs[0];
  return b.append1(kOp, xs, Attributes().i64("dimension", d).take(), std::move(type));
}

Value reverse(const Value& x, const Dims& dims) {
  constexpr const char* kOp = "stablehlo.reverse";
  Builder& b = builder_of(kOp, x);
  const Dims which = check_dims(kOp, dims, x.rank());
  const auto moves = [&](int64_t d) { return x.dims()[d] > 1; };
  if (x.elements() == 0 || std::none_of(which.begin(), which.end(), moves)) return x;
  return b.append1(kOp, {&x, 1}, Attributes().ints("dimensions", which).take(), x.type());
}

}  // namespace torch_tpu::hlo
