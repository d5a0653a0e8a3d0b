// SPDX-License-Identifier: Apache-2.0 - PyTorch's functional collectives for tensors on the device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "src/dist/abstract_group.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::dist {
namespace {

using torch::jit::Stack;

// Null where the group is a real one, or PyTorch is to say what is wrong with it.
const AbstractGroup* abstract_group(const c10::IValue& name) {
  if (!name.isString()) return nullptr;
  const auto group = c10d::resolve_process_group(name.toStringRef());
  if (!group->hasBackendForDeviceType(tensor::device_type())) return nullptr;
  return dynamic_cast<const AbstractGroup*>(group->getBackend(tensor::device_type()).get());
}

void collective(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto argument = [&](const char* name) -> c10::IValue* {
    const std::optional<int> i = schema.argumentIndexWithName(name);
    return i ? &torch::jit::peek(*stack, static_cast<size_t>(*i), count) : nullptr;
  };
  c10::IValue* name = argument("group_name");
  const AbstractGroup* group = abstract_group(*name);
  if (group == nullptr) {
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }
  *name = group->groups();
  for (const char* sizes : {"input_split_sizes", "output_split_sizes"})
    if (c10::IValue* v = argument(sizes)) *v = group->from_first(v->toIntVector());

  // The entries are functional; the other forms write what those return.
  std::string entry = schema.name();
  std::vector<at::Tensor> targets;
  const c10::IValue* out = argument("out");
  const bool in_place = entry.back() == '_';
  if (in_place) {
    entry.pop_back();
    const c10::IValue& self = torch::jit::peek(*stack, 0, count);
    targets = self.isTensorList() ? self.toTensorVector() : std::vector{self.toTensor()};
  } else if (out != nullptr) {
    entry.resize(entry.size() - std::string_view("_out").size());
    targets.push_back(out->toTensor());
  }
  std::vector<c10::IValue> args(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  if (out != nullptr) args.pop_back();
  torch::jit::drop(*stack, count);
  std::vector<at::Tensor> results = tensor::call_entry(entry.c_str(), std::move(args));
  for (size_t i = 0; i < targets.size(); ++i) targets[i].copy_(results[i]);
  if (!targets.empty()) results = std::move(targets);
  if (schema.returns()[0].type()->kind() == c10::TypeKind::ListType) {
    stack->emplace_back(c10::List<at::Tensor>(results));
  } else {
    stack->emplace_back(results[0]);
  }
}

}  // namespace

void register_functional_collectives() {
  // Registrations live as long as the library objects.
  const auto cover = [](const char* space, const std::vector<const char*>& names) {
    auto* library = new torch::Library(torch::Library::IMPL, space, c10::DispatchKey::PrivateUse1,
                                       __FILE__, __LINE__);
    for (const char* name : names) {
      const std::string qualified = std::string(space) + "::" + name;
      if (!c10::Dispatcher::singleton().findSchema({qualified, ""})) continue;
      library->impl(name, torch::CppFunction::makeFromBoxedFunction<&collective>());
    }
  };
  cover("_c10d_functional",
        {"all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_",
         "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out",
         "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_out",
         "all_to_all_single", "broadcast", "broadcast_"});
  cover("_dtensor", {"shard_dim_alltoall"});
}

}  // namespace torch_tpu::dist
