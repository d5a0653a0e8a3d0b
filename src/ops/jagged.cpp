// SPDX-License-Identifier: Apache-2.0 - Rows of unequal numbers of elements, packed one after another, to and from padded tensors.
#include "src/ops/entry.h"
#include "src/ops/index.h"

namespace torch_tpu::ops {
namespace {

Value offsets_at(const Value& offsets, const Value& place) {
  const auto last = static_cast<double>(offsets.dim(0) - 1);
  return hlo::take(offsets, hlo::minimum(hlo::maximum(place, 0.0), last), 0);
}

Values offsets(Call& c) {
  Values all = c.tensors("offsets", DType::S32);
  c.check(!all.empty(), "offsets must not be empty");
  for (const Value& o : all)
    c.check(o.rank() == 1 && o.dim(0) >= 1, "offsets must be 1D and not empty, got sizes ",
            o.dims());
  return all;
}

}  // namespace

// out[b, i, ...] = values[offsets[b] + i] where row b is that long, else the padding; with more
// offsets each element of a row is itself a row of the next.
TPU_OP(
    "aten::_jagged_to_padded_dense_forward(Tensor values, Tensor[] offsets, SymInt[] max_lengths, "
    "float padding_value=0.0) -> Tensor") {
  const Values levels = offsets(c);
  const Dims lengths = c.ints("max_lengths");
  c.check(lengths.size() == levels.size(), "max_lengths must have one number for each of the ",
          levels.size(), " offsets, got ", lengths.size());
  Value values = c.tensor("values");
  c.check(values.rank() >= 1, "values must have at least one dimension");
  hlo::Builder& b = c.builder();
  Value place = hlo::iota(b, {DType::S32, {levels[0].dim(0) - 1}}, 0);
  Value valid = hlo::full_like(hlo::convert(place, DType::Pred), 1);
  for (size_t i = 0; i < levels.size(); ++i) {
    Value start = offsets_at(levels[i], place), end = offsets_at(levels[i], place + 1.0);
    Dims dims = place.dims();
    dims.push_back(lengths[i]);
    Value within = hlo::iota(b, {DType::S32, dims}, place.rank());
    place = hlo::unsqueeze(start, start.rank()) + within;
    valid = hlo::unsqueeze(valid, valid.rank()) & hlo::lt(place, hlo::unsqueeze(end, end.rank()));
  }
  Dims dims = place.dims();
  dims.insert(dims.end(), values.dims().begin() + 1, values.dims().end());
  Value padding = hlo::broadcast_to(c.scalar("padding_value", values.dtype()), dims);
  if (values.elements() == 0 || padding.elements() == 0) return {padding};
  const auto last = static_cast<double>(values.dim(0) - 1);
  Value rows = hlo::take(values, hlo::minimum(hlo::maximum(place, 0.0), last), 0);
  return {
      hlo::select(hlo::broadcast_in_dim(valid, dims, dims_but(valid.rank(), -1)), rows, padding)};
}

// The inverse; elements beyond what is padded are zero.
TPU_OP(
    "aten::_padded_dense_to_jagged_forward(Tensor dense, Tensor[] offsets, SymInt? total_L=None) "
    "-> Tensor") {
  const Values levels = offsets(c);
  Value dense = c.tensor("dense");
  const auto depth = static_cast<int64_t>(levels.size());
  c.check(dense.rank() >= depth + 1, "dense must have at least ", depth + 1,
          " dimensions, got sizes ", dense.dims());
  c.check(c.has("total_L"), "total_L must be given");  // made so before the call
  const int64_t total = c.integer("total_L");
  hlo::Builder& b = c.builder();
  Value place = hlo::iota(b, {DType::S32, {total}}, 0), valid;
  // Which element of dense, as one index into its leading dimensions.
  Value flat = hlo::zeros_like(place);
  int64_t stride = 1;
  for (int64_t i = depth; i-- > 0;) {
    const Value& o = levels[i];
    const Dims square = {total, o.dim(0) - 1};
    Value ends = hlo::slice_dim(o, 0, 1, o.dim(0));
    Value passed = hlo::le(hlo::broadcast_in_dim(ends, square, {1}),
                           hlo::broadcast_in_dim(place, square, {0}));
    Value row = hlo::reduce(hlo::convert(passed, DType::S32), {1}, hlo::Reduce::Add);
    Value within = place - offsets_at(o, row);
    const int64_t length = dense.dim(i + 1);
    c.fail_if(
        hlo::ge(within, static_cast<double>(length)), graph::CheckSpec::Runtime,
        c.op_name() + "(): found a row longer than the padded length " + std::to_string(length));
    Value here = hlo::ge(within, 0) & hlo::lt(within, static_cast<double>(length)) &
                 hlo::lt(row, static_cast<double>(o.dim(0) - 1));
    valid = valid ? valid & here : here;
    flat = flat + within * static_cast<double>(stride);
    stride *= length;
    place = row;
  }
  flat = flat + place * static_cast<double>(stride);
  Dims rows = {dense.dim(0) * stride}, dims = {total};
  for (int64_t i = depth + 1; i < dense.rank(); ++i) {
    rows.push_back(dense.dim(i));
    dims.push_back(dense.dim(i));
  }
  if (dense.elements() == 0) return {hlo::zeros(b, {dense.dtype(), dims})};
  const auto last = static_cast<double>(rows[0] - 1);
  Value taken =
      hlo::take(hlo::reshape(dense, rows), hlo::minimum(hlo::maximum(flat, 0.0), last), 0);
  valid = hlo::broadcast_in_dim(valid, dims, {0});
  return {hlo::select(valid, taken, hlo::zeros_like(taken))};
}

}  // namespace torch_tpu::ops
