// SPDX-License-Identifier: Apache-2.0 - Lowers an operator without an entry by tracing PyTorch's decomposition of it.
#include "src/tensor/decompose.h"

#include <ATen/ATen.h>

#include "src/tensor/capture.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using c10::FunctionSchema;
using graph::Arg;

namespace {

Decomposer decomposer;

c10::IValue host_number(const graph::TensorArg& t) {
  at::Tensor v = at::empty({}, at::TensorOptions().dtype(scalar_type_of(t.dtype)));
  if (t.number.kind == graph::Number::Complex) {
    v.fill_(c10::Scalar(c10::complex<double>(t.number.re, t.number.im)));
  } else if (t.number.kind == graph::Number::Float) {
    v.fill_(t.number.re);
  } else {
    v.fill_(t.number.i);
  }
  if (t.wrapped) v.unsafeGetTensorImpl()->set_wrapped_number(true);
  return v;
}

c10::Scalar scalar_of(const graph::Number& n) {
  switch (n.kind) {
    case graph::Number::Bool:
      return c10::Scalar(n.i != 0);
    case graph::Number::Int:
      return c10::Scalar(n.i);
    case graph::Number::Float:
      return c10::Scalar(n.re);
    case graph::Number::Complex:
      return c10::Scalar(c10::complex<double>(n.re, n.im));
  }
  return {};
}

}  // namespace

void set_decomposer(Decomposer d) { decomposer = std::move(d); }

hlo::Values decompose(const std::string& op, const FunctionSchema& schema, graph::Call& c) {
  c.want_all_values();
  Capture capture(c);
  torch::jit::Stack stack;
  struct Input {
    size_t arg, element;
    at::Tensor tensor;
  };
  std::vector<Input> inputs;
  auto placeholder = [&](size_t i, size_t e, const Arg& a) -> c10::IValue {
    if (a.tensor.host) return host_number(a.tensor);
    at::Tensor t(capture.input(c.read_at(i, e), scalar_type_of(a.tensor.dtype)));
    inputs.push_back({i, e, t});
    return t;
  };
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Arg& a = c.arg_at(i);
    const c10::Type* t = arguments[i].type().get();
    if (t->kind() == c10::TypeKind::OptionalType)
      t = t->castRaw<c10::OptionalType>()->getElementType().get();
    switch (a.kind) {
      case Arg::None:
        stack.emplace_back();
        break;
      case Arg::Tensor:
        stack.push_back(placeholder(i, 0, a));
        break;
      case Arg::TensorList: {
        const c10::Type* element = t->castRaw<c10::ListType>()->getElementType().get();
        if (element->kind() == c10::TypeKind::OptionalType) {
          c10::List<std::optional<at::Tensor>> list;
          for (size_t e = 0; e < a.list.size(); ++e) {
            if (a.list[e].kind == Arg::None) {
              list.push_back(std::nullopt);
            } else {
              list.push_back(placeholder(i, e, a.list[e]).toTensor());
            }
          }
          stack.emplace_back(std::move(list));
        } else {
          c10::List<at::Tensor> list;
          for (size_t e = 0; e < a.list.size(); ++e)
            list.push_back(placeholder(i, e, a.list[e]).toTensor());
          stack.emplace_back(std::move(list));
        }
        break;
      }
      case Arg::Scalar:
        if (t->kind() == c10::TypeKind::FloatType) {
          stack.emplace_back(a.number.as_double());
        } else {
          stack.emplace_back(scalar_of(a.number));
        }
        break;
      case Arg::ScalarList: {
        if (t->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::FloatType) {
          std::vector<double> v;
          for (const auto& n : a.numbers) v.push_back(n.as_double());
          stack.emplace_back(v);
        } else {
          c10::List<at::Scalar> v;
          for (const auto& n : a.numbers) v.push_back(scalar_of(n));
          stack.emplace_back(std::move(v));
        }
        break;
      }
      case Arg::Int:
        if (t->kind() == c10::TypeKind::BoolType) {
          stack.emplace_back(a.i != 0);
        } else {
          stack.emplace_back(a.i);
        }
        break;
      case Arg::IntList:
        if (t->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::BoolType) {
          c10::List<bool> v;
          for (int64_t x : a.ints) v.push_back(x != 0);
          stack.emplace_back(std::move(v));
        } else {
          stack.emplace_back(a.ints);
        }
        break;
      case Arg::Text:
        stack.emplace_back(a.text);
        break;
      case Arg::Type:
        stack.emplace_back(static_cast<int64_t>(scalar_type_of(a.dtype)));
        break;
      case Arg::Generator:
        stack.emplace_back();
        break;
      case Arg::Ignored:
        if (a.i == 1) {
          stack.emplace_back(device());
        } else {
          stack.emplace_back();
        }
        break;
    }
  }
  if (!decomposer || !decomposer(op, stack)) throw NoLowering();
  hlo::Values out;
  auto add = [&](const at::Tensor& t) {
    if (!t.defined()) {
      out.emplace_back();
    } else if (t.device().type() == c10::DeviceType::PrivateUse1) {
      at::Tensor plain = t.is_conj() || t.is_neg() ? t.resolve_conj().resolve_neg() : t;
      out.push_back(capture.value_of(plain));
    } else {
      out.push_back(capture.value_of(t.to(device())));
    }
  };
  for (const c10::IValue& v : stack) {
    if (v.isTensor()) {
      add(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) add(t);
    } else if (v.isNone()) {
      out.emplace_back();
    } else if (v.isScalar()) {
      add(c10::scalar_to_tensor(v.toScalar()));
    } else {
      throw NoLowering();
    }
  }
  for (const Input& in : inputs)
    if (capture.changed(in.tensor)) c.write_at(in.arg, in.element, capture.value_of(in.tensor));
  return out;
}

}  // namespace torch_tpu::tensor
