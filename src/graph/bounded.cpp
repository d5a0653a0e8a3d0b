// SPDX-License-Identifier: Apache-2.0 - The rules by which instructions keep to the real sizes inside of their bounds.
#include "src/graph/bounded.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "src/hlo/attributes.h"

namespace torch_tpu::graph {
namespace {

using hlo::Builder;
using hlo::Dims;
using hlo::DType;
using hlo::Function;
using hlo::Instr;
using hlo::Region;
using hlo::Type;
using hlo::Value;
using hlo::Values;

[[noreturn]] void give_up(const std::string& why) { throw NotBounded(why); }

// ---- attributes, which instructions keep as text -----------------------------------------------

Dims array(const Instr& instr, std::string_view name) { return hlo::ints(instr.attributes, name); }
Dims list(const Instr& instr, std::string_view name) {  // [1, 2]
  return hlo::integers(hlo::attribute(instr.attributes, name), ']');
}
int64_t number(const Instr& instr, std::string_view name) {
  const Dims found = hlo::integers(hlo::attribute(instr.attributes, name), ':');
  return found.empty() ? 0 : found[0];
}
// dense<[[low, high], ...]>
void padding(const Instr& instr, Dims& low, Dims& high) {
  const Dims all = hlo::integers(hlo::attribute(instr.attributes, "padding"), '>');
  for (size_t i = 0; i + 1 < all.size(); i += 2) {
    low.push_back(all[i]);
    high.push_back(all[i + 1]);
  }
}

bool contains(const Dims& dims, int64_t d) {
  return std::find(dims.begin(), dims.end(), d) != dims.end();
}

// ---- sizes -------------------------------------------------------------------------------------

// A dimension is a product of factors, the outermost first. A reshape that merges dimensions makes
// one with several; the elements that count are those whose coordinate in each dynamic factor is
// below its size.
struct Factor {
  Dims at;     // its extent in each trace; at[0] is the bound
  Value size;  // S32; none: static
  int64_t bound() const { return at[0]; }
  bool dynamic() const { return static_cast<bool>(size); }
};
using Factors = std::vector<Factor>;

struct Dim {
  Factors factors;       // none: static
  bool uniform = false;  // the elements do not differ along it
  bool dynamic() const { return !factors.empty(); }
};

struct Known {
  Value v;
  std::vector<Dim> dims;
};

bool same(const Factors& a, const Factors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Factor& x, const Factor& y) {
    return x.at == y.at && x.dynamic() == y.dynamic();
  });
}

class Bounder {
 public:
  Bounder(Builder& b, const BoundedTraces& traces, const Values& sizes)
      : b_(b), fns_(traces.functions), symbols_(traces.sizes), sizes_(sizes) {
    for (size_t k = 0; k < sizes.size(); ++k) {
      Dims at;
      for (const Dims& s : symbols_) at.push_back(s[k]);
      table_.emplace_back(at, sizes[k]);
    }
  }

  Values run(const std::function<Value(size_t)>& param);

 private:
  // ---- what the traces say ----
  Dims extents(int32_t id, size_t d) const {
    Dims out;
    for (const Function* f : fns_) out.push_back(f->types[id].dims[d]);
    return out;
  }
  static bool constant(const Dims& at) {
    return std::all_of(at.begin(), at.end(), [&](int64_t v) { return v == at[0]; });
  }
  bool is_dynamic(int32_t id) const {
    const Type& t = fns_[0]->types[id];
    return std::any_of(fns_.begin(), fns_.end(),
                       [&](const Function* f) { return f->types[id].dims != t.dims; });
  }
  // The attribute in each trace, for a position of a list.
  Dims across(const std::vector<const Instr*>& all, std::string_view name, size_t i) const {
    Dims out;
    for (const Instr* instr : all) out.push_back(array(*instr, name).at(i));
    return out;
  }

  // ---- numbers made of the sizes ----
  struct Affine {  // a * of + b
    double a = 0, b = 0;
    Value of;
    std::vector<double> linear;  // instead: b + sum of linear[k] * sizes[k]
  };
  // whole: with integers for coefficients.
  std::optional<Affine> fit(const std::vector<double>& c, double tolerance, bool whole);
  std::optional<Affine> fit_to(const Dims& f, const Value& v, const std::vector<double>& c,
                               double tolerance) const;
  Value emit(const Affine& fitted, DType dtype);
  Value half(const std::vector<double>& c, DType dtype);
  Value size_of(const Dims& at);
  Value times(const Value& a, const Value& b) { return hlo::multiply(a, b); }
  Value s32(int64_t v) { return hlo::constant_int(b_, {DType::S32, {}}, v); }
  Value real(const Factor& f) { return f.dynamic() ? f.size : s32(f.bound()); }

  // ---- dimensions ----
  Dim simple(const Dims& at, bool uniform = false) {
    if (constant(at)) return {{}, uniform};
    return {{{at, size_of(at)}}, uniform};
  }
  std::vector<Dim> simple_dims(int32_t id, bool uniform = false) {
    std::vector<Dim> out;
    for (size_t d = 0; d < fns_[0]->types[id].dims.size(); ++d)
      out.push_back(simple(extents(id, d), uniform));
    return out;
  }
  Dims at_of(const Known& x, size_t d) const {
    Dims out(fns_.size(), 1);
    if (!x.dims[d].dynamic()) return Dims(fns_.size(), x.v.dims()[d]);
    for (const Factor& f : x.dims[d].factors)
      for (size_t p = 0; p < out.size(); ++p) out[p] *= f.at[p];
    return out;
  }
  // The dimension as one factor, its elements in front.
  void make_simple(Known& x, size_t d);
  // Gives them all the same factors along each dimension.
  std::vector<Dim> agree(const std::vector<Known*>& xs);
  void agree_along(Known& x, size_t dx, Known& y, size_t dy);
  Value mask_along(const Dim& dim, int64_t extent);
  // x with `fill` (0-dim) behind the real sizes of these dimensions.
  Value masked(const Known& x, const Dims& dims, const Value& fill);
  Value zero(const Value& x) { return hlo::scalar(b_, x.dtype(), 0); }

  Known regroup(const Known& x, const std::vector<Dims>& to);
  Known move_elements(const Value& flat, const Factors& from, const std::vector<Factors>& to);

  // ---- instructions ----
  void instruction(const std::vector<const Instr*>& all);
  Values copy(const Instr& instr, const Values& operands);
  Region copy_region(const Region& region);
  void check_regions(const std::vector<const Instr*>& all) const;
  void check_same_attributes(const std::vector<const Instr*>& all) const;
  Known splat(const std::vector<const Instr*>& all);
  Known slice(const std::vector<const Instr*>& all, Known x);
  Known pad(const std::vector<const Instr*>& all, Known x, const Known& value);
  Known concatenate(const Instr& instr, std::vector<Known> xs);
  Known reverse(const Instr& instr, Known x);
  Known dynamic_slice(const std::vector<const Instr*>& all, std::vector<Known> xs);
  Known dynamic_update_slice(std::vector<Known> xs);
  Known dot(const Instr& instr, Known x, Known y);
  Known convolution(const std::vector<const Instr*>& all, Known x, Known y);
  void learn_windows(const Dims& at, const Value& size, const Value& window, const Dims& in,
                     const Dims& taps, int64_t stride, int64_t dilation, int64_t low,
                     const Dims& high);
  std::vector<Known> reduce(const Instr& instr, std::vector<Known> xs);
  std::vector<Known> reduce_window(const std::vector<const Instr*>& all, std::vector<Known> xs);
  std::vector<Known> sort(const Instr& instr, std::vector<Known> xs);
  Known gather(const Instr& instr, Known x, Known indices);
  Known scatter(const Instr& instr, std::vector<Known> xs);
  Value start_inside(const Known& start, const Known& x, size_t d, int64_t size);

  Builder& b_;
  std::vector<const Function*> fns_;
  std::vector<Dims> symbols_;
  Values sizes_;
  std::vector<std::pair<Dims, Value>> table_;  // sizes by their values in the traces
  std::vector<Known> known_;                   // by id in the function
  std::vector<std::pair<std::pair<Factors, int64_t>, Value>> masks_;
};

// ---- numbers made of the sizes -----------------------------------------------------------------

bool close(double a, double b, double tolerance) {
  return a == b || std::abs(a - b) <= tolerance * std::max(std::abs(a), std::abs(b));
}

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

// ---- dimensions --------------------------------------------------------------------------------

int64_t extent_of(const Factors& f) {
  int64_t out = 1;
  for (const Factor& x : f) out *= x.bound();
  return out;
}

Value Bounder::mask_along(const Dim& dim, int64_t extent) {
  for (const auto& [key, v] : masks_)
    if (key.second == extent && same(key.first, dim.factors)) return v;
  Value at = hlo::iota(b_, {DType::S32, {extent}}, 0);
  Value mask;
  int64_t inner = extent;
  for (size_t k = 0; k < dim.factors.size(); ++k) {
    const Factor& f = dim.factors[k];
    inner /= f.bound();
    if (!f.dynamic()) continue;
    Value c = inner == 1 ? at : hlo::divide(at, hlo::full_like(at, static_cast<double>(inner)));
    bool outermost = true;
    for (size_t j = 0; j < k; ++j) outermost = outermost && dim.factors[j].bound() == 1;
    if (!outermost) c = hlo::remainder(c, hlo::full_like(c, static_cast<double>(f.bound())));
    Value m = hlo::lt(c, f.size);
    mask = mask ? mask & m : m;
  }
  masks_.push_back({{dim.factors, extent}, mask});
  return mask;
}

Value Bounder::masked(const Known& x, const Dims& dims, const Value& fill) {
  Value mask;
  for (int64_t d : dims) {
    if (!x.dims[d].dynamic()) continue;
    Value m = hlo::broadcast_in_dim(mask_along(x.dims[d], x.v.dims()[d]), x.v.dims(), {d});
    mask = mask ? mask & m : m;
  }
  return mask ? hlo::select(mask, x.v, fill) : x.v;
}

void Bounder::make_simple(Known& x, size_t d) {
  Dim& dim = x.dims[d];
  if (dim.factors.size() <= 1) return;
  const Dims at = at_of(x, d);
  size_t first = 0;
  while (dim.factors[first].bound() == 1 && !dim.factors[first].dynamic()) ++first;
  const bool in_front =
      std::none_of(dim.factors.begin() + static_cast<std::ptrdiff_t>(first) + 1, dim.factors.end(),
                   [](const Factor& f) { return f.dynamic(); }) &&
      dim.factors[first].dynamic();
  if (dim.uniform || in_front) {
    dim.factors = {{at, size_of(at)}};
    return;
  }
  const Factors wanted = {{at, size_of(at)}};
  if (x.dims.size() == 1) {
    x = move_elements(x.v, dim.factors, {wanted});
    return;
  }
  // Where each element of the dense order is now.
  const int64_t extent = x.v.dims()[d];
  Value flat = hlo::iota(b_, {DType::S32, {extent}}, 0);
  Known index = move_elements(flat, dim.factors, {wanted});
  x.v = hlo::take(x.v, index.v, static_cast<int64_t>(d));
  dim.factors = index.dims[0].factors;
}

void Bounder::agree_along(Known& x, size_t dx, Known& y, size_t dy) {
  Dim& a = x.dims[dx];
  Dim& b = y.dims[dy];
  if (a.dynamic() != b.dynamic()) give_up("a dynamic dimension meets a static one");
  if (!a.dynamic() || same(a.factors, b.factors)) return;
  if (a.uniform) {
    a.factors = b.factors;
  } else if (b.uniform) {
    b.factors = a.factors;
  } else {
    make_simple(x, dx);
    make_simple(y, dy);
    if (!same(a.factors, b.factors)) give_up("two dimensions that should be equal are not");
  }
}

std::vector<Dim> Bounder::agree(const std::vector<Known*>& xs) {
  std::vector<Dim> out = xs[0]->dims;
  for (const Known* x : xs)
    if (x->dims.size() != out.size()) give_up("operands of different ranks");
  for (size_t d = 0; d < out.size(); ++d) {
    // Whoever has elements that differ decides; if several disagree, all become simple.
    Known* leader = xs[0];
    for (Known* x : xs)
      if (leader->dims[d].uniform && !x->dims[d].uniform) leader = x;
    for (Known* x : xs) agree_along(*leader, d, *x, d);
    for (Known* x : xs) agree_along(*leader, d, *x, d);
    out[d] = leader->dims[d];
  }
  return out;
}

// ---- reshape -----------------------------------------------------------------------------------

// The elements of a dense product of factors `from` in the places of `to`, both row-major.
Known Bounder::move_elements(const Value& flat, const Factors& from,
                             const std::vector<Factors>& to) {
  Factors all;
  Dims dims;
  for (const Factors& f : to) {
    all.insert(all.end(), f.begin(), f.end());
    dims.push_back(extent_of(f));
  }
  Factors source = from;
  Factors rows_to = all;
  // Static factors at the end become one, and so does everything that lies densely in front.
  auto merge = [](Factors& f) {
    f.erase(std::remove_if(f.begin(), f.end(),
                           [](const Factor& x) { return !x.dynamic() && x.bound() == 1; }),
            f.end());
    while (f.size() > 1 && !f.back().dynamic() && (!f[f.size() - 2].dynamic() || f.size() == 2)) {
      Factor& into = f[f.size() - 2];
      for (int64_t& v : into.at) v *= f.back().bound();
      f.pop_back();
    }
  };
  merge(source);
  merge(rows_to);
  // Whole rows move together.
  auto divisor = [](const Factors& f) {
    int64_t out = 0;
    if (!f.empty() && (!f.back().dynamic() || f.size() == 1))
      for (int64_t v : f.back().at) out = std::gcd(out, v);
    return std::max<int64_t>(out, 1);
  };
  const int64_t row = std::gcd(divisor(source), divisor(rows_to));
  for (Factors* f : {&source, &rows_to}) {
    if (f->empty()) continue;
    Factor& last = f->back();
    if (row > 1)
      for (int64_t& v : last.at) v /= row;
    if (last.dynamic()) last.size = size_of(last.at);
  }
  const int64_t n_from = extent_of(source), n_to = extent_of(rows_to);
  if (n_from >= INT32_MAX || n_to >= INT32_MAX) give_up("a reshape of too many elements");
  Value at = hlo::iota(b_, {DType::S32, {n_to}}, 0);
  auto full = [&](const Value& v) { return hlo::broadcast_to(v, at.dims()); };
  auto by = [&](int64_t v) { return hlo::full_like(at, static_cast<double>(v)); };
  // The number of the element in dense order.
  Value dense, stride = s32(1);
  int64_t inner = 1;
  for (size_t i = rows_to.size(); i-- > 0;) {
    const Factor& f = rows_to[i];
    Value c = inner == 1 ? at : hlo::divide(at, by(inner));
    if (i > 0) c = hlo::remainder(c, by(f.bound()));
    c = c * full(stride);
    dense = dense ? dense + c : c;
    inner *= f.bound();
    stride = times(stride, real(f));
  }
  if (!dense) dense = at;
  // Where that is among the source's.
  Value place;
  inner = 1;
  for (size_t i = source.size(); i-- > 0;) {
    const Factor& f = source[i];
    Value size = full(hlo::maximum(real(f), 1));
    Value c = dense;
    if (i > 0) {
      c = hlo::remainder(dense, size);
      dense = hlo::divide(dense, size);
    }
    if (inner != 1) c = c * by(inner);
    place = place ? place + c : c;
    inner *= f.bound();
  }
  if (!place) place = hlo::zeros_like(at);
  place = hlo::clamp(s32(0), place, s32(n_from - 1));
  Value rows = hlo::reshape(flat, {n_from, row});
  Known out;
  out.v = hlo::reshape(hlo::take(rows, place, 0), dims);
  for (const Factors& f : to) {
    const bool dynamic =
        std::any_of(f.begin(), f.end(), [](const Factor& x) { return x.dynamic(); });
    out.dims.push_back({dynamic ? f : Factors{}, false});
  }
  return out;
}

// The value with dimensions of these extents (per trace).
Known Bounder::regroup(const Known& x, const std::vector<Dims>& to) {
  Dims bounds;
  for (const Dims& at : to) bounds.push_back(at[0]);
  const size_t traces = fns_.size();
  struct Piece {
    Factor f;
    bool uniform;
  };
  std::vector<Piece> left;
  Factors from;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    if (x.dims[d].dynamic()) {
      for (const Factor& f : x.dims[d].factors) left.push_back({f, x.dims[d].uniform});
    } else if (x.v.dims()[d] != 1) {
      left.push_back({{Dims(traces, x.v.dims()[d]), {}}, x.dims[d].uniform});
    }
  }
  for (const Piece& p : left) from.push_back(p.f);
  std::reverse(left.begin(), left.end());  // the next one is the last
  auto divides = [&](const Dims& a, const Dims& b) {
    for (size_t p = 0; p < traces; ++p)
      if (a[p] == 0 || b[p] % a[p] != 0) return false;
    return true;
  };
  std::vector<Dim> dims;
  bool fits = true;
  for (size_t d = 0; d < to.size() && fits; ++d) {
    Dims want = to[d];
    Dim out;
    out.uniform = true;
    auto add = [&](const Factor& f, bool uniform) {
      out.factors.push_back(f);
      out.uniform = out.uniform && uniform;
      for (size_t p = 0; p < traces; ++p) want[p] /= f.at[p];
    };
    while (fits && !(constant(want) && want[0] == 1)) {
      if (left.empty()) {
        fits = false;
      } else if (divides(left.back().f.at, want)) {
        add(left.back().f, left.back().uniform);
        left.pop_back();
      } else if (Factor& f = left.back().f; divides(want, f.at)) {
        // Splits the factor: what is inside of it must be static, or all of it must be.
        Dims rest(traces);
        for (size_t p = 0; p < traces; ++p) rest[p] = f.at[p] / want[p];
        if (!constant(rest) || (!f.dynamic() && !constant(want))) {
          fits = false;
        } else {
          Factor outer{want, f.dynamic() ? size_of(want) : Value()};
          f = {rest, {}};
          add(outer, left.back().uniform);
        }
      } else {
        // [6] as [4, 3] of [2, 6]: a common part.
        Dims part(traces);
        for (size_t p = 0; p < traces; ++p) part[p] = std::gcd(f.at[p], want[p]);
        if (f.dynamic() || !constant(part) || part[0] == 1) {
          fits = false;
        } else {
          Factor outer{part, {}};
          for (int64_t& v : f.at) v /= part[0];
          add(outer, left.back().uniform);
        }
      }
    }
    if (constant(to[d])) {
      // Dynamic factors whose product is static would be strange.
      for (const Factor& f : out.factors)
        if (f.dynamic()) fits = false;
      out.factors.clear();
    }
    dims.push_back(std::move(out));
  }
  for (const Piece& p : left)
    if (!(constant(p.f.at) && p.f.at[0] == 1)) fits = false;
  if (fits) return {hlo::reshape(x.v, bounds), std::move(dims)};
  std::vector<Factors> targets;
  for (const Dims& at : to) {
    Factor f{at, constant(at) ? Value() : size_of(at)};
    targets.push_back({f});
  }
  const bool uniform = std::all_of(x.dims.begin(), x.dims.end(), [&](const Dim& d) {
    return d.uniform || (!d.dynamic() && x.v.dims()[&d - x.dims.data()] == 1);
  });
  Value flat = hlo::reshape(x.v, {x.v.elements()});
  if (!uniform) return move_elements(flat, from, targets);
  Known out;
  out.v = hlo::broadcast_to(hlo::reshape(hlo::slice_dim(flat, 0, 0, 1), {}), bounds);
  for (const Dims& at : to) out.dims.push_back(simple(at, true));
  return out;
}

// ---- instructions ------------------------------------------------------------------------------

Region Bounder::copy_region(const Region& region) {
  std::vector<Type> types;
  for (int32_t id : region.args) types.push_back(fns_[0]->types[id]);
  return b_.region(types, [&](const Values& args) {
    for (size_t i = 0; i < args.size(); ++i)
      known_[region.args[i]] = {args[i], std::vector<Dim>(args[i].rank())};
    for (const Instr& instr : region.body) {
      Values operands;
      for (int32_t id : instr.operands) operands.push_back(known_[id].v);
      Values made = copy(instr, operands);
      for (size_t i = 0; i < made.size(); ++i)
        known_[instr.first_result + static_cast<int32_t>(i)] = {made[i],
                                                                std::vector<Dim>(made[i].rank())};
    }
    Values out;
    for (int32_t id : region.results) out.push_back(known_[id].v);
    return out;
  });
}

Values Bounder::copy(const Instr& instr, const Values& operands) {
  std::vector<Type> types;
  for (int32_t i = 0; i < instr.result_count; ++i)
    types.push_back(fns_[0]->types[instr.first_result + i]);
  std::vector<Region> regions;
  for (const Region& r : instr.regions) regions.push_back(copy_region(r));
  return b_.append(instr.name, operands, instr.attributes, std::move(types), std::move(regions),
                   instr.callee);
}

// Regions see no dynamic dimensions and are the same in all traces.
void Bounder::check_regions(const std::vector<const Instr*>& all) const {
  std::function<void(const std::vector<const Instr*>&)> check =
      [&](const std::vector<const Instr*>& now) {
        const Instr& first = *now[0];
        for (size_t g = 0; g < first.regions.size(); ++g) {
          const Region& region = first.regions[g];
          for (int32_t id : region.args)
            if (is_dynamic(id)) give_up(first.name + " carries a dynamic size");
          for (size_t i = 0; i < region.body.size(); ++i) {
            std::vector<const Instr*> inner;
            for (const Instr* instr : now) {
              if (instr->regions[g].body.size() != region.body.size())
                give_up("a region differs between sizes");
              inner.push_back(&instr->regions[g].body[i]);
              if (inner.back()->name != region.body[i].name ||
                  inner.back()->operands != region.body[i].operands ||
                  inner.back()->attributes != region.body[i].attributes)
                give_up("a region differs between sizes");
            }
            for (int32_t id : region.body[i].operands)
              if (is_dynamic(id)) give_up(first.name + " works on a dynamic size");
            for (int32_t k = 0; k < region.body[i].result_count; ++k)
              if (is_dynamic(region.body[i].first_result + k))
                give_up(first.name + " makes a dynamic size");
            check(inner);
          }
        }
      };
  check(all);
}

void Bounder::check_same_attributes(const std::vector<const Instr*>& all) const {
  for (const Instr* instr : all)
    if (instr->attributes != all[0]->attributes)
      give_up(instr->name + " depends on a size in a way that is not understood: " +
              all[0]->attributes + " and " + instr->attributes);
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

Known Bounder::slice(const std::vector<const Instr*>& all, Known x) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  const Dims start = array(instr, "start_indices"), limit = array(instr, "limit_indices"),
             strides = array(instr, "strides");
  const size_t rank = start.size();
  std::vector<Dim> dims(rank);
  std::vector<std::pair<size_t, Dims>> moving;
  Dims static_start = start, static_limit = limit;
  for (size_t d = 0; d < rank; ++d) {
    const Dims from = across(all, "start_indices", d), step = across(all, "strides", d);
    const Dims to = across(all, "limit_indices", d), out = extents(id, d);
    if (!x.dims[d].dynamic()) {
      if (!constant(from) || !constant(to) || !constant(step)) {
        // A window of a static dimension whose place depends on a size.
        if (!constant(step) || step[0] != 1) give_up("a slice with a step that depends on a size");
        dims[d] = simple(out);
        if (!constant(from)) moving.emplace_back(d, from);
      } else {
        dims[d].uniform = x.dims[d].uniform;
      }
      continue;
    }
    if (constant(from) && from[0] == 0 && constant(step) && step[0] == 1 && to == at_of(x, d)) {
      dims[d] = x.dims[d];  // all of it
      continue;
    }
    make_simple(x, d);
    if (!constant(step)) give_up("a slice with a step that depends on a size");
    if (!constant(from)) {
      if (step[0] != 1) give_up("a slice with a step that starts at a dynamic place");
      moving.emplace_back(d, from);
    }
    dims[d].uniform = x.dims[d].uniform;
    if (constant(out)) {
      if (step[0] != 1 && !constant(to)) give_up("a slice with large steps over a dynamic size");
      continue;
    }
    if (step[0] == 1) {
      dims[d] = simple(out, x.dims[d].uniform);
      continue;
    }
    // ceil((limit - start) / step)
    Value size = constant(to) ? s32(to[0]) : size_of(to);
    size = hlo::maximum(size - static_cast<double>(from[0]) + static_cast<double>(step[0] - 1), 0);
    size = hlo::divide(size, s32(step[0]));
    table_.emplace_back(out, size);
    dims[d].factors = {{out, size}};
  }
  // What starts at a dynamic place is cut out last.
  for (auto& [d, from] : moving) {
    static_start[d] = 0;
    static_limit[d] = x.v.dims()[d];
  }
  Known out{hlo::slice(x.v, static_start, static_limit, strides), dims};
  if (moving.empty()) return out;
  Values starts(rank, s32(0));
  Dims sizes = fns_[0]->types[id].dims;
  Dims none(rank, 0), room(rank, 0);
  for (auto& [d, from] : moving) {
    starts[d] = size_of(from);
    if (dims[d].dynamic()) room[d] = sizes[d];  // the window at the bounds may reach over the end
  }
  out.v = hlo::dynamic_slice(hlo::pad(out.v, zero(out.v), none, room), starts, sizes);
  return out;
}

Known Bounder::pad(const std::vector<const Instr*>& all, Known x, const Known& value) {
  const Instr& instr = *all[0];
  const int32_t id = instr.first_result;
  std::vector<Dim> dims(x.dims.size());
  Dims mask;
  for (size_t d = 0; d < dims.size(); ++d) {
    const Dims low = across(all, "edge_padding_low", d), high = across(all, "edge_padding_high", d),
               inner = across(all, "interior_padding", d);
    const Dims out = extents(id, d);
    auto all_zero = [](const Dims& v) {
      return std::all_of(v.begin(), v.end(), [](int64_t i) { return i == 0; });
    };
    if (all_zero(low) && all_zero(high) && all_zero(inner)) {
      dims[d] = x.dims[d];
      continue;
    }
    if (!constant(low) || !constant(inner)) give_up("padding in front depends on a size");
    make_simple(x, d);
    if (x.dims[d].dynamic()) mask.push_back(static_cast<int64_t>(d));
    dims[d] = simple(out);
  }
  const Value operands[] = {masked(x, mask, value.v), value.v};
  return {copy(instr, {operands[0], operands[1]})[0], dims};
}

Known Bounder::concatenate(const Instr& instr, std::vector<Known> xs) {
  const auto d = static_cast<size_t>(number(instr, "dimension"));
  const int32_t id = instr.first_result;
  bool any = false;
  for (Known& x : xs) {
    make_simple(x, d);
    any = any || x.dims[d].dynamic();
  }
  std::vector<Dim> along;
  for (Known& x : xs) {
    along.push_back(x.dims[d]);
    x.dims[d] = {};
  }
  std::vector<Known*> all;
  for (Known& x : xs) all.push_back(&x);
  std::vector<Dim> dims = agree(all);
  for (Dim& dim : dims) dim.uniform = false;
  Values values;
  for (const Known& x : xs) values.push_back(x.v);
  if (!any) {
    dims[d] = {};
    return {copy(instr, values)[0], dims};
  }
  // Each takes its place after the real end of those before it.
  const Type& type = fns_[0]->types[id];
  Value out = hlo::zeros(b_, type);
  Value at = s32(0);
  for (size_t i = 0; i < xs.size(); ++i) {
    Values starts(type.rank(), s32(0));
    starts[d] = at;
    out = hlo::dynamic_update_slice(out, values[i], starts);
    at = at + (along[i].dynamic() ? along[i].factors[0].size : s32(values[i].dims()[d]));
  }
  const Dims total = extents(id, d);
  table_.emplace_back(total, at);
  dims[d] = {{{total, at}}, false};
  return {out, dims};
}

Known Bounder::reverse(const Instr& instr, Known x) {
  const Dims which = array(instr, "dimensions");
  for (int64_t d : which) make_simple(x, static_cast<size_t>(d));
  Value v = copy(instr, {x.v})[0];
  for (int64_t d : which) {
    const Dim& dim = x.dims[d];
    if (!dim.dynamic()) continue;
    // The real elements are at the end now.
    const int64_t n = v.dims()[d];
    Dims low(v.rank(), 0), high(v.rank(), 0);
    high[d] = n;
    Values starts(v.rank(), s32(0));
    starts[d] = s32(n) - dim.factors[0].size;
    v = hlo::dynamic_slice(hlo::pad(v, zero(v), low, high), starts, x.v.dims());
  }
  return {v, x.dims};
}

// XLA moves a start so that the window fits, which has to mean the real size.
Value Bounder::start_inside(const Known& start, const Known& x, size_t d, int64_t size) {
  if (!x.dims[d].dynamic()) return start.v;
  Value last = hlo::convert(x.dims[d].factors[0].size, start.v.dtype()) - static_cast<double>(size);
  return hlo::maximum(hlo::minimum(start.v, last), 0);
}

Known Bounder::dynamic_slice(const std::vector<const Instr*>& all, std::vector<Known> xs) {
  const Instr& instr = *all[0];
  Known& x = xs[0];
  const Dims sizes = array(instr, "slice_sizes");
  std::vector<Dim> dims(x.dims.size());
  Values operands = {x.v};
  for (size_t d = 0; d < dims.size(); ++d) {
    const Dims size = across(all, "slice_sizes", d);
    if (size == at_of(x, d)) {
      dims[d] = x.dims[d];
      operands.push_back(hlo::zeros_like(xs[d + 1].v));
    } else if (constant(size)) {
      make_simple(x, d);
      dims[d].uniform = x.dims[d].uniform;
      operands.push_back(start_inside(xs[d + 1], x, d, size[0]));
    } else {
      // A dynamic window: room behind the end, so that it need not be moved.
      make_simple(x, d);
      dims[d] = simple(size);
      Value start = xs[d + 1].v;
      Value room =
          hlo::convert(x.dims[d].dynamic() ? x.dims[d].factors[0].size : s32(x.v.dims()[d]),
                       start.dtype()) -
          hlo::convert(dims[d].factors[0].size, start.dtype());
      operands.push_back(hlo::maximum(hlo::minimum(start, room), 0));
      Dims low(x.v.rank(), 0), high(x.v.rank(), 0);
      high[d] = size[0];
      x.v = hlo::pad(x.v, zero(x.v), low, high);
    }
  }
  operands[0] = x.v;
  return {hlo::dynamic_slice(x.v, std::span(operands).subspan(1), sizes), dims};
}

Known Bounder::dynamic_update_slice(std::vector<Known> xs) {
  Known& x = xs[0];
  Known& update = xs[1];
  const size_t rank = x.dims.size();
  Values starts;
  Dims grow(rank, 0), none(rank, 0), partial;
  for (size_t d = 0; d < rank; ++d) {
    const Value start = xs[d + 2].v;
    if (at_of(update, d) == at_of(x, d)) {
      agree_along(x, d, update, d);
      starts.push_back(hlo::zeros_like(start));
      continue;
    }
    make_simple(x, d);
    make_simple(update, d);
    const Dim& to = x.dims[d];
    const Dim& part = update.dims[d];
    if (!part.dynamic()) {
      starts.push_back(start_inside(xs[d + 2], x, d, update.v.dims()[d]));
      continue;
    }
    Value room =
        hlo::convert(to.dynamic() ? to.factors[0].size : s32(x.v.dims()[d]), start.dtype()) -
        hlo::convert(part.factors[0].size, start.dtype());
    starts.push_back(hlo::maximum(hlo::minimum(start, room), 0));
    grow[d] = update.v.dims()[d];
    partial.push_back(static_cast<int64_t>(d));
  }
  if (partial.empty()) return {hlo::dynamic_update_slice(x.v, update.v, starts), x.dims};
  // What is behind the update's real end stays as it was.
  Value old = hlo::pad(x.v, zero(x.v), none, grow);
  Value window = hlo::dynamic_slice(old, starts, update.v.dims());
  Value mask;
  for (int64_t d : partial) {
    Value m =
        hlo::broadcast_in_dim(mask_along(update.dims[d], update.v.dims()[d]), update.v.dims(), {d});
    mask = mask ? mask & m : m;
  }
  Value out = hlo::dynamic_update_slice(old, hlo::select(mask, update.v, window), starts);
  return {hlo::slice(out, none, x.v.dims(), Dims(rank, 1)), x.dims};
}

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
  const std::string_view text = hlo::attribute(instr.attributes, "dimension_numbers");
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
    const std::string_view reversal = hlo::attribute(instr.attributes, "window_reversal");
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

std::vector<Known> Bounder::sort(const Instr& instr, std::vector<Known> xs) {
  const auto d = static_cast<size_t>(number(instr, "dimension"));
  const bool stable = instr.attributes.find("is_stable = true") != std::string::npos;
  std::vector<Known*> all;
  Values operands;
  for (Known& x : xs) {
    make_simple(x, d);
    all.push_back(&x);
  }
  std::vector<Dim> dims = agree(all);
  for (Known& x : xs) operands.push_back(x.v);
  for (Dim& dim : dims) dim.uniform = false;
  std::vector<Known> out;
  if (!dims[d].dynamic()) {
    for (const Value& v : copy(instr, operands)) out.push_back({v, dims});
    return out;
  }
  // What is behind the end sorts behind everything.
  Value inside = mask_along(dims[d], operands[0].dims()[d]);
  operands.push_back(hlo::broadcast_in_dim(inside, operands[0].dims(), {static_cast<int64_t>(d)}));
  const Region& region = instr.regions[0];
  Values sorted =
      hlo::sort(operands, static_cast<int64_t>(d), stable, [&](const Values& l, const Values& r) {
        for (size_t i = 0; i < xs.size(); ++i) {
          known_[region.args[2 * i]] = {l[i], {}};
          known_[region.args[2 * i + 1]] = {r[i], {}};
        }
        for (const Instr& inner : region.body) {
          Values ops;
          for (int32_t id : inner.operands) ops.push_back(known_[id].v);
          Values made = copy(inner, ops);
          for (size_t i = 0; i < made.size(); ++i)
            known_[inner.first_result + static_cast<int32_t>(i)] = {made[i], {}};
        }
        Value less = known_[region.results[0]].v;
        return l.back() & (~r.back() | less);
      });
  for (size_t i = 0; i < xs.size(); ++i) out.push_back({sorted[i], dims});
  return out;
}

Known Bounder::gather(const Instr& instr, Known x, Known indices) {
  const Dims offset = list(instr, "offset_dims"), collapsed = list(instr, "collapsed_slice_dims"),
             batching = list(instr, "operand_batching_dims"),
             index_batching = list(instr, "start_indices_batching_dims"),
             map = list(instr, "start_index_map"), sizes = array(instr, "slice_sizes");
  const Dims vector = hlo::integers(hlo::attribute(instr.attributes, "index_vector_dim"), '>');
  const int64_t vector_dim = vector.empty() ? 0 : vector[0];
  const int32_t id = instr.first_result;
  for (size_t i = 0; i < batching.size(); ++i)
    agree_along(x, batching[i], indices, index_batching[i]);
  std::vector<Dim> windows, batches;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (contains(batching, at)) continue;
    const bool is_all = sizes[d] == x.v.dims()[d] && !contains(collapsed, at);
    if (contains(map, at)) make_simple(x, d);
    if (contains(collapsed, at)) continue;
    windows.push_back(is_all ? x.dims[d] : Dim());
  }
  for (size_t d = 0; d < indices.dims.size(); ++d)
    if (static_cast<int64_t>(d) != vector_dim) batches.push_back(indices.dims[d]);
  std::vector<Dim> dims;
  size_t w = 0, k = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(fns_[0]->types[id].dims.size()); ++d) {
    dims.push_back(contains(offset, d) ? windows.at(w++) : batches.at(k++));
    if (contains(offset, d)) continue;
    // Different elements of x, unless they cannot differ.
    bool same_x = true;
    for (size_t b = 0; b < batching.size(); ++b) same_x = same_x && x.dims[batching[b]].uniform;
    dims.back().uniform = dims.back().uniform && same_x;
  }
  return {copy(instr, {x.v, indices.v})[0], dims};
}

Known Bounder::scatter(const Instr& instr, std::vector<Known> xs) {
  if (xs.size() != 3) give_up("a scatter of several values");
  Known &x = xs[0], &indices = xs[1], &updates = xs[2];
  const Dims window = list(instr, "update_window_dims"),
             inserted = list(instr, "inserted_window_dims"),
             batching = list(instr, "input_batching_dims"),
             index_batching = list(instr, "scatter_indices_batching_dims"),
             map = list(instr, "scatter_dims_to_operand_dims");
  const Dims vector = hlo::integers(hlo::attribute(instr.attributes, "index_vector_dim"), '>');
  const int64_t vector_dim = vector.empty() ? 0 : vector[0];
  for (size_t i = 0; i < batching.size(); ++i)
    agree_along(x, batching[i], indices, index_batching[i]);
  for (int64_t d : map) make_simple(x, static_cast<size_t>(d));
  // Windows are all of the operand's dimension where they are dynamic.
  size_t w = 0;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    const auto at = static_cast<int64_t>(d);
    if (contains(inserted, at) || contains(batching, at)) continue;
    const auto u = static_cast<size_t>(window.at(w++));
    if (!updates.dims[u].dynamic() && !x.dims[d].dynamic()) continue;
    if (contains(map, at) || at_of(updates, u) != at_of(x, d))
      give_up("a scatter of windows of dynamic size");
    agree_along(x, d, updates, u);
  }
  std::vector<size_t> batch_of_updates;
  for (size_t d = 0; d < updates.dims.size(); ++d)
    if (!contains(window, static_cast<int64_t>(d))) batch_of_updates.push_back(d);
  Dims mask;
  size_t k = 0;
  for (size_t d = 0; d < indices.dims.size(); ++d) {
    if (static_cast<int64_t>(d) == vector_dim) continue;
    agree_along(indices, d, updates, batch_of_updates.at(k++));
    if (!contains(index_batching, static_cast<int64_t>(d))) mask.push_back(static_cast<int64_t>(d));
  }
  // An index that is out of range is dropped.
  Value at = masked(indices, mask, hlo::max_finite(b_, indices.v.dtype()));
  for (Dim& dim : x.dims) dim.uniform = false;
  return {copy(instr, {x.v, at, updates.v})[0], x.dims};
}

void Bounder::instruction(const std::vector<const Instr*>& all) {
  const Instr& instr = *all[0];
  std::vector<Known> xs;
  bool dynamic = false;
  for (int32_t id : instr.operands) {
    xs.push_back(known_[id]);
    dynamic = dynamic || is_dynamic(id);
  }
  bool empty = false;
  for (int32_t i = 0; i < instr.result_count; ++i) {
    dynamic = dynamic || is_dynamic(instr.first_result + i);
    empty = empty || fns_[0]->types[instr.first_result + i].elements() == 0;
  }
  const bool differs = std::any_of(
      all.begin(), all.end(), [&](const Instr* i) { return i->attributes != instr.attributes; });
  check_regions(all);
  auto set = [&](std::vector<Known> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      const int32_t id = instr.first_result + static_cast<int32_t>(i);
      if (out[i].v.type() != fns_[0]->types[id])
        give_up(instr.name + " has another type than it should: " + out[i].v.type().str());
      for (size_t d = 0; d < out[i].dims.size(); ++d)
        if (at_of(out[i], d) != extents(id, d))
          give_up(instr.name + " has another size than it should");
      known_[id] = std::move(out[i]);
    }
  };
  if (instr.name == "stablehlo.constant") return set({splat(all)});
  if (!dynamic && !differs) {
    Values operands;
    for (const Known& x : xs) operands.push_back(x.v);
    std::vector<Known> out;
    for (const Value& v : copy(instr, operands)) {
      Known k{v, std::vector<Dim>(v.rank())};
      out.push_back(std::move(k));
    }
    return set(std::move(out));
  }
  if (empty) {
    std::vector<Known> out;
    for (int32_t i = 0; i < instr.result_count; ++i) {
      const int32_t id = instr.first_result + i;
      out.push_back({hlo::zeros(b_, fns_[0]->types[id]), simple_dims(id, true)});
    }
    return set(std::move(out));
  }
  const size_t dot_at = instr.name.find('.');
  const std::string_view name = std::string_view(instr.name).substr(dot_at + 1);
  if (name == "slice") return set({slice(all, xs[0])});
  if (name == "pad") return set({pad(all, xs[0], xs[1])});
  if (name == "dynamic_slice") return set({dynamic_slice(all, xs)});
  if (name == "convolution") return set({convolution(all, xs[0], xs[1])});
  if (name == "reduce_window") return set(reduce_window(all, xs));
  if (name == "gather") {
    // The sizes of windows may be sizes of the operand.
    const Dims sizes = array(instr, "slice_sizes");
    for (size_t d = 0; d < sizes.size(); ++d) {
      const Dims size = across(all, "slice_sizes", d);
      if (!constant(size) && size != at_of(xs[0], d))
        give_up("a gather of windows of dynamic size");
      // (All of it in every trace, or never.)
      if (constant(size) && xs[0].dims[d].dynamic() && size[0] == xs[0].v.dims()[d] && size[0] != 1)
        give_up("a gather of windows that are sometimes everything");
    }
    return set({gather(instr, xs[0], xs[1])});
  }
  if (name == "broadcast_in_dim") {
    check_same_attributes(all);
    const Dims where = array(instr, "broadcast_dimensions");
    std::vector<Dim> dims = simple_dims(instr.first_result, true);
    for (size_t i = 0; i < where.size(); ++i)
      if (at_of(xs[0], i) == extents(instr.first_result, static_cast<size_t>(where[i])))
        dims[where[i]] = xs[0].dims[i];
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "reshape") {
    std::vector<Dims> to;
    for (size_t d = 0; d < fns_[0]->types[instr.first_result].dims.size(); ++d)
      to.push_back(extents(instr.first_result, d));
    return set({regroup(xs[0], to)});
  }
  check_same_attributes(all);
  if (hlo::is_pointwise(name)) {
    std::vector<Known*> shaped;
    for (Known& x : xs)
      if (!x.dims.empty()) shaped.push_back(&x);
    std::vector<Dim> dims = agree(shaped);
    for (size_t d = 0; d < dims.size(); ++d)
      for (Known* x : shaped) dims[d].uniform = dims[d].uniform && x->dims[d].uniform;
    Values operands;
    for (const Known& x : xs) operands.push_back(x.v);
    std::vector<Known> out;
    for (const Value& v : copy(instr, operands)) out.push_back({v, dims});
    return set(std::move(out));
  }
  if (name == "transpose") {
    std::vector<Dim> dims;
    for (int64_t d : array(instr, "permutation")) dims.push_back(xs[0].dims[d]);
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "bitcast_convert") {
    const size_t rank = fns_[0]->types[instr.first_result].dims.size();
    std::vector<Dim> dims(
        xs[0].dims.begin(),
        xs[0].dims.begin() + static_cast<std::ptrdiff_t>(std::min(rank, xs[0].dims.size())));
    if (rank != xs[0].dims.size() && !xs[0].dims.empty() && xs[0].dims.back().dynamic() &&
        rank < xs[0].dims.size())
      give_up("bits of a dynamic dimension");
    dims.resize(rank);
    return set({{copy(instr, {xs[0].v})[0], dims}});
  }
  if (name == "iota") {
    const auto d = static_cast<size_t>(number(instr, "iota_dimension"));
    std::vector<Dim> dims = simple_dims(instr.first_result, true);
    dims[d].uniform = false;
    return set({{copy(instr, {})[0], dims}});
  }
  if (name == "top_k") {
    const size_t last = xs[0].dims.size() - 1;
    std::vector<Dim> dims = xs[0].dims;
    dims[last] = simple(extents(instr.first_result, last));
    Value v = xs[0].v;
    if (xs[0].dims[last].dynamic()) {
      if (v.dtype() != DType::F32) give_up("top_k of " + v.type().str());
      make_simple(xs[0], last);
      // The least value of the total order that it sorts by.
      Value least = hlo::bitcast_convert(s32(-1), DType::F32);
      v = masked(xs[0], {static_cast<int64_t>(last)}, least);
    }
    std::vector<Known> out;
    for (const Value& made : copy(instr, {v})) out.push_back({made, dims});
    return set(std::move(out));
  }
  if (name == "reduce") return set(reduce(instr, xs));
  if (name == "dot_general") return set({dot(instr, xs[0], xs[1])});
  if (name == "concatenate") return set({concatenate(instr, xs)});
  if (name == "reverse") return set({reverse(instr, xs[0])});
  if (name == "dynamic_update_slice") return set({dynamic_update_slice(xs)});
  if (name == "sort") return set(sort(instr, xs));
  if (name == "scatter") return set({scatter(instr, xs)});
  if (name == "cholesky" || name == "fft" || name == "triangular_solve") {
    const size_t rank = xs[0].dims.size();
    for (const Known& x : xs)
      for (size_t d = rank - std::min<size_t>(rank, name == "fft" ? 3 : 2); d < rank; ++d)
        if (x.dims[d].dynamic()) give_up(instr.name + " of a dynamic size");
    std::vector<Known*> shaped;
    for (Known& x : xs) shaped.push_back(&x);
    Values operands;
    std::vector<Dim> dims = agree(shaped);
    for (Dim& dim : dims) dim.uniform = false;
    for (const Known& x : xs) operands.push_back(x.v);
    return set({{copy(instr, operands)[0], dims}});
  }
  give_up(instr.name + " has no rule for dynamic sizes");
}

Values Bounder::run(const std::function<Value(size_t)>& param) {
  const Function& f = *fns_[0];
  for (const Function* other : fns_) {
    // Say where, if it can be told.
    for (size_t i = 0; i < std::min(f.body.size(), other->body.size()); ++i)
      if (other->body[i].name != f.body[i].name)
        give_up("the program has another form at other sizes (" + f.body[i].name + ", " +
                other->body[i].name + ")");
    if (other->params.size() != f.params.size() || other->body.size() != f.body.size() ||
        other->results != f.results)
      give_up("the program has another form at other sizes");
  }
  known_.resize(f.types.size());
  auto flat_of = [&](const std::vector<Dims>& to) {
    Dims total(fns_.size(), 1);
    for (const Dims& at : to)
      for (size_t p = 0; p < total.size(); ++p) total[p] *= at[p];
    return total;
  };
  auto all_extents = [&](int32_t id) {
    std::vector<Dims> to;
    for (size_t d = 0; d < f.types[id].dims.size(); ++d) to.push_back(extents(id, d));
    return to;
  };
  for (size_t i = 0; i < f.params.size(); ++i) {
    const int32_t id = f.params[i];
    Value v = param(i);
    if (!is_dynamic(id)) {
      if (v.type() != f.types[id]) give_up("a parameter has another type: " + v.type().str());
      known_[id] = {v, std::vector<Dim>(v.rank())};
      continue;
    }
    const std::vector<Dims> to = all_extents(id);
    known_[id] = regroup({v, {simple(flat_of(to))}}, to);
  }
  for (size_t i = 0; i < f.body.size(); ++i) {
    std::vector<const Instr*> all;
    for (const Function* fn : fns_) {
      all.push_back(&fn->body[i]);
      const Instr &a = f.body[i], &c = fn->body[i];
      if (a.name != c.name || a.operands != c.operands || a.first_result != c.first_result ||
          a.result_count != c.result_count || a.regions.size() != c.regions.size())
        give_up("the program has another form at other sizes (" + a.name + ", " + c.name + ")");
    }
    instruction(all);
  }
  Values out;
  for (int32_t id : f.results) {
    if (!is_dynamic(id)) {
      out.push_back(known_[id].v);
      continue;
    }
    Known flat = regroup(known_[id], {flat_of(all_extents(id))});
    make_simple(flat, 0);
    out.push_back(flat.v);
  }
  return out;
}

}  // namespace

Values bounded_call(Builder& b, const BoundedTraces& traces, const Values& sizes,
                    const std::function<Value(size_t)>& param) {
  return Bounder(b, traces, sizes).run(param);
}

}  // namespace torch_tpu::graph
