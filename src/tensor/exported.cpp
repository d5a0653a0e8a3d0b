// SPDX-License-Identifier: Apache-2.0 - Tracing a graph to text without a call, and a text as the body of a graph.
#include "src/tensor/exported.h"

#include <ATen/ATen.h>

#include <utility>

#include "src/graph/key.h"
#include "src/graph/op_table.h"
#include "src/graph/trace.h"
#include "src/tensor/kernel.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using graph::ScalarSource;

namespace {

hlo::Values trace_outputs(graph::Call& c, const CompiledGraph::Body& body, GraphText& text) {
  Capture capture(c, /*graph=*/true);
  std::vector<at::Tensor> inputs;
  const std::vector<graph::Arg>& list = c.arg_at(0).list;
  for (size_t i = 0; i < list.size(); ++i)
    inputs.emplace_back(capture.input(c.read_at(0, i), scalar_type_of(list[i].tensor.dtype)));
  const std::vector<at::Tensor> given = inputs;  // the body may drop its own
  hlo::Values results;
  for (CompiledGraph::Output& o : body(capture, inputs, {})) {
    c.check(o.tensor.defined(), "an exported graph returns something that is not a tensor");
    c.check(o.tensor.device().type() == device_type(), "an exported graph returns a tensor on ",
            o.tensor.device().str());
    if (o.tensor.is_conj() || o.tensor.is_neg()) o.tensor = o.tensor.resolve_conj().resolve_neg();
    text.strides.push_back(o.strides ? *o.strides : o.tensor.strides().vec());
    results.push_back(capture.value_of(o.tensor));
  }
  for (const at::Tensor& t : given)
    c.check(!capture.changed(t), "an exported graph writes to its input");
  return results;
}

}  // namespace

GraphText write_graph(const std::string& name, const CompiledGraph::Body& body,
                      const std::vector<hlo::Type>& inputs, graph::Platform platform) {
  graph::OpEntry entry;
  entry.name = entry.schema = "torch_tpu::" + name;
  entry.arg_names = {"tensors"};
  GraphText text;
  graph::Variant variant;
  variant.entry = &entry;
  variant.op = entry.name;
  variant.body = [&](graph::Call& c) { return trace_outputs(c, body, text); };
  graph::Arg list;
  list.kind = graph::Arg::TensorList;
  for (const hlo::Type& type : inputs) {
    graph::Arg& arg = list.list.emplace_back();
    arg.kind = graph::Arg::Tensor;
    arg.tensor.dtype = type.dtype;
    arg.tensor.sizes = type.dims;
    arg.tensor.strides = hlo::contiguous_strides(type.dims);
    arg.tensor.base = type;
  }
  graph::TraceOptions options = trace_options();
  options.platform = platform;
  options.host_kernels = false;
  const std::shared_ptr<graph::Record> record =
      graph::trace(variant, std::make_shared<const graph::Args>(graph::Args{list}), options);
  for (const ScalarSource& s : record->scalars)
    TORCH_CHECK(s.kind >= ScalarSource::SeedLow && s.kind <= ScalarSource::OffsetHigh,
                "an exported graph depends on a number that is not known before it is run");
  for (const graph::TensorRef& ref : record->inputs) text.inputs.push_back(ref.element);
  text.scalars = record->scalars;
  text.random_increment = record->random_increment;
  text.results = record->result_types;
  text.checks = record->checks;
  text.error_result = record->error_result;
  hlo::ModuleOptions module;
  module.name = "torch_tpu";
  text.module = hlo::write_module(record->function, module);
  return text;
}

std::unique_ptr<CompiledGraph> graph_of_text(const std::string& name,
                                             std::map<graph::Platform, GraphText> forms) {
  struct Form {
    GraphText text;
    std::shared_ptr<const hlo::TextFunction> function;
  };
  auto known = std::make_shared<std::map<graph::Platform, Form>>();
  for (auto& [platform, text] : forms) {
    graph::KeyHasher hash;
    hash.bytes(text.module);
    auto function = std::make_shared<const hlo::TextFunction>(
        hlo::text_function(text.module, "exported_" + hash.finish().hex()));
    (*known)[platform] = {std::move(text), std::move(function)};
    (*known)[platform].text.module.clear();
  }
  auto body = [known, name](Capture& capture, const std::vector<at::Tensor>& inputs,
                            const std::vector<int64_t>&) {
    const auto found = known->find(capture.call().platform());
    capture.call().check(found != known->end(), "the file has no form for this platform");
    const auto& [text, function] = found->second;
    // As if one operator had been called whose lowering is the text.
    graph::Record record;
    record.op = "torch_tpu::" + name;
    record.scalars = text.scalars;
    record.random_increment = text.random_increment;
    record.result_types = text.results;
    record.checks = text.checks;
    record.error_result = text.error_result;
    hlo::Builder b;
    hlo::Values params;
    std::vector<run::ArrayPtr> arrays, results;
    std::vector<at::Tensor> dense;
    for (size_t i = 0; i < text.inputs.size(); ++i) {
      const at::Tensor& given = inputs.at(text.inputs[i]);
      dense.emplace_back(capture.input(capture.value_of(given), given.scalar_type()));
      arrays.push_back(slot_of(dense.back()).value);
      record.inputs.push_back({0, static_cast<uint16_t>(i)});
      params.push_back(b.param(arrays.back()->type()));
    }
    for (const ScalarSource& s : text.scalars) params.push_back(b.param({s.dtype, {}}));
    const hlo::Values values = hlo::call_text(b, function, params, text.results);
    record.function = b.finish(values);
    for (const hlo::Type& type : text.results)
      results.emplace_back(new run::Array(run::intern(type)));
    capture.record(record, arrays, std::vector<uint64_t>(text.scalars.size()), results);
    std::vector<CompiledGraph::Output> outputs;
    for (size_t i = 0; i < text.strides.size(); ++i) {
      graph::OutputSpec spec;
      spec.sizes = text.results[i].dims;
      outputs.emplace_back();
      outputs.back().tensor =
          at::Tensor(make_tensor(results[i], spec, scalar_type_of(text.results[i].dtype)));
      outputs.back().strides = text.strides[i];
    }
    return outputs;
  };
  return std::make_unique<CompiledGraph>(name, std::move(body));
}

}  // namespace torch_tpu::tensor
