// SPDX-License-Identifier: Apache-2.0 - Op calls that are written into a function instead of being submitted.
#include "src/tensor/capture.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "src/graph/bounded.h"
#include "src/graph/view.h"
#include "src/run/runtime.h"
#include "src/tensor/kernel.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using graph::Record;
using graph::ScalarSource;
using graph::TensorArg;
using run::Array;
using run::ArrayPtr;
using run::Runtime;

namespace {
// Looked at by every call: a direct load instead of a call into the dynamic linker.
__attribute__((tls_model("initial-exec"))) thread_local Capture* current_capture = nullptr;
}  // namespace

Capture* Capture::current() { return current_capture; }
Capture::Capture(graph::Call& call, bool graph)
    : call_(call), graph_(graph), outer_(current_capture) {
  current_capture = this;
}
Capture::~Capture() { current_capture = outer_; }

hlo::Dims memory_order(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  hlo::Dims order(sizes.size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int64_t>(d);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    if (strides[a] != strides[b]) return strides[a] > strides[b];
    return sizes[a] > sizes[b];
  });
  return order;
}

at::TensorBase Capture::input(const hlo::Value& value, c10::ScalarType dtype) {
  return input(value, dtype, hlo::contiguous_strides(value.dims()));
}

at::TensorBase Capture::input(const hlo::Value& value, c10::ScalarType dtype,
                              c10::IntArrayRef strides) {
  const hlo::Dims order = memory_order(value.dims(), strides);
  hlo::Value base = value;
  graph::OutputSpec spec;
  spec.sizes = value.dims();
  if (value.elements() > 0 && !std::is_sorted(order.begin(), order.end())) {
    base = hlo::transpose(value, order);
    spec.contiguous = false;
    spec.strides.resize(order.size());
    int64_t running = 1;
    for (size_t i = order.size(); i-- > 0;) {
      spec.strides[order[i]] = running;
      running *= spec.sizes[order[i]];
    }
  }
  ArrayPtr a(new Array(run::intern(base.type())));
  a->set_placeholder();
  values_[a.get()] = base;
  held_.push_back(a);
  at::TensorBase t = make_tensor(a, spec, dtype);
  inputs_[t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()] = a;
  return t;
}

bool Capture::changed(const at::TensorBase& input) const {
  auto* storage = input.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  auto it = inputs_.find(storage);
  return it != inputs_.end() && !(slot_of(*storage).value == it->second);
}

hlo::Value Capture::value(const ArrayPtr& array) {
  auto it = values_.find(array.get());
  if (it != values_.end()) return it->second;
  // A tensor from outside (a constant the function made or closed over): small ones are embedded.
  pjrt::Buffer& buffer = Runtime::instance().await(array);
  const hlo::Type& type = array->type();
  if (type.elements() > 4096)
    throw graph::UserError(graph::UserError::Runtime,
                           "a traced function uses a tensor that is not one of its arguments");
  std::vector<char> bytes(static_cast<size_t>(type.bytes()));
  buffer.to_host(bytes.data(), bytes.size());
  at::Tensor host =
      at::from_blob(bytes.data(), type.dims, at::TensorOptions().dtype(scalar_type_of(type.dtype)));
  hlo::Value v;
  if (hlo::is_complex(type.dtype))
    throw graph::UserError(graph::UserError::Runtime,
                           "a traced function closes over a complex tensor");
  if (hlo::is_floating(type.dtype)) {
    at::Tensor d = host.to(at::kDouble).contiguous();
    v = hlo::constant_doubles(call_.builder(), type,
                              {d.data_ptr<double>(), static_cast<size_t>(d.numel())});
  } else {
    at::Tensor d = host.to(at::kLong).contiguous();
    v = hlo::constant_ints(call_.builder(), type,
                           {d.data_ptr<int64_t>(), static_cast<size_t>(d.numel())});
  }
  values_[array.get()] = v;
  held_.push_back(array);
  return v;
}

hlo::Value Capture::base_of(const at::TensorBase& tensor) {
  Slot& slot = slot_of(tensor);
  return slot.value ? value(slot.value)
                    : hlo::zeros(call_.builder(), base_type(*tensor.unsafeGetTensorImpl()));
}

hlo::Value Capture::value_of(const at::TensorBase& tensor) {
  TensorArg m;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  m.dtype = dtype_of(c10::typeMetaToScalarType(impl->dtype()));
  m.sizes = impl->sizes().vec();
  m.strides = impl->strides().vec();
  m.offset = impl->storage_offset();
  hlo::Value base = base_of(tensor);
  m.base = base.type();
  int64_t offset = m.offset;
  hlo::Builder& b = call_.builder();
  return graph::read_view(
      graph::reinterpret(base, m.dtype), m, [&](int64_t divisor, int64_t modulus) {
        return hlo::constant_int(b, {hlo::DType::S64, {}}, (offset / divisor) % modulus);
      });
}

// A half of the seed or the offset, as U32.
hlo::Value Capture::random_scalar(ScalarSource s) {
  const bool offset = s.kind >= ScalarSource::OffsetLow;
  if (!drawn_state_ && !(offset && call_.open_sizes())) {
    if (offset) s.divisor += static_cast<int64_t>(call_.random_increment());
    return call_.scalar_input(s);
  }
  hlo::Builder& b = call_.builder();
  hlo::Value v;
  if (drawn_state_) {
    v = hlo::reshape(hlo::slice_dim(drawn_state_, 0, offset, offset + 1), {});
    if (offset) v = v + hlo::constant_int(b, v.type(), s.divisor + static_cast<int64_t>(drawn_));
  } else {
    // What was drawn before depends on sizes, so the program adds it.
    auto half = [&](ScalarSource::Kind kind) {
      ScalarSource h;
      h.kind = kind;
      h.dtype = hlo::DType::U32;
      h.divisor = 0;
      return hlo::convert(call_.scalar_input(h), hlo::DType::U64);
    };
    const hlo::Value high = half(ScalarSource::OffsetHigh);
    v = hlo::or_(half(ScalarSource::OffsetLow),
                 hlo::shift_left(high, hlo::constant_int(b, high.type(), 32)));
    v = v + hlo::constant_int(b, v.type(), s.divisor);
    if (drawn_words_) v = v + drawn_words_;
  }
  if (s.kind == ScalarSource::SeedHigh || s.kind == ScalarSource::OffsetHigh)
    v = hlo::shift_right_logical(v, hlo::constant_int(b, v.type(), 32));
  v = hlo::and_(v, hlo::constant_int(b, v.type(), 0xFFFFFFFF));
  return hlo::convert(v, hlo::DType::U32);
}

at::Tensor Capture::random_state() {
  auto half = [&](ScalarSource::Kind kind) {
    ScalarSource s;
    s.kind = kind;
    s.dtype = hlo::DType::U32;
    s.divisor = 0;
    return hlo::convert(random_scalar(s), hlo::DType::U64);
  };
  auto whole = [&](ScalarSource::Kind low, ScalarSource::Kind high) {
    hlo::Value h = half(high);
    h = hlo::shift_left(h, hlo::constant_int(call_.builder(), h.type(), 32));
    return hlo::reshape(hlo::or_(half(low), h), {1});
  };
  const hlo::Values parts = {whole(ScalarSource::SeedLow, ScalarSource::SeedHigh),
                             whole(ScalarSource::OffsetLow, ScalarSource::OffsetHigh)};
  return at::Tensor(
      input(hlo::bitcast_convert(hlo::concatenate(parts, 0), hlo::DType::S64), at::kLong));
}

void Capture::draw_from(const at::Tensor& state) {
  drawn_ = 0;
  drawn_state_ = {};
  if (state.defined()) drawn_state_ = hlo::bitcast_convert(value_of(state), hlo::DType::U64);
}

void Capture::record(const Record& own, const std::vector<ArrayPtr>& inputs,
                     const std::vector<uint64_t>& words, std::vector<ArrayPtr>& results) {
  hlo::Builder& b = call_.builder();
  const graph::TraceOptions eager = trace_options();
  std::shared_ptr<const Record> other;
  if (own.retrace &&
      (call_.platform() != eager.platform || call_.open_sizes() ||
       call_.host_kernels() != (eager.host_kernels && eager.platform == graph::Platform::Cpu)))
    other = own.retrace(call_.platform(), call_.host_kernels(), call_.open_sizes());
  const Record& r = other ? *other : own;
  std::vector<hlo::Value> args;
  std::vector<uint64_t> scalars(r.scalars.size());
  // Another trace may read its inputs in another order, but not other inputs.
  auto index_in = [&](const auto& list, const auto& item) {
    auto found = std::find(list.begin(), list.end(), item);
    if (found == list.end())
      throw graph::UserError(graph::UserError::NotImplemented,
                             r.op + "(): takes other inputs on another platform");
    return static_cast<size_t>(found - list.begin());
  };
  for (size_t i = 0; i < r.inputs.size(); ++i)
    args.push_back(value(inputs[other ? index_in(own.inputs, r.inputs[i]) : i]));
  for (size_t i = 0; i < r.scalars.size(); ++i) {
    ScalarSource s = r.scalars[i];
    if (s.kind >= ScalarSource::SeedLow && s.kind <= ScalarSource::OffsetHigh) {
      args.push_back(random_scalar(s));
      continue;
    }
    scalars[i] = words[other ? index_in(own.scalars, s) : i];
    hlo::Type type{s.dtype, {}};
    if (s.dtype == hlo::DType::F64) {
      double v;
      std::memcpy(&v, &scalars[i], 8);
      args.push_back(hlo::constant(b, type, v));
    } else if (s.dtype == hlo::DType::F32) {
      float v;
      auto w = static_cast<uint32_t>(scalars[i]);
      std::memcpy(&v, &w, 4);
      args.push_back(hlo::constant(b, type, v));
    } else {
      args.push_back(hlo::constant_int(b, type, static_cast<int64_t>(scalars[i])));
    }
  }
  (drawn_state_ ? drawn_ : call_.random_increment()) += r.random_increment;
  if (call_.open_sizes() && !drawn_state_ && r.random_increment != 0) {
    draws_.push_back(static_cast<int64_t>(r.random_increment));
    hlo::Value words = hlo::constant_int(b, {hlo::DType::U64, {}}, draws_.back());
    drawn_words_ = drawn_words_ ? drawn_words_ + words : words;
  }
  std::vector<hlo::Value> out = b.inline_call(r.function, args);
  for (size_t i = 0; i < results.size(); ++i) {
    results[i]->set_placeholder();
    values_[results[i].get()] = out[i];
    held_.push_back(results[i]);
  }
  if (r.error_result >= 0) {
    std::vector<graph::CheckSpec> checks = r.checks;
    for (graph::CheckSpec& spec : checks) {
      if (graph_ && spec.op.empty()) spec.op = r.op;
      if (spec.line.empty()) spec.line = line_;
    }
    raise_checks(call_, out[static_cast<size_t>(r.error_result)], checks);
  }
}

void raise_checks(graph::Call& call, const hlo::Value& words,
                  const std::vector<graph::CheckSpec>& checks) {
  auto word = [&](int64_t i) { return hlo::reshape(hlo::slice_dim(words, 0, i, i + 1), {}); };
  hlo::Value check = word(0), culprit = word(1);
  for (size_t k = 0; k < checks.size(); ++k)
    call.fail_if(hlo::eq(check, static_cast<double>(k + 1)), checks[k], culprit);
}

// ---- control flow ------------------------------------------------------------------------------

namespace {

hlo::Value no_error(Capture& capture) {
  return hlo::scalar(capture.call().builder(), hlo::DType::S64, 0);
}

void merge_error_words(Capture& capture, const hlo::Values& results) {
  if (capture.call().has_checks())
    capture.call().merge_error_words(results[results.size() - 2], results.back());
}

}  // namespace

// What is made inside of a region is not known outside of it, and its failed checks leave it as a
// result.
class CaptureRegion {
 public:
  explicit CaptureRegion(Capture& capture)
      : capture_(capture),
        values_(capture.values_),
        outer_words_(capture.call_.exchange_error_words({}, {})),
        random_(capture.call_.random_increment()) {}
  ~CaptureRegion() {
    capture_.values_ = std::move(values_);
    capture_.call_.exchange_error_words(outer_words_.first, outer_words_.second);
  }
  CaptureRegion(const CaptureRegion&) = delete;
  CaptureRegion& operator=(const CaptureRegion&) = delete;

  // The results with the region's two error words behind them.
  hlo::Values leave(const std::vector<at::Tensor>& results) {
    if (capture_.call_.open_sizes() && drew_random_numbers())
      throw graph::NotBounded("random numbers in a branch or a loop");
    hlo::Values out;
    for (const at::Tensor& t : results) out.push_back(capture_.value_of(t));
    auto [check, culprit] = capture_.call_.exchange_error_words({}, {});
    for (const hlo::Value& word : {check, culprit}) out.push_back(word ? word : no_error(capture_));
    return out;
  }
  bool drew_random_numbers() const { return capture_.call_.random_increment() != random_; }

 private:
  Capture& capture_;
  std::unordered_map<const Array*, hlo::Value> values_;
  std::pair<hlo::Value, hlo::Value> outer_words_;
  uint64_t random_;
};

namespace {

hlo::Value flag(Capture& capture, const at::Tensor& t) {
  return hlo::reshape(hlo::convert(capture.value_of(t), hlo::DType::Pred), {});
}

std::vector<at::Tensor> placeholders(Capture& capture, const hlo::Values& values,
                                     const std::vector<c10::ScalarType>& dtypes) {
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < dtypes.size(); ++i) out.emplace_back(capture.input(values[i], dtypes[i]));
  return out;
}

}  // namespace

std::vector<at::Tensor> capture_if(Capture& capture, const at::Tensor& pred,
                                   const std::function<std::vector<at::Tensor>()>& on_true,
                                   const std::function<std::vector<at::Tensor>()>& on_false) {
  std::vector<c10::ScalarType> dtypes;
  auto branch = [&](const std::function<std::vector<at::Tensor>()>& fn) {
    return [&]() -> hlo::Values {
      CaptureRegion region(capture);
      const std::vector<at::Tensor> results = fn();
      dtypes.clear();
      for (const at::Tensor& t : results) dtypes.push_back(t.scalar_type());
      return region.leave(results);
    };
  };
  const hlo::Value condition = flag(capture, pred);
  const hlo::Values out = hlo::if_else(condition, branch(on_true), branch(on_false));
  merge_error_words(capture, out);
  return placeholders(capture, out, dtypes);
}

std::vector<at::Tensor> capture_while(
    Capture& capture, const std::vector<at::Tensor>& init,
    const std::function<at::Tensor(const std::vector<at::Tensor>&)>& condition,
    const LoopBody& body) {
  std::vector<c10::ScalarType> dtypes;
  hlo::Values carried;
  for (const at::Tensor& t : init) {
    dtypes.push_back(t.scalar_type());
    carried.push_back(capture.value_of(t));
  }
  carried.insert(carried.end(), 2, no_error(capture));
  const hlo::Values out = hlo::while_loop(
      carried,
      [&](const hlo::Values& now) {
        CaptureRegion region(capture);
        return flag(capture, condition(placeholders(capture, now, dtypes)));
      },
      [&](const hlo::Values& now) {
        CaptureRegion region(capture);
        hlo::Values next = region.leave(body(placeholders(capture, now, dtypes)));
        // One iteration's numbers would come back in the next.
        if (region.drew_random_numbers())
          throw graph::UserError(graph::UserError::NotImplemented,
                                 "random numbers in a captured loop");
        const size_t n = now.size();
        const hlo::Value failed = hlo::ne(now[n - 2], 0);
        for (size_t i = n - 2; i < n; ++i) next[i] = hlo::select(failed, now[i], next[i]);
        return next;
      });
  merge_error_words(capture, out);
  return placeholders(capture, out, dtypes);
}

}  // namespace torch_tpu::tensor
