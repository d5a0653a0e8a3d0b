// SPDX-License-Identifier: Apache-2.0 - Interpolation: nearest, linear, cubic and antialiased, forward and backward.
//
// All forms work one axis after the other: each output is a weighted sum of a few inputs, at
// positions and with weights that only depend on the sizes. The gradient is the same with the
// table of weights transposed.
#include <algorithm>
#include <cmath>

#include "src/ops/channels_last.h"
#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"
#include "src/ops/pooling.h"

namespace torch_tpu::ops {
namespace {

// For every output position the inputs it is made of and their weights.
using Row = std::vector<std::pair<int64_t, double>>;
using Table = std::vector<Row>;

enum class Kernel : uint8_t { Nearest, NearestExact, Linear, Cubic, LinearAA, CubicAA, LanczosAA };

// PyTorch computes positions in float32 unless the tensor is float64.
template <typename T>
struct Positions {
  T scale;
  bool align_corners;
  T at(int64_t o, bool cubic) const {
    if (align_corners) return scale * static_cast<T>(o);
    const T source = scale * (static_cast<T>(o) + T(0.5)) - T(0.5);
    return source < 0 && !cubic ? T(0) : source;
  }
};

template <typename T>
T step(int64_t in, int64_t out, bool align_corners, double scale) {
  if (align_corners) return out > 1 ? static_cast<T>(in - 1) / static_cast<T>(out - 1) : T(0);
  return scale > 0 ? static_cast<T>(1.0 / scale) : static_cast<T>(in) / static_cast<T>(out);
}

// Keys' cubic, PyTorch's a = -0.75.
template <typename T>
void cubic_weights(T t, T w[4]) {
  constexpr T a = T(-0.75);
  const auto near = [&](T x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  const auto far = [&](T x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  w[0] = far(t + 1);
  w[1] = near(t);
  w[2] = near(1 - t);
  w[3] = far(2 - t);
}

double antialias_filter(Kernel kernel, double x) {
  x = std::abs(x);
  if (kernel == Kernel::LinearAA) return x < 1 ? 1 - x : 0;
  if (kernel == Kernel::CubicAA) {
    constexpr double a = -0.5;
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
  }
  if (x >= 3) return 0;
  if (x == 0) return 1;
  const double px = kPi * x;
  return std::sin(px) / px * std::sin(px / 3) / (px / 3);
}

template <typename T>
Table table_in(Kernel kernel, int64_t in, int64_t out, bool align_corners, double scale) {
  const Positions<T> positions = {step<T>(in, out, align_corners, scale), align_corners};
  Table table(out);
  for (int64_t o = 0; o < out; ++o) {
    Row& row = table[o];
    switch (kernel) {
      case Kernel::Nearest: {
        const auto i = static_cast<int64_t>(
            std::floor(static_cast<float>(positions.scale * static_cast<T>(o))));
        row = {{std::min(i, in - 1), 1.0}};
        break;
      }
      case Kernel::NearestExact: {
        const T source = positions.scale * (static_cast<T>(o) + T(0.5));
        const auto i = static_cast<int64_t>(std::floor(static_cast<float>(source)));
        row = {{std::min(i, in - 1), 1.0}};
        break;
      }
      case Kernel::Linear: {
        const T source = positions.at(o, false);
        const int64_t i = std::min(static_cast<int64_t>(std::floor(source)), in - 1);
        const T t = std::min(std::max(source - static_cast<T>(i), T(0)), T(1));
        row = {{i, static_cast<double>(T(1) - t)},
               {i + (i < in - 1 ? 1 : 0), static_cast<double>(t)}};
        break;
      }
      case Kernel::Cubic: {
        const T source = positions.at(o, true);
        const T floor = std::floor(source);
        T w[4];
        cubic_weights<T>(std::min(std::max(source - floor, T(0)), T(1)), w);
        for (int64_t k = 0; k < 4; ++k) {
          const int64_t i = static_cast<int64_t>(floor) + k - 1;
          row.emplace_back(std::clamp<int64_t>(i, 0, in - 1), static_cast<double>(w[k]));
        }
        break;
      }
      default: {
        const T width = kernel == Kernel::LinearAA ? 2 : kernel == Kernel::CubicAA ? 4 : 6;
        const T s = positions.scale;
        const T support = s >= 1 ? width * T(0.5) * s : width * T(0.5);
        const T inverse = s >= 1 ? T(1) / s : T(1);
        const T center = s * (static_cast<T>(o) + T(0.5));
        const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + T(0.5)), 0);
        const int64_t end = std::min(static_cast<int64_t>(center + support + T(0.5)), in);
        double total = 0;
        for (int64_t i = first; i < end; ++i) {
          const double w =
              antialias_filter(kernel, (static_cast<T>(i) - center + T(0.5)) * inverse);
          row.emplace_back(i, w);
          total += w;
        }
        for (auto& [i, w] : row) w = total == 0 ? w : w / total;
      }
    }
  }
  return table;
}

Table transposed_table(const Table& table, int64_t in) {
  Table result(in);
  for (size_t o = 0; o < table.size(); ++o) {
    for (const auto& [i, w] : table[o]) {
      Row& row = result[i];
      if (!row.empty() && row.back().first == static_cast<int64_t>(o)) {
        row.back().second += w;
      } else {
        row.emplace_back(o, w);
      }
    }
  }
  return result;
}

// How often each input is repeated in order, or 0.
int64_t repeats(const Table& table, int64_t in) {
  const auto out = static_cast<int64_t>(table.size());
  if (in == 0 || out % in != 0) return 0;
  const int64_t times = out / in;
  for (int64_t o = 0; o < out; ++o) {
    if (table[o].size() != 1 || table[o][0].second != 1 || table[o][0].first != o / times) return 0;
  }
  return times;
}

Value apply(const Value& x, int64_t axis, const Table& table) {
  hlo::Builder& b = x.builder();
  const auto out = static_cast<int64_t>(table.size());
  Dims dims = x.dims();
  if (const int64_t times = repeats(table, dims[axis])) {
    Dims wide = dims;
    wide.insert(wide.begin() + axis + 1, times);
    Dims from = counting(x.rank());
    for (size_t i = axis + 1; i < from.size(); ++i) ++from[i];
    dims[axis] = out;
    return times == 1 ? x : hlo::reshape(hlo::broadcast_in_dim(x, wide, from), dims);
  }
  size_t longest = 0;
  for (const Row& row : table) longest = std::max(longest, row.size());
  dims[axis] = out;
  Value sum;
  for (size_t t = 0; t < longest; ++t) {
    Dims at, used;
    std::vector<double> weights;
    bool all_used = true, all_one = true;
    for (const Row& row : table) {
      const bool has = t < row.size();
      used.push_back(has);
      at.push_back(has ? row[t].first : 0);
      weights.push_back(has ? row[t].second : 0);
      all_used &= has;
      all_one &= weights.back() == 1;
    }
    Value term = hlo::take(x, hlo::constant_ints(b, {DType::S32, {out}}, at), axis);
    if (!all_one) {
      term = term * hlo::broadcast_in_dim(hlo::constant_doubles(b, {x.dtype(), {out}}, weights),
                                          dims, {axis});
    }
    // Not by a zero weight: what is left out may be infinite.
    if (!all_used) {
      term = hlo::select(
          hlo::broadcast_in_dim(hlo::constant_ints(b, {DType::Pred, {out}}, used), dims, {axis}),
          term, 0.0);
    }
    sum = sum ? sum + term : term;
  }
  return sum ? sum : hlo::zeros(b, {x.dtype(), dims});
}

// Images of bytes: 16-bit weights of as many fraction bits as fit the largest, and bytes again
// after every axis. x: S32.
Value apply_in_bytes(const Value& x, int64_t axis, Table table) {
  double largest = 0;
  for (Row& row : table) {
    Row merged;  // at an edge several weights are one input's
    for (const auto& [i, w] : row) {
      if (!merged.empty() && merged.back().first == i) {
        merged.back().second += w;
      } else {
        merged.emplace_back(i, w);
      }
      largest = std::max(largest, merged.back().second);
    }
    row = std::move(merged);
  }
  int fraction = 0;
  while (fraction < 22 && std::floor(std::ldexp(largest, fraction + 1) + 0.5) < 32768) ++fraction;
  for (Row& row : table)
    for (auto& [i, w] : row) w = std::round(std::ldexp(w, fraction));
  hlo::Builder& b = x.builder();
  const Value half = hlo::constant_int(b, {DType::S32, {}}, int64_t{1} << fraction >> 1);
  Value y = hlo::shift_right_arithmetic(apply(x, axis, table) + half,
                                        hlo::constant_int(b, {DType::S32, {}}, fraction));
  return hlo::minimum(hlo::maximum(y, 0), 255);
}

constexpr const char* kScaleNames[3][3] = {
    {"scales", "", ""}, {"scales_h", "scales_w", ""}, {"scales_d", "scales_h", "scales_w"}};

std::vector<Table> tables(Call& c, Kernel kernel, DType dtype, const Dims& in, const Dims& out,
                          bool has_align) {
  const bool align_corners = has_align && c.flag("align_corners");
  std::vector<Table> all;
  for (size_t i = 0; i < in.size(); ++i) {
    const char* name = kScaleNames[in.size() - 1][i];
    const double scale = c.has(name) ? c.real(name) : 0;
    c.check(in[i] > 0 && out[i] > 0,
            "Input and output sizes should be greater than 0, but got input ", in, " output ", out);
    const bool bytes = dtype == DType::U8 && kernel >= Kernel::Linear && in.size() == 2;
    all.push_back(dtype == DType::F64 || bytes
                      ? table_in<double>(kernel, in[i], out[i], align_corners, scale)
                      : table_in<float>(kernel, in[i], out[i], align_corners, scale));
  }
  return all;
}

template <int axes, Kernel kernel>
Values upsample(Call& c) {
  constexpr bool nearest = kernel == Kernel::Nearest || kernel == Kernel::NearestExact;
  const TensorArg& self = c.meta("self");
  c.check(self.rank() == axes + 2, "It is expected input to have ", axes + 2,
          " dimensions, but got a tensor of size ", self.sizes);
  const Dims out = c.ints("output_size"), in = spatial_sizes(self, axes);
  c.check(out.size() == axes, "It is expected output_size equals to ", axes, ", but got size ",
          out.size());
  if (!nearest) {
    c.check_supported(hlo::is_floating(self.dtype) || self.dtype == DType::U8,
                      "not implemented for '", self.dtype, "'");
  }
  const std::vector<Table> table = tables(c, kernel, self.dtype, in, out, !nearest);
  const bool bytes = !nearest && self.dtype == DType::U8, image = bytes && axes == 2;
  const DType compute = nearest ? self.dtype
                        : image ? DType::S32
                        : bytes ? DType::F32
                                : hlo::opmath(self.dtype);
  Value x = c.tensor("self", compute);
  for (int64_t i = axes; i-- > 0;)
    x = image ? apply_in_bytes(x, 2 + i, table[i]) : apply(x, 2 + i, table[i]);
  keep_channels_last(c, 0, x.dims(), self);
  if (bytes && !image) {
    x = hlo::minimum(hlo::maximum(hlo::round_nearest_afz(x), 0), 255);
  }
  return {hlo::convert(x, self.dtype)};
}

template <int axes, Kernel kernel>
Values upsample_backward(Call& c) {
  constexpr bool nearest = kernel == Kernel::Nearest || kernel == Kernel::NearestExact;
  const TensorArg& grad = c.meta("grad_output");
  const Dims sizes = c.ints("input_size"), out = c.ints("output_size");
  c.check(sizes.size() == axes + 2 && out.size() == axes && grad.rank() == axes + 2,
          "It is expected input_size equals to ", axes + 2, " and output_size to ", axes,
          ", but got ", sizes.size(), " and ", out.size());
  const Dims in(sizes.begin() + 2, sizes.end());
  const std::vector<Table> table = tables(c, kernel, grad.dtype, in, out, !nearest);
  Dims expected = {sizes[0], sizes[1]};
  expected.insert(expected.end(), out.begin(), out.end());
  c.check(grad.sizes == expected,
          "Expected grad_output to have the same shape as output; output.size() = ", expected,
          " but got grad_output.size() = ", grad.sizes);
  Value x = c.tensor("grad_output", hlo::opmath(grad.dtype));
  for (int64_t i = 0; i < axes; ++i) x = apply(x, 2 + i, transposed_table(table[i], in[i]));
  keep_channels_last(c, 0, x.dims(), grad);
  return {hlo::convert(x, grad.dtype)};
}

}  // namespace

#define TORCH_TPU_NEAREST(name, axes, size, scales, kernel)                                     \
  TPU_OP_FN("aten::" name "(Tensor self, SymInt[" #axes "] output_size, " scales ") -> Tensor", \
            Contiguous, (&upsample<axes, Kernel::kernel>));                                     \
  TPU_OP_FN("aten::" name "_backward(Tensor grad_output, SymInt[" #axes                         \
            "] output_size, SymInt[" #size "] input_size, " scales ") -> Tensor",               \
            Contiguous, (&upsample_backward<axes, Kernel::kernel>))
#define TORCH_TPU_SMOOTH(name, axes, size, scales, kernel)                             \
  TPU_OP_FN("aten::" name "(Tensor self, SymInt[" #axes                                \
            "] output_size, bool align_corners, " scales ") -> Tensor",                \
            Contiguous, (&upsample<axes, Kernel::kernel>));                            \
  TPU_OP_FN("aten::" name "_backward(Tensor grad_output, SymInt[" #axes                \
            "] output_size, SymInt[" #size "] input_size, bool align_corners, " scales \
            ") -> Tensor",                                                             \
            Contiguous, (&upsample_backward<axes, Kernel::kernel>))

#define TORCH_TPU_SCALES_1 "float? scales=None"
#define TORCH_TPU_SCALES_2 "float? scales_h=None, float? scales_w=None"
#define TORCH_TPU_SCALES_3 "float? scales_d=None, float? scales_h=None, float? scales_w=None"

TORCH_TPU_NEAREST("upsample_nearest1d", 1, 3, TORCH_TPU_SCALES_1, Nearest);
TORCH_TPU_NEAREST("upsample_nearest2d", 2, 4, TORCH_TPU_SCALES_2, Nearest);
TORCH_TPU_NEAREST("upsample_nearest3d", 3, 5, TORCH_TPU_SCALES_3, Nearest);
TORCH_TPU_NEAREST("_upsample_nearest_exact1d", 1, 3, TORCH_TPU_SCALES_1, NearestExact);
TORCH_TPU_NEAREST("_upsample_nearest_exact2d", 2, 4, TORCH_TPU_SCALES_2, NearestExact);
TORCH_TPU_NEAREST("_upsample_nearest_exact3d", 3, 5, TORCH_TPU_SCALES_3, NearestExact);
TORCH_TPU_SMOOTH("upsample_linear1d", 1, 3, TORCH_TPU_SCALES_1, Linear);
TORCH_TPU_SMOOTH("upsample_bilinear2d", 2, 4, TORCH_TPU_SCALES_2, Linear);
TORCH_TPU_SMOOTH("upsample_trilinear3d", 3, 5, TORCH_TPU_SCALES_3, Linear);
TORCH_TPU_SMOOTH("upsample_bicubic2d", 2, 4, TORCH_TPU_SCALES_2, Cubic);
TORCH_TPU_SMOOTH("_upsample_bilinear2d_aa", 2, 4, TORCH_TPU_SCALES_2, LinearAA);
TORCH_TPU_SMOOTH("_upsample_bicubic2d_aa", 2, 4, TORCH_TPU_SCALES_2, CubicAA);
TORCH_TPU_SMOOTH("_upsample_lanczos2d_aa", 2, 4, TORCH_TPU_SCALES_2, LanczosAA);

}  // namespace torch_tpu::ops
