// SPDX-License-Identifier: Apache-2.0 - Products of many matrices of unequal sizes in one, plain and of scaled float8.
#include <algorithm>

#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"

namespace torch_tpu::ops {
namespace {

// Groups are ranges of one dimension, known at run time by where they end. Work goes by tiles of
// fixed size, each within one group; their number is known at run time as well, so it costs what
// the groups hold and not (number of groups) x (all rows).
struct Tiles {
  int64_t size = 0;       // elements a tile
  Value starts, ends;     // [groups]
  Value counts, through;  // tiles of each group, and of all groups up to it
  Value total;            // 0-dim
};

Tiles tiles_of(Call& c, int64_t length, int64_t groups) {
  hlo::Builder& b = c.builder();
  Tiles t;
  t.size = 8;
  while (t.size < 128 && t.size * groups < length) t.size *= 2;
  const auto n = static_cast<double>(length);
  t.ends = hlo::minimum(hlo::maximum(hlo::convert(c.tensor("offs"), DType::S32), 0), n);
  const Value shifted[] = {hlo::zeros(b, {DType::S32, {1}}),
                           hlo::slice_dim(t.ends, 0, 0, groups - 1)};
  t.starts = groups == 1 ? shifted[0] : hlo::concatenate(shifted, 0);
  const auto size = static_cast<double>(t.size);
  t.counts = (hlo::maximum(t.ends - t.starts, 0) + (size - 1)) / size;
  const hlo::Type square = {DType::S32, {groups, groups}};
  Value upto = hlo::le(hlo::iota(b, square, 1), hlo::iota(b, square, 0));
  Value all = hlo::broadcast_in_dim(t.counts, square.dims, {1});
  t.through = hlo::reduce(hlo::select(upto, all, hlo::zeros_like(all)), {1}, hlo::Reduce::Add);
  t.total = hlo::reduce(t.counts, {0}, hlo::Reduce::Add);
  return t;
}

struct Tile {
  Value group;  // 0-dim
  Value first;  // 0-dim, where it starts
  Value valid;  // [size], which of its elements are of the group
};

Tile tile_at(const Tiles& t, const Value& i) {
  const auto at = [](const Value& list, const Value& k) {
    const Value starts[] = {k};
    return hlo::reshape(hlo::dynamic_slice(list, starts, {1}), {});
  };
  Tile tile;
  tile.group = hlo::reduce(hlo::convert(hlo::le(t.through, i), DType::S32), {0}, hlo::Reduce::Add);
  Value within = i - (at(t.through, tile.group) - at(t.counts, tile.group));
  tile.first = at(t.starts, tile.group) + within * static_cast<double>(t.size);
  Value position = hlo::iota(i.builder(), {DType::S32, {t.size}}, 0) + tile.first;
  tile.valid = hlo::lt(position, at(t.ends, tile.group));
  return tile;
}

Value rows_at(const Value& x, const Value& first, int64_t size) {
  Value zero = hlo::scalar(x.builder(), DType::S32, 0);
  const Value starts[] = {first, zero};
  return hlo::dynamic_slice(x, starts, {size, x.dim(1)});
}

Value more_rows(const Value& x, int64_t rows) {
  return hlo::pad(x, hlo::scalar(x.builder(), x.dtype(), 0), {0, 0}, {rows, 0});
}

Value for_each_tile(const Tiles& t, const Value& out,
                    const std::function<Value(const Tile&, const Value&)>& fn) {
  const Value init[] = {hlo::zeros(out.builder(), {DType::S32, {}}), out};
  return hlo::while_loop(
      init, [&](const Values& v) { return hlo::lt(v[0], t.total); },
      [&](const Values& v) { return Values{v[0] + 1.0, fn(tile_at(t, v[0]), v[1])}; })[1];
}

// a [m, k] by groups of rows, b [groups, k, n] -> [m, n]; rows of no group are zero.
Value grouped_rows(Call& c, const Value& a, const Value& b) {
  const int64_t m = a.dim(0), groups = b.dim(0);
  const Tiles t = tiles_of(c, m, groups);
  Value padded = more_rows(a, t.size);
  Value out = hlo::zeros(c.builder(), {hlo::opmath(a.dtype()), {m + t.size, b.dim(2)}});
  out = for_each_tile(t, out, [&](const Tile& tile, const Value& so_far) {
    Value zero = hlo::scalar(c.builder(), DType::S32, 0);
    const Value starts[] = {tile.group, zero, zero};
    Value matrix = hlo::squeeze(hlo::dynamic_slice(b, starts, {1, b.dim(1), b.dim(2)}), 0);
    Value product = matrix_product(c, rows_at(padded, tile.first, t.size), matrix);
    Value old = rows_at(so_far, tile.first, t.size);
    Value mask = hlo::broadcast_in_dim(tile.valid, product.dims(), {0});
    const Value place[] = {tile.first, zero};
    return hlo::dynamic_update_slice(so_far, hlo::select(mask, product, old), place);
  });
  return hlo::slice_dim(out, 0, 0, m);
}

// a [m, k], b [k, n] by groups of k -> [groups, m, n]
Value grouped_inner(Call& c, const Value& a, const Value& b, int64_t groups) {
  const Tiles t = tiles_of(c, b.dim(0), groups);
  Value left = more_rows(transposed(a), t.size), right = more_rows(b, t.size);
  Value out = hlo::zeros(c.builder(), {hlo::opmath(a.dtype()), {groups, a.dim(0), b.dim(1)}});
  return for_each_tile(t, out, [&](const Tile& tile, const Value& so_far) {
    const auto masked = [&](const Value& x) {
      Value rows = rows_at(x, tile.first, t.size);
      return hlo::select(hlo::broadcast_in_dim(tile.valid, rows.dims(), {0}), rows,
                         hlo::zeros_like(rows));
    };
    Value product = contract(c, masked(left), masked(right), {}, {}, {0}, {0});
    Value zero = hlo::scalar(c.builder(), DType::S32, 0);
    const Value place[] = {tile.group, zero, zero};
    Value old = hlo::dynamic_slice(so_far, place, {1, a.dim(0), b.dim(1)});
    return hlo::dynamic_update_slice(so_far, old + hlo::unsqueeze(product, 0), place);
  });
}

Value grouped_product(Call& c, const Value& a, const Value& b) {
  const bool ragged = a.rank() == 2 || b.rank() == 2;
  c.check((a.rank() == 2 || a.rank() == 3) && (b.rank() == 2 || b.rank() == 3),
          "mat_a and mat_b have to be 2D or 3D, got ", a.dims(), " and ", b.dims());
  c.check(a.dim(-1) == b.dim(-2), "contraction dimension of mat_a and mat_b must match, got ",
          a.dims(), " and ", b.dims());
  c.check(c.has("offs") == ragged,
          "Have to provide offsets if there is a 2d matrix, and only then");
  if (!ragged) {
    c.check(a.dim(0) == b.dim(0), "batched dimension has to match, got ", a.dims(), " and ",
            b.dims());
    return matrix_product(c, a, b);
  }
  const TensorArg& offs = c.meta("offs");
  c.check(offs.rank() == 1, "offs has to be 1D, got ", offs.sizes);
  c.check(offs.dtype == DType::S32, "Offsets have to be int32, got ", offs.dtype);
  const int64_t groups = offs.sizes[0];
  for (const Value& x : {a, b}) {
    c.check(x.rank() == 2 || x.dim(0) == groups, "the number of matrices (", x.dim(0),
            ") does not fit the number of offsets (", groups, ")");
  }
  if (groups == 0) {
    return a.rank() == 2 && b.rank() == 2
               ? hlo::zeros(c.builder(), {hlo::opmath(a.dtype()), {0, a.dim(0), b.dim(1)}})
               : hlo::zeros(c.builder(), {hlo::opmath(a.dtype()), {a.dim(-2), b.dim(-1)}});
  }
  if (b.rank() == 3) return grouped_rows(c, a, b);
  if (a.rank() == 2) return grouped_inner(c, a, b, groups);
  return transposed(grouped_rows(c, transposed(b), transposed(a)));
}

// The scale of each row of `mat` (or column, for the second operand), ready to multiply it.
Value scaled(Call& c, const char* mat, const Value& s, const char* scale, bool rows) {
  Value x = c.tensor(mat, DType::F32);
  const Dims dims = rows ? Dims{x.dim(-2), 1} : Dims{1, x.dim(-1)};
  const int64_t groups = x.rank() == 3 ? x.dim(0) : 1, wanted = groups * hlo::element_count(dims);
  c.check(s.elements() == wanted, scale, " must have ", wanted, " elements, one for each ",
          rows ? "row" : "column", " of ", mat, ", got sizes ", s.dims());
  return x * hlo::reshape(s, x.rank() == 3 ? Dims{groups, dims[0], dims[1]} : dims);
}

}  // namespace

// Row, column or inner ranges ending at `offs`, or a batch of products without it.
TPU_OP(
    "aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? "
    "out_dtype=None) -> Tensor") {
  const DType dtype = c.dtype_of("self");
  c.check(dtype == c.dtype_of("mat2"),
          "expected mat_a and mat_b to have the same dtype, but got: ", dtype,
          " != ", c.dtype_of("mat2"));
  reject_bool(c, dtype);
  c.check(!c.has("bias"), "Bias not supported yet");
  Value product = grouped_product(c, c.tensor("self"), c.tensor("mat2"));
  return {hlo::convert(product, c.dtype("out_dtype").value_or(dtype))};
}

// The same of float8 matrices with a scale for each row of self and each column of mat2. Where the
// groups are ranges of the inner dimension each has scales of its own, which follow one another.
static Values scaled_grouped(Call& c, const Value& scale_a, const Value& scale_b) {
  const TensorArg &a = c.meta("self"), &b = c.meta("mat2");
  c.check(!c.has("bias"), "Bias not supported yet");
  Value product;
  if (a.rank() == 2 && b.rank() == 2) {
    product = grouped_product(c, c.tensor("self", DType::F32), c.tensor("mat2", DType::F32));
    const int64_t groups = product.dim(0);
    const auto shaped = [&](const Value& s, const char* name, const Dims& dims) {
      c.check(s.elements() == hlo::element_count(dims), name, " must have ",
              hlo::element_count(dims), " elements, got sizes ", s.dims());
      return hlo::reshape(s, dims);
    };
    product = product * shaped(scale_a, "scale_a", {groups, product.dim(1), 1}) *
              shaped(scale_b, "scale_b", {groups, 1, product.dim(2)});
  } else {
    product = grouped_product(c, scaled(c, "self", scale_a, "scale_a", true),
                              scaled(c, "mat2", scale_b, "scale_b", false));
  }
  return {hlo::convert(product, c.dtype("out_dtype").value_or(DType::BF16))};
}

TPU_OP(
    "aten::_scaled_grouped_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? "
    "offs=None, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool "
    "use_fast_accum=False) -> Tensor") {
  c.check(!c.has("scale_result"), "Scale result not supported yet");
  return scaled_grouped(c, c.tensor("scale_a", DType::F32), c.tensor("scale_b", DType::F32));
}

// With the kind of scales said, of which only those of rows are supported.
TPU_OP(
    "aten::_scaled_grouped_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] "
    "swizzle_a, Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? offs=None, Tensor? "
    "bias=None, ScalarType? out_dtype=None, int[] contraction_dim=[], bool use_fast_accum=False) "
    "-> Tensor") {
  constexpr int64_t kRowwise = 1;  // torch.nn.functional.ScalingType.RowWise
  const Dims rowwise = {kRowwise};
  c.check_supported(c.ints("recipe_a") == rowwise && c.ints("recipe_b") == rowwise,
                    "groups of scaled matrices must have one scale a row (ScalingType.RowWise), "
                    "got recipes ",
                    c.ints("recipe_a"), " and ", c.ints("recipe_b"));
  const Values a = c.tensors("scale_a", DType::F32), b = c.tensors("scale_b", DType::F32);
  c.check_value(a.size() == 1 && b.size() == 1, "expected one tensor of scales for each operand, ",
                "got ", a.size(), " and ", b.size());
  return scaled_grouped(c, a[0], b[0]);
}

}  // namespace torch_tpu::ops
