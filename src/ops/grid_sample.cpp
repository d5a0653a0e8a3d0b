// SPDX-License-Identifier: Apache-2.0 - Sampling at positions given by a grid, in 2 and 3 dimensions.
//
// Every axis offers a few integer positions with a weight each (2 linear, 1 nearest, 4 cubic); a
// sample is the sum over all combinations. The gradient of the grid uses the weights' derivatives.
#include <algorithm>
#include <cmath>

#include "src/ops/contraction.h"
#include "src/ops/pointwise.h"
#include "src/ops/pooling.h"

namespace torch_tpu::ops {
namespace {

enum Interpolation : int64_t { kLinear = 0, kNearest = 1, kCubic = 2 };
enum Padding : int64_t { kZeros = 0, kBorder = 1, kReflection = 2 };

// A whole-numbered position along an axis (as float), its weight, and the weight's derivative.
struct Option {
  Value position, weight, slope;
};

struct Sampler {
  int64_t axes = 2, batch = 0, channels = 0, points = 0;
  int64_t interpolation = 0, padding = 0;
  bool align_corners = false;
  Dims sizes;  // spatial, of the input
  Dims out;    // spatial, of the grid
  DType compute = DType::F32;
};

Sampler sampler_of(const Call& c, int64_t axes) {
  const TensorArg &input = c.meta("input"), &grid = c.meta("grid");
  c.check(input.rank() == axes + 2 && grid.rank() == axes + 2, "expected ", axes + 2,
          "D input and grid, but got input with sizes ", input.sizes, " and grid with sizes ",
          grid.sizes);
  c.check(input.sizes[0] == grid.sizes[0],
          "expected grid and input to have same batch size, but got input with sizes ", input.sizes,
          " and grid with sizes ", grid.sizes);
  c.check(grid.sizes.back() == axes, "expected grid to have size ", axes,
          " in last dimension, but got grid with sizes ", grid.sizes);
  require_real_float(c, input.dtype);
  Sampler s;
  s.axes = axes;
  s.batch = input.sizes[0];
  s.channels = input.sizes[1];
  s.sizes = spatial_sizes(input, axes);
  s.out.assign(grid.sizes.begin() + 1, grid.sizes.end() - 1);
  s.points = hlo::element_count(s.out);
  s.interpolation = c.integer("interpolation_mode");
  s.padding = c.integer("padding_mode");
  s.align_corners = c.flag("align_corners");
  s.compute = hlo::opmath(input.dtype);
  for (int64_t d : s.sizes) {
    c.check(d > 0, "expected input to have non-empty spatial dimensions, but input has sizes ",
            input.sizes);
  }
  c.check(axes == 2 || s.interpolation != kCubic, "bicubic interpolation only supports 4D input");
  return s;
}

// A coordinate and how it changes with the grid's number.
struct Coordinate {
  Value x, slope;
};

// Sampling positions outside come back by reflection at [low / 2, high / 2].
Coordinate reflect(const Coordinate& c, double twice_low, double twice_high) {
  if (twice_low == twice_high) return {hlo::zeros_like(c.x), hlo::zeros_like(c.x)};
  const double low = twice_low / 2, span = (twice_high - twice_low) / 2;
  Value shifted = c.x - low;
  Value negative = hlo::lt(shifted, 0);
  Value distance = hlo::abs(shifted);
  Value flips = hlo::floor(distance / span);
  Value extra = distance - flips * span;
  Value odd = hlo::ne(flips - hlo::floor(flips * 0.5) * 2.0, 0);
  Value x = hlo::select(odd, span - extra + low, extra + low);
  Value sign = hlo::select(negative, hlo::full_like(c.x, -1), hlo::full_like(c.x, 1)) *
               hlo::select(odd, hlo::full_like(c.x, -1), hlo::full_like(c.x, 1));
  return {x, c.slope * sign};
}

Coordinate clip(const Coordinate& c, int64_t size) {
  const auto last = static_cast<double>(size - 1);
  Value inside = hlo::gt(c.x, 0) & hlo::lt(c.x, last);
  return {hlo::minimum(hlo::maximum(c.x, 0), last), hlo::select(inside, c.slope, 0.0)};
}

Coordinate inside(const Sampler& s, Coordinate c, int64_t size) {
  const auto n = static_cast<double>(size);
  if (s.padding == kBorder) return clip(c, size);
  if (s.padding == kReflection) {
    c = s.align_corners ? reflect(c, 0, 2 * (n - 1)) : reflect(c, -1, 2 * n - 1);
    return clip(c, size);
  }
  return c;
}

// Keys' cubic (a = -0.75) at distance x, near: |x| <= 1, far: 1 < |x| < 2; and derivatives.
constexpr double kCubicA = -0.75;
Value near_cubic(const Value& x) { return ((kCubicA + 2) * x - (kCubicA + 3)) * x * x + 1.0; }
Value far_cubic(const Value& x) {
  return ((kCubicA * x - 5 * kCubicA) * x + 8 * kCubicA) * x - 4 * kCubicA;
}
Value near_slope(const Value& x) { return (3 * (kCubicA + 2) * x - 2 * (kCubicA + 3)) * x; }
Value far_slope(const Value& x) { return (3 * kCubicA * x - 10 * kCubicA) * x + 8 * kCubicA; }

// number: [batch, points], the grid's numbers for an axis of `size` elements.
std::vector<Option> options(const Sampler& s, const Value& number, int64_t size) {
  const auto n = static_cast<double>(size);
  const double factor = s.align_corners ? (n - 1) / 2 : n / 2;
  Coordinate c;
  c.x = s.align_corners ? (number + 1.0) * 0.5 * (n - 1) : ((number + 1.0) * n - 1.0) * 0.5;
  c.slope = hlo::full_like(number, factor);
  if (s.interpolation == kCubic) {
    Value floor = hlo::floor(c.x), t = c.x - floor;
    const Value weights[] = {far_cubic(t + 1.0), near_cubic(t), near_cubic(1.0 - t),
                             far_cubic(2.0 - t)};
    const Value slopes[] = {far_slope(t + 1.0), near_slope(t), -near_slope(1.0 - t),
                            -far_slope(2.0 - t)};
    std::vector<Option> all;
    for (int k = 0; k < 4; ++k) {
      // Each position is brought inside on its own.
      Coordinate at = inside(s, {floor + static_cast<double>(k - 1), c.slope}, size);
      all.push_back({at.x, weights[k], slopes[k] * c.slope});
    }
    return all;
  }
  c = inside(s, c, size);
  if (s.interpolation == kNearest) {
    return {{hlo::round_nearest_even(c.x), hlo::full_like(c.x, 1), hlo::zeros_like(c.x)}};
  }
  Value floor = hlo::floor(c.x), t = c.x - floor;
  return {{floor, floor + 1.0 - c.x, -c.slope}, {floor + 1.0, t, c.slope}};
}

// One combination of positions: rows of the input flattened to [batch * pixels, channels].
struct Corner {
  Value row;    // [batch * points], safe
  Value valid;  // [batch, points]
};

Corner corner(const Sampler& s, const Values& positions) {
  hlo::Builder& b = positions[0].builder();
  Value valid, row;
  for (int64_t i = 0; i < s.axes; ++i) {
    const auto size = static_cast<double>(s.sizes[i]);
    const Value& p = positions[i];
    Value ok = hlo::ge(p, 0) & hlo::le(p, size - 1);  // false for NaN
    valid = valid ? valid & ok : ok;
    Value whole = hlo::convert(hlo::select(ok, p, 0.0), DType::S32);
    row = row ? row * size + whole : whole;
  }
  Value first =
      hlo::iota(b, {DType::S32, row.dims()}, 0) * static_cast<double>(hlo::element_count(s.sizes));
  return {hlo::reshape(row + first, {s.batch * s.points}), valid};
}

// Calls fn(positions, chosen options) for all combinations.
template <typename Fn>
void for_each_corner(const std::vector<std::vector<Option>>& axes, const Fn& fn) {
  std::vector<size_t> at(axes.size(), 0);
  while (true) {
    Values positions;
    std::vector<const Option*> chosen;
    for (size_t i = 0; i < axes.size(); ++i) {
      chosen.push_back(&axes[i][at[i]]);
      positions.push_back(chosen.back()->position);
    }
    fn(positions, chosen);
    size_t i = axes.size();
    while (i > 0 && ++at[i - 1] == axes[i - 1].size()) at[--i] = 0;
    if (i == 0) return;
  }
}

std::vector<std::vector<Option>> all_options(Call& c, const Sampler& s) {
  Value grid = hlo::reshape(c.tensor("grid", s.compute), {s.batch, s.points, s.axes});
  std::vector<std::vector<Option>> all;
  for (int64_t i = 0; i < s.axes; ++i) {  // the grid names the last axis first
    Value number = hlo::squeeze(hlo::slice_dim(grid, 2, s.axes - 1 - i, s.axes - i), 2);
    all.push_back(options(s, number, s.sizes[i]));
  }
  return all;
}

// [batch, channels, spatial...] -> [batch * pixels, channels]
Value as_rows(const Sampler& s, const Value& x) {
  const int64_t pixels = x.elements() / std::max<int64_t>(s.batch * s.channels, 1);
  Value flat = hlo::reshape(x, {s.batch, s.channels, pixels});
  return hlo::reshape(hlo::transpose(flat, {0, 2, 1}), {s.batch * pixels, s.channels});
}
Value from_rows(const Sampler& s, const Value& rows, const Dims& spatial) {
  Value flat = hlo::reshape(rows, {s.batch, hlo::element_count(spatial), s.channels});
  Dims dims = {s.batch, s.channels};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return hlo::reshape(hlo::transpose(flat, {0, 2, 1}), dims);
}

Value as_column(const Sampler& s, const Value& x) {
  return hlo::reshape(x, {s.batch * s.points, 1});
}

Value grid_sample(Call& c, int64_t axes) {
  const Sampler s = sampler_of(c, axes);
  const TensorArg& input = c.meta("input");
  Value rows = as_rows(s, c.tensor("input", s.compute));
  Value sum = hlo::zeros(c.builder(), {s.compute, {s.batch * s.points, s.channels}});
  for_each_corner(
      all_options(c, s), [&](const Values& positions, const std::vector<const Option*>& chosen) {
        const Corner k = corner(s, positions);
        Value weight = chosen[0]->weight;
        for (size_t i = 1; i < chosen.size(); ++i) weight = weight * chosen[i]->weight;
        Value term = hlo::take(rows, k.row, 0) * as_column(s, weight);
        sum = sum + hlo::select(hlo::broadcast_to(as_column(s, k.valid), term.dims()), term, 0.0);
      });
  Value result = from_rows(s, sum, s.out);
  return hlo::convert(result, input.dtype);
}

Values grid_sample_backward(Call& c, int64_t axes) {
  const Sampler s = sampler_of(c, axes);
  const Dims mask = c.ints("output_mask");
  Value rows = as_rows(s, c.tensor("input", s.compute));
  Value grad = as_rows(s, c.tensor("grad_output", s.compute));
  Value grad_rows = hlo::zeros_like(rows);
  Values grad_axes(axes);
  for_each_corner(
      all_options(c, s), [&](const Values& positions, const std::vector<const Option*>& chosen) {
        const Corner k = corner(s, positions);
        Value valid = as_column(s, k.valid);
        if (mask[0]) {
          Value weight = chosen[0]->weight;
          for (size_t i = 1; i < chosen.size(); ++i) weight = weight * chosen[i]->weight;
          Value update = grad * as_column(s, weight);
          update = hlo::select(hlo::broadcast_to(valid, update.dims()), update, 0.0);
          hlo::ScatterDims dims;
          dims.update_window_dims = {1};
          dims.inserted_window_dims = {0};
          dims.scatter_dims_to_operand_dims = {0};
          dims.index_vector_dim = 1;
          grad_rows = hlo::scatter(grad_rows, hlo::unsqueeze(k.row, 1), update, dims,
                                   [](const Value& a, const Value& b) { return a + b; });
        }
        if (mask[1] && s.interpolation != kNearest) {
          Value seen = hlo::take(rows, k.row, 0);
          seen = hlo::select(hlo::broadcast_to(valid, seen.dims()), seen, 0.0);
          Value along =
              hlo::reshape(hlo::reduce(seen * grad, {1}, hlo::Reduce::Add), {s.batch, s.points});
          for (int64_t i = 0; i < axes; ++i) {
            Value factor = chosen[i]->slope;
            for (int64_t j = 0; j < axes; ++j) {
              if (j != i) factor = factor * chosen[j]->weight;
            }
            Value term = along * factor;
            grad_axes[i] = grad_axes[i] ? grad_axes[i] + term : term;
          }
        }
      });
  Values results(2);
  if (mask[0]) {
    results[0] = hlo::convert(from_rows(s, grad_rows, s.sizes), c.dtype_of("input"));
  }
  if (mask[1]) {
    const TensorArg& grid = c.meta("grid");
    if (s.interpolation == kNearest) {
      results[1] = hlo::zeros(c.builder(), {grid.dtype, grid.sizes});
    } else {
      Values parts;
      for (int64_t i = axes; i-- > 0;) parts.push_back(hlo::unsqueeze(grad_axes[i], 2));
      results[1] = hlo::convert(hlo::reshape(hlo::concatenate(parts, 2), grid.sizes), grid.dtype);
    }
  }
  return results;
}

}  // namespace

TPU_OP(
    "aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor") {
  return {grid_sample(c, 2)};
}

TPU_OP(
    "aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, "
    "bool align_corners) -> Tensor") {
  return {grid_sample(c, 3)};
}

TPU_OP(
    "aten::grid_sampler_2d_backward(Tensor grad_output, Tensor input, Tensor grid, int "
    "interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, "
    "Tensor)") {
  return grid_sample_backward(c, 2);
}

TPU_OP(
    "aten::grid_sampler_3d_backward(Tensor grad_output, Tensor input, Tensor grid, int "
    "interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, "
    "Tensor)") {
  return grid_sample_backward(c, 3);
}

}  // namespace torch_tpu::ops
