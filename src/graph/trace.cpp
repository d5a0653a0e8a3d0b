// SPDX-License-Identifier: Apache-2.0 - Runs operator entries: argument access, run-time inputs, views, writes.
#include "src/graph/trace.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "src/graph/philox.h"
#include "src/graph/view.h"

namespace torch_tpu::graph {

using hlo::Builder;
using hlo::Type;

// ---- the tracer --------------------------------------------------------------------------------

class Tracer {
 public:
  Tracer(Variant& variant, std::shared_ptr<const Args> args, const TraceOptions& options)
      : variant_(variant), args_(std::move(args)), options_(options) {
    record_ = std::make_shared<Record>();
    record_->op = variant.op;
    variant_.asked.resize(
        std::max({variant_.asked.size(), args_->size(), variant_.entry->arg_names.size()}));
  }

  std::shared_ptr<Record> run();

  // ---- services of Call ----
  const Arg& at(TensorRef ref) const {
    const Arg& a = (*args_)[ref.arg];
    return a.kind == Arg::TensorList ? a.list[ref.element] : a;
  }

  // The current base value of a tensor argument, in its own element type.
  Value base(const TensorArg& t, TensorRef ref) {
    Storage& s = storage(t, ref);
    if (!s.value) {
      if (t.uninitialized) {
        s.value = hlo::zeros(builder_, t.base);
      } else {
        s.input = static_cast<int32_t>(record_->inputs.size());
        record_->inputs.push_back(ref);
        record_->input_types.push_back(t.base);
        s.value = builder_.param(t.base);
        tensor_params_.push_back(s.value.id());
      }
    }
    return s.value;
  }

  StartSource starts(const TensorArg& t, TensorRef ref) {
    int64_t n = reinterpreted(t.base, t.dtype).elements();
    DType dtype = n > INT32_MAX ? DType::S64 : DType::S32;
    return [this, ref, dtype](int64_t divisor, int64_t modulus) {
      ScalarSource source;
      source.kind = ScalarSource::ViewStart;
      source.dtype = dtype;
      source.from = ref;
      source.divisor = divisor;
      source.modulus = modulus;
      return scalar_param(source);
    };
  }

  Value read(const TensorArg& t, TensorRef ref) {
    Value b = base(t, ref);
    return read_view(reinterpret(b, t.dtype), t, starts(t, ref));
  }

  void write(const TensorArg& t, TensorRef ref, Value value) {
    if (t.host)
      throw UserError(UserError::Runtime,
                      record_->op + "(): cannot write to a CPU tensor from an operation on tpu");
    value = hlo::broadcast_to(hlo::convert(value, t.dtype), t.sizes);
    Storage& s = storage(t, ref);
    Type as = reinterpreted(s.value ? s.value.type() : t.base, t.dtype);
    Value old;
    if (overwrites(t, as) && as.bytes() == t.base.bytes() && !s.value) {
      old = hlo::zeros(builder_, as);  // not looked at
    } else {
      old = reinterpret(base(t, ref), t.dtype);
    }
    Value before = s.value;
    s.value = write_view(old, t, value, starts(t, ref));
    // Bytes at the end that are less than one element of the wider type stay what they are.
    if (before && s.value.type().bytes() != before.type().bytes()) {
      before = reinterpret(before, before.dtype() == DType::Pred ? DType::U8 : before.dtype());
      Value head = reinterpret(s.value, before.dtype());
      head = hlo::reshape(head, {head.elements()});
      Value tail = hlo::slice_dim(hlo::reshape(before, {before.elements()}), 0, head.elements(),
                                  before.elements());
      std::vector<Value> parts = {head, tail};
      s.value = hlo::reshape(hlo::concatenate(parts, 0), before.dims());
    }
    s.written = true;
  }

  Value scalar_param(const ScalarSource& source) {
    for (size_t i = 0; i < record_->scalars.size(); ++i)
      if (record_->scalars[i] == source) return scalar_values_[i];
    Value v = builder_.param({source.dtype, {}});
    record_->scalars.push_back(source);
    scalar_values_.push_back(v);
    return v;
  }

  Value number(const Number& n, TensorRef ref, DType dtype) {
    ScalarSource source;
    source.from = ref;
    if (dtype == DType::C32) return hlo::convert(number(n, ref, DType::C64), dtype);
    if (hlo::is_complex(dtype)) {
      source.dtype = hlo::real_of(dtype);
      source.kind = ScalarSource::NumberRe;
      Value re = scalar_param(source);
      if (n.kind != Number::Complex) return hlo::convert(re, dtype);
      source.kind = ScalarSource::NumberIm;
      return hlo::complex(re, scalar_param(source));
    }
    if (n.kind == Number::Complex && dtype != DType::Pred) {
      throw UserError(UserError::Runtime, "value cannot be converted to type " +
                                              std::string(hlo::torch_name(dtype)) +
                                              " without overflow");
    }
    if (dtype == DType::Pred) {
      source.kind = ScalarSource::NumberFlag;
      source.dtype = DType::S32;
      return hlo::ne(scalar_param(source), 0);
    }
    if (dtype == DType::F64) {
      source.dtype = DType::F64;
    } else if (hlo::is_floating(dtype)) {
      source.dtype = DType::F32;
    } else if (dtype == DType::U32) {
      source.dtype = DType::U32;
    } else if (hlo::bit_width(dtype) <= 32) {
      source.dtype = DType::S32;
    } else {
      source.dtype = DType::S64;
    }
    Value v = scalar_param(source);
    if (dtype == DType::U64) return hlo::bitcast_convert(v, dtype);
    return hlo::convert(v, dtype);
  }

  Specialization& asked(int arg) { return variant_.asked[arg]; }
  void ask_derived(Derivation fn) {
    auto& all = variant_.derived;
    if (std::find(all.begin(), all.end(), fn) == all.end()) all.push_back(fn);
  }
  void ask_precision() { variant_.asked_precision = true; }
  Arg& keep(Arg a) { return kept_.emplace_back(std::move(a)); }
  Builder& builder() { return builder_; }
  Record& record() { return *record_; }
  const TraceOptions& options() const { return options_; }

  void fail_if(const Value& bad, CheckSpec check, const Value& culprit) {
    if (bad.elements() == 0) return;
    Dims all(bad.rank());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    Value zero = hlo::scalar(builder_, DType::S64, 0), any, value = zero;
    if (culprit) {
      // One reduction for both: a culprit is not zero. Which one is told does not matter.
      value = hlo::select(bad, hlo::convert(culprit, DType::S64), 0);
      if (bad.rank() != 0) {
        value = hlo::bitcast_convert(value, DType::U64);
        value = hlo::bitcast_convert(hlo::reduce(value, all, hlo::Reduce::Maximum), DType::S64);
        any = hlo::ne(value, 0);
      }
    }
    if (!any) any = hlo::reduce(bad, all, hlo::Reduce::Or);
    record_->checks.push_back(std::move(check));
    double number = static_cast<double>(record_->checks.size());
    Value word = hlo::select(any, hlo::scalar(builder_, DType::S64, number), zero);
    merge_error_words(word, value);
  }
  void merge_error_words(Value word, Value value) {
    if (error_word_) {
      Value earlier = hlo::ne(error_word_, 0);
      word = hlo::select(earlier, error_word_, word);
      value = hlo::select(earlier, error_value_, value);
    }
    error_word_ = word;
    error_value_ = value;
  }

  std::pair<Value, Value> exchange_error_words(const Value& word, const Value& value) {
    return {std::exchange(error_word_, word), std::exchange(error_value_, value)};
  }

  Value random_bits(int64_t count) {
    auto source = [&](ScalarSource::Kind kind, int64_t add) {
      ScalarSource s;
      s.kind = kind;
      s.dtype = DType::U32;
      s.divisor = add;
      return scalar_param(s);
    };
    auto used = static_cast<int64_t>(record_->random_increment);
    Value seed_lo = source(ScalarSource::SeedLow, 0), seed_hi = source(ScalarSource::SeedHigh, 0);
    Value lo = source(ScalarSource::OffsetLow, used), hi = source(ScalarSource::OffsetHigh, used);
    record_->random_increment += static_cast<uint64_t>((count + 3) / 4 * 4);
    return philox_u32(builder_, seed_lo, seed_hi, lo, hi, count);
  }

 private:
  struct Storage {
    Value value;
    int32_t input = -1;
    bool written = false;
    TensorRef ref;
  };

  Storage& storage(const TensorArg& t, TensorRef ref) {
    for (Storage& s : storages_) {
      if (s.ref == ref) return s;
      if (t.alias >= 0) {
        const Arg& other = at(s.ref);
        if (other.kind == Arg::Tensor && other.tensor.alias == t.alias) return s;
      }
    }
    storages_.push_back({});
    storages_.back().ref = ref;
    return storages_.back();
  }

  Call make_call() {
    Call c;
    c.entry_ = variant_.entry;
    c.builder_ = &builder_;
    c.tracer_ = this;
    c.record_ = record_.get();
    c.platform_ = options_.platform;
    c.host_kernels_ = options_.host_kernels && options_.platform == Platform::Cpu;
    c.open_sizes_ = options_.open_sizes;
    c.precision_ = options_.precision;
    c.default_float_ = options_.default_float;
    return c;
  }

  void run_element(int64_t element, int64_t count);
  void add_output(Call& c, size_t i, const Value& v);
  Dims output_strides(const Call& c, const Dims& sizes) const;
  void finish();

  Variant& variant_;
  std::shared_ptr<const Args> args_;
  TraceOptions options_;
  Builder builder_;
  std::shared_ptr<Record> record_;
  std::vector<int32_t> tensor_params_;
  std::vector<Value> scalar_values_;
  std::vector<Storage> storages_;
  Values results_;
  Value error_word_, error_value_;  // 0-dim
  std::deque<Arg> kept_;
};

// TensorIteratorBase::reorder_dimensions and compute_strides: the dimensions of the result are
// laid out in the order that the inputs' strides suggest, the first input deciding ties.
Dims Tracer::output_strides(const Call& c, const Dims& sizes) const {
  size_t rank = sizes.size();
  std::vector<const TensorArg*> inputs;
  for (const Arg* a : c.args_) {
    if (a->kind == Arg::Tensor && !a->tensor.host) inputs.push_back(&a->tensor);
    if (a->kind == Arg::TensorList)
      for (const Arg& e : a->list)
        if (e.kind == Arg::Tensor && !e.tensor.host) inputs.push_back(&e.tensor);
  }
  // All inputs of the full shape and the same dense strides: keep them.
  bool plain = true;
  for (const TensorArg* t : inputs) {
    if (t->sizes != sizes || t->strides != hlo::contiguous_strides(sizes)) plain = false;
  }
  if (plain || rank <= 1) return hlo::contiguous_strides(sizes);
  auto stride_of = [&](const TensorArg* t, int64_t d) -> int64_t {
    int64_t shift = static_cast<int64_t>(rank) - t->rank();
    if (d < shift) return 0;
    int64_t n = t->sizes[d - shift];
    return n == 1 && sizes[d] != 1 ? 0 : t->strides[d - shift];
  };
  std::vector<int64_t> perm(rank);  // innermost first
  for (size_t i = 0; i < rank; ++i) perm[i] = static_cast<int64_t>(rank - 1 - i);
  // 1: a should come after b (outer); -1: inner; 0: undecided.
  auto should_swap = [&](int64_t dim0, int64_t dim1) {
    for (const TensorArg* t : inputs) {
      int64_t s0 = stride_of(t, dim0), s1 = stride_of(t, dim1);
      if (s0 == 0 || s1 == 0) continue;
      if (s0 < s1) return -1;
      if (s0 > s1) return 1;
      if (sizes[dim0] > sizes[dim1]) return 1;
    }
    return 0;
  };
  for (size_t i = 1; i < rank; ++i) {
    size_t dim1 = i;
    for (size_t k = i; k-- > 0;) {
      int comparison = should_swap(perm[k], perm[dim1]);
      if (comparison > 0) {
        std::swap(perm[k], perm[dim1]);
        dim1 = k;
      } else if (comparison < 0) {
        break;
      }
    }
  }
  Dims strides(rank);
  int64_t running = 1;
  for (int64_t d : perm) {
    strides[d] = running;
    running *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

void Tracer::add_output(Call& c, size_t i, const Value& v) {
  OutputSpec out;
  if (!v) {
    record_->outputs.push_back(out);
    return;
  }
  out.dtype = v.dtype();
  out.sizes = v.dims();
  if (i < c.strides_.size() && c.strides_[i]) {
    out.strides = *c.strides_[i];
  } else if (variant_.entry->rule == OutputRule::Pointwise) {
    out.strides = output_strides(c, out.sizes);
  } else {
    out.strides = hlo::contiguous_strides(out.sizes);
  }
  Dims plain = hlo::contiguous_strides(out.sizes);
  out.contiguous = out.strides == plain;
  Value base = v;
  if (!out.contiguous && v.elements() > 0) {
    // Dense in another order: the base holds the dimensions outermost first.
    Dims perm(v.rank());
    for (size_t d = 0; d < perm.size(); ++d) perm[d] = static_cast<int64_t>(d);
    std::stable_sort(perm.begin(), perm.end(), [&](int64_t a, int64_t b) {
      if (out.strides[a] != out.strides[b]) return out.strides[a] > out.strides[b];
      return out.sizes[a] > out.sizes[b];
    });
    base = hlo::transpose(v, perm);
  }
  out.base = base.type();
  out.result = static_cast<int32_t>(results_.size());
  results_.push_back(base);
  record_->outputs.push_back(std::move(out));
}

void Tracer::run_element(int64_t element, int64_t count) {
  Call c = make_call();
  const OpEntry& entry = *variant_.entry;
  size_t n = entry.arg_names.size();
  static const Arg none;
  static const Arg one = [] {
    Arg a;
    a.kind = Arg::Scalar;
    a.number = Number::of(int64_t{1});
    return a;
  }();
  for (size_t i = 0; i < n; ++i) {
    TensorRef ref{static_cast<uint16_t>(i), 0};
    const Arg* a = i < args_->size() ? &(*args_)[i] : &none;
    // A factor that the foreach form's schema leaves out.
    if (i >= args_->size() && (entry.arg_names[i] == "alpha" || entry.arg_names[i] == "value"))
      a = &one;
    if (variant_.foreach && (a->kind == Arg::TensorList || a->kind == Arg::ScalarList)) {
      int64_t have = a->kind == Arg::TensorList ? static_cast<int64_t>(a->list.size())
                                                : static_cast<int64_t>(a->numbers.size());
      if (have != count)
        throw UserError(UserError::Runtime,
                        variant_.op + "(): lists must have the same number of elements, got " +
                            std::to_string(count) + " and " + std::to_string(have));
      ref.element = static_cast<uint16_t>(element);
      if (a->kind == Arg::TensorList) a = &a->list[element];
    }
    c.refs_.push_back(ref);
    c.args_.push_back(a);
  }
  // A list of numbers stands for one number per element.
  std::vector<Arg> numbers;
  numbers.reserve(n);
  if (variant_.foreach) {
    for (size_t i = 0; i < n; ++i) {
      if (c.args_[i]->kind != Arg::ScalarList) continue;
      Arg a;
      a.kind = Arg::Scalar;
      a.number = c.args_[i]->numbers[element];
      numbers.push_back(a);
      c.args_[i] = &numbers.back();
    }
  }
  Values values = variant_.body ? variant_.body(c) : entry.body(c);
  switch (variant_.form) {
    case Variant::Functional:
      for (size_t i = 0; i < values.size(); ++i) add_output(c, i, values[i]);
      break;
    case Variant::InPlace: {
      const TensorArg& self = c.args_[0]->tensor;
      const Value& v = values.at(0);
      if (v.dims() != self.sizes)
        c.fail(UserError::Runtime, "output with shape " + Call::str(self.sizes) +
                                       " doesn't match the broadcast shape " + Call::str(v.dims()));
      if (!can_cast(v.dtype(), self.dtype))
        c.fail(UserError::Runtime, "result type " + std::string(hlo::scalar_type_name(v.dtype())) +
                                       " can't be cast to the desired output type " +
                                       std::string(hlo::scalar_type_name(self.dtype)));
      write(self, c.refs_[0], v);
      break;
    }
    case Variant::Out:
      for (int i = 0; i < variant_.out_count; ++i) {
        TensorRef ref{static_cast<uint16_t>(variant_.first_out + i), 0};
        const Arg* a = &(*args_)[ref.arg];
        if (variant_.foreach) {
          ref.element = static_cast<uint16_t>(element);
          a = &a->list.at(element);
        }
        const Value& v = values.at(i);
        if (!v) continue;
        if (c.exact_outs_ && v.dtype() != a->tensor.dtype)
          c.fail(UserError::Runtime,
                 "Expected out tensor to have dtype " + std::string(hlo::torch_name(v.dtype())) +
                     ", but got " + std::string(hlo::torch_name(a->tensor.dtype)) + " instead");
        if (!can_cast(v.dtype(), a->tensor.dtype))
          c.fail(UserError::Runtime, "result type " +
                                         std::string(hlo::scalar_type_name(v.dtype())) +
                                         " can't be cast to the desired output type " +
                                         std::string(hlo::scalar_type_name(a->tensor.dtype)));
        write(a->tensor, ref, v);
      }
      break;
  }
}

void Tracer::finish() {
  Record& r = *record_;
  for (Storage& s : storages_) {
    if (!s.written) continue;
    WriteSpec w;
    w.to = s.ref;
    w.result = static_cast<int32_t>(results_.size());
    w.base = s.value.type();
    w.input = s.input;
    w.donates = s.input >= 0;
    results_.push_back(s.value);
    r.writes.push_back(w);
  }
  if (error_word_) {
    r.error_result = static_cast<int32_t>(results_.size());
    hlo::Values words = {hlo::reshape(error_word_, {1}), hlo::reshape(error_value_, {1})};
    results_.push_back(hlo::concatenate(words, 0));
  }
  for (const Value& v : results_) r.result_types.push_back(v.type());
  r.function = builder_.finish(results_);
  // finish() numbers anew: parameters first, in the order they were made in.
  std::map<int32_t, int32_t> renumbered;
  for (int32_t id : tensor_params_) renumbered[id] = -1;
  for (const Value& v : scalar_values_) renumbered[v.id()] = -1;
  size_t made = 0;
  for (auto& [old_id, id] : renumbered) id = r.function.params[made++];
  // Inputs that nothing reads are not inputs.
  std::vector<bool> used(r.function.types.size(), false);
  std::function<void(const std::vector<hlo::Instr>&)> mark =
      [&](const std::vector<hlo::Instr>& body) {
        for (const hlo::Instr& i : body) {
          for (int32_t o : i.operands) used[o] = true;
          for (const hlo::Region& g : i.regions) {
            mark(g.body);
            for (int32_t o : g.results) used[o] = true;
          }
        }
      };
  mark(r.function.body);
  for (int32_t o : r.function.results) used[o] = true;
  std::vector<int32_t> params;
  std::vector<TensorRef> inputs;
  std::vector<Type> types;
  std::vector<int32_t> moved(r.inputs.size(), -1);
  for (size_t i = 0; i < r.inputs.size(); ++i) {
    int32_t id = renumbered[tensor_params_[i]];
    if (!used[id]) continue;
    moved[i] = static_cast<int32_t>(inputs.size());
    params.push_back(id);
    inputs.push_back(r.inputs[i]);
    types.push_back(r.input_types[i]);
  }
  for (WriteSpec& w : r.writes) {
    w.input = w.input >= 0 ? moved[w.input] : -1;
    w.donates = w.input >= 0;
  }
  r.inputs = std::move(inputs);
  r.input_types = std::move(types);
  std::vector<ScalarSource> scalars;
  for (size_t i = 0; i < r.scalars.size(); ++i) {
    int32_t id = renumbered[scalar_values_[i].id()];
    if (!used[id]) continue;
    params.push_back(id);
    scalars.push_back(r.scalars[i]);
  }
  r.scalars = std::move(scalars);
  r.function.params = std::move(params);
}

std::shared_ptr<Record> Tracer::run() {
  try {
    if (variant_.foreach) {
      int64_t count = 0;
      for (const Arg& a : *args_)
        if (a.kind == Arg::TensorList) {
          count = static_cast<int64_t>(a.list.size());
          break;
        }
      if (count == 0)
        throw UserError(UserError::Runtime, "Tensor list must have at least one tensor.");
      for (int64_t e = 0; e < count; ++e) run_element(e, count);
    } else {
      run_element(0, 1);
    }
  } catch (const hlo::BuildError& e) {
    throw UserError(UserError::Runtime,
                    variant_.op + "(): these arguments do not fit together: " + e.what());
  }
  finish();
  // What another platform needs to make the same call's function.
  auto variant = std::make_shared<const Variant>(variant_);
  auto args = args_;
  TraceOptions options = options_;
  record_->retrace = [variant, args, options](Platform platform, bool host_kernels,
                                              bool open_sizes) {
    Variant copy = *variant;
    TraceOptions other = options;
    other.platform = platform;
    other.host_kernels = host_kernels;
    other.open_sizes = open_sizes;
    return trace(copy, args, other);
  };
  return record_;
}

std::shared_ptr<Record> trace(Variant& variant, std::shared_ptr<const Args> args,
                              const TraceOptions& options) {
  return Tracer(variant, std::move(args), options).run();
}

// ---- Call --------------------------------------------------------------------------------------

int Call::index_of(std::string_view name) const {
  const auto& names = entry_->arg_names;
  for (size_t i = 0; i < names.size(); ++i)
    if (names[i] == name) return static_cast<int>(i);
  throw hlo::BuildError("entry " + entry_->schema + " has no argument '" + std::string(name) + "'");
}

const Arg& Call::arg(std::string_view name) const { return *args_[index_of(name)]; }
bool Call::has(std::string_view name) const { return arg(name).kind != Arg::None; }
std::string Call::op_name() const { return record_->op; }

Value Call::read(const Arg& a, TensorRef ref, std::optional<DType> dtype) {
  if (a.kind == Arg::Scalar) {
    DType own = a.number.kind == Number::Float     ? default_float_
                : a.number.kind == Number::Complex ? hlo::complex_of(default_float_)
                : a.number.kind == Number::Bool    ? DType::Pred
                                                   : DType::S64;
    return tracer_->number(a.number, ref, dtype.value_or(own));
  }
  if (a.kind != Arg::Tensor)
    throw hlo::BuildError("entry " + entry_->schema + " reads an argument that is not a tensor");
  if (a.tensor.host) {
    Value v = tracer_->number(a.tensor.number, ref, dtype.value_or(a.tensor.dtype));
    return v;
  }
  Value v = tracer_->read(a.tensor, ref);
  return dtype ? hlo::convert(v, *dtype) : v;
}

Value Call::tensor(std::string_view name) {
  int i = index_of(name);
  return read(*args_[i], refs_[i], {});
}
Value Call::tensor(std::string_view name, DType dtype) {
  int i = index_of(name);
  return read(*args_[i], refs_[i], dtype);
}

std::vector<std::optional<Value>> Call::optional_tensors(std::string_view name) {
  int i = index_of(name);
  std::vector<std::optional<Value>> out;
  for (size_t e = 0; e < args_[i]->list.size(); ++e) {
    const Arg& a = args_[i]->list[e];
    if (a.kind == Arg::None) {
      out.emplace_back();
      continue;
    }
    out.emplace_back(read(a, {refs_[i].arg, static_cast<uint16_t>(e)}, {}));
  }
  return out;
}
Values Call::tensors(std::string_view name) {
  Values out;
  for (auto& v : optional_tensors(name)) {
    if (!v) throw hlo::BuildError("undefined tensor in list " + std::string(name));
    out.push_back(*v);
  }
  return out;
}
Values Call::tensors(std::string_view name, DType dtype) {
  Values out = tensors(name);
  for (Value& v : out) v = hlo::convert(v, dtype);
  return out;
}

const TensorArg* Call::meta_or_null(std::string_view name) const {
  const Arg& a = arg(name);
  return a.kind == Arg::Tensor ? &a.tensor : nullptr;
}
const TensorArg& Call::meta(std::string_view name) const {
  const TensorArg* t = meta_or_null(name);
  if (t == nullptr) {
    const Arg& a = arg(name);
    if (a.kind == Arg::Scalar) {
      // A number where the schema of another overload has a tensor (foreach forms).
      TensorArg* m = &tracer_->keep({}).tensor;
      m->host = m->wrapped = true;
      m->number = a.number;
      m->dtype = a.number.kind == Number::Float     ? default_float_
                 : a.number.kind == Number::Complex ? hlo::complex_of(default_float_)
                 : a.number.kind == Number::Bool    ? DType::Pred
                                                    : DType::S64;
      return *m;
    }
    throw hlo::BuildError("argument '" + std::string(name) + "' of " + entry_->schema +
                          " is not a tensor");
  }
  return *t;
}
std::vector<const TensorArg*> Call::metas(std::string_view name) const {
  std::vector<const TensorArg*> out;
  for (const Arg& a : arg(name).list) out.push_back(a.kind == Arg::Tensor ? &a.tensor : nullptr);
  return out;
}

int64_t Call::integer(std::string_view name) const {
  const Arg& a = arg(name);
  if (a.kind == Arg::None) return 0;
  if (a.kind != Arg::Int)
    throw hlo::BuildError("argument '" + std::string(name) + "' of " + entry_->schema +
                          " is not an integer");
  return a.i;
}
std::optional<int64_t> Call::integer_or_none(std::string_view name) const {
  if (!has(name)) return {};
  return integer(name);
}
Dims Call::ints(std::string_view name) const {
  const Arg& a = arg(name);
  if (a.kind == Arg::Int) return {a.i};
  return a.ints;
}
std::string Call::text(std::string_view name) const { return arg(name).text; }
std::optional<DType> Call::dtype(std::string_view name) const {
  const Arg& a = arg(name);
  if (a.kind != Arg::Type) return {};
  return a.dtype;
}

Value Call::scalar(std::string_view name, DType dtype) { return tensor(name, dtype); }
Values Call::scalars(std::string_view name, DType dtype) {
  int i = index_of(name);
  Values out;
  for (size_t e = 0; e < args_[i]->numbers.size(); ++e)
    out.push_back(
        tracer_->number(args_[i]->numbers[e], {refs_[i].arg, static_cast<uint16_t>(e)}, dtype));
  return out;
}

namespace {
const Number& number_of(const Arg& a) { return a.kind == Arg::Tensor ? a.tensor.number : a.number; }
}  // namespace

hlo::Precision Call::precision() {
  tracer_->ask_precision();
  return precision_;
}
size_t Call::arg_count() const { return args_.size(); }
const Arg& Call::arg_at(size_t i) const { return *args_[i]; }
Value Call::read_at(size_t i, size_t element) {
  const Arg& a = *args_[i];
  if (a.kind == Arg::TensorList)
    return read(a.list[element], {refs_[i].arg, static_cast<uint16_t>(element)}, {});
  return read(a, refs_[i], {});
}
void Call::write_at(size_t i, size_t element, const Value& value) {
  const Arg& a = *args_[i];
  if (a.kind == Arg::TensorList)
    tracer_->write(a.list[element].tensor, {refs_[i].arg, static_cast<uint16_t>(element)}, value);
  else
    tracer_->write(a.tensor, refs_[i], value);
}
Value Call::scalar_input(const ScalarSource& source) { return tracer_->scalar_param(source); }
uint64_t& Call::random_increment() { return record_->random_increment; }
void Call::want_all_values() {
  for (size_t i = 0; i < args_.size(); ++i) tracer_->asked(refs_[i].arg).whole = true;
}

int64_t Call::derive(Derivation fn) {
  tracer_->ask_derived(fn);
  std::vector<Number> numbers(args_.size());
  for (size_t i = 0; i < args_.size(); ++i)
    if (args_[i]->kind == Arg::Scalar) numbers[i] = args_[i]->number;
  return fn(numbers.data());
}
void Call::ask_whole(std::string_view name) {
  tracer_->asked(refs_[index_of(name)].arg).whole = true;
}
double Call::real(std::string_view name) {
  ask_whole(name);
  const Arg& a = arg(name);
  if (a.kind == Arg::Int) return static_cast<double>(a.i);
  return number_of(a).as_double();
}
int64_t Call::whole_number(std::string_view name) {
  ask_whole(name);
  const Arg& a = arg(name);
  if (a.kind == Arg::Int) return a.i;
  return number_of(a).as_int();
}
std::vector<double> Call::reals(std::string_view name) {
  ask_whole(name);
  std::vector<double> out;
  for (const Number& n : arg(name).numbers) out.push_back(n.as_double());
  return out;
}
bool Call::equals(std::string_view name, double value) {
  const Arg& a = arg(name);
  if (a.kind == Arg::Int) return static_cast<double>(a.i) == value;
  if (a.kind == Arg::Tensor && !a.tensor.host) return false;
  if (a.kind == Arg::None) return false;
  auto& matches = tracer_->asked(refs_[index_of(name)].arg).matches;
  bool known = false;
  for (double m : matches) known = known || m == value;
  if (!known) matches.push_back(value);
  const Number& n = number_of(a);
  if (n.kind == Number::Complex && n.im != 0) return false;
  return n.as_double() == value;
}
Number::Kind Call::number_kind(std::string_view name) const { return number_of(arg(name)).kind; }

int64_t Call::wrap(int64_t dim, int64_t rank) const {
  int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n)
    throw UserError(UserError::Index, "Dimension out of range (expected to be in range of [" +
                                          std::to_string(-n) + ", " + std::to_string(n - 1) +
                                          "], but got " + std::to_string(dim) + ")");
  return dim < 0 ? dim + n : dim;
}

Dims Call::reduce_dims(std::string_view name, int64_t rank) const {
  if (rank > 64)
    throw UserError(UserError::Runtime,
                    "only tensors with up to 64 dims are supported, got " + std::to_string(rank));
  Dims dims = ints(name);
  if (dims.empty()) {
    for (int64_t d = 0; d < rank; ++d) dims.push_back(d);
    return dims;
  }
  Dims out;
  for (int64_t d : dims) {
    int64_t w = wrap(d, rank);
    if (std::find(out.begin(), out.end(), w) != out.end())
      throw UserError(UserError::Runtime,
                      "dim " + std::to_string(w) + " appears multiple times in the list of dims");
    out.push_back(w);
  }
  std::sort(out.begin(), out.end());
  if (rank == 0) out.clear();
  return out;
}

Dims Call::broadcast(std::initializer_list<const Dims*> shapes) const {
  Dims out;
  for (const Dims* s : shapes) {
    size_t rank = std::max(out.size(), s->size());
    Dims next(rank);
    for (size_t i = 0; i < rank; ++i) {
      int64_t a = i < out.size() ? out[out.size() - 1 - i] : 1;
      int64_t b = i < s->size() ? (*s)[s->size() - 1 - i] : 1;
      if (a != b && a != 1 && b != 1)
        throw UserError(UserError::Runtime,
                        "The size of tensor a (" + std::to_string(a) +
                            ") must match the size of tensor b (" + std::to_string(b) +
                            ") at non-singleton dimension " + std::to_string(rank - 1 - i));
      next[rank - 1 - i] = a == 1 ? b : a;
    }
    out = std::move(next);
  }
  return out;
}

void Call::write(std::string_view name, const Value& value) {
  int i = index_of(name);
  tracer_->write(args_[i]->tensor, refs_[i], value);
}
void Call::write(std::string_view name, int64_t element, const Value& value) {
  int i = index_of(name);
  tracer_->write(args_[i]->list.at(element).tensor, {refs_[i].arg, static_cast<uint16_t>(element)},
                 value);
}
void Call::fail_if(const Value& bad, CheckSpec::Error error, std::string message,
                   const Value& culprit) {
  tracer_->fail_if(bad, {error, std::move(message)}, culprit);
}
void Call::fail_if(const Value& bad, CheckSpec check, const Value& culprit) {
  tracer_->fail_if(bad, std::move(check), culprit);
}
void Call::merge_error_words(const Value& check, const Value& culprit) {
  tracer_->merge_error_words(check, culprit);
}
std::pair<Value, Value> Call::exchange_error_words(const Value& check, const Value& culprit) {
  return tracer_->exchange_error_words(check, culprit);
}
Value Call::random_bits(int64_t count, std::string_view generator) {
  const auto& names = entry_->arg_names;
  auto found = std::find(names.begin(), names.end(), generator);
  if (found != names.end()) record_->generator_arg = static_cast<int32_t>(found - names.begin());
  return tracer_->random_bits(count);
}
void Call::output_strides(int64_t i, Dims strides) {
  if (static_cast<int64_t>(strides_.size()) <= i) strides_.resize(i + 1);
  strides_[i] = std::move(strides);
}

void Call::fail(UserError::Kind kind, const std::string& message) const {
  throw UserError(kind, record_->op + "(): " + message);
}

std::string Call::str(const Dims& dims) {
  std::string s = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) s += ", ";
    s += std::to_string(dims[i]);
  }
  return s + "]";
}

}  // namespace torch_tpu::graph
