// SPDX-License-Identifier: Apache-2.0 - From a stack of IValues to submit(), and back to tensors.
#include <ATen/ATen.h>

#include "src/graph/view.h"
#include "src/run/runtime.h"
#include "src/tensor/capture.h"
#include "src/tensor/errors.h"
#include "src/tensor/generator.h"
#include "src/tensor/kernel_frame.h"
#include "src/tensor/origin.h"

namespace torch_tpu::tensor {

using graph::Number;
using graph::Record;
using graph::ScalarSource;
using run::Array;
using run::ArrayPtr;
using run::Runtime;

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
      case c10::TypeKind::AnyType:  // a collective's group, for which its caller gives a text
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
    std::vector<Number> numbers(kinds_.size());
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

namespace {

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
