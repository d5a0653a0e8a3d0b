// SPDX-License-Identifier: Apache-2.0 - embedding and embedding_bag, with their gradients and renormalization.
#include <limits>
#include <string>

#include "src/ops/index.h"

namespace torch_tpu::ops {

using graph::CheckSpec;
using hlo::Type;

namespace {

constexpr const char* kOutOfRange = "index out of range in self: {}";

void check_indices(Call& c, std::string_view name) {
  DType dtype = c.dtype_of(name);
  c.check(dtype == DType::S64 || dtype == DType::S32, "Expected tensor for argument '", name,
          "' to have one of the following scalar types: Long, Int; but got ", dtype, " instead");
}

// How often every row number below `rows` occurs in index (1-dim), of the given dtype.
Value occurrences(const Value& index, int64_t rows, DType dtype) {
  hlo::Builder& b = index.builder();
  return scatter_rows(hlo::zeros(b, {dtype, {rows}}), 0, index,
                      hlo::constant(b, {dtype, {index.elements()}}, 1), hlo::add);
}

// The sum of gradient rows that belong to the same weight row: grad [n, width], index [n]. Rows
// whose index is padding_idx count for nothing: their index moves out of range, where scatter drops
// it. scale_grad_by_freq divides by how often the row was used.
Value sum_rows(const Value& grad, Value index, int64_t num_weights, int64_t padding_idx,
               bool scale_grad_by_freq) {
  hlo::Builder& b = grad.builder();
  auto number = [&](int64_t v) { return hlo::constant_int(b, {index.dtype(), {}}, v); };
  Value updates = grad;
  if (scale_grad_by_freq) {
    Value count = hlo::take(occurrences(index, num_weights, grad.dtype()), index, 0);
    updates = updates / hlo::broadcast_in_dim(count, grad.dims(), {0});
  }
  if (padding_idx >= 0)
    index = hlo::select(hlo::eq(index, number(padding_idx)), number(num_weights), index);
  return scatter_rows(hlo::zeros(b, {grad.dtype(), {num_weights, grad.dim(1)}}), 0, index, updates,
                      hlo::add);
}

}  // namespace

// embedding(weight, indices)[i..., :] = weight[indices[i...], :].
TPU_OP(
    "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool "
    "scale_grad_by_freq=False, bool sparse=False) -> Tensor") {
  c.check(c.meta("weight").rank() == 2, "'weight' must be 2-D, got ", c.meta("weight").rank(),
          "-D");
  check_indices(c, "indices");
  Value weight = c.tensor("weight");
  Value indices = checked_index(c, c.tensor("indices"), weight.dim(0), Negative::Reject,
                                CheckSpec::Index, kOutOfRange);
  Dims result = indices.dims();
  result.push_back(weight.dim(1));
  if (hlo::element_count(result) == 0) return {hlo::zeros(c.builder(), {weight.dtype(), result})};
  return {hlo::take(weight, indices, 0)};
}

// d weight[r, :] = sum of grad[i..., :] over the places where indices[i...] = r.
TPU_OP(
    "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt "
    "padding_idx, bool scale_grad_by_freq) -> Tensor") {
  check_indices(c, "indices");
  const DType dtype = c.dtype_of("grad_output");
  Value grad = c.tensor("grad_output", hlo::opmath(dtype));
  const int64_t rows = c.integer("num_weights"), width = grad.dim(-1);
  Value indices = c.tensor("indices");
  const int64_t n = indices.elements();
  if (n == 0 || width == 0) return {hlo::zeros(c.builder(), {dtype, {rows, width}})};
  // The forward pass has told of indices out of range; their rows are dropped by the scatter.
  indices = trusted_index(indices, rows, Negative::Reject);
  Value y = sum_rows(hlo::reshape(grad, {n, width}), hlo::reshape(indices, {n}), rows,
                     c.integer("padding_idx"), c.flag("scale_grad_by_freq"));
  return {hlo::convert(y, dtype)};
}

// Rows of self that indices name, scaled down to norm max_norm where they are longer.
TPU_OP(
    "aten::embedding_renorm(Tensor self, Tensor indices, float max_norm, float norm_type) -> "
    "Tensor") {
  check_indices(c, "indices");
  c.check(c.meta("self").rank() == 2, "'self' must be 2-D, got ", c.meta("self").rank(), "-D");
  const DType dtype = c.dtype_of("self"), compute = hlo::opmath(dtype);
  Value self = c.tensor("self", compute);
  Value indices = c.tensor("indices");
  if (indices.elements() == 0 || self.elements() == 0) return {c.tensor("self")};
  const int64_t rows = self.dim(0);
  indices = checked_index(c, indices, rows, Negative::Reject, CheckSpec::Index, kOutOfRange);
  hlo::Builder& b = c.builder();
  Value used = scatter_rows(
      hlo::zeros(b, {DType::Pred, {rows}}), 0, hlo::reshape(indices, {indices.elements()}),
      hlo::constant_int(b, {DType::Pred, {indices.elements()}}, 1), overwrite);
  Value size = hlo::abs(self), norm;
  if (c.equals("norm_type", std::numeric_limits<double>::infinity())) {
    norm = hlo::reduce(size, {1}, hlo::Reduce::Maximum);
  } else if (c.equals("norm_type", 2)) {
    norm = hlo::sqrt(hlo::reduce(size * size, {1}, hlo::Reduce::Add));
  } else if (c.equals("norm_type", 1)) {
    norm = hlo::reduce(size, {1}, hlo::Reduce::Add);
  } else {
    Value p = c.scalar("norm_type", compute);
    norm = hlo::power(hlo::reduce(hlo::power(size, p), {1}, hlo::Reduce::Add), 1.0 / p);
  }
  Value max_norm = c.scalar("max_norm", compute);
  Value scale = hlo::select(used & hlo::gt(norm, max_norm), max_norm / (norm + 1e-7),
                            hlo::full_like(norm, 1));
  return {hlo::convert(self * hlo::broadcast_in_dim(scale, self.dims(), {0}), dtype)};
}

// ---- embedding_bag
// -------------------------------------------------------------------------------

namespace {

enum BagMode : int64_t { kSum = 0, kMean = 1, kMax = 2 };

// Bag b takes the weight rows indices[offsets[b]], ..., indices[offsets[b + 1] - 1]; those that
// equal padding_idx count for nothing. Results: the bags; the bag of every index; the number of
// indices in every bag; for max, the weight row each element of a bag came from.
Values embedding_bag(Call& c) {
  check_indices(c, "indices");
  check_indices(c, "offsets");
  c.check(c.meta("indices").rank() == 1, "input has to be a 1D Tensor, got ",
          c.meta("indices").rank(), " dimensions");
  c.check(c.meta("offsets").rank() == 1, "offsets has to be a 1D Tensor, got ",
          c.meta("offsets").rank(), " dimensions");
  c.check(c.meta("weight").rank() == 2, "weight has to be a 2D Tensor, got ",
          c.meta("weight").rank(), " dimensions");
  hlo::Builder& b = c.builder();
  const int64_t mode = c.integer("mode"), padding_idx = c.integer("padding_idx");
  const DType dtype = c.dtype_of("weight"), compute = hlo::opmath(dtype);
  const DType index_type = graph::promote(c.dtype_of("indices"), c.dtype_of("offsets"));
  Value weight = c.tensor("weight");
  const int64_t rows = weight.dim(0), width = weight.dim(1), n = c.meta("indices").elements();
  Value offsets = c.tensor("offsets", index_type);
  int64_t bags = offsets.elements();
  if (c.flag("include_last_offset")) {
    c.check(bags >= 1, "include_last_offset: number of offset should be at least 1");
    bags -= 1;
  }
  if (bags == 0 || n == 0) {
    return {hlo::zeros(b, {dtype, {bags, width}}), hlo::zeros(b, {index_type, {n}}),
            hlo::zeros(b, {index_type, {bags}}),
            hlo::zeros(b, {index_type, {mode == kMax ? bags : 0, mode == kMax ? width : 0}})};
  }
  Value first = hlo::slice_dim(offsets, 0, 0, 1);
  c.fail_if(hlo::ne(first, 0), CheckSpec::Runtime,
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            "position 0. However, got {}",
            first);
  c.fail_if(hlo::gt(offsets, static_cast<double>(n)), CheckSpec::Runtime,
            "offsets[-1] can not be greater than input's length " + std::to_string(n) +
                " but got offsets[-1] of {}",
            offsets);
  Value index =
      checked_index(c, c.tensor("indices"), rows, Negative::Reject, CheckSpec::Runtime,
                    "an index of the input takes value {} which is not in the valid range [0, " +
                        std::to_string(rows) + ")");
  // A bag begins where its offset points: the bag of index i is the number of begins up to i,
  // less 1.
  Value begins =
      scatter_rows(hlo::zeros(b, {DType::S32, {n}}), 0, hlo::slice_dim(offsets, 0, 0, bags),
                   hlo::constant_int(b, {DType::S32, {bags}}, 1), hlo::add);
  Value bag = hlo::maximum(running_sum(c, begins) - 1.0, 0.0);
  Value counted = padding_idx >= 0 ? hlo::ne(index, static_cast<double>(padding_idx))
                                   : hlo::constant_int(b, {DType::Pred, {n}}, 1);
  Value bag_size = scatter_rows(hlo::zeros(b, {DType::S32, {bags}}), 0, bag,
                                hlo::convert(counted, DType::S32), hlo::add);
  Value taken = hlo::convert(hlo::take(weight, index, 0), compute);  // [n, width]
  auto by_row = [](const Value& v, const Dims& dims) {
    return hlo::broadcast_in_dim(v, dims, {0});
  };
  Value counted_rows = by_row(counted, taken.dims());
  Value bag_rows = by_row(bag_size, {bags, width});
  Value y, max_indices = hlo::zeros(b, {index_type, {0, 0}});
  if (mode == kMax) {
    c.check(
        !c.has("per_sample_weights"),
        "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for "
        "mode='sum' (got mode='max')");
    Value low = hlo::lowest(b, compute);
    Value candidates = hlo::select(counted_rows, taken, hlo::broadcast_to(low, taken.dims()));
    Value highest = scatter_rows(hlo::broadcast_to(low, {bags, width}), 0, bag, candidates,
                                 [](const Value& old_value, const Value& update) {
                                   return hlo::maximum(old_value, update);
                                 });
    // Ties go to the first index of the bag.
    Value place = hlo::iota(b, {DType::S32, taken.dims()}, 0);
    Value wins = counted_rows & hlo::eq(candidates, hlo::take(highest, bag, 0));
    place = hlo::select(wins, place, static_cast<double>(n - 1));
    Value first = scatter_rows(hlo::constant_int(b, {DType::S32, {bags, width}}, n - 1), 0, bag,
                               place, [](const Value& old_value, const Value& update) {
                                 return hlo::minimum(old_value, update);
                               });
    Value some = hlo::gt(bag_rows, 0);
    y = hlo::select(some, highest, 0.0);
    max_indices = hlo::select(some, hlo::convert(hlo::take(index, first, 0), index_type), 0.0);
  } else {
    if (c.has("per_sample_weights")) {
      c.check(
          mode == kSum,
          "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported "
          "for mode='sum' (got mode='mean')");
      c.check(c.meta("per_sample_weights").elements() == n,
              "expected per_sample_weights to have the same number of elements as input, got ",
              c.meta("per_sample_weights").elements(), " and ", n);
      taken =
          taken * by_row(hlo::reshape(c.tensor("per_sample_weights", compute), {n}), taken.dims());
    }
    taken = hlo::select(counted_rows, taken, 0.0);
    y = scatter_rows(hlo::zeros(b, {compute, {bags, width}}), 0, bag, taken, hlo::add);
    if (mode == kMean) y = y / hlo::convert(hlo::maximum(bag_rows, 1.0), compute);
  }
  return {hlo::convert(y, dtype), hlo::convert(bag, index_type), hlo::convert(bag_size, index_type),
          max_indices};
}

// Gradient of the weight. In mode max every element of a bag goes back to the row it came from.
Values embedding_bag_backward(Call& c) {
  const DType dtype = c.dtype_of("grad"), compute = hlo::opmath(dtype);
  hlo::Builder& b = c.builder();
  const int64_t rows = c.integer("num_weights"), mode = c.integer("mode"),
                padding_idx = c.integer("padding_idx");
  Value grad = c.tensor("grad", compute);
  const int64_t bags = grad.dim(0), width = grad.dim(1), n = c.meta("indices").elements();
  if (n == 0 || grad.elements() == 0) return {hlo::zeros(b, {dtype, {rows, width}})};
  Value bag_size = c.tensor("bag_size");
  if (mode == kMax) {
    Value some = hlo::broadcast_in_dim(hlo::gt(bag_size, 0), {bags, width}, {0});
    Value row = trusted_index(c.tensor("maximum_indices"), rows, Negative::Reject);
    Value column = hlo::iota(b, {row.dtype(), {bags, width}}, 1);
    Values coordinates = {hlo::unsqueeze(row, 2), hlo::unsqueeze(column, 2)};
    hlo::ScatterDims dims;
    dims.inserted_window_dims = dims.scatter_dims_to_operand_dims = {0, 1};
    dims.index_vector_dim = 2;
    Value y =
        hlo::scatter(hlo::zeros(b, {compute, {rows, width}}), hlo::concatenate(coordinates, 2),
                     hlo::select(some, grad, 0.0), dims, hlo::add);
    return {hlo::convert(y, dtype)};
  }
  Value index = trusted_index(c.tensor("indices"), rows, Negative::Reject);
  Value bag = trusted_index(c.tensor("offset2bag"), bags, Negative::Reject);
  if (mode == kMean) {
    Value count = hlo::convert(hlo::maximum(bag_size, 1.0), compute);
    grad = grad / hlo::broadcast_in_dim(count, grad.dims(), {0});
  }
  Value updates = hlo::take(grad, bag, 0);  // [n, width]
  if (c.has("per_sample_weights")) {
    Value weights = hlo::reshape(c.tensor("per_sample_weights", compute), {n});
    updates = updates * hlo::broadcast_in_dim(weights, updates.dims(), {0});
  }
  Value y = sum_rows(updates, index, rows, padding_idx, c.flag("scale_grad_by_freq"));
  return {hlo::convert(y, dtype)};
}

}  // namespace

TPU_OP_FN(
    "aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool "
    "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, "
    "bool "
    "include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
    Contiguous, embedding_bag);
TPU_OP_FN(
    "aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool "
    "scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, "
    "bool "
    "include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
    Contiguous, embedding_bag);

TPU_OP(
    "aten::_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, "
    "Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int "
    "mode, "
    "bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor") {
  c.check_supported(!c.flag("sparse"),
                    "sparse gradients are not supported on tpu; use sparse=False");
  return embedding_bag_backward(c);
}
TPU_OP_FN(
    "aten::_embedding_bag_dense_backward(Tensor grad, Tensor indices, Tensor offset2bag, Tensor "
    "bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, "
    "Tensor? "
    "per_sample_weights, int padding_idx=-1) -> Tensor",
    Contiguous, embedding_bag_backward);

// d per_sample_weights[i] = grad[bag of i] . weight[indices[i]].
TPU_OP(
    "aten::_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, "
    "Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor") {
  c.check(c.integer("mode") == kSum,
          "embedding_bag_backward: per_sample_weights only supported for mode='sum'");
  const DType dtype = c.dtype_of("grad"), compute = hlo::opmath(dtype);
  const int64_t n = c.meta("indices").elements(), padding_idx = c.integer("padding_idx");
  Value grad = c.tensor("grad", compute), weight = c.tensor("weight", compute);
  if (n == 0 || grad.elements() == 0) return {hlo::zeros(c.builder(), {dtype, {n}})};
  Value index = trusted_index(c.tensor("indices"), weight.dim(0), Negative::Reject);
  Value bag = trusted_index(c.tensor("offset2bag"), grad.dim(0), Negative::Reject);
  Value products = hlo::take(grad, bag, 0) * hlo::take(weight, index, 0);
  Value y = hlo::reduce(products, {1}, hlo::Reduce::Add);
  if (padding_idx >= 0) y = hlo::select(hlo::ne(index, static_cast<double>(padding_idx)), y, 0.0);
  return {hlo::convert(y, dtype)};
}

}  // namespace torch_tpu::ops
