// SPDX-License-Identifier: Apache-2.0 - Tracing a whole graph through Capture, and where its outputs live.
#include "src/tensor/compiled.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "src/graph/op_table.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using graph::GraphOutput;

namespace {

c10::FunctionSchema schema_of(const std::string& name) {
  auto tensors = c10::ListType::create(c10::OptionalType::create(c10::TensorType::get()));
  auto ints = c10::ListType::create(c10::IntType::get());
  return c10::FunctionSchema("torch_tpu::" + name, "",
                             {c10::Argument("tensors", tensors), c10::Argument("ints", ints)},
                             {c10::Argument("", c10::ListType::create(c10::TensorType::get()))});
}

const c10::StorageImpl* storage_of(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Whether each element has a place of its own and there are no gaps.
bool dense(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  const hlo::Dims order = memory_order(sizes, strides);
  for (size_t i = order.size(); i-- > 0;) {
    if (sizes[order[i]] == 1) continue;
    if (strides[order[i]] != expected) return false;
    expected *= sizes[order[i]];
  }
  return true;
}

// Same places in memory; strides of dimensions of size 1 (and of empty tensors) do not matter.
bool same_layout(c10::IntArrayRef sizes, c10::IntArrayRef a, c10::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  }
  return true;
}

void describe(const CompiledGraph::Output& o, GraphOutput& out) {
  out.dtype = dtype_of(o.tensor.scalar_type());
  out.sizes = o.tensor.sizes().vec();
  // (A by-product of an op may have another rank here than where the graph was made.)
  const bool told = o.strides && o.strides->size() == out.sizes.size();
  out.strides = told ? *o.strides : o.tensor.strides().vec();
}

// Runs the body and decides for each output where its values live.
hlo::Values run_graph(graph::Call& c, const CompiledGraph::Body& body) {
  c.make_whole();
  Capture capture(c, /*graph=*/true);
  const graph::Arg& list = c.arg_at(0);
  std::vector<at::Tensor> inputs;
  std::map<const c10::StorageImpl*, size_t> input_storages;
  for (size_t i = 0; i < list.list.size(); ++i) {
    const graph::Arg& a = list.list[i];
    at::Tensor& t = inputs.emplace_back();
    if (a.kind != graph::Arg::Tensor) continue;
    const hlo::Value v = c.read_at(0, i);
    const c10::ScalarType dtype = scalar_type_of(a.tensor.dtype);
    t = a.tensor.host ? capture.input(v, dtype) : capture.input(v, dtype, a.tensor.strides);
    // A window on it is a window on the input only if it lies in memory as the input does.
    if (!a.tensor.host && same_layout(a.tensor.sizes, a.tensor.strides, t.strides()))
      input_storages[storage_of(t)] = i;
  }
  const std::vector<at::Tensor> given = inputs;  // the body may drop or re-point its own
  std::vector<CompiledGraph::Output> outputs = body(capture, inputs, c.arg_at(1).ints);

  std::map<const c10::StorageImpl*, int> sharers;
  for (CompiledGraph::Output& o : outputs) {
    if (!o.tensor.defined()) continue;
    TORCH_CHECK(o.tensor.device().type() == c10::DeviceType::PrivateUse1,
                "a captured graph returns a tensor on ", o.tensor.device());
    if (o.tensor.is_conj() || o.tensor.is_neg()) o.tensor = o.tensor.resolve_conj().resolve_neg();
    ++sharers[storage_of(o.tensor)];
  }
  hlo::Values results;
  std::map<const c10::StorageImpl*, int32_t> bases;
  for (const CompiledGraph::Output& o : outputs) {
    GraphOutput& out = c.graph_outputs().emplace_back();
    if (o.number) {
      out.kind = GraphOutput::Number;
      out.offset = *o.number;
      continue;
    }
    if (!o.tensor.defined()) continue;
    const at::Tensor& t = o.tensor;
    describe(o, out);
    const c10::StorageImpl* storage = storage_of(t);
    const bool as_wanted = same_layout(out.sizes, out.strides, t.strides());
    auto same = std::find_if(given.begin(), given.end(),
                             [&](const at::Tensor& in) { return in.is_same(t); });
    if (same != given.end()) {
      out.kind = GraphOutput::Input;
      out.index = static_cast<int32_t>(same - given.begin());
      continue;
    }
    auto source = input_storages.find(storage);
    if (source != input_storages.end() && as_wanted && !capture.changed(given[source->second])) {
      out.kind = GraphOutput::InputView;
      out.index = static_cast<int32_t>(source->second);
      out.offset = t.storage_offset();
      continue;
    }
    out.kind = GraphOutput::Result;
    const bool is_input = std::any_of(given.begin(), given.end(), [&](const at::Tensor& in) {
      return in.defined() && storage_of(in) == storage;
    });
    // Views of one storage stay views of one buffer; a view that is alone takes its elements only,
    // unless they overlap (an expanded tensor).
    if (as_wanted && !is_input && (sharers[storage] > 1 || !dense(out.sizes, out.strides))) {
      out.offset = t.storage_offset();
      auto [it, is_new] = bases.try_emplace(storage, static_cast<int32_t>(results.size()));
      if (is_new) results.push_back(capture.base_of(t));
      out.index = it->second;
      continue;
    }
    out.index = static_cast<int32_t>(results.size());
    results.push_back(dense_result(capture, o, out));
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!given[i].defined() || !capture.changed(given[i])) continue;
    c.check(!list.list[i].tensor.host, "a captured graph writes to a CPU tensor");
    c.write_at(0, i, capture.value_of(given[i]));
  }
  return results;
}

}  // namespace

hlo::Value dense_result(Capture& capture, const CompiledGraph::Output& o, GraphOutput& out) {
  out.kind = GraphOutput::Result;
  describe(o, out);
  if (!dense(out.sizes, out.strides)) out.strides = hlo::contiguous_strides(out.sizes);
  hlo::Value v = capture.value_of(o.tensor);
  const hlo::Dims order = memory_order(out.sizes, out.strides);
  if (v.elements() > 0 && !std::is_sorted(order.begin(), order.end())) v = hlo::transpose(v, order);
  return v;
}

at::Tensor window(c10::Storage storage, const GraphOutput& out, int64_t offset,
                  c10::ScalarType dtype) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
      c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_and_strides(out.sizes, out.strides);
  impl->set_storage_offset(offset);
  return at::Tensor(std::move(impl));
}

GraphKernel::GraphKernel(const std::string& name, std::function<hlo::Values(graph::Call&)> body) {
  // Never freed: records keep a pointer to it, and programs keep records.
  auto* entry = new graph::OpEntry;
  entry->name = "torch_tpu::" + name;
  entry->schema = entry->name;
  entry->arg_names = {"tensors", "ints"};
  kernel_ = std::make_shared<OpKernel>(schema_of(name), entry, graph::Variant::Functional, false);
  kernel_->ignore_aliases();
  kernel_->set_body(std::move(body));
}

GraphKernel::~GraphKernel() {
  kernel_->for_each_record(
      [](const graph::RecordPtr& record) { run::Runtime::instance().forget(record); });
}

CompiledGraph::CompiledGraph(const std::string& name, Body body)
    : kernel_(name, [body = std::move(body)](graph::Call& c) { return run_graph(c, body); }) {}

std::vector<std::string> GraphKernel::module_texts(std::optional<graph::Platform> other) const {
  std::vector<std::string> out;
  kernel_->for_each_record([&](const graph::RecordPtr& record) {
    if (record->program)
      out.push_back(static_cast<const run::Program*>(record->program.get())->module_text(other));
  });
  return out;
}

std::vector<c10::IValue> CompiledGraph::call(std::vector<at::Tensor>& inputs,
                                             const std::vector<int64_t>& ints) {
  return guard([&] { return kernel_.call(inputs, ints, inputs); });
}

std::vector<c10::IValue> GraphKernel::call(std::vector<at::Tensor>& inputs,
                                           const std::vector<int64_t>& ints,
                                           const std::vector<at::Tensor>& given,
                                           const Adjust& adjust) {
  std::vector<std::pair<at::Tensor, size_t>> lazy;  // conjugated or negated by a bit
  for (size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor& t = inputs[i];
    if (C10_UNLIKELY(t.defined() && (t.is_conj() || t.is_neg()))) {
      lazy.emplace_back(t, i);
      t = t.resolve_conj().resolve_neg();
    }
  }
  OpKernel::Results results;
  const graph::Record& record = kernel_->call_graph(inputs, ints, results);
  for (auto& [tensor, i] : lazy)
    for (const graph::WriteSpec& w : record.writes)
      if (w.to.element == i) tensor.copy_(inputs[i]);
  std::vector<c10::IValue> out;
  out.reserve(record.graph_outputs.size());
  std::vector<c10::Storage> storages(results.size());
  for (const GraphOutput& o : record.graph_outputs) {
    switch (o.kind) {
      case GraphOutput::None:
        out.emplace_back();
        break;
      case GraphOutput::Number:
        out.emplace_back(o.offset);
        break;
      case GraphOutput::Input:
        out.emplace_back(given[o.index]);
        break;
      case GraphOutput::InputView: {
        const at::Tensor& in = given[o.index];
        out.emplace_back(
            window(in.storage(), o, in.storage_offset() + o.offset, scalar_type_of(o.dtype)));
        break;
      }
      case GraphOutput::Result: {
        c10::Storage& s = storages[o.index];
        if (!s) {
          const int64_t bytes = results[o.index]->type().bytes();
          s = make_storage(std::move(results[o.index]), bytes);
        }
        const size_t place = out.size();
        out.emplace_back(
            window(s, adjust ? adjust(place, o) : o, o.offset, scalar_type_of(o.dtype)));
        break;
      }
    }
  }
  return out;
}

}  // namespace torch_tpu::tensor
