// SPDX-License-Identifier: Apache-2.0 - Tracing a graph at several sizes, and calls with inputs of dynamic size.
#include "src/tensor/bounded.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "src/graph/op_table.h"
#include "src/graph/trace.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/generator.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {

using graph::GraphOutput;
using graph::NotBounded;
using graph::Record;
using graph::ScalarSource;

namespace {

graph::TensorArg plain(hlo::DType dtype, hlo::Dims sizes) {
  graph::TensorArg t;
  t.dtype = dtype;
  t.strides = hlo::contiguous_strides(sizes);
  t.base = {dtype, sizes};
  t.sizes = std::move(sizes);
  return t;
}

// The elements of a tensor at the front of a flat one.
at::Tensor flattened(const at::Tensor& t, int64_t elements) {
  run::Runtime& runtime = run::Runtime::instance();
  const hlo::Type type{dtype_of(t.scalar_type()), {elements}};
  const int64_t bytes = elements * static_cast<int64_t>(t.element_size());
  GraphOutput flat;
  flat.sizes = {elements};
  flat.strides = {1};
  const bool plain = !t.is_conj() && !t.is_neg();
  if (plain && t.is_contiguous() && t.storage_offset() == 0) {
    std::lock_guard lock(runtime.mutex());
    const run::ArrayPtr& value = slot_of(t).value;
    if (value && value->type() == type) return window(t.storage(), flat, 0, t.scalar_type());
  }
  at::Tensor host = at::zeros({elements}, at::TensorOptions().dtype(t.scalar_type()));
  host.narrow(0, 0, t.numel()).view(t.sizes()).copy_(t);
  return window(make_storage(runtime.upload(host.const_data_ptr(), type), bytes), flat, 0,
                t.scalar_type());
}

// Gives a tensor what the program wrote to its flat form.
void write_back(const at::Tensor& t, const at::Tensor& flat) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  if (storage == flat.storage().unsafeGetStorageImpl()) return;
  const bool plain = !t.is_conj() && !t.is_neg() && t.is_contiguous() && t.storage_offset() == 0;
  if (!plain || storage->nbytes() != t.nbytes()) {
    t.copy_(flat.narrow(0, 0, t.numel()).view(t.sizes()));
    return;
  }
  // All of its storage: that takes the buffer over, and the next call needs no copy.
  std::lock_guard lock(run::Runtime::instance().mutex());
  slot_of(*storage).value = slot_of(flat).value;
  storage->set_nbytes(flat.storage().nbytes());
}

}  // namespace

BoundedGraph::BoundedGraph(const std::string& name, CompiledGraph::Body body,
                           std::vector<bool> dynamic, std::vector<Sample> samples)
    : body_(std::move(body)),
      dynamic_(std::move(dynamic)),
      samples_(std::move(samples)),
      graph_(name, [this](graph::Call& c) { return trace(c); }) {
  for (const auto& sizes : samples_.at(0).tensors) elements_.push_back(hlo::element_count(sizes));
}

hlo::Values BoundedGraph::trace(graph::Call& c) {
  c.make_whole();
  const std::vector<graph::Arg>& list = c.arg_at(0).list;
  const size_t n = dynamic_.size();
  std::vector<std::shared_ptr<Record>> records;
  std::vector<GraphOutput> outputs;
  std::vector<std::vector<int64_t>> draws;  // of each sample
  written_.clear();
  for (const Sample& sample : samples_) {
    auto args = std::make_shared<graph::Args>(2);
    graph::Arg &tensors = (*args)[0], &ints = (*args)[1];
    tensors.kind = graph::Arg::TensorList;
    ints.kind = graph::Arg::IntList;
    ints.ints = sample.ints;
    size_t next = 0;
    for (size_t i = 0; i < n; ++i) {
      graph::Arg& a = tensors.list.emplace_back(list[i]);
      if (dynamic_[i]) {
        a.tensor = plain(a.tensor.dtype, sample.tensors.at(next++));
      } else if (a.kind == graph::Arg::Tensor && !a.tensor.host) {
        a.tensor = plain(a.tensor.dtype, a.tensor.sizes);
      }
    }
    std::vector<GraphOutput> made;
    graph::Variant variant;
    variant.entry = graph_.kernel().variant().entry;
    variant.op = graph_.kernel().variant().op;
    variant.body = [&](graph::Call& inner) {
      Capture capture(inner, /*graph=*/true);
      std::vector<at::Tensor> inputs;
      for (size_t i = 0; i < n; ++i) {
        at::Tensor& t = inputs.emplace_back();
        const graph::Arg& a = inner.arg_at(0).list[i];
        if (a.kind != graph::Arg::Tensor) continue;
        const hlo::Value v = inner.read_at(0, i);
        const c10::ScalarType dtype = scalar_type_of(a.tensor.dtype);
        t = a.tensor.host || dynamic_[i] ? capture.input(v, dtype)
                                         : capture.input(v, dtype, list[i].tensor.strides);
      }
      const std::vector<at::Tensor> given = inputs;
      hlo::Values results;
      for (CompiledGraph::Output& o : body_(capture, inputs, sample.ints)) {
        GraphOutput& out = made.emplace_back();
        if (o.number) out.kind = GraphOutput::Number;
        if (o.number || !o.tensor.defined()) continue;
        if (o.tensor.is_conj() || o.tensor.is_neg())
          o.tensor = o.tensor.resolve_conj().resolve_neg();
        auto same = std::find_if(given.begin(), given.end(),
                                 [&](const at::Tensor& in) { return in.is_same(o.tensor); });
        if (same != given.end()) {
          out.kind = GraphOutput::Input;
          out.index = static_cast<int32_t>(same - given.begin());
          continue;
        }
        out.index = static_cast<int32_t>(results.size());
        results.push_back(dense_result(capture, o, out));
      }
      for (size_t i = 0; i < n; ++i) {
        if (!given[i].defined() || !capture.changed(given[i])) continue;
        inner.check(!list[i].tensor.host, "a captured graph writes to a CPU tensor");
        if (dynamic_[i] && records.empty()) written_.push_back(i);
        inner.write_at(0, i, capture.value_of(given[i]));
      }
      draws.push_back(capture.draws());
      return results;
    };
    graph::TraceOptions options = trace_options();
    options.platform = c.platform();
    options.host_kernels = false;  // they know nothing of sizes within bounds
    options.open_sizes = true;
    options.precision = c.precision();
    records.push_back(graph::trace(variant, args, options));
    if (records.size() == 1) {
      outputs = std::move(made);
      open_.assign(outputs.size(), false);
      continue;
    }
    for (size_t i = 0; i < outputs.size(); ++i)
      open_[i] = open_[i] || made.at(i).sizes != outputs[i].sizes;
  }
  const Record& first = *records[0];
  graph::BoundedTraces traces;
  for (size_t p = 0; p < records.size(); ++p) {
    const Record& r = *records[p];
    if (r.inputs != first.inputs || r.scalars != first.scalars ||
        r.writes.size() != first.writes.size() || r.checks.size() != first.checks.size())
      throw NotBounded("the program takes other inputs at other sizes");
    if (draws.at(p).size() != draws[0].size())
      throw NotBounded("which operators draw random numbers depends on a size");
    traces.functions.push_back(&r.function);
    traces.sizes.push_back(samples_[p].sizes);
  }
  hlo::Values sizes;
  for (size_t k = 0; k < samples_[0].sizes.size(); ++k) {
    ScalarSource s;
    s.dtype = hlo::DType::S32;
    s.from = {0, static_cast<uint16_t>(n + k)};
    sizes.push_back(c.scalar_input(s));
  }
  hlo::Values results = graph::bounded_call(c.builder(), traces, sizes, [&](size_t i) {
    if (i < first.inputs.size()) return c.read_at(0, first.inputs[i].element);
    return c.scalar_input(first.scalars[i - first.inputs.size()]);
  });
  c.random_increment() += first.random_increment;
  draws_.clear();
  for (size_t k = 0; k < draws[0].size(); ++k) {
    hlo::Dims drawn;
    for (const auto& of_sample : draws) drawn.push_back(of_sample[k]);
    auto found = graph::fit_drawn_words(traces.sizes, drawn);
    if (!found) throw NotBounded("how many random numbers are drawn depends on a size");
    draws_.push_back(*std::move(found));
  }
  for (const graph::WriteSpec& w : first.writes)
    c.write_at(0, w.to.element, results[static_cast<size_t>(w.result)]);
  if (first.error_result >= 0)
    raise_checks(c, results[static_cast<size_t>(first.error_result)], first.checks);
  results.resize(first.outputs.size());
  c.graph_outputs() = std::move(outputs);
  return results;
}

std::vector<c10::IValue> BoundedGraph::call(std::vector<at::Tensor>& inputs,
                                            const std::vector<int64_t>& sizes,
                                            const std::vector<std::vector<int64_t>>& output_sizes) {
  return guard([&] {
    TORCH_CHECK(inputs.size() == dynamic_.size() && sizes.size() == samples_[0].sizes.size(),
                "a bounded graph of ", dynamic_.size(), " inputs and ", samples_[0].sizes.size(),
                " sizes got ", inputs.size(), " and ", sizes.size());
    std::vector<at::Tensor> tensors = inputs;
    size_t next = 0;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (dynamic_[i]) tensors[i] = flattened(tensors[i], elements_[next++]);
    for (int64_t size : sizes) tensors.push_back(at::scalar_tensor(size, at::kLong));
    auto results = graph_.call(tensors, {}, inputs, [&](size_t i, GraphOutput out) {
      if (!open_[i]) return out;
      TORCH_CHECK(i < output_sizes.size() && output_sizes[i].size() == out.sizes.size(),
                  "an output of a bounded graph has another rank than it should");
      const hlo::Dims order = memory_order(out.sizes, out.strides);
      out.sizes = output_sizes[i];
      int64_t running = 1;
      for (size_t k = order.size(); k-- > 0;) {
        out.strides[order[k]] = running;
        running *= std::max<int64_t>(out.sizes[order[k]], 1);
      }
      return out;
    });
    for (size_t i : written_) write_back(inputs[i], tensors[i]);
    if (!draws_.empty()) {
      // The call has drawn as many as at the bounds.
      auto* generator = at::check_generator<GeneratorImpl>(default_generator());
      std::lock_guard hold(generator->mutex_);
      uint64_t offset = generator->get_offset();
      for (const graph::DrawnWords& words : draws_)
        offset -= static_cast<uint64_t>(words.at(samples_[0].sizes) - words.at(sizes));
      generator->set_offset(offset);
    }
    return results;
  });
}

}  // namespace torch_tpu::tensor
