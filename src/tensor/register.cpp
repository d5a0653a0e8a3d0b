// SPDX-License-Identifier: Apache-2.0 - Derives kernels for all forms of all operators and registers them with PyTorch.
//
// An operator gets, in this order: nothing, if PyTorch composes it from others; the kernel of its
// own entry; a kernel derived from the entry of its functional form (in-place, out=, foreach); a
// kernel that lowers PyTorch's Python decomposition of it, traced once per call shape.
#include "src/tensor/register.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "src/graph/op_table.h"
#include "src/tensor/decompose.h"
#include "src/tensor/errors.h"
#include "src/tensor/kernel.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using c10::FunctionSchema;
using graph::OpEntry;
using graph::OpTable;
using graph::Variant;

namespace {

std::atomic<bool> fallback_on{[] {
  const char* v = std::getenv("TORCH_TPU_CPU_FALLBACK");
  return v != nullptr && *v == '1';
}()};
std::mutex fallback_mutex;
std::map<std::string, int64_t> fallback_count;
std::vector<OpRow>& rows() {
  static std::vector<OpRow> r;
  return r;
}

std::string qualified(const std::string& name, const std::string& overload) {
  return overload.empty() ? name : name + "." + overload;
}

// ---- a kernel for one operator -----------------------------------------------------------------

class DerivedKernel final : public c10::OperatorKernel {
 public:
  DerivedKernel(std::shared_ptr<OpKernel> kernel) : kernel_(std::move(kernel)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    try {
      kernel_->call(stack);
    } catch (const NoLowering&) {
      fall_back(op, stack);
    }
  }

  static void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    std::string name = qualified(op.schema().name(), op.schema().overload_name());
    TORCH_CHECK_NOT_IMPLEMENTED(
        fallback_on.load(), name,
        " is not implemented on tpu: it has no entry in the operator table and no decomposition in "
        "PyTorch. Set TORCH_TPU_CPU_FALLBACK=1 to run such operators on the CPU (slow; counted by "
        "torch.tpu.fallback_counts()), or compute this part on a CPU tensor");
    bool first;
    {
      std::lock_guard lock(fallback_mutex);
      first = ++fallback_count[name] == 1;
    }
    if (first)
      TORCH_WARN(name, " has no tpu lowering and runs on the CPU (TORCH_TPU_CPU_FALLBACK=1)");
    at::native::cpu_fallback(op, stack);
  }

 private:
  std::shared_ptr<OpKernel> kernel_;
};

// ---- kernels without boxing --------------------------------------------------------------------
// Boxing costs about a tenth of a microsecond a call; ops that take tensors and then numbers, and
// give one tensor, are spared it.

template <typename Result, typename... Args>
struct PlainKernel {
  static constexpr bool kInPlace = std::is_reference_v<Result>;
  std::shared_ptr<OpKernel> kernel;
  c10::OperatorHandle op;

  Result operator()(Args... args) const {
    const at::Tensor* tensors[sizeof...(Args)];
    const c10::Scalar* numbers[sizeof...(Args)];
    size_t n = 0, m = 0;
    auto sort = [&](const auto& a) {
      if constexpr (std::is_same_v<std::decay_t<decltype(a)>, at::Tensor>) {
        tensors[n++] = &a;
      } else {
        numbers[m++] = &a;
      }
    };
    (sort(args), ...);
    at::Tensor out;
    bool done = guard(
        [&] { return kernel->call_known({tensors, n}, {numbers, m}, kInPlace ? nullptr : &out); });
    if (!done) {
      torch::jit::Stack stack;
      (stack.emplace_back(args), ...);
      try {
        kernel->call(&stack);
      } catch (const NoLowering&) {
        DerivedKernel::fall_back(op, &stack);
      }
      if constexpr (!kInPlace) out = stack[0].toTensor();
    }
    if constexpr (kInPlace) {
      return const_cast<at::Tensor&>(*tensors[0]);
    } else {
      return out;
    }
  }
};

template <typename Result, typename Self>
std::optional<torch::CppFunction> plain_function(std::pair<int, int> arguments,
                                                 const std::shared_ptr<OpKernel>& kernel,
                                                 const c10::OperatorHandle& op) {
  using T = const at::Tensor&;
  using N = const at::Scalar&;
  using torch::CppFunction;
  if (arguments == std::pair(1, 0)) return CppFunction(PlainKernel<Result, Self>{kernel, op});
  if (arguments == std::pair(1, 1)) return CppFunction(PlainKernel<Result, Self, N>{kernel, op});
  if (arguments == std::pair(2, 0)) return CppFunction(PlainKernel<Result, Self, T>{kernel, op});
  if (arguments == std::pair(2, 1)) return CppFunction(PlainKernel<Result, Self, T, N>{kernel, op});
  if (arguments == std::pair(3, 1))
    return CppFunction(PlainKernel<Result, Self, T, T, N>{kernel, op});
  if (arguments == std::pair(3, 2))
    return CppFunction(PlainKernel<Result, Self, T, T, N, N>{kernel, op});
  return {};
}

std::optional<torch::CppFunction> plain_function(const std::shared_ptr<OpKernel>& kernel,
                                                 const c10::OperatorHandle& op) {
  auto arguments = kernel->plain_arguments();
  if (!arguments) return {};
  return kernel->variant().form == Variant::InPlace
             ? plain_function<at::Tensor&, at::Tensor&>(*arguments, kernel, op)
             : plain_function<at::Tensor, const at::Tensor&>(*arguments, kernel, op);
}

bool has(const c10::OperatorHandle& op, c10::DispatchKey key) {
  return op.hasKernelForDispatchKey(key);
}

bool is_out(const c10::Argument& a) {
  return a.is_out() || (a.kwarg_only() && a.alias_info() != nullptr && a.alias_info()->isWrite());
}

// The functional schema that an in-place or out= schema belongs to: same name (less the
// underscore), same arguments (less the outs).
const FunctionSchema* functional_of(const FunctionSchema& schema,
                                    const std::multimap<std::string, const FunctionSchema*>& all,
                                    bool in_place) {
  std::string name = schema.name();
  if (in_place) name.pop_back();
  // The ops whose functional form has another name.
  static const std::map<std::string, std::string> others = {
      {"aten::__ilshift_", "aten::__lshift__"},
      {"aten::__irshift_", "aten::__rshift__"},
      {"aten::linalg_eigvals", "aten::_linalg_eigvals"},
      {"aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d"},
      {"aten::adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d"},
      {"aten::adaptive_avg_pool3d_backward", "aten::_adaptive_avg_pool3d_backward"},
  };
  if (auto it = others.find(name); it != others.end()) name = it->second;
  if (name == "aten::normal" && schema.arguments()[0].name() == "self")
    name = "aten::normal_functional";
  std::vector<const c10::Argument*> args;
  for (const auto& a : schema.arguments())
    if (in_place || !is_out(a)) args.push_back(&a);
  auto [begin, end] = all.equal_range(name);
  for (auto it = begin; it != end; ++it) {
    const FunctionSchema& f = *it->second;
    // A factory's dtype, layout, device and pin_memory are out's.
    size_t count = f.arguments().size();
    if (!in_place && count >= 4 && f.arguments()[count - 1].name() == "pin_memory" &&
        f.arguments()[count - 4].name() == "dtype")
      count -= 4;
    if (count != args.size()) continue;
    bool same = true;
    for (size_t i = 0; i < args.size() && same; ++i)
      same = f.arguments()[i].name() == args[i]->name() &&
             *f.arguments()[i].real_type() == *args[i]->real_type();
    if (same) return &f;
  }
  return nullptr;
}

// The entry that each element of a foreach operator is.
const OpEntry* foreach_entry(const FunctionSchema& schema, bool in_place) {
  const OpTable& table = OpTable::instance();
  std::string base = schema.name().substr(std::string("aten::_foreach_").size());
  if (in_place) base.pop_back();
  std::string name = "aten::" + base;
  const std::string& o = schema.overload_name();
  std::vector<std::string> tries;
  if (base == "norm" || base == "max" || base == "powsum") return nullptr;
  if (o.empty()) tries = {""};
  if (o == "List") tries = {"Tensor", "", "Tensor_Tensor"};
  if (o == "Scalar" || o == "ScalarList") tries = {"Tensor_Scalar", "Scalar", "Tensor", ""};
  if (o == "Tensor") tries = {"Tensor"};
  if (o == "ScalarAndTensor") tries = {"Scalar"};
  if (base == "add" || base == "sub" || base == "mul" || base == "div") tries = {"Tensor"};
  if (base == "maximum" || base == "minimum") tries = {""};
  if (base == "clamp_max" || base == "clamp_min") {
    tries = {o == "List" ? "Tensor" : ""};
  }
  if (base == "addcmul" || base == "addcdiv") {
    if (o == "Tensor") return nullptr;  // factors in one tensor: PyTorch splits it
    tries = {""};
  }
  for (const std::string& t : tries)
    if (const OpEntry* e = table.find(name, t)) return e;
  return nullptr;
}

std::map<std::string, std::shared_ptr<OpKernel>>& direct_kernels() {
  static std::map<std::string, std::shared_ptr<OpKernel>> kernels;
  return kernels;
}

// A kernel called by us and not by the dispatcher.
OpKernel& direct(const char* name, Variant::Form form) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto& k = direct_kernels()[std::string(name) + (form == Variant::InPlace ? "(in place)" : "")];
  if (!k) {
    std::string_view s = name;
    size_t dot = s.find('.');
    std::string overload = dot == std::string_view::npos ? "" : std::string(s.substr(dot + 1));
    const OpEntry* e = OpTable::instance().find(s.substr(0, dot), overload);
    TORCH_INTERNAL_ASSERT(e != nullptr, "no entry ", name);
    auto schema =
        c10::Dispatcher::singleton().findSchema({std::string(s.substr(0, dot)), overload});
    TORCH_INTERNAL_ASSERT(schema, "no schema ", name);
    k = std::make_shared<OpKernel>(schema->schema(), e, form, false);
  }
  return *k;
}

}  // namespace

void set_cpu_fallback(bool on) { fallback_on = on; }

std::vector<std::pair<std::string, int64_t>> fallback_counts() {
  std::lock_guard lock(fallback_mutex);
  return {fallback_count.begin(), fallback_count.end()};
}

std::vector<OpRow> operator_rows() { return rows(); }

void call_in_place(const char* entry, const at::Tensor& self, std::vector<c10::IValue> rest) {
  torch::jit::Stack stack;
  stack.emplace_back(self);
  for (c10::IValue& v : rest) stack.push_back(std::move(v));
  OpKernel& k = direct(entry, Variant::InPlace);
  if (std::string_view(entry) == "aten::copy" && stack.size() == 2) stack.emplace_back(false);
  k.call(&stack);
}

std::vector<at::Tensor> call_entry(const char* entry, std::vector<c10::IValue> args) {
  torch::jit::Stack stack(std::make_move_iterator(args.begin()),
                          std::make_move_iterator(args.end()));
  direct(entry, Variant::Functional).call(&stack);
  std::vector<at::Tensor> out;
  for (c10::IValue& v : stack) {
    if (!v.isTensorList()) {
      out.push_back(v.toTensor());
      continue;
    }
    for (const at::Tensor& t : v.toTensorVector()) out.push_back(t);
  }
  return out;
}

void register_operators() {
  auto& dispatcher = c10::Dispatcher::singleton();
  const OpTable& table = OpTable::instance();
  // Registrations live as long as the library object.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten",
                                            c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  std::multimap<std::string, const FunctionSchema*> functional;
  std::vector<c10::OperatorHandle> ops;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findSchema(name);
    if (!op) continue;
    ops.push_back(*op);
    // Arguments that are mutated along the way (running statistics) do not make a form in-place.
    bool outs =
        std::any_of(op->schema().arguments().begin(), op->schema().arguments().end(), is_out);
    const bool dunder = name.name.rfind("aten::__", 0) == 0;
    if (!outs && (dunder || name.name.back() != '_')) functional.emplace(name.name, &op->schema());
  }
  for (const c10::OperatorHandle& op : ops) {
    const FunctionSchema& schema = op.schema();
    std::string name = qualified(schema.name(), schema.overload_name());
    if (has(op, c10::DispatchKey::PrivateUse1)) continue;
    if (has(op, c10::DispatchKey::CompositeImplicitAutograd)) continue;
    bool writes = false, outs = false, views = false;
    for (const auto& a : schema.arguments()) {
      if (a.alias_info() == nullptr) continue;
      if (a.alias_info()->isWrite()) {
        writes = true;
        outs = outs || is_out(a);
      } else {
        views = true;
      }
    }
    if (views) continue;
    bool in_place = writes && !outs && schema.name().back() == '_';
    bool foreach = schema.name().rfind("aten::_foreach_", 0) == 0;
    auto form = outs ? Variant::Out : in_place ? Variant::InPlace : Variant::Functional;
    const OpEntry* entry = nullptr;
    const FunctionSchema* base = &schema;
    if (foreach) {
      if (!outs) entry = foreach_entry(schema, in_place);
    } else {
      entry = table.find(schema.name(), schema.overload_name());
      if (entry != nullptr) {
        form = Variant::Functional;  // an entry for this very schema states its writes itself
      } else if (writes) {
        base = functional_of(schema, functional, in_place);
        // as_strided_ changes the tensor's metadata, which PyTorch's own kernel does.
        const auto is_view = [](const c10::Argument& a) {
          return a.alias_info() != nullptr && !a.alias_info()->isWrite();
        };
        if (in_place && base != nullptr &&
            std::any_of(base->arguments().begin(), base->arguments().end(), is_view)) {
          continue;
        }
        if (base != nullptr) entry = table.find(base->name(), base->overload_name());
      }
    }
    // PyTorch copies the view, asks for memory, or writes to a view of a copy of the whole storage.
    const bool made_by_pytorch = op.hasTag(at::Tag::view_copy) ||
                                 schema.name() == "aten::new_empty_strided" ||
                                 schema.name() == "aten::as_strided_scatter";
    if (entry == nullptr && made_by_pytorch) continue;
    bool composed = has(op, c10::DispatchKey::CompositeExplicitAutograd);
    std::shared_ptr<OpKernel> kernel;
    OpRow row{name, "", ""};
    if (entry != nullptr) {
      kernel = std::make_shared<OpKernel>(schema, entry, form, foreach);
      row.how = form == Variant::Functional && !foreach ? "entry" : "derived";
      row.where = std::string(entry->file) + ":" + std::to_string(entry->line);
    } else {
      if (composed || foreach || base == nullptr) {
        rows().push_back({name, composed ? "composite" : "none", ""});
        continue;
      }
      // Names, order and count of the arguments come from PyTorch's schema.
      auto* synthetic = new OpEntry;
      synthetic->name = base->name();
      synthetic->overload = base->overload_name();
      synthetic->schema = qualified(base->name(), base->overload_name());
      for (const auto& a : base->arguments()) synthetic->arg_names.push_back(a.name());
      kernel = std::make_shared<OpKernel>(schema, synthetic, form, false);
      std::string decomposed = synthetic->schema;
      kernel->set_body(
          [decomposed, base](graph::Call& c) { return decompose(decomposed, *base, c); });
      row.how = "decomposition";
    }
    rows().push_back(row);
    std::optional<torch::CppFunction> function;
    if (entry != nullptr && (!writes || form == Variant::InPlace))
      function = plain_function(kernel, op);
    if (!function)
      function = torch::CppFunction::makeFromBoxedFunctor(std::make_unique<DerivedKernel>(kernel));
    library->impl(name.c_str(), std::move(*function));
  }
}

}  // namespace torch_tpu::tensor
