// SPDX-License-Identifier: Apache-2.0 - A call shape that an operator sees for the first time: checks, out= arguments, trace, record.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/Resize.h>

#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/kernel_frame.h"
#include "src/tensor/origin.h"

namespace torch_tpu::tensor {

using graph::Arg;
using graph::Number;
using graph::Record;
using graph::ScalarSource;
using graph::TensorArg;
using run::Runtime;

namespace {

void* (*release_gil)() = nullptr;
void (*restore_gil)(void*) = nullptr;

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

}  // namespace torch_tpu::tensor
