// SPDX-License-Identifier: Apache-2.0 - Products of float8 and float4 matrices that carry scales, per tensor, row or block.
//
// Both operands are seen as [rows, k]: self, and mat2 transposed. A scale of the whole tensor or of
// a row multiplies the product; scales of blocks along k multiply the operand before it.
#include <algorithm>

#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"
#include "src/ops/quantize.h"

namespace torch_tpu::ops {
namespace {

// PyTorch's torch.nn.functional.ScalingType.
enum Scaling : int64_t { Tensorwise, Rowwise, Block1x16, Block1x32, Block1x128, Block128x128 };

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t block_rows(Scaling how) { return how == Block128x128 ? 128 : 1; }
int64_t block_columns(Scaling how) { return how == Block1x16 ? 16 : how == Block1x32 ? 32 : 128; }

struct Operand {
  Value x;      // [rows, k], F32
  Value scale;  // of the product: 0-dim, or [rows]; empty if 1
  int64_t rows() const { return x.dim(0); }
  int64_t k() const { return x.dim(1); }
};

Operand operand(Call& c, const char* name, bool second) {
  const TensorArg& t = c.meta(name);
  Value x = c.tensor(name);
  if (second) x = transposed(x);
  // Pairs of float4 come as bytes.
  return {t.dtype == DType::U8 ? unpacked_float4(x) : hlo::convert(x, DType::F32), {}};
}

// Scales of blocks as the hardware of others wants them: 128 rows by 4 columns lie together as
// [32][4][4], row r and column c at [r % 32][r / 32][c].
Value unswizzled(Call& c, const Value& scale, const char* name, int64_t rows, int64_t columns) {
  const int64_t down = ceil_div(rows, 128), across = ceil_div(columns, 4);
  c.check(scale.elements() == down * across * 512,
          "Invalid blockwise scaling configuration: ", name, " should have ", down * across * 512,
          " elements, got ", scale.elements());
  Value tiles = hlo::reshape(scale, {down, across, 32, 4, 4});
  tiles = hlo::reshape(hlo::transpose(tiles, {0, 3, 2, 1, 4}), {down * 128, across * 4});
  return hlo::slice(tiles, {0, 0}, {rows, columns}, {1, 1});
}

// Multiplies `o` by one of its scales. k_first: a matrix of block scales has k along dimension 0.
void apply(Call& c, Operand& o, const Value& given, const char* name, Scaling how, bool swizzled,
           bool k_first) {
  Value scale = hlo::convert(given, DType::F32);
  if (how == Tensorwise || how == Rowwise) {
    const int64_t wanted = how == Tensorwise ? 1 : o.rows();
    c.check_value(scale.elements() == wanted, name, " must have ", wanted, " Float elements, got ",
                  scale.elements());
    scale = hlo::reshape(scale, how == Tensorwise ? Dims{} : Dims{o.rows()});
    o.scale = o.scale ? o.scale * scale : scale;
    return;
  }
  const int64_t height = block_rows(how), width = block_columns(how);
  const int64_t down = ceil_div(o.rows(), height), across = ceil_div(o.k(), width);
  if (swizzled) {
    scale = unswizzled(c, scale, name, down, across);
  } else {
    if (k_first && scale.rank() == 2) scale = transposed(scale);
    // The end of k may be padded.
    c.check(scale.rank() == 2 && scale.dim(0) == down && scale.dim(1) >= across,
            "Invalid blockwise scaling configuration: ", name, " must hold ", down, " by ", across,
            " scales, got sizes ", given.dims());
    scale = hlo::slice(scale, {0, 0}, {down, across}, {1, 1});
  }
  Value wide = hlo::broadcast_in_dim(scale, {down, height, across, width}, {0, 2});
  wide = hlo::reshape(wide, {down * height, across * width});
  o.x = o.x * hlo::slice(wide, {0, 0}, {o.rows(), o.k()}, {1, 1});
}

Values product(Call& c, const Operand& a, const Operand& b) {
  Value y = contract(c, a.x, b.x, {}, {}, {1}, {1});
  const auto shaped = [](const Value& scale, bool rows) {
    if (scale.rank() == 0) return scale;
    return hlo::unsqueeze(scale, rows ? 1 : 0);
  };
  if (a.scale) y = y * shaped(a.scale, true);
  if (b.scale) y = y * shaped(b.scale, false);
  if (c.has("bias")) y = y + c.tensor("bias", DType::F32);
  return {y};
}

void check_operands(Call& c) {
  const TensorArg &a = c.meta("self"), &b = c.meta("mat2");
  c.check(a.rank() == 2 && b.rank() == 2, "mat1 and mat2 must be matrices, got ", a.sizes, " and ",
          b.sizes);
  c.check(a.sizes[1] == b.sizes[0], "mat1 and mat2 shapes cannot be multiplied (", a.sizes[0], "x",
          a.sizes[1], " and ", b.sizes[0], "x", b.sizes[1], ")");
  for (const TensorArg* t : {&a, &b}) {
    c.check(t->dtype == DType::U8 || hlo::is_floating(t->dtype),
            "Expected both inputs to be fp8 or fp4 types but got ", a.dtype, " and ", b.dtype);
  }
}

// What the sizes and dtype of a scale say about it.
Scaling scaling_of(Call& c, const Operand& o, const char* name, bool second) {
  const TensorArg& s = c.meta(name);
  if (s.dtype == DType::F8E8M0FNU) return Block1x32;
  if (s.dtype == DType::F8E4M3FN) return Block1x16;
  if (s.elements() == 1) return Tensorwise;
  if (s.elements() == o.rows() && (s.rank() < 2 || s.sizes[second ? 0 : 1] == 1)) return Rowwise;
  const int64_t across = ceil_div(o.k(), 128);
  const Dims one = second ? Dims{across, o.rows()} : Dims{o.rows(), across};
  const Dims square =
      second ? Dims{across, ceil_div(o.rows(), 128)} : Dims{ceil_div(o.rows(), 128), across};
  if (s.sizes == one) return Block1x128;
  c.check(s.sizes == square, "Invalid scaling configuration: ", name, " of sizes ", s.sizes,
          " is neither one number, nor one for each ", second ? "column" : "row", " (", o.rows(),
          "), nor one for blocks of 1x128 (", one, ") or 128x128 (", square, ")");
  return Block128x128;
}

}  // namespace

// (scale_a self) @ (scale_b mat2) + bias
TPU_OP(
    "aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor") {
  check_operands(c);
  Operand a = operand(c, "self", false), b = operand(c, "mat2", true);
  const auto scaled = [&](Operand& o, const char* name, bool second) {
    const Scaling how = scaling_of(c, o, name, second);
    const bool swizzled = how == Block1x16 || how == Block1x32;
    apply(c, o, c.tensor(name), name, how, swizzled, second);
  };
  scaled(a, "scale_a", false);
  scaled(b, "scale_b", true);
  Value y = product(c, a, b)[0];
  const DType out = c.dtype("out_dtype").value_or(c.dtype_of("self"));
  if (c.has("scale_result") && hlo::is_float8(out)) {
    y = y * hlo::reshape(c.tensor("scale_result", DType::F32), {});
  }
  return {hlo::convert(y, out)};
}

// The same with the kinds of scales said, and as many levels of them as one likes.
TPU_OP(
    "aten::_scaled_mm_v2(Tensor self, Tensor mat2, Tensor[] scale_a, int[] recipe_a, int[] "
    "swizzle_a, Tensor[] scale_b, int[] recipe_b, int[] swizzle_b, Tensor? bias, ScalarType? "
    "out_dtype, int[] contraction_dim=[], bool use_fast_accum=False) -> Tensor") {
  check_operands(c);
  Operand a = operand(c, "self", false), b = operand(c, "mat2", true);
  const auto scaled = [&](Operand& o, const char* name, const char* recipe, const char* swizzle) {
    const Values scales = c.tensors(name);
    const Dims how = c.ints(recipe), swizzles = c.ints(swizzle);
    c.check_value(how.size() == scales.size(), name, " and ", recipe,
                  " must have the same length, got ", scales.size(), " and ", how.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      c.check_value(how[i] >= Tensorwise && how[i] <= Block128x128, "unknown scaling type ",
                    how[i]);
      const auto kind = static_cast<Scaling>(how[i]);
      apply(c, o, scales[i], name, kind, i < swizzles.size() && swizzles[i] == 1,
            kind == Block128x128);
    }
  };
  scaled(a, "scale_a", "recipe_a", "swizzle_a");
  scaled(b, "scale_b", "recipe_b", "swizzle_b");
  return {hlo::convert(product(c, a, b)[0], c.dtype("out_dtype").value_or(c.dtype_of("self")))};
}

// ---- weights of few bits ------------------------------------------------------------------------

// self @ (mat2 scales)', mat2 int8 [n, k] with a scale for each row.
TPU_OP("aten::_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor") {
  const TensorArg &a = c.meta("self"), &w = c.meta("mat2"), &scales = c.meta("scales");
  require_real_float(c, a.dtype);
  c.check(a.rank() == 2 && w.rank() == 2 && a.sizes[1] == w.sizes[1],
          "self and mat2 must be matrices with equal last dimensions, got ", a.sizes, " and ",
          w.sizes);
  c.check(w.dtype == DType::S8, "expect mat2 to be int8 tensor, got ", w.dtype);
  c.check(scales.rank() == 1 && scales.sizes[0] == w.sizes[0],
          "expect scales to be 1d tensor with size ", w.sizes[0], ", got ", scales.sizes);
  const DType compute = hlo::opmath(a.dtype);
  Value y = contract(c, c.tensor("self"), c.tensor("mat2", a.dtype), {}, {}, {1}, {1});
  return {hlo::convert(hlo::convert(y, compute) * c.tensor("scales", compute), a.dtype)};
}

namespace {

// Four-bit weights [n, k] in words of 8, in the order of PyTorch's CUDA kernel, so that packed
// checkpoints can be used: [n / 8, k / (16 tiles), 32, tiles / 2]. With n = 8 N + r and
// k = 16 (tiles K + 2 p + i) + 8 h + 2 q + b the word is [N, K, 4 r + q, p] and the weight lies at
// bit 4 (2 i + h) + 16 b.
constexpr int64_t kTile = 16;

Value positions(hlo::Builder& b) {
  const int64_t at[] = {0, 16, 4, 20, 8, 24, 12, 28};  // by [i, h, b]
  return hlo::constant_ints(b, {DType::S32, {2, 2, 2}}, at);
}

Value packed(const Value& weights, int64_t tiles) {
  const int64_t n = weights.dim(0), k = weights.dim(1);
  Value x = hlo::reshape(weights, {n / 8, 8, k / (kTile * tiles), tiles / 2, 2, 2, 4, 2});
  x = hlo::transpose(x, {0, 2, 1, 6, 3, 4, 5, 7});
  x = hlo::shift_left(x, hlo::broadcast_in_dim(positions(x.builder()), x.dims(), {5, 6, 7}));
  x = hlo::reduce(x, {5, 6, 7}, hlo::Reduce::Add);
  return hlo::reshape(x, {n / 8, k / (kTile * tiles), 32, tiles / 2});
}

Value unpacked(const Value& words) {
  const int64_t n = words.dim(0), blocks = words.dim(1), pairs = words.dim(3);
  Value x = hlo::reshape(words, {n, blocks, 8, 4, pairs});
  const Dims wide = {n, blocks, 8, 4, pairs, 2, 2, 2};
  x = hlo::shift_right_logical(hlo::broadcast_in_dim(x, wide, {0, 1, 2, 3, 4}),
                               hlo::broadcast_in_dim(positions(x.builder()), wide, {5, 6, 7}));
  x = hlo::and_(x, hlo::full_like(x, 15));
  x = hlo::transpose(x, {0, 2, 1, 4, 5, 6, 3, 7});
  return hlo::reshape(x, {n * 8, blocks * pairs * 2 * kTile});
}

}  // namespace

// self: uint8 [n, k / 2], the weight of even k in the upper half of a byte.
TPU_OP("aten::_convert_weight_to_int4pack(Tensor self, int innerKTiles) -> Tensor") {
  const TensorArg& w = c.meta("self");
  const int64_t tiles = c.integer("innerKTiles");
  c.check(w.rank() == 2 && w.dtype == DType::U8, "expect weight to be a uint8 matrix, got ",
          w.dtype, " of sizes ", w.sizes);
  c.check(tiles == 2 || tiles == 4 || tiles == 8, "innerKTiles must be 2, 4 or 8, got ", tiles);
  c.check(w.sizes[0] % 8 == 0, "the number of rows must be a multiple of 8, got ", w.sizes[0]);
  c.check(w.sizes[1] * 2 % (kTile * tiles) == 0, "the number of columns (", w.sizes[1] * 2,
          ") must be a multiple of ", kTile * tiles);
  Value bytes = c.tensor("self", DType::S32);
  const Value halves[] = {
      hlo::unsqueeze(hlo::shift_right_logical(bytes, hlo::full_like(bytes, 4)), 2),
      hlo::unsqueeze(hlo::and_(bytes, hlo::full_like(bytes, 15)), 2)};
  Value weights = hlo::reshape(hlo::concatenate(halves, 2), {w.sizes[0], w.sizes[1] * 2});
  return {packed(weights, tiles)};
}

namespace {

// self @ w' with w = (q - 8) scale + zero; both are given for groups of qGroupSize along k.
Values int4_product(Call& c, const Value& q, const Value& scale, const Value& zero) {
  const TensorArg& a = c.meta("self");
  const int64_t group = c.integer("qGroupSize"), n = q.dim(0), k = q.dim(1);
  Value w = hlo::convert(q, DType::F32) - 8.0;
  w = hlo::reshape(w, {n, k / group, group});
  w = w * hlo::unsqueeze(scale, 2) + hlo::unsqueeze(zero, 2);
  w = hlo::reshape(hlo::convert(w, a.dtype), {n, k});
  return {hlo::convert(contract(c, c.tensor("self"), w, {}, {}, {1}, {1}), a.dtype)};
}

Value packed_weight(Call& c) {
  const TensorArg &a = c.meta("self"), &w = c.meta("mat2");
  require_real_float(c, a.dtype);
  c.check(w.dtype == DType::S32 && w.rank() == 4 && w.sizes[2] == 32,
          "mat2 must be what _convert_weight_to_int4pack returned, got ", w.dtype, " of sizes ",
          w.sizes);
  const int64_t k = w.sizes[1] * w.sizes[3] * 2 * kTile, group = c.integer("qGroupSize");
  c.check(a.rank() == 2 && a.sizes[1] == k, "self must be a matrix with ", k, " columns, got ",
          a.sizes);
  c.check(group > 0 && k % group == 0, "qGroupSize (", group, ") must divide ", k);
  return unpacked(c.tensor("mat2"));
}

}  // namespace

TPU_OP(
    "aten::_weight_int4pack_mm(Tensor self, Tensor mat2, int qGroupSize, Tensor qScaleAndZeros) -> "
    "Tensor") {
  Value q = packed_weight(c);
  const int64_t groups = q.dim(1) / c.integer("qGroupSize");
  const TensorArg& s = c.meta("qScaleAndZeros");
  c.check(s.sizes == Dims{groups, q.dim(0), 2}, "qScaleAndZeros must have sizes [", groups, ", ",
          q.dim(0), ", 2], got ", s.sizes);
  Value both = c.tensor("qScaleAndZeros", DType::F32);
  const auto part = [&](int64_t i) {
    return transposed(hlo::squeeze(hlo::slice_dim(both, 2, i, i + 1), 2));
  };
  return int4_product(c, q, part(0), part(1));
}

TPU_OP(
    "aten::_weight_int4pack_mm_with_scales_and_zeros(Tensor self, Tensor mat2, int qGroupSize, "
    "Tensor qScale, Tensor qZeros) -> Tensor") {
  Value q = packed_weight(c);
  const Dims wanted = {q.dim(1) / c.integer("qGroupSize"), q.dim(0)};
  for (const char* name : {"qScale", "qZeros"})
    c.check(c.meta(name).sizes == wanted, name, " must have sizes ", wanted, ", got ",
            c.meta(name).sizes);
  return int4_product(c, q, transposed(c.tensor("qScale", DType::F32)),
                      transposed(c.tensor("qZeros", DType::F32)));
}

}  // namespace torch_tpu::ops
