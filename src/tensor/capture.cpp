// SPDX-License-Identifier: Apache-2.0 - Op calls that are written into a function instead of being submitted.
#include "src/tensor/capture.h"

#include <ATen/ATen.h>

#include "src/graph/view.h"
#include "src/run/runtime.h"
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
Capture::Capture(graph::Call& call) : call_(call), outer_(current_capture) {
  current_capture = this;
}
Capture::~Capture() { current_capture = outer_; }

at::TensorBase Capture::input(const hlo::Value& value, c10::ScalarType dtype) {
  ArrayPtr a(new Array(run::intern(value.type())));
  a->set_placeholder();
  values_[a.get()] = value;
  held_.push_back(a);
  graph::OutputSpec spec;
  spec.sizes = value.dims();
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

hlo::Value Capture::value_of(const at::TensorBase& tensor) {
  TensorArg m;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  m.dtype = dtype_of(c10::typeMetaToScalarType(impl->dtype()));
  m.sizes = impl->sizes().vec();
  m.strides = impl->strides().vec();
  m.offset = impl->storage_offset();
  Slot& slot = slot_of(tensor);
  hlo::Value base = slot.value ? value(slot.value) : hlo::zeros(call_.builder(), base_type(*impl));
  m.base = base.type();
  int64_t offset = m.offset;
  hlo::Builder& b = call_.builder();
  return graph::read_view(
      graph::reinterpret(base, m.dtype), m, [&](int64_t divisor, int64_t modulus) {
        return hlo::constant_int(b, {hlo::DType::S64, {}}, (offset / divisor) % modulus);
      });
}

void Capture::record(const Record& r, const std::vector<ArrayPtr>& inputs,
                     const std::vector<uint64_t>& scalars, std::vector<ArrayPtr>& results) {
  hlo::Builder& b = call_.builder();
  std::vector<hlo::Value> args;
  for (const ArrayPtr& in : inputs) args.push_back(value(in));
  uint64_t random_base = call_.random_increment();
  for (size_t i = 0; i < r.scalars.size(); ++i) {
    ScalarSource s = r.scalars[i];
    if (s.kind >= ScalarSource::SeedLow && s.kind <= ScalarSource::OffsetHigh) {
      if (s.kind >= ScalarSource::OffsetLow) s.divisor += static_cast<int64_t>(random_base);
      args.push_back(call_.scalar_input(s));
      continue;
    }
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
  call_.random_increment() += r.random_increment;
  std::vector<hlo::Value> out = b.inline_call(r.function, args);
  for (size_t i = 0; i < results.size(); ++i) {
    results[i]->set_placeholder();
    values_[results[i].get()] = out[i];
    held_.push_back(results[i]);
  }
  if (r.error_result >= 0) {
    auto word = [&](int64_t i) {
      return hlo::reshape(hlo::slice_dim(out[r.error_result], 0, i, i + 1), {});
    };
    hlo::Value check = word(0), culprit = word(1);
    for (size_t k = 0; k < r.checks.size(); ++k)
      call_.fail_if(hlo::eq(check, static_cast<double>(k + 1)), r.checks[k].error,
                    r.checks[k].message, culprit);
  }
}

}  // namespace torch_tpu::tensor
