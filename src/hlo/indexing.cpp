// SPDX-License-Identifier: Apache-2.0 - Gather and scatter.
#include <algorithm>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

// Dimensions of the indices without the one that holds the index vectors, and the vectors' length.
Dims batch_dims(const char* op, const Value& indices, int64_t index_vector_dim, int64_t& length) {
  if (!is_integer(indices.dtype())) fail(op, "indices are " + indices.type().str());
  if (index_vector_dim < 0 || index_vector_dim > indices.rank()) {
    fail(op, "index_vector_dim " + std::to_string(index_vector_dim) + " does not fit indices " +
                 indices.type().str());
  }
  Dims dims = indices.dims();
  length = 1;  // one past the end: every index is a vector of one
  if (index_vector_dim < indices.rank()) {
    length = dims[index_vector_dim];
    dims.erase(dims.begin() + index_vector_dim);
  }
  return dims;
}

// Puts the batch dimensions and the window dimensions together; window says which positions of the
// result belong to the window.
Dims interleave(const char* op, const Dims& batch, const Dims& sizes, const Dims& window) {
  check_size(op, "the list of window dimensions", window.size(), sizes.size());
  const int64_t rank = static_cast<int64_t>(batch.size() + sizes.size());
  check_dims(op, window, rank);
  Dims dims;
  size_t next_batch = 0;
  size_t next_window = 0;
  for (int64_t d = 0; d < rank; ++d) {
    dims.push_back(contains(window, d) ? sizes[next_window++] : batch[next_batch++]);
  }
  return dims;
}

void optional_list(std::string& out, std::string_view name, const Dims& dims) {
  if (dims.empty()) return;
  if (out.back() != '<') out += ", ";
  out += name;
  out += " = ";
  out += list_text(dims);
}

void vector_dim(std::string& out, int64_t dim) {
  if (out.back() != '<') out += ", ";
  out += "index_vector_dim = ";
  append_int(out, dim);
  out += '>';
}

}  // namespace

Value gather(const Value& operand, const Value& indices, const GatherDims& dims,
             const Dims& slice_sizes, bool indices_are_sorted) {
  constexpr const char* kOp = "stablehlo.gather";
  Builder& b = builder_of(kOp, operand);
  builder_of(kOp, indices);
  check_size(kOp, "slice_sizes", slice_sizes.size(), static_cast<size_t>(operand.rank()));
  int64_t length = 0;
  const Dims batch = batch_dims(kOp, indices, dims.index_vector_dim, length);
  check_size(kOp, "start_index_map", dims.start_index_map.size(), static_cast<size_t>(length));
  check_dims(kOp, dims.start_index_map, operand.rank());
  check_size(kOp, "start_indices_batching_dims", dims.start_indices_batching_dims.size(),
             dims.operand_batching_dims.size());
  Dims sizes;
  for (size_t i = 0; i < slice_sizes.size(); ++i) {
    const int64_t d = static_cast<int64_t>(i);
    const bool dropped =
        contains(dims.collapsed_slice_dims, d) || contains(dims.operand_batching_dims, d);
    if (slice_sizes[i] < 0 || slice_sizes[i] > operand.dims()[i] ||
        (dropped && slice_sizes[i] > 1)) {
      fail(kOp, "slice_sizes " + list_text(slice_sizes) + " do not fit " + operand.type().str());
    }
    if (!dropped) sizes.push_back(slice_sizes[i]);
  }
  Dims result = interleave(kOp, batch, sizes, dims.offset_dims);
  std::string numbers = "#stablehlo.gather<";
  optional_list(numbers, "offset_dims", dims.offset_dims);
  optional_list(numbers, "collapsed_slice_dims", dims.collapsed_slice_dims);
  optional_list(numbers, "operand_batching_dims", dims.operand_batching_dims);
  optional_list(numbers, "start_indices_batching_dims", dims.start_indices_batching_dims);
  optional_list(numbers, "start_index_map", dims.start_index_map);
  vector_dim(numbers, dims.index_vector_dim);
  const Value operands[] = {operand, indices};
  return b.append1(kOp, operands,
                   Attributes()
                       .raw("dimension_numbers", numbers)
                       .boolean("indices_are_sorted", indices_are_sorted)
                       .ints("slice_sizes", slice_sizes)
                       .take(),
                   {operand.dtype(), std::move(result)});
}

Value scatter(const Value& operand, const Value& indices, const Value& updates,
              const ScatterDims& dims, const Combiner& combine, bool indices_are_sorted,
              bool unique_indices) {
  constexpr const char* kOp = "stablehlo.scatter";
  Builder& b = builder_of(kOp, operand);
  builder_of(kOp, indices);
  builder_of(kOp, updates);
  if (updates.dtype() != operand.dtype()) {
    fail(kOp, "updates " + updates.type().str() + " and operand " + operand.type().str() +
                  " have different element types");
  }
  int64_t length = 0;
  const Dims batch = batch_dims(kOp, indices, dims.index_vector_dim, length);
  check_size(kOp, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims.size(),
             static_cast<size_t>(length));
  check_dims(kOp, dims.scatter_dims_to_operand_dims, operand.rank());
  check_size(kOp, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims.size(),
             dims.input_batching_dims.size());
  // Window sizes are the updates' own, at most the operand's.
  Dims limits;
  for (int64_t d = 0; d < operand.rank(); ++d) {
    if (!contains(dims.inserted_window_dims, d) && !contains(dims.input_batching_dims, d)) {
      limits.push_back(operand.dims()[d]);
    }
  }
  const Dims largest = interleave(kOp, batch, limits, dims.update_window_dims);
  bool fits = updates.rank() == static_cast<int64_t>(largest.size());
  for (size_t i = 0; fits && i < largest.size(); ++i) {
    const int64_t got = updates.dims()[i];
    fits = contains(dims.update_window_dims, static_cast<int64_t>(i)) ? got <= largest[i]
                                                                      : got == largest[i];
  }
  if (!fits) {
    fail(kOp, "updates " + updates.type().str() + " do not fit indices " + indices.type().str() +
                  " and operand " + operand.type().str() + "; at most " + list_text(largest));
  }
  std::string numbers = "#stablehlo.scatter<";
  optional_list(numbers, "update_window_dims", dims.update_window_dims);
  optional_list(numbers, "inserted_window_dims", dims.inserted_window_dims);
  optional_list(numbers, "input_batching_dims", dims.input_batching_dims);
  optional_list(numbers, "scatter_indices_batching_dims", dims.scatter_indices_batching_dims);
  optional_list(numbers, "scatter_dims_to_operand_dims", dims.scatter_dims_to_operand_dims);
  vector_dim(numbers, dims.index_vector_dim);
  const Type element{operand.dtype(), {}};
  std::vector<Region> regions;
  regions.push_back(b.region({element, element}, [&](const Values& args) {
    const Value combined = combine(args[0], args[1]);
    builder_of(kOp, combined);
    if (combined.type() != element) {
      fail(kOp, "the combiner returns " + combined.type().str() + ", expected " + element.str());
    }
    return Values{combined};
  }));
  const Value operands[] = {operand, indices, updates};
  return b.append(kOp, operands,
                  Attributes()
                      .boolean("indices_are_sorted", indices_are_sorted)
                      .raw("scatter_dimension_numbers", numbers)
                      .boolean("unique_indices", unique_indices)
                      .take(),
                  {operand.type()}, std::move(regions))[0];
}

Value take(const Value& x, const Value& indices, int64_t dim) {
  Builder& b = builder_of("take", x);
  builder_of("take", indices);
  const int64_t d = check_dim("take", dim, x.rank());
  const int64_t rank = indices.rank();
  Dims sizes = x.dims();
  Type result{x.dtype(), x.dims()};
  result.dims.erase(result.dims.begin() + d);
  result.dims.insert(result.dims.begin() + d, indices.dims().begin(), indices.dims().end());
  if (result.elements() == 0) return zeros(b, result);  // x may have nothing to take from
  sizes[d] = 1;
  GatherDims dims;
  for (int64_t i = 0; i < d; ++i) dims.offset_dims.push_back(i);
  for (int64_t i = d + rank; i < result.rank(); ++i) dims.offset_dims.push_back(i);
  dims.collapsed_slice_dims = {d};
  dims.start_index_map = {d};
  dims.index_vector_dim = rank;
  return gather(x, indices, dims, sizes);
}

}  // namespace torch_tpu::hlo
