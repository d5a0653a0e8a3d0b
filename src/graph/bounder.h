// SPDX-License-Identifier: Apache-2.0 - Bounder: what is known of values of dynamic size, and the rules for instructions on them.
//
// bounded.cpp walks through the traces, bounded_numbers.cpp makes numbers of sizes,
// bounded_dims.cpp and bounded_reshape.cpp say where elements are; the rules are in
// bounded_slices.cpp, bounded_sums.cpp and bounded_indices.cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/graph/bounded.h"
#include "src/hlo/attributes.h"

namespace torch_tpu::graph::bounds {

using hlo::attribute;
using hlo::Builder;
using hlo::Dims;
using hlo::DType;
using hlo::Function;
using hlo::Instr;
using hlo::integers;
using hlo::Region;
using hlo::Type;
using hlo::Value;
using hlo::Values;

[[noreturn]] void give_up(const std::string& why);

// ---- attributes, which instructions keep as text -----------------------------------------------

Dims array(const Instr& instr, std::string_view name);      // array<i64: 1, 2>
Dims list(const Instr& instr, std::string_view name);       // [1, 2]
int64_t number(const Instr& instr, std::string_view name);  // 1 : i64
void padding(const Instr& instr, Dims& low, Dims& high);    // dense<[[low, high], ...]>

bool contains(const Dims& dims, int64_t d);

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

bool same(const Factors& a, const Factors& b);
int64_t extent_of(const Factors& f);

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
  Value drawn_words(const std::vector<double>& c, DType dtype);
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

}  // namespace torch_tpu::graph::bounds
