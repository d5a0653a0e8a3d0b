// SPDX-License-Identifier: Apache-2.0 - Rules for what combines elements: products, convolutions, reductions, windows.
#include "src/graph/bounder.h"

#include <algorithm>
#include <cctype>

namespace torch_tpu::graph::bounds {

Known Bounder::dot(const Instr& instr, Known x, Known y) {
  const Dims lb = list(instr, "lhs_batching_dimensions"),
             rb = list(instr, "rhs_batching_dimensions"),
             lc = list(instr, "lhs_contracting_dimensions"),
             rc = list(instr, "rhs_contracting_dimensions");
  for (size_t i = 0; i < lb.size(); ++i) agree_along(x, lb[i], y, rb[i]);
  for (size_t i = 0; i < lc.size(); ++i) agree_along(x, lc[i], y, rc[i]);
  // Both: what lies behind the end may be a NaN.
  Value l = masked(x, lc, zero(x.v)), r = masked(y, rc, zero(y.v));
  std::vector<Dim> dims;
  for (size_t i = 0; i < lb.size(); ++i) {
    dims.push_back(x.dims[lb[i]]);
    dims.back().uniform = dims.back().uniform && y.dims[rb[i]].uniform;
  }
  auto rest = [&](const Known& v, const Dims& batch, const Dims& contract) {
    for (size_t d = 0; d < v.dims.size(); ++d)
      if (!contains(batch, static_cast<int64_t>(d)) && !contains(contract, static_cast<int64_t>(d)))
        dims.push_back(v.dims[d]);
  };
  rest(x, lb, lc);
  rest(y, rb, rc);
  return {copy(instr, {l, r})[0], dims};
}

// How many windows fit: floor((size + padding - reach) / stride) + 1. A lowering may take less
// padding than was asked for where the last windows do not need all of it; what was asked for is
// then the one number that explains all traces.
void Bounder::learn_windows(const Dims& at, const Value& size, const Value& window, const Dims& in,
                            const Dims& taps, int64_t stride, int64_t dilation, int64_t low,
                            const Dims& high) {
  for (const auto& [k, v] : table_)
    if (k == at) return;
  int64_t least = high[0], most = high[0] + (constant(high) ? 1 : stride);
  for (int64_t h : high) {
    least = std::max(least, h);
    most = std::min(most, h + stride);
  }
  if (constant(high)) most = least + 1;
  std::optional<int64_t> end;
  for (int64_t h = least; h < most; ++h) {
    bool fits = true;
    for (size_t p = 0; p < at.size(); ++p)
      fits = fits && at[p] == hlo::window_count(in[p], taps[p], stride, 1, dilation, low + h);
    if (!fits) continue;
    if (end) return;  // the traces cannot tell
    end = h;
  }
  if (!end) return;
  Value reach = (window - 1.0) * static_cast<double>(dilation) + 1.0;
  Value room = size + static_cast<double>(low + *end) - reach;
  table_.emplace_back(at, hlo::divide(hlo::maximum(room, static_cast<double>(-stride)) +
                                          static_cast<double>(stride),
                                      s32(stride)));
}

Known Bounder::convolution(const std::vector<const Instr*>& all, Known x, Known y) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  // "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]": where each letter is.
  const std::string_view text = attribute(instr.attributes, "dimension_numbers");
  std::vector<std::vector<std::string>> names(1);
  for (size_t i = text.find('<') + 1; i < text.size() && text[i] != '>'; ++i) {
    const char c = text[i];
    if (std::isalnum(static_cast<unsigned char>(c)) && c != 'x') {
      names.back().push_back({c});
    } else if (c == ']') {
      names.emplace_back();
      if (names.size() == 4) break;
      if (text[i + 1] == '-') i += 2;  // "->"
    }
  }
  if (names.size() < 3) give_up("a convolution that is not understood");
  auto find = [](const std::vector<std::string>& in, const std::string& what) {
    return static_cast<size_t>(std::find(in.begin(), in.end(), what) - in.begin());
  };
  const size_t spatial = names[0].size() - 2;
  const Dims strides = array(instr, "window_strides"), base = array(instr, "lhs_dilation"),
             dilation = array(instr, "rhs_dilation");
  const int64_t groups = number(instr, "feature_group_count"),
                batch_groups = number(instr, "batch_group_count");
  std::vector<Dims> lows, highs;
  for (const Instr* i : all) {
    padding(*i, lows.emplace_back(), highs.emplace_back());
    if (array(*i, "window_strides") != strides || array(*i, "lhs_dilation") != base ||
        array(*i, "rhs_dilation") != dilation || number(*i, "feature_group_count") != groups ||
        number(*i, "batch_group_count") != batch_groups)
      give_up("a convolution depends on a size");
  }
  std::vector<Dim> dims(names[2].size());
  Dims mask_x, mask_y;
  const size_t xb = find(names[0], "b"), xf = find(names[0], "f"), yo = find(names[1], "o"),
               yi = find(names[1], "i");
  if ((groups != 1 && (x.dims[xf].dynamic() || y.dims[yo].dynamic())) ||
      (batch_groups != 1 && (x.dims[xb].dynamic() || y.dims[yo].dynamic())))
    give_up("a convolution in groups over a dynamic size");
  agree_along(x, xf, y, yi);
  mask_x.push_back(static_cast<int64_t>(xf));
  mask_y.push_back(static_cast<int64_t>(yi));
  dims[find(names[2], "b")] = x.dims[xb];
  dims[find(names[2], "f")] = y.dims[yo];
  for (size_t s = 0; s < spatial; ++s) {
    const std::string name = std::to_string(s);
    const size_t dx = find(names[0], name), dy = find(names[1], name), out = find(names[2], name);
    make_simple(x, dx);
    make_simple(y, dy);
    mask_x.push_back(static_cast<int64_t>(dx));
    mask_y.push_back(static_cast<int64_t>(dy));
    Dims low, high;
    for (size_t p = 0; p < all.size(); ++p) {
      low.push_back(lows[p][s]);
      high.push_back(highs[p][s]);
    }
    if (!constant(low)) give_up("the padding in front of a convolution depends on a size");
    const std::string_view reversal = attribute(instr.attributes, "window_reversal");
    if (y.dims[dy].dynamic() &&
        reversal.substr(0, reversal.find('>')).find("true") != std::string_view::npos)
      give_up("a convolution with a reversed window of dynamic size");
    const Dims at = extents(id, out);
    if (constant(at)) {
      if (x.dims[dx].dynamic() != y.dims[dy].dynamic())
        give_up("a convolution with large strides over a dynamic size");
      continue;
    }
    auto size = [&](const Known& v, size_t d) {
      return v.dims[d].dynamic() ? v.dims[d].factors[0].size : s32(v.v.dims()[d]);
    };
    if (base[s] == 1)
      learn_windows(at, size(x, dx), size(y, dy), at_of(x, dx), at_of(y, dy), strides[s],
                    dilation[s], low[0], high);
    dims[out] = simple(at);
  }
  return {copy(instr, {masked(x, mask_x, zero(x.v)), masked(y, mask_y, zero(y.v))})[0], dims};
}

std::vector<Known> Bounder::reduce(const Instr& instr, std::vector<Known> xs) {
  const size_t n = xs.size() / 2;
  const Dims which = array(instr, "dimensions");
  std::vector<Known*> values;
  for (size_t i = 0; i < n; ++i) values.push_back(&xs[i]);
  const std::vector<Dim> dims = agree(values);
  Values operands;
  for (size_t i = 0; i < n; ++i) operands.push_back(masked(xs[i], which, xs[n + i].v));
  for (size_t i = 0; i < n; ++i) operands.push_back(xs[n + i].v);
  std::vector<Dim> kept;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (contains(which, static_cast<int64_t>(d))) continue;
    kept.push_back(dims[d]);
    for (size_t i = 0; i < n; ++i)
      kept.back().uniform = kept.back().uniform && xs[i].dims[d].uniform;
  }
  std::vector<Known> out;
  for (const Value& v : copy(instr, operands)) out.push_back({v, kept});
  return out;
}

std::vector<Known> Bounder::reduce_window(const std::vector<const Instr*>& all,
                                          std::vector<Known> xs) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  const size_t n = xs.size() / 2;
  const Dims strides = array(instr, "window_strides"), base = array(instr, "base_dilations"),
             dilation = array(instr, "window_dilations");
  std::vector<Dims> lows, highs;
  for (const Instr* i : all) {
    padding(*i, lows.emplace_back(), highs.emplace_back());
    if (array(*i, "window_strides") != strides || array(*i, "base_dilations") != base ||
        array(*i, "window_dilations") != dilation)
      give_up("windows depend on a size");
  }
  std::vector<Known*> values;
  for (size_t i = 0; i < n; ++i) values.push_back(&xs[i]);
  std::vector<Dim> dims = agree(values);
  Dims mask;
  for (size_t d = 0; d < dims.size(); ++d) {
    Dims low, high;
    for (size_t p = 0; p < all.size(); ++p) {
      low.push_back(lows[p][d]);
      high.push_back(highs[p][d]);
    }
    const Dims window = across(all, "window_dimensions", d), at = extents(id, d);
    dims[d].uniform = false;
    const bool trivial = constant(window) && window[0] == 1 && constant(low) && low[0] == 0 &&
                         constant(high) && high[0] == 0 && strides[d] == 1 && base[d] == 1;
    if (trivial) continue;
    for (Known* x : values) make_simple(*x, d);
    if (values[0]->dims[d].dynamic()) mask.push_back(static_cast<int64_t>(d));
    const Dims in = at_of(*values[0], d);
    if (!constant(window) || !constant(low)) {
      // All elements up to here, or from here on, or just all.
      bool up_to = strides[d] == 1 && base[d] == 1 && dilation[d] == 1 && window == in;
      bool from = up_to, whole = up_to && constant(at) && at[0] == 1;
      for (size_t p = 0; p < all.size(); ++p) {
        up_to = up_to && low[p] == window[p] - 1 && high[p] == 0;
        from = from && high[p] == window[p] - 1 && low[p] == 0;
        whole = whole && low[p] == 0 && high[p] == 0;
      }
      if (!up_to && !from && !whole) give_up("windows depend on a size");
    }
    if (constant(at)) {
      if (values[0]->dims[d].dynamic() && constant(window))
        give_up("windows with large strides over a dynamic size");
      dims[d] = {};
      continue;
    }
    if (constant(low) && constant(window) && base[d] == 1) {
      const Dim& from = values[0]->dims[d];
      learn_windows(at, from.dynamic() ? from.factors[0].size : s32(in[0]), s32(window[0]), in,
                    window, strides[d], dilation[d], low[0], high);
    }
    dims[d] = simple(at);
  }
  Values operands;
  for (size_t i = 0; i < n; ++i) operands.push_back(masked(xs[i], mask, xs[n + i].v));
  for (size_t i = 0; i < n; ++i) operands.push_back(xs[n + i].v);
  std::vector<Known> out;
  for (const Value& v : copy(instr, operands)) out.push_back({v, dims});
  return out;
}

}  // namespace torch_tpu::graph::bounds
