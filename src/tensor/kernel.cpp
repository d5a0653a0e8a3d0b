// SPDX-License-Identifier: Apache-2.0 - From a stack of IValues to submit(), and back to tensors.
#include "src/tensor/kernel.h"

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "src/graph/view.h"
#include "src/run/runtime.h"
#include "src/tensor/capture.h"
#include "src/tensor/errors.h"
#include "src/tensor/generator.h"
#include "src/tensor/origin.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using graph::Arg;
using graph::Number;
using graph::Record;
using graph::ScalarSource;
using graph::TensorArg;
using run::Array;
using run::ArrayPtr;
using run::Runtime;

namespace {

void* (*release_gil)() = nullptr;
void (*restore_gil)(void*) = nullptr;

Number to_number(const c10::Scalar& s) {
  Number n;
  if (s.isBoolean()) {
    n.kind = Number::Bool;
    n.i = s.toBool();
  } else if (s.isIntegral(false)) {
    n.kind = Number::Int;
    n.i = s.type() == at::kUInt64 ? static_cast<int64_t>(s.toUInt64()) : s.toLong();
  } else if (s.isComplex()) {
    auto c = s.toComplexDouble();
    n.kind = Number::Complex;
    n.re = c.real();
    n.im = c.imag();
  } else {
    n.kind = Number::Float;
    n.re = s.toDouble();
  }
  return n;
}

uint64_t bits(double v) {
  uint64_t w;
  std::memcpy(&w, &v, 8);
  return w;
}

// Words of a key; nearly always on the stack.
class Words {
 public:
  void push(uint64_t w) {
    if (n_ < kInline) {
      inline_[n_++] = w;
    } else {
      more_.push_back(w);
    }
  }
  bool equal(const std::vector<uint64_t>& other) const {
    return other.size() == n_ + more_.size() && std::memcmp(other.data(), inline_, n_ * 8) == 0 &&
           std::equal(more_.begin(), more_.end(), other.begin() + static_cast<std::ptrdiff_t>(n_));
  }
  void copy_to(std::vector<uint64_t>& other) const {
    other.assign(inline_, inline_ + n_);
    other.insert(other.end(), more_.begin(), more_.end());
  }
  graph::Key key() const {
    graph::KeyHasher h;
    h.words(inline_, n_);
    h.words(more_.data(), more_.size());
    return h.finish();
  }

 private:
  static constexpr size_t kInline = 192;
  uint64_t inline_[kInline];
  size_t n_ = 0;
  std::vector<uint64_t> more_;
};

}  // namespace

void set_gil_hooks(void* (*release)(), void (*restore)(void*)) {
  release_gil = release;
  restore_gil = restore;
}

graph::TraceOptions trace_options() {
  graph::TraceOptions o;
  o.platform = Runtime::instance().is_cpu() ? graph::Platform::Cpu : graph::Platform::Tpu;
  o.host_kernels = Runtime::instance().has_host_kernels();
  o.default_float = dtype_of(c10::get_default_dtype_as_scalartype());
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      o.precision = hlo::Precision::Highest;
      break;
    case at::Float32MatmulPrecision::HIGH:
      o.precision = hlo::Precision::High;
      break;
    case at::Float32MatmulPrecision::MEDIUM:
      o.precision = hlo::Precision::Default;
      break;
  }
  return o;
}

// ---- one call ----------------------------------------------------------------------------------

struct OpKernel::Frame {
  struct Site {
    uint16_t arg, element;
    const c10::TensorImpl* tensor;  // on the device
    Slot* slot;
    int64_t offset;
  };
  struct NumberSite {
    uint16_t arg, element;
    c10::Scalar number;
  };
  Words words;
  c10::SmallVector<Site, 8> sites;
  c10::SmallVector<NumberSite, 4> numbers;
  c10::SmallVector<at::Tensor, 2> moved;  // keeps materialized conj/neg tensors alive
  const at::Generator* generator = nullptr;
  at::Generator generator_holder;
  const c10::IValue* args = nullptr;
  bool lazy = false;     // an argument has the conj or neg bit
  bool aliased = false;  // two arguments share a storage, and this op writes
};

OpKernel::OpKernel(const c10::FunctionSchema& schema, const graph::OpEntry* entry,
                   graph::Variant::Form form, bool foreach) {
  variant_.entry = entry;
  variant_.op = schema.name();
  if (!schema.overload_name().empty()) variant_.op += "." + schema.overload_name();
  variant_.form = form;
  variant_.foreach = foreach;
  graph::KeyHasher h;
  h.bytes(variant_.op);
  variant_.id = h.finish().lo;
  size_t i = 0;
  for (const c10::Argument& a : schema.arguments()) {
    const c10::Type* t = a.real_type().get();
    if (t->kind() == c10::TypeKind::OptionalType) {
      t = t->castRaw<c10::OptionalType>()->getElementType().get();
      optional_ = true;
    }
    Kind kind = Kind::Ignored;
    switch (t->kind()) {
      case c10::TypeKind::TensorType:
        kind = Kind::Tensor;
        break;
      case c10::TypeKind::NumberType:
        kind = Kind::Scalar;
        break;
      case c10::TypeKind::FloatType:
        kind = Kind::Float;
        break;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        kind = Kind::Int;
        break;
      case c10::TypeKind::BoolType:
        kind = Kind::Bool;
        break;
      case c10::TypeKind::StringType:
        kind = Kind::Text;
        break;
      case c10::TypeKind::ScalarTypeType:
        kind = Kind::DType;
        break;
      case c10::TypeKind::DeviceObjType:
        kind = Kind::Device;
        break;
      case c10::TypeKind::GeneratorType:
        kind = Kind::Generator;
        break;
      case c10::TypeKind::ListType: {
        const c10::Type* e = t->castRaw<c10::ListType>()->getElementType().get();
        if (e->kind() == c10::TypeKind::OptionalType)
          e = e->castRaw<c10::OptionalType>()->getElementType().get();
        switch (e->kind()) {
          case c10::TypeKind::TensorType:
            kind = Kind::TensorList;
            break;
          case c10::TypeKind::NumberType:
            kind = Kind::ScalarList;
            break;
          case c10::TypeKind::FloatType:
            kind = Kind::FloatList;
            break;
          case c10::TypeKind::BoolType:
            kind = Kind::BoolList;
            break;
          default:
            kind = Kind::IntList;
            break;
        }
        break;
      }
      default:
        break;
    }
    kinds_.push_back(kind);
    // Arguments that are mutated along the way (running statistics) are no results.
    const bool is_out =
        a.is_out() || (a.kwarg_only() && a.alias_info() && a.alias_info()->isWrite());
    if (form == graph::Variant::Out && is_out) {
      if (variant_.first_out < 0) variant_.first_out = static_cast<int>(i);
      ++variant_.out_count;
    }
    ++i;
  }
  returns_ = schema.returns().size();
  returns_tensor_ =
      returns_ == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
  for (const c10::Argument& r : schema.returns()) {
    list_return_.push_back(r.type()->kind() == c10::TypeKind::ListType);
    int argument = -1;
    const bool one = r.type()->kind() == c10::TypeKind::TensorType;
    for (size_t a = 0; a < schema.arguments().size() && one && r.alias_info() != nullptr; ++a) {
      const c10::AliasInfo* info = schema.arguments()[a].alias_info();
      if (info != nullptr && *info == *r.alias_info()) argument = static_cast<int>(a);
    }
    returned_argument_.push_back(argument);
  }
  variant_.asked.resize(kinds_.size());
  writes_ = form != graph::Variant::Functional;
}

std::optional<std::pair<int, int>> OpKernel::plain_arguments() const {
  if (variant_.form == graph::Variant::Out || !returns_tensor_ || optional_) return {};
  int tensors = 0, numbers = 0;
  for (Kind k : kinds_) {
    if (k == Kind::Tensor && numbers == 0) {
      ++tensors;
    } else if (k == Kind::Scalar) {
      ++numbers;
    } else {
      return {};
    }
  }
  return std::pair(tensors, numbers);
}

void OpKernel::push_number(Frame& frame, size_t i, const c10::Scalar& s) {
  Number n = to_number(s);
  const graph::Specialization& asked = variant_.asked[i];
  uint64_t word = 0x50 | static_cast<uint64_t>(n.kind) << 8;
  if (!asked.matches.empty() && !(n.kind == Number::Complex && n.im != 0)) {
    double v = n.as_double();
    uint64_t match = 1;
    for (double m : asked.matches) {
      if (m == v) word |= match << 16;
      match <<= 1;
    }
  }
  frame.words.push(word);
  if (asked.whole) {
    frame.words.push(static_cast<uint64_t>(n.i));
    frame.words.push(bits(n.re));
    frame.words.push(bits(n.im));
  }
}

void OpKernel::push_tensor(Frame& frame, size_t i, size_t element, const at::TensorBase& tensor) {
  const c10::TensorImpl* t = tensor.unsafeGetTensorImpl();
  if (!tensor.defined()) {
    frame.words.push(0x10);
    return;
  }
  auto scalar_type = c10::typeMetaToScalarType(t->dtype());
  if (C10_UNLIKELY(t->device_type() != c10::DeviceType::PrivateUse1)) {
    if (t->device_type() != c10::DeviceType::CPU || t->dim() != 0) check_generator(frame, *t);
    TORCH_CHECK(t->device_type() == c10::DeviceType::CPU && t->dim() == 0, variant_.op,
                ": Expected all tensors to be on the same device, but found at least two devices, "
                "tpu:0 and ",
                t->device().str(), "! (argument ", i, ")");
    c10::Scalar s = at::native::item(at::Tensor(tensor));
    frame.words.push(0x20 | static_cast<uint64_t>(scalar_type) << 8 |
                     static_cast<uint64_t>(t->is_wrapped_number()) << 16);
    push_number(frame, i, s);
    frame.numbers.push_back({static_cast<uint16_t>(i), static_cast<uint16_t>(element), s});
    return;
  }
  constexpr c10::DispatchKeySet bits({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  if (C10_UNLIKELY(t->key_set().has_any(bits))) frame.lazy = true;
  Slot* slot = &slot_of(*t->unsafe_storage().unsafeGetStorageImpl());
  auto rank = static_cast<int64_t>(t->dim());
  const int64_t* sizes = t->sizes().data();
  const int64_t* strides = t->strides().data();
  const Array* value = slot->value.get();
  hlo::DType dtype = dtype_of(scalar_type);
  uint64_t head = 0x30 | static_cast<uint64_t>(scalar_type) << 8 |
                  static_cast<uint64_t>(rank) << 16 |
                  static_cast<uint64_t>(t->is_wrapped_number()) << 32;
  graph::Window window{sizes, strides, rank, t->storage_offset()};
  if (C10_LIKELY(value != nullptr && value->type().dtype == dtype)) {
    const hlo::Dims& base = value->type().dims;
    graph::ViewKind kind = graph::classify(window, base.data(), static_cast<int64_t>(base.size()));
    frame.words.push(head | static_cast<uint64_t>(kind) << 40);
    for (int64_t d = 0; d < rank; ++d) frame.words.push(static_cast<uint64_t>(sizes[d]));
    if (kind != graph::ViewKind::Identity) {
      for (int64_t d = 0; d < rank; ++d) frame.words.push(static_cast<uint64_t>(strides[d]));
      frame.words.push(base.size());
      for (int64_t d : base) frame.words.push(static_cast<uint64_t>(d));
    }
  } else {
    hlo::Type base = base_type(*t);
    hlo::Type seen = graph::reinterpreted(base, dtype);
    graph::ViewKind kind = graph::classify(window, seen.dims.data(), seen.rank());
    frame.words.push(head | static_cast<uint64_t>(kind) << 40 |
                     static_cast<uint64_t>(value == nullptr) << 48 |
                     static_cast<uint64_t>(base.dtype) << 56);
    for (int64_t d = 0; d < rank; ++d) frame.words.push(static_cast<uint64_t>(sizes[d]));
    for (int64_t d = 0; d < rank; ++d) frame.words.push(static_cast<uint64_t>(strides[d]));
    frame.words.push(base.dims.size());
    for (int64_t d : base.dims) frame.words.push(static_cast<uint64_t>(d));
  }
  if (writes_) {
    size_t alias = 0;
    while (alias < frame.sites.size() && frame.sites[alias].slot != slot) ++alias;
    frame.words.push(alias);
    if (alias < frame.sites.size()) frame.aliased = true;
  }
  frame.sites.push_back(
      {static_cast<uint16_t>(i), static_cast<uint16_t>(element), t, slot, window.offset});
}

// A generator of this device brings calls on other devices' tensors here.
void OpKernel::check_generator(const Frame& frame, const c10::TensorImpl& tensor) const {
  for (size_t i = 0; frame.args != nullptr && i < kinds_.size(); ++i)
    TORCH_CHECK(kinds_[i] != Kind::Generator || frame.args[i].isNone(), "Expected a '",
                c10::DeviceTypeName(tensor.device_type(), /*lower_case=*/true),
                "' device type for generator but found 'tpu'");
}

void OpKernel::push_argument(Frame& frame, size_t i, const c10::IValue& v) {
  if (v.isNone()) {
    frame.words.push(0x11);
    return;
  }
  switch (kinds_[i]) {
    case Kind::Tensor:
      push_tensor(frame, i, 0, v.toTensor());
      break;
    case Kind::TensorList: {
      if (v.isTensorList()) {
        auto list = v.toTensorList();
        frame.words.push(0x40 | static_cast<uint64_t>(list.size()) << 8);
        for (size_t e = 0; e < list.size(); ++e) push_tensor(frame, i, e, list.get(e));
      } else {
        auto list = v.toListRef();
        frame.words.push(0x40 | static_cast<uint64_t>(list.size()) << 8);
        for (size_t e = 0; e < list.size(); ++e) {
          if (list[e].isNone()) {
            frame.words.push(0x11);
          } else {
            push_tensor(frame, i, e, list[e].toTensor());
          }
        }
      }
      break;
    }
    case Kind::Scalar:
    case Kind::Float: {
      c10::Scalar s = v.toScalar();
      push_number(frame, i, s);
      frame.numbers.push_back({static_cast<uint16_t>(i), 0, s});
      break;
    }
    case Kind::ScalarList:
    case Kind::FloatList: {
      auto add = [&](size_t e, const c10::Scalar& s) {
        push_number(frame, i, s);
        frame.numbers.push_back({static_cast<uint16_t>(i), static_cast<uint16_t>(e), s});
      };
      if (v.isDoubleList()) {
        auto list = v.toDoubleVector();
        frame.words.push(0x60 | static_cast<uint64_t>(list.size()) << 8);
        for (size_t e = 0; e < list.size(); ++e) add(e, list[e]);
      } else {
        auto list = v.toListRef();
        frame.words.push(0x60 | static_cast<uint64_t>(list.size()) << 8);
        for (size_t e = 0; e < list.size(); ++e) add(e, list[e].toScalar());
      }
      break;
    }
    case Kind::Int:
      frame.words.push(static_cast<uint64_t>(v.toInt()));
      break;
    case Kind::Bool:
      frame.words.push(v.toBool());
      break;
    case Kind::IntList: {
      if (v.isIntList()) {
        auto list = v.toIntList();
        frame.words.push(0x70 | static_cast<uint64_t>(list.size()) << 8);
        for (int64_t x : list) frame.words.push(static_cast<uint64_t>(x));
      } else {
        auto list = v.toListRef();
        frame.words.push(0x70 | static_cast<uint64_t>(list.size()) << 8);
        for (const c10::IValue& x : list) frame.words.push(static_cast<uint64_t>(x.toInt()));
      }
      break;
    }
    case Kind::BoolList: {
      auto list = v.toBoolList();
      frame.words.push(0x71 | static_cast<uint64_t>(list.size()) << 8);
      for (bool x : list) frame.words.push(x);
      break;
    }
    case Kind::Text: {
      graph::KeyHasher h;
      h.bytes(v.toStringRef());
      frame.words.push(h.finish().lo);
      break;
    }
    case Kind::DType:
      frame.words.push(0x80 | static_cast<uint64_t>(v.toInt()) << 8);
      break;
    case Kind::Generator:
      frame.generator_holder = v.toGenerator();
      frame.generator = &frame.generator_holder;
      break;
    case Kind::Device:
    case Kind::Ignored:
      break;
  }
}

void OpKernel::begin_words(Frame& frame) const {
  frame.words.push(variant_.id);
  frame.words.push(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
  if (variant_.asked_precision)
    frame.words.push(static_cast<uint64_t>(at::globalContext().float32MatmulPrecision()));
}

void OpKernel::end_words(Frame& frame) const {
  if (!variant_.derived.empty()) {
    c10::SmallVector<Number, 8> numbers(kinds_.size());
    for (const Frame::NumberSite& n : frame.numbers)
      if (kinds_[n.arg] == Kind::Scalar || kinds_[n.arg] == Kind::Float)
        numbers[n.arg] = to_number(n.number);
    for (graph::Derivation fn : variant_.derived)
      frame.words.push(static_cast<uint64_t>(fn(numbers.data())));
  }
}

void OpKernel::describe(Frame& frame, const c10::IValue* args) {
  frame.args = args;
  begin_words(frame);
  for (size_t i = 0; i < kinds_.size(); ++i) push_argument(frame, i, args[i]);
  end_words(frame);
}

// The call site that fits the frame's words, or null. The runtime's mutex is held.
const OpKernel::CallSite* OpKernel::find_site(const Frame& frame) {
  if (last_site_ != nullptr && frame.words.equal(last_words_)) return last_site_;
  auto found = sites_.find(frame.words.key());
  if (found == sites_.end()) return nullptr;
  last_site_ = &found->second;
  frame.words.copy_to(last_words_);
  return last_site_;
}

// The arguments as the graph layer wants them; only on a miss.
std::shared_ptr<graph::Args> OpKernel::arguments(const Frame& frame,
                                                 const c10::IValue* args) const {
  auto out = std::make_shared<graph::Args>(kinds_.size());
  auto tensor_arg = [&](Arg& a, const at::TensorBase& t) {
    if (!t.defined()) return;
    a.kind = Arg::Tensor;
    const c10::TensorImpl* impl = t.unsafeGetTensorImpl();
    TensorArg& m = a.tensor;
    m.dtype = dtype_of(c10::typeMetaToScalarType(impl->dtype()));
    m.wrapped = impl->is_wrapped_number();
    if (impl->device_type() != c10::DeviceType::PrivateUse1) {
      m.host = true;
      m.number = to_number(at::native::item(at::Tensor(t)));
      return;
    }
    m.sizes = impl->sizes().vec();
    m.strides = impl->strides().vec();
    m.offset = impl->storage_offset();
    m.base = base_type(*impl);
    Slot& slot = slot_of(t);
    m.uninitialized = !slot.value;
    if (writes_) {
      for (size_t s = 0; s < frame.sites.size(); ++s)
        if (frame.sites[s].slot == &slot) {
          m.alias = static_cast<int32_t>(s);
          break;
        }
    }
  };
  for (size_t i = 0; i < kinds_.size(); ++i) {
    Arg& a = (*out)[i];
    const c10::IValue& v = args[i];
    if (v.isNone()) {
      if (kinds_[i] == Kind::Device) a.kind = Arg::Ignored, a.i = 1;
      continue;
    }
    switch (kinds_[i]) {
      case Kind::Tensor:
        tensor_arg(a, v.toTensor());
        break;
      case Kind::TensorList: {
        a.kind = Arg::TensorList;
        if (v.isTensorList()) {
          for (const at::Tensor& t : v.toTensorVector()) tensor_arg(a.list.emplace_back(), t);
        } else {
          for (const c10::IValue& e : v.toListRef()) {
            Arg& x = a.list.emplace_back();
            if (!e.isNone()) tensor_arg(x, e.toTensor());
          }
        }
        break;
      }
      case Kind::Scalar:
      case Kind::Float:
        a.kind = Arg::Scalar;
        a.number = to_number(v.toScalar());
        break;
      case Kind::ScalarList:
      case Kind::FloatList:
        a.kind = Arg::ScalarList;
        if (v.isDoubleList()) {
          for (double x : v.toDoubleVector()) a.numbers.push_back(Number::of(x));
        } else {
          for (const c10::IValue& x : v.toListRef()) a.numbers.push_back(to_number(x.toScalar()));
        }
        break;
      case Kind::Int:
        a.kind = Arg::Int;
        a.i = v.toInt();
        break;
      case Kind::Bool:
        a.kind = Arg::Int;
        a.i = v.toBool();
        break;
      case Kind::IntList:
        a.kind = Arg::IntList;
        if (v.isIntList()) {
          a.ints = v.toIntVector();
        } else {
          for (const c10::IValue& x : v.toListRef()) a.ints.push_back(x.toInt());
        }
        break;
      case Kind::BoolList:
        a.kind = Arg::IntList;
        for (bool x : v.toBoolList()) a.ints.push_back(x);
        break;
      case Kind::Text:
        a.kind = Arg::Text;
        a.text = v.toStringRef();
        break;
      case Kind::DType:
        a.kind = Arg::Type;
        a.dtype = dtype_of(static_cast<c10::ScalarType>(v.toInt()));
        break;
      case Kind::Generator:
        a.kind = Arg::Generator;
        break;
      case Kind::Device:
        a.kind = Arg::Ignored;
        a.i = 1;
        break;
      case Kind::Ignored:
        a.kind = Arg::Ignored;
        break;
    }
  }
  return out;
}

// Traces the call on a copy of the variant; the runtime's mutex is not held meanwhile, because a
// trace may call operators (a decomposition does). Returns with the mutex held, the frame rebuilt.
const OpKernel::CallSite& OpKernel::trace_site(std::optional<Frame>& frame, c10::IValue* args,
                                               std::unique_lock<std::mutex>& lock,
                                               std::optional<run::Origin>& origin) {
  static std::recursive_mutex tracing;
  std::unique_lock one_at_a_time(tracing, std::try_to_lock);
  if (!one_at_a_time.owns_lock()) {
    // The thread that traces may need the GIL (a decomposition is Python), so it is not kept while
    // waiting for it.
    void* gil = release_gil != nullptr ? release_gil() : nullptr;
    one_at_a_time.lock();
    if (gil != nullptr) restore_gil(gil);
  }
  check_written(args, /*all=*/true);
  graph::Variant variant = variant_;
  if (variant_.form == graph::Variant::Out) {
    prepare_outs(variant, args, lock);
    check_written(args, /*all=*/false);  // what has grown may overlap now
  }
  graph::TraceOptions options = trace_options();
  auto trace_once = [&] {
    lock.lock();
    frame.emplace();
    describe(*frame, args);
    auto all = arguments(*frame, args);
    lock.unlock();
    return graph::trace(variant, std::move(all), options);
  };
  std::shared_ptr<Record> record = trace_once();
  if (!record->writes.empty() && !writes_ && !ignore_aliases_) {
    // An op that writes arguments without saying so in its form: from now on keys tell aliases.
    lock.lock();
    writes_ = true;
    lock.unlock();
    record = trace_once();
  }
  CallSite site;
  for (const hlo::Type& t : record->result_types) site.result_types.push_back(run::intern(t));
  for (const graph::OutputSpec& o : record->outputs) {
    site.output_types.push_back(scalar_type_of(o.dtype));
    if (o.result >= 0) site.new_bytes += o.base.bytes();
  }
  bool checked = !record->checks.empty();
  if (checked && !origin) origin = call_origin();
  lock.lock();
  checked_ = !checked ? (checked_ == Checked::None ? Checked::None : Checked::Some)
             : sites_.empty() || checked_ == Checked::All ? Checked::All
                                                          : Checked::Some;
  // The body may have asked for values that the key did not tell until now.
  variant_.asked = std::move(variant.asked);
  variant_.derived = std::move(variant.derived);
  variant_.asked_precision = variant.asked_precision;
  last_site_ = nullptr;  // its words may not tell enough any more
  frame.emplace();
  describe(*frame, args);
  graph::Key key = frame->words.key();
  record->key = key;
  site.record = std::move(record);
  find_sites(site, *frame);
  return sites_.try_emplace(key, std::move(site)).first->second;
}

// Written tensors must not overlap themselves (a matter of sizes and strides, so asked once per
// call shape), and in elementwise ops not partly overlap an input (a matter of offsets too). A fill
// writes one value everywhere, so how its target overlaps does not matter.
void OpKernel::check_written(const c10::IValue* args, bool all) const {
  if (variant_.entry->name == "aten::fill" || variant_.entry->name == "aten::zero") return;
  const bool apart =
      variant_.form == graph::Variant::Out && variant_.entry->rule == graph::OutputRule::Apart;
  const bool pointwise = variant_.entry->rule == graph::OutputRule::Pointwise && !variant_.foreach;
  auto check_pair = [&](const at::Tensor& out, const at::Tensor& in) {
    if (!in.defined() || !in.is_alias_of(out)) return;
    if (apart) at::assert_no_overlap(out, in);
    if (pointwise && !in.is_same(out)) at::assert_no_partial_overlap(out, in);
  };
  auto check = [&](const at::Tensor& out) {
    if (!out.defined()) return;
    if (all) at::assert_no_internal_overlap(out);
    if (!apart && !pointwise) return;
    const size_t inputs = variant_.first_out >= 0 ? variant_.first_out : kinds_.size();
    for (size_t i = 0; i < inputs; ++i) {
      if (args[i].isTensor()) check_pair(out, args[i].toTensor());
      if (apart && args[i].isTensorList())
        for (const at::Tensor& in : args[i].toTensorVector()) check_pair(out, in);
    }
  };
  auto check_each = [&](const c10::IValue& v) {
    if (v.isTensor()) {
      check(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) check(t);
    }
  };
  if (variant_.form == graph::Variant::InPlace) check_each(args[0]);
  for (int k = 0; k < variant_.out_count; ++k) check_each(args[variant_.first_out + k]);
}

// Replaces arguments that are conjugated or negated by a bit by their values.
void OpKernel::resolve_lazy(c10::IValue* args) const {
  auto lazy = [](const at::Tensor& t) { return t.defined() && (t.is_conj() || t.is_neg()); };
  auto resolved = [](const at::Tensor& t) { return t.resolve_conj().resolve_neg(); };
  for (size_t i = 0; i < kinds_.size(); ++i) {
    bool written = (variant_.form == graph::Variant::InPlace && i == 0) ||
                   (variant_.first_out >= 0 && static_cast<int>(i) >= variant_.first_out &&
                    static_cast<int>(i) < variant_.first_out + variant_.out_count);
    if (args[i].isTensor() && lazy(args[i].toTensor())) {
      TORCH_CHECK(!written, variant_.op,
                  ": cannot write to a conjugated or negated view; pass a plain tensor");
      args[i] = resolved(args[i].toTensor());
    } else if (args[i].isTensorList()) {
      std::vector<at::Tensor> list = args[i].toTensorVector();
      bool any = false;
      for (at::Tensor& t : list) {
        if (!lazy(t)) continue;
        TORCH_CHECK(!written, variant_.op,
                    ": cannot write to a conjugated or negated view; pass a plain tensor");
        t = resolved(t);
        any = true;
      }
      if (any) args[i] = c10::List<at::Tensor>(list);
    }
  }
}

// out= arguments: checked and resized to the shapes of the results before anything is written.
void OpKernel::prepare_outs(graph::Variant& variant, c10::IValue* args,
                            std::unique_lock<std::mutex>& lock) {
  variant.form = graph::Variant::Functional;
  lock.lock();
  Frame frame;
  describe(frame, args);
  auto all = arguments(frame, args);
  lock.unlock();
  auto record = graph::trace(variant, std::move(all), trace_options());
  variant.form = graph::Variant::Out;
  size_t result = 0;
  for (int k = 0; k < variant_.out_count; ++k) {
    const c10::IValue& v = args[variant_.first_out + k];
    auto fit = [&](const at::Tensor& out) {
      if (result >= record->outputs.size()) return;
      const graph::OutputSpec& spec = record->outputs[result++];
      if (spec.result < 0 || !out.defined()) return;
      if (out.sizes() == c10::IntArrayRef(spec.sizes)) return;
      at::native::resize_output(out, spec.sizes);
      if (!spec.contiguous && out.numel() > 0)
        const_cast<at::Tensor&>(out).unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes,
                                                                                  spec.strides);
    };
    if (v.isTensor()) {
      fit(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) fit(t);
    }
  }
}

namespace {

bool is_number(const ScalarSource& s) {
  return s.kind == ScalarSource::NumberRe || s.kind == ScalarSource::NumberIm ||
         s.kind == ScalarSource::NumberFlag;
}

// What run-time scalars are at this call.
uint64_t scalar_word(const ScalarSource& s, const c10::Scalar* number, int64_t offset,
                     uint64_t seed, uint64_t random) {
  auto as_float = [&](double v) -> uint64_t {
    if (s.dtype == hlo::DType::F64) return bits(v);
    auto f = static_cast<float>(v);
    uint32_t w;
    std::memcpy(&w, &f, 4);
    return w;
  };
  switch (s.kind) {
    case ScalarSource::NumberRe: {
      Number n = to_number(*number);
      if (hlo::is_floating(s.dtype)) return as_float(n.as_double());
      if (n.kind >= Number::Float && !(n.re >= -9.3e18 && n.re <= 1.9e19)) return 0;
      return static_cast<uint64_t>(n.as_int());
    }
    case ScalarSource::NumberIm:
      return as_float(to_number(*number).im);
    case ScalarSource::NumberFlag: {
      Number n = to_number(*number);
      return n.kind >= Number::Float ? (n.re != 0 || n.im != 0) : n.i != 0;
    }
    case ScalarSource::ViewStart:
      return static_cast<uint64_t>((offset / s.divisor) % s.modulus);
    case ScalarSource::SeedLow:
      return seed & 0xFFFFFFFFu;
    case ScalarSource::SeedHigh:
      return seed >> 32;
    case ScalarSource::OffsetLow:
      return (random + static_cast<uint64_t>(s.divisor)) & 0xFFFFFFFFu;
    case ScalarSource::OffsetHigh:
      return (random + static_cast<uint64_t>(s.divisor)) >> 32;
  }
  return 0;
}

}  // namespace

// Frames of one key list the same sites in the same order.
void OpKernel::find_sites(CallSite& site, const Frame& frame) {
  auto position = [&](const auto& all, graph::TensorRef ref) {
    for (size_t i = 0; i < all.size(); ++i)
      if (all[i].arg == ref.arg && all[i].element == ref.element) return static_cast<uint32_t>(i);
    TORCH_INTERNAL_ASSERT(false, "argument of ", site.record->op, " not found");
  };
  const Record& r = *site.record;
  for (graph::TensorRef ref : r.inputs) site.input_sites.push_back(position(frame.sites, ref));
  for (const graph::WriteSpec& w : r.writes)
    site.write_sites.push_back(position(frame.sites, w.to));
  for (const ScalarSource& s : r.scalars) {
    uint32_t at = 0;
    if (s.kind == ScalarSource::ViewStart) at = position(frame.sites, s.from);
    if (is_number(s)) at = position(frame.numbers, s.from);
    site.scalar_sites.push_back(at);
  }
}

// Submits the call that the frame describes; unlocks. results: one array per result of the record.
void OpKernel::launch(Frame& f, const CallSite& site, std::unique_lock<std::mutex>& lock,
                      const run::Origin* origin, Results& results) {
  const Record& r = *site.record;
  Runtime& runtime = Runtime::instance();
  c10::SmallVector<ArrayPtr, 8> inputs;
  c10::SmallVector<uint64_t, 8> scalars;
  for (uint32_t i : site.input_sites) {
    const ArrayPtr& value = f.sites[i].slot->value;
    TORCH_INTERNAL_ASSERT(value, "an argument of ", r.op, " has no value");
    inputs.push_back(value);
  }
  Capture* capture = Capture::current();
  uint64_t seed = 0, random = 0;
  if (C10_UNLIKELY(capture != nullptr && r.random_increment != 0 && f.generator != nullptr &&
                   f.generator->unsafeGetGeneratorImpl() !=
                       default_generator().unsafeGetGeneratorImpl()))
    throw graph::UserError(graph::UserError::NotImplemented,
                           r.op + "(): a generator of the user's inside a captured graph");
  if (r.random_increment != 0 && capture == nullptr) {
    const at::Generator& g = f.generator != nullptr ? *f.generator : default_generator();
    auto* impl = at::check_generator<GeneratorImpl>(g);
    std::lock_guard hold(impl->mutex_);
    seed = impl->current_seed();
    random = impl->draw(r.random_increment);
  }
  for (size_t i = 0; i < r.scalars.size(); ++i) {
    const ScalarSource& s = r.scalars[i];
    const c10::Scalar* number = nullptr;
    int64_t offset = 0;
    if (s.kind == ScalarSource::ViewStart) {
      offset = f.sites[site.scalar_sites[i]].offset;
    } else if (is_number(s)) {
      number = &f.numbers[site.scalar_sites[i]].number;
    }
    scalars.push_back(scalar_word(s, number, offset, seed, random));
  }
  for (const hlo::Type* t : site.result_types) results.push_back(ArrayPtr(new Array(t)));
  if (C10_UNLIKELY(capture != nullptr)) {
    lock.unlock();
    std::vector<ArrayPtr> in(inputs.begin(), inputs.end()), out(results.begin(), results.end());
    std::vector<uint64_t> words(scalars.begin(), scalars.end());
    capture->record(r, in, words, out);
    lock.lock();
  } else {
    if (C10_UNLIKELY(!runtime.fits(site.new_bytes) && !runtime.abstract())) {
      lock.unlock();
      runtime.drain();
      lock.lock();
      TORCH_CHECK_WITH(OutOfMemoryError, runtime.fits(site.new_bytes), r.op,
                       "(): tpu out of memory: the result needs ", site.new_bytes >> 20, " MiB; ",
                       run::memory_count().live.load() >> 20, " MiB of ",
                       runtime.memory_limit() >> 20,
                       " MiB are in use. Free tensors, use a smaller batch, or raise "
                       "TORCH_TPU_MEMORY_LIMIT_MB if the limit is yours");
    }
    // In-place calls give up the slot's own hold on the old base here, so that the execution
    // thread finds itself the only holder and may donate it.
    for (size_t i = 0; i < r.writes.size(); ++i)
      f.sites[site.write_sites[i]].slot->value = results[r.writes[i].result];
    runtime.submit(site.record, {inputs.data(), inputs.size()}, {scalars.data(), scalars.size()},
                   {results.data(), results.size()}, origin);
  }
  if (capture != nullptr)
    for (size_t i = 0; i < r.writes.size(); ++i)
      f.sites[site.write_sites[i]].slot->value = results[r.writes[i].result];
  inputs.clear();
  lock.unlock();
}

// The way of nearly all calls of elementwise operators and products in a program that has warmed
// up.
bool OpKernel::call_known(c10::ArrayRef<const at::Tensor*> tensors,
                          c10::ArrayRef<const c10::Scalar*> scalars, at::Tensor* out) {
  Runtime& runtime = Runtime::instance();
  if (!runtime.initialized() || checked_ == Checked::All || Capture::current() != nullptr ||
      runtime.abstract())
    return false;
  std::unique_lock lock(runtime.mutex());
  Frame frame;
  begin_words(frame);
  size_t i = 0;
  for (const at::Tensor* t : tensors) push_tensor(frame, i++, 0, *t);
  for (const c10::Scalar* s : scalars) {
    push_number(frame, i, *s);
    frame.numbers.push_back({static_cast<uint16_t>(i++), 0, *s});
  }
  end_words(frame);
  if (frame.lazy || frame.aliased) return false;
  const CallSite* site = find_site(frame);
  if (site == nullptr || site->record->error_result >= 0) return false;
  Results results;
  launch(frame, *site, lock, nullptr, results);
  if (out != nullptr) {
    const graph::OutputSpec& spec = site->record->outputs[0];
    *out = make_tensor(std::move(results[spec.result]), spec, site->output_types[0]);
  }
  return true;
}

const Record& OpKernel::call_graph(c10::ArrayRef<at::Tensor> tensors, c10::IntArrayRef ints,
                                   Results& results) {
  Runtime& runtime = Runtime::instance();
  if (C10_UNLIKELY(!runtime.initialized())) runtime.client();
  std::optional<run::Origin> origin;
  if (checked_ != Checked::None || runtime.abstract()) origin = call_origin();
  std::unique_lock lock(runtime.mutex());
  Frame frame;
  // The same words as describe() makes of the boxed call.
  begin_words(frame);
  frame.words.push(0x40 | static_cast<uint64_t>(tensors.size()) << 8);
  for (size_t e = 0; e < tensors.size(); ++e) {
    if (tensors[e].defined()) {
      push_tensor(frame, 0, e, tensors[e]);
    } else {
      frame.words.push(0x11);
    }
  }
  frame.words.push(0x70 | static_cast<uint64_t>(ints.size()) << 8);
  for (int64_t x : ints) frame.words.push(static_cast<uint64_t>(x));
  end_words(frame);
  std::optional<Frame> second;
  Frame* f = &frame;
  const CallSite* site = find_site(frame);
  if (C10_UNLIKELY(site == nullptr)) {
    lock.unlock();
    c10::List<std::optional<at::Tensor>> list;
    for (const at::Tensor& t : tensors)
      list.push_back(t.defined() ? std::optional(t) : std::nullopt);
    c10::IValue args[2] = {list, ints.vec()};
    site = &trace_site(second, args, lock, origin);
    f = &*second;
  }
  launch(*f, *site, lock, origin ? &*origin : nullptr, results);
  return *site->record;
}

void OpKernel::run(torch::jit::Stack* stack, std::optional<run::Origin> origin) {
  size_t n = kinds_.size();
  c10::IValue* args = stack->data() + (stack->size() - n);
  Runtime& runtime = Runtime::instance();
  if (C10_UNLIKELY(!runtime.initialized())) runtime.client();
  // Traces may call back into operators, so the runtime's mutex is not held while tracing; this
  // kernel's own tables are guarded by the same mutex otherwise.
  // Asking Python takes the GIL, which another thread may hold while it waits for the mutex.
  if ((checked_ == Checked::All || runtime.abstract()) && !origin) origin = call_origin();
  std::unique_lock lock(runtime.mutex());
  Frame frame;
  describe(frame, args);
  if (C10_UNLIKELY(frame.lazy)) {
    // PyTorch lets matrix products and a few others through with the bit set.
    lock.unlock();
    resolve_lazy(args);
    return run(stack, std::move(origin));
  }
  if (C10_UNLIKELY(frame.aliased)) check_written(args, /*all=*/false);
  std::optional<Frame> second;
  Frame* f = &frame;
  const CallSite* site = find_site(frame);
  if (C10_UNLIKELY(site == nullptr)) {
    lock.unlock();
    site = &trace_site(second, args, lock, origin);
    f = &*second;
  } else if (C10_UNLIKELY(site->record->error_result >= 0 && !origin)) {
    lock.unlock();
    return run(stack, call_origin());
  }
  const Record& r = *site->record;
  Results results;
  launch(*f, *site, lock, origin ? &*origin : nullptr, results);

  // Results onto the stack.
  if (variant_.form == graph::Variant::Functional) {
    c10::SmallVector<at::Tensor, 4> out;
    for (size_t i = 0; i < r.outputs.size(); ++i) {
      const graph::OutputSpec& spec = r.outputs[i];
      if (spec.result < 0) {
        out.emplace_back();
      } else {
        out.emplace_back(make_tensor(std::move(results[spec.result]), spec, site->output_types[i]));
      }
    }
    for (size_t i = 0; i < returns_; ++i) {
      if (returned_argument_[i] < 0) continue;
      out.resize(std::max(out.size(), i + 1));
      out[i] = args[returned_argument_[i]].toTensor();
    }
    torch::jit::drop(*stack, n);
    if (returns_ == 1 && list_return_[0]) {
      stack->emplace_back(c10::List<at::Tensor>(std::vector<at::Tensor>(out.begin(), out.end())));
    } else {
      for (size_t i = 0; i < returns_; ++i)
        stack->emplace_back(i < out.size() ? std::move(out[i]) : at::Tensor());
    }
  } else if (returns_ == 0) {
    torch::jit::drop(*stack, n);
  } else if (variant_.form == graph::Variant::InPlace) {
    c10::IValue self = std::move(args[0]);
    torch::jit::drop(*stack, n);
    stack->emplace_back(std::move(self));
  } else {
    std::vector<c10::IValue> outs;
    for (size_t i = 0; i < returns_; ++i) outs.push_back(args[variant_.first_out + i]);
    torch::jit::drop(*stack, n);
    for (c10::IValue& o : outs) stack->emplace_back(std::move(o));
  }
}

void OpKernel::call(torch::jit::Stack* stack) {
  guard([&] { run(stack); });
}

void OpKernel::operator()(const c10::OperatorHandle&, c10::DispatchKeySet,
                          torch::jit::Stack* stack) {
  call(stack);
}

}  // namespace torch_tpu::tensor
