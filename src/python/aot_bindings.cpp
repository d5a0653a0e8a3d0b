// SPDX-License-Identifier: Apache-2.0 - Binds ahead-of-time compilation: steps without values, and programs for TPUs elsewhere.
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <numeric>

#include "src/dist/abstract_group.h"
#include "src/hlo/collective.h"
#include "src/pjrt/plugin.h"
#include "src/pjrt/topology.h"
#include "src/python/compiled_facts.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/storage.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using run::ArrayPtr;
using run::Runtime;

// The value that a tensor's storage had before an abstract step.
struct HeldValue {
  ArrayPtr value;
};

// Made once each, and never destroyed: libtpu has threads of its own at exit.
const pjrt::Topology& topology(const std::string& name) {
  const std::string path = pjrt::Plugin::find("libtpu");
  TORCH_CHECK(!path.empty(),
              "libtpu is not installed; `pip install libtpu` gives the compiler for TPUs");
  static std::mutex mutex;
  static auto* topologies = new std::map<std::string, pjrt::Topology>;
  std::lock_guard lock(mutex);
  auto found = topologies->find(name);
  if (found == topologies->end())
    found = topologies->emplace(name, pjrt::Topology::create(pjrt::Plugin::load(path), name)).first;
  return found->second;
}

py::dict describe(const std::string& name) {
  std::string version;
  std::vector<pjrt::DeviceDescription> devices;
  {
    py::gil_scoped_release release;
    tensor::guard([&] {
      const pjrt::Topology& t = topology(name);
      version = t.platform_version();
      devices = t.devices();
    });
  }
  py::dict d;
  d["platform_version"] = version;
  d["devices"] = devices.size();
  d["kind"] = devices.empty() ? "" : devices[0].kind;
  d["attributes"] = devices.empty() ? std::map<std::string, std::string>() : devices[0].attributes;
  return d;
}

// One program for that many devices: the first ones, in the topology's order.
py::dict compile(const std::string& text, const std::string& name, bool serialize,
                 int64_t replicas) {
  CompiledFacts facts;
  std::string bytes, fingerprint;
  {
    py::gil_scoped_release release;
    tensor::guard([&] {
      const pjrt::Topology& t = topology(name);
      pjrt::CompileOptions options;
      if (replicas > 1) {
        options.num_replicas = replicas;
        options.device_ids.resize(static_cast<size_t>(replicas));
        std::iota(options.device_ids.begin(), options.device_ids.end(), 0);
      }
      const auto begin = std::chrono::steady_clock::now();
      const pjrt::CompiledProgram program = t.compile(text, options);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      facts = facts_of(program, seconds.count());
      fingerprint = program.fingerprint();
      if (serialize) bytes = program.serialize();
    });
  }
  py::dict d = to_dict(facts);
  d["fingerprint"] = py::bytes(fingerprint);
  d["serialized"] = py::bytes(bytes);
  return d;
}

// Runs a program on that many devices of a CPU client of its own. inputs: for each a list of
// contiguous tensors on the CPU. Results are the bytes of each output.
std::vector<std::vector<at::Tensor>> run_replicas(
    const std::string& text, const std::vector<std::vector<at::Tensor>>& inputs) {
  py::gil_scoped_release release;
  return tensor::guard([&] {
    pjrt::ClientOptions client_options;
    client_options.cpu_device_count = static_cast<int>(inputs.size());
    const auto client = pjrt::Client::create(Runtime::instance().client().plugin(), client_options);
    TORCH_CHECK(client->is_cpu(), "run_replicas: the device's plugin is not XLA's for the CPU");
    pjrt::CompileOptions options;
    options.num_replicas = static_cast<int64_t>(inputs.size());
    const pjrt::Executable program = client->compile(text, options);
    std::vector<pjrt::Buffer> owned;
    std::vector<std::vector<PJRT_Buffer*>> arguments(inputs.size()), results(inputs.size());
    const std::vector<PJRT_Device*> devices = program.devices();
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (const at::Tensor& t : inputs[i]) {
        const int type = run::pjrt_type(tensor::dtype_of(t.scalar_type()));
        owned.push_back(client->from_host(t.const_data_ptr(), type, t.sizes(), devices[i]));
        arguments[i].push_back(owned.back().raw());
      }
    }
    program.execute_sharded(arguments, {}, results);
    std::vector<std::vector<at::Tensor>> out(inputs.size());
    for (size_t i = 0; i < results.size(); ++i) {
      for (size_t k = 0; k < results[i].size(); ++k) {
        const pjrt::Buffer buffer(client->api(), results[i][k]);
        at::Tensor t = at::empty({static_cast<int64_t>(buffer.host_nbytes())},
                                 at::TensorOptions().dtype(at::kByte));
        buffer.to_host(t.data_ptr(), buffer.host_nbytes());
        out[i].push_back(std::move(t));
      }
    }
    return out;
  });
}

py::list types_of(const std::vector<ArrayPtr>& arrays) {
  py::list list;
  for (const ArrayPtr& a : arrays)
    list.append(py::make_tuple(reinterpret_cast<uintptr_t>(a.get()),
                               tensor::scalar_type_of(a->type().dtype), a->type().dims));
  return list;
}

// The step's program as a TPU gets it, its inputs and outputs as (identity, dtype, sizes), which
// output takes the memory of each input (or -1), and the largest values that its calls make as
// (bytes, type, operator, line); and its collectives as (kind, devices in a group, calls, bytes
// that each device sends at the least). held: identities of inputs that a _HeldValue holds. turns:
// equal parts of the program, from so many on, become loops; 0: none do. "arguments" and "results"
// are what the module has of the inputs and outputs: numbers of several where they are stacked.
// "loops": turns and instructions of each.
py::dict end_step(const std::vector<uintptr_t>& held, int32_t loops) {
  Runtime::AbstractStep step;
  run::Program::Module module;
  {
    py::gil_scoped_release release;
    tensor::guard([&] {
      std::vector<const run::Array*> arrays;
      for (const uintptr_t h : held) arrays.push_back(reinterpret_cast<const run::Array*>(h));
      step = Runtime::instance().end_abstract_step(arrays);
      std::optional<graph::LoopOptions> options;
      if (loops >= 0) options = graph::LoopOptions{.worth = loops, .stack_arguments = true};
      if (step.program) module = step.program->module(graph::Platform::Tpu, options);
    });
  }
  py::dict d;
  d["module"] = module.text;
  if (!step.program) return d;
  d["arguments"] = module.inputs;
  d["results"] = module.outputs;
  py::list made_loops;
  for (const graph::Looped::Loop& loop : module.loops)
    made_loops.append(py::make_tuple(loop.turns, loop.instructions));
  d["loops"] = made_loops;
  d["inputs"] = types_of(step.inputs);
  d["outputs"] = types_of(step.outputs);
  d["donations"] = step.program->donations();
  d["calls"] = step.program->nodes().size();
  struct Made {
    const hlo::Type* type;
    const run::ProgramNode* node;
  };
  std::vector<Made> made;
  for (const run::ProgramNode& node : step.program->nodes())
    for (const hlo::Type& type : node.record->result_types) made.push_back({&type, &node});
  const size_t count = std::min<size_t>(made.size(), 10);
  std::partial_sort(made.begin(), made.begin() + static_cast<std::ptrdiff_t>(count), made.end(),
                    [](const Made& a, const Made& b) { return a.type->bytes() > b.type->bytes(); });
  py::list largest;
  for (size_t i = 0; i < count; ++i)
    largest.append(py::make_tuple(made[i].type->bytes(), made[i].type->str(),
                                  made[i].node->record->op,
                                  made[i].node->line != nullptr ? *made[i].node->line : ""));
  d["largest"] = largest;
  py::list scalars;
  for (const run::ScalarPack& p : step.program->packs()) {
    std::vector<int64_t> words;
    for (const uint32_t i : p.scalars) words.push_back(static_cast<int64_t>(step.scalars[i]));
    scalars.append(py::make_tuple(tensor::scalar_type_of(p.dtype), words));
  }
  d["scalars"] = scalars;
  std::map<std::pair<std::string, int64_t>, std::pair<int64_t, int64_t>> exchanges;
  for (const run::ProgramNode& node : step.program->nodes()) {
    for (const hlo::Exchange& e : hlo::exchanges(node.record->function)) {
      auto& [calls, bytes] = exchanges[{e.kind, e.group_size}];
      ++calls;
      bytes += e.bytes;
    }
  }
  py::list collectives;
  for (const auto& [what, sum] : exchanges)
    collectives.append(py::make_tuple(what.first, what.second, sum.first, sum.second));
  d["collectives"] = collectives;
  return d;
}

}  // namespace

void bind_aot(py::module_& m) {
  m.def("_begin_abstract", [] {
    py::gil_scoped_release release;
    tensor::guard([] { Runtime::instance().begin_abstract(); });
  });
  m.def("_end_abstract", [] {
    py::gil_scoped_release release;
    Runtime::instance().end_abstract();
  });
  m.def("_end_abstract_step", &end_step, py::arg("held"), py::arg("loops") = -1);
  // Programs of captured steps have loops where so many equal parts follow each other; 0: no.
  m.def("_loop_steps", [](int32_t turns, int32_t saved) {
    std::optional<graph::LoopOptions> options;
    if (turns > 0) options = graph::LoopOptions{.turns = turns, .saved = saved};
    Runtime::instance().loop_steps(options);
  });
  py::class_<HeldValue>(m, "_HeldValue");
  m.def("_has_value", [](const at::Tensor& t) {
    const ArrayPtr& value = tensor::slot_of(t).value;
    return value && value->state() != run::Array::Placeholder;
  });
  m.def("_hold_value", [](const at::Tensor& t) { return HeldValue{tensor::slot_of(t).value}; });
  m.def("_restore_value", [](const at::Tensor& t, const HeldValue& held) {
    std::lock_guard lock(Runtime::instance().mutex());
    tensor::slot_of(t).value = held.value;
  });
  // What identifies a tensor's storage among the inputs and outputs of a step, until it is written.
  // A storage that nobody has written gets a value: one that is not known rather than zeros.
  m.def("_value_identity", [](const at::Tensor& t) {
    py::gil_scoped_release release;
    return tensor::guard([&] { return reinterpret_cast<uintptr_t>(tensor::base_of(t).get()); });
  });
  // (rank in the group, the group's ranks, how many devices there are, the backend for CPU tensors)
  // -> a c10d backend.
  m.def("_abstract_group", [](int rank, const std::vector<int64_t>& ranks, int64_t world,
                              c10::intrusive_ptr<c10d::Backend> host) {
    return c10::intrusive_ptr<c10d::Backend>(
        c10::make_intrusive<dist::AbstractGroup>(rank, ranks, world, std::move(host)));
  });
  m.def("_run_replicas", &run_replicas);
  m.def("_describe_topology", &describe);
  // (StableHLO text, topology) and (the same, whether to serialize, replicas) -> dict; both raise
  // what the compiler says.
  m.def("_compile_for_topology", [](const std::string& text, const std::string& name) {
    py::gil_scoped_release release;
    tensor::guard([&] { topology(name).compile(text); });
  });
  m.def("_inspect_for_topology", &compile, py::arg("text"), py::arg("topology"),
        py::arg("serialize"), py::arg("replicas") = 1);
}

}  // namespace torch_tpu
