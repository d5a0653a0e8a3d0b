// SPDX-License-Identifier: Apache-2.0 - Numbers that depend on sizes: what the traces show becomes arithmetic of the program.
#include "src/graph/bounder.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace torch_tpu::graph::bounds {

namespace {

bool close(double a, double b, double tolerance) {
  return a == b || std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

}  // namespace

std::optional<Bounder::Affine> Bounder::fit_to(const Dims& f, const Value& v,
                                               const std::vector<double>& c,
                                               double tolerance) const {
  size_t other = 0;
  for (size_t p = 1; p < f.size() && other == 0; ++p)
    if (f[p] != f[0]) other = p;
  if (other == 0) return {};
  Affine out;
  out.of = v;
  out.a = (c[other] - c[0]) / static_cast<double>(f[other] - f[0]);
  if (close(out.a, std::round(out.a), 1e-6)) out.a = std::round(out.a);
  out.b = c[0] - out.a * static_cast<double>(f[0]);
  if (std::abs(out.b - std::round(out.b)) <= 1e-6 * std::max(1.0, std::abs(c[0])))
    out.b = std::round(out.b);
  for (size_t p = 0; p < f.size(); ++p)
    if (!close(out.a * static_cast<double>(f[p]) + out.b, c[p], tolerance)) return {};
  return out;
}

std::optional<Bounder::Affine> Bounder::fit(const std::vector<double>& c, double tolerance,
                                            bool whole) {
  auto good = [&](const std::optional<Affine>& f) {
    return f && (!whole || (std::floor(f->a) == f->a && std::floor(f->b) == f->b));
  };
  for (size_t i = 0; i < table_.size(); ++i)
    if (auto found = fit_to(table_[i].first, table_[i].second, c, tolerance); good(found))
      return found;
  // Products of two sizes, which numbers of elements are made of.
  for (size_t i = 0; i < table_.size(); ++i) {
    for (size_t j = i; j < table_.size(); ++j) {
      Dims at = table_[i].first;
      for (size_t p = 0; p < at.size(); ++p) at[p] *= table_[j].first[p];
      if (auto found = fit_to(at, {}, c, tolerance); good(found)) {
        found->of = times(table_[i].second, table_[j].second);
        return found;
      }
    }
  }
  // A sum of several sizes: solve for its coefficients, and check them with what is left.
  const size_t k = sizes_.size(), n = k + 1, rows = c.size();
  if (k < 2 || rows <= n) return {};
  std::vector<std::vector<double>> m(rows, std::vector<double>(n + 1));
  for (size_t r = 0; r < rows; ++r) {
    for (size_t j = 0; j < k; ++j) m[r][j] = static_cast<double>(symbols_[r][j]);
    m[r][k] = 1;
    m[r][n] = c[r];
  }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i; r < rows; ++r)
      if (std::abs(m[r][i]) > std::abs(m[pivot][i])) pivot = r;
    if (std::abs(m[pivot][i]) < 1e-9) return {};
    std::swap(m[i], m[pivot]);
    for (size_t r = 0; r < rows; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (size_t j = i; j <= n; ++j) m[r][j] -= factor * m[i][j];
    }
  }
  Affine out;
  for (size_t i = 0; i < n; ++i) {
    double v = m[i][n] / m[i][i];
    if (std::abs(v - std::round(v)) < 1e-6) v = std::round(v);
    if (i < k)
      out.linear.push_back(v);
    else
      out.b = v;
  }
  for (size_t p = 0; p < c.size(); ++p) {
    double v = out.b;
    for (size_t j = 0; j < k; ++j) v += out.linear[j] * static_cast<double>(symbols_[p][j]);
    if (!close(v, c[p], tolerance)) return {};
  }
  for (double l : out.linear)
    if (whole && std::floor(l) != l) return {};
  return good(out) ? std::optional(out) : std::nullopt;
}

// floor((size + b) / 2), the place of a middle.
Value Bounder::half(const std::vector<double>& c, DType dtype) {
  Value out;
  for (size_t i = 0; i < table_.size(); ++i) {
    for (int64_t add : {-1, 0, 1}) {
      bool fits = !constant(table_[i].first);
      for (size_t p = 0; p < c.size(); ++p)
        fits = fits && c[p] == static_cast<double>((table_[i].first[p] + add) / 2);
      if (!fits) continue;
      if (out) return {};  // the traces cannot tell
      out = hlo::convert(hlo::divide(table_[i].second + static_cast<double>(add), s32(2)), dtype);
    }
  }
  return out;
}

Value Bounder::emit(const Affine& f, DType dtype) {
  const DType compute = hlo::is_floating(dtype) ? (dtype == DType::F64 ? dtype : DType::F32)
                                                : (dtype == DType::S32 ? dtype : DType::S64);
  auto term = [&](double a, const Value& of) {
    Value v = hlo::convert(of, compute);
    return a == 1 ? v : v * a;
  };
  Value sum;
  if (f.of) {
    sum = term(f.a, f.of);
  } else {
    for (size_t k = 0; k < f.linear.size(); ++k) {
      if (f.linear[k] == 0) continue;
      Value v = term(f.linear[k], sizes_[k]);
      sum = sum ? sum + v : v;
    }
  }
  if (f.b != 0) sum = sum + f.b;
  return hlo::convert(sum, dtype);
}

// What operators have drawn so far is a number of words that is a multiple of four, in U64.
Value Bounder::drawn_words(const std::vector<double>& c, DType dtype) {
  if (dtype != DType::U64) return {};
  const auto found = fit_drawn_words(symbols_, Dims(c.begin(), c.end()));
  if (!found) return {};
  auto number = [&](int64_t v) { return hlo::constant_int(b_, {dtype, {}}, v); };
  Value words = number(found->factor);
  for (size_t k : found->of) words = times(words, hlo::convert(sizes_[k], dtype));
  return times(hlo::divide(words + number(3), number(4)), number(4));
}

Value Bounder::size_of(const Dims& at) {
  for (const auto& [known, v] : table_)
    if (known == at) return v;
  auto found = fit(std::vector<double>(at.begin(), at.end()), 0, /*whole=*/true);
  if (!found)
    give_up("a size depends on the others in a way that is not understood " + hlo::list_text(at));
  Value v = hlo::maximum(emit(*found, DType::S32), 0);
  table_.emplace_back(at, v);
  return v;
}

Known Bounder::splat(const std::vector<const Instr*>& all) {
  const int32_t id = all[0]->first_result;
  const Type& type = fns_[0]->types[id];
  std::vector<std::string> literals;
  for (const Instr* instr : all) {
    const std::string& a = instr->attributes;
    const size_t begin = a.find("dense<") + 6, end = a.rfind("> : ");
    literals.push_back(a.substr(begin, end - begin));
  }
  const bool one = literals[0].find('[') == std::string::npos;
  const bool equal = std::all_of(literals.begin(), literals.end(),
                                 [&](const std::string& l) { return l == literals[0]; });
  if (one && equal) return {copy(*all[0], {})[0], simple_dims(id, true)};
  if (!one) {
    // A table by position: longer for larger sizes, but otherwise the same.
    if (type.rank() == 1 && is_dynamic(id)) {
      bool prefix = true;
      for (const std::string& l : literals) {
        if (l.empty() || l[0] != '[')
          prefix = false;
        else
          prefix = prefix && literals[0].starts_with(l.substr(0, l.size() - 1));
      }
      if (prefix) return {copy(*all[0], {})[0], simple_dims(id)};
    }
    if (!is_dynamic(id) && equal) return {copy(*all[0], {})[0], simple_dims(id)};
    give_up("a table of constants depends on a size");
  }
  if (hlo::is_complex(type.dtype) || type.dtype == DType::Pred)
    give_up("a constant depends on a size: " + literals[0]);
  std::vector<double> c;
  for (const std::string& l : literals) {
    double v = 0;
    auto [end, error] = std::from_chars(l.data(), l.data() + l.size(), v);
    if (error != std::errc() || end != l.data() + l.size() || std::abs(v) > 9e15)
      give_up("a constant depends on a size: " + l);
    c.push_back(v);
  }
  const bool floating = hlo::is_floating(type.dtype);
  Value made = floating ? Value() : half(c, type.dtype);
  if (!made) made = drawn_words(c, type.dtype);
  // The number, one over it, its square root ...
  for (int form = 0; form < (floating ? 4 : 1) && !made; ++form) {
    std::vector<double> g;
    for (double v : c) {
      if (form & 1) v = 1 / v;
      if (form & 2) v = v * v;
      g.push_back(v);
    }
    auto found = fit(g, floating ? 1e-7 : 0, !floating);
    if (!found) continue;
    const DType compute = !floating                  ? type.dtype
                          : type.dtype == DType::F64 ? type.dtype
                                                     : DType::F32;
    made = emit(*found, compute);
    if (form & 2) made = hlo::sqrt(made);
    if (form & 1) made = hlo::full_like(made, 1) / made;
    made = hlo::convert(made, type.dtype);
  }
  if (!made)
    give_up("a constant depends on a size in a way that is not understood: " + literals[0] +
            " and " + literals[1]);
  return {hlo::broadcast_to(made, type.dims), simple_dims(id, true)};
}

}  // namespace torch_tpu::graph::bounds

namespace torch_tpu::graph {

int64_t DrawnWords::at(const hlo::Dims& sizes) const {
  int64_t words = factor;
  for (size_t k : of) words *= sizes.at(k);
  return (words + 3) / 4 * 4;
}

std::optional<DrawnWords> fit_drawn_words(const std::vector<hlo::Dims>& sizes,
                                          const hlo::Dims& drawn) {
  constexpr size_t kMostSizes = 3;
  std::vector<std::vector<size_t>> products = {{}};
  for (size_t i = 0; i < products.size(); ++i) {
    // The one factor that explains all that was drawn.
    int64_t least = 0, most = INT64_MAX;
    for (size_t p = 0; p < drawn.size(); ++p) {
      int64_t product = 1;
      for (size_t k : products[i]) product *= sizes[p][k];
      if (product == 0 || drawn[p] % 4 != 0) return {};
      least = std::max(least, (drawn[p] - 3 + product - 1) / product);
      most = std::min(most, drawn[p] / product);
    }
    if (least == most || (products[i].empty() && least <= most))
      return DrawnWords{most, products[i]};
    if (products[i].size() == kMostSizes) continue;
    for (size_t k = products[i].empty() ? 0 : products[i].back(); k < sizes[0].size(); ++k) {
      products.push_back(products[i]);
      products.back().push_back(k);
    }
  }
  return {};
}

}  // namespace torch_tpu::graph
