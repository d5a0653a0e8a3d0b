// SPDX-License-Identifier: Apache-2.0 - Binds graphs as text (export), and what the compiler says of a text (explain).
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "src/pjrt/error.h"
#include "src/python/compiled_facts.h"
#include "src/python/graph_body.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/exported.h"
#include "src/tensor/storage.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using graph::Platform;
using tensor::GraphText;

using NamedType = std::pair<at::ScalarType, std::vector<int64_t>>;

hlo::Type to_type(const NamedType& t) { return {tensor::dtype_of(t.first), t.second}; }

Platform platform_of(const std::string& name) {
  TORCH_CHECK_VALUE(name == "cpu" || name == "tpu", "a platform is 'cpu' or 'tpu', got '", name,
                    "'");
  return name == "cpu" ? Platform::Cpu : Platform::Tpu;
}

// All but the module is plain data that fits into a JSON file, except for dtypes.
py::dict to_dict(const GraphText& text) {
  py::list scalars, results, checks;
  for (const graph::ScalarSource& s : text.scalars)
    scalars.append(py::make_tuple(static_cast<int>(s.kind), s.divisor));
  for (const hlo::Type& t : text.results)
    results.append(py::make_tuple(tensor::scalar_type_of(t.dtype), t.dims));
  for (const graph::CheckSpec& c : text.checks)
    checks.append(py::make_tuple(static_cast<int>(c.error), c.message, c.op, c.line));
  py::dict d;
  d["module"] = text.module;
  d["inputs"] = text.inputs;
  d["random"] = scalars;
  d["random_increment"] = text.random_increment;
  d["results"] = results;
  d["strides"] = text.strides;
  d["checks"] = checks;
  d["error_result"] = text.error_result;
  return d;
}

GraphText from_dict(const py::dict& d) {
  GraphText text;
  text.module = py::cast<std::string>(d["module"]);
  text.inputs = py::cast<std::vector<int32_t>>(d["inputs"]);
  for (const auto& [kind, offset] : py::cast<std::vector<std::pair<int, int64_t>>>(d["random"])) {
    graph::ScalarSource& s = text.scalars.emplace_back();
    s.kind = static_cast<graph::ScalarSource::Kind>(kind);
    s.dtype = hlo::DType::U32;
    s.divisor = offset;
    TORCH_CHECK_VALUE(
        s.kind >= graph::ScalarSource::SeedLow && s.kind <= graph::ScalarSource::OffsetHigh,
        "an exported program takes numbers of an unknown kind: ", kind);
  }
  text.random_increment = py::cast<uint64_t>(d["random_increment"]);
  for (const NamedType& t : py::cast<std::vector<NamedType>>(d["results"]))
    text.results.push_back(to_type(t));
  text.strides = py::cast<std::vector<std::vector<int64_t>>>(d["strides"]);
  using Check = std::tuple<int, std::string, std::string, std::string>;
  for (const auto& [error, message, op, line] : py::cast<std::vector<Check>>(d["checks"]))
    text.checks.push_back({static_cast<graph::CheckSpec::Error>(error), message, op, line});
  text.error_result = py::cast<int32_t>(d["error_result"]);
  const auto count = static_cast<int64_t>(text.results.size());
  TORCH_CHECK_VALUE(static_cast<int64_t>(text.strides.size()) <= count &&
                        text.error_result < count && text.error_result >= -1,
                    "an exported program is not described as it should be");
  return text;
}

py::dict inspect(const std::string& module) {
  run::Runtime& runtime = run::Runtime::instance();
  CompiledFacts facts;
  {
    py::gil_scoped_release release;
    tensor::guard([&] {
      runtime.require_usable();
      pjrt::Client& client = runtime.client();
      const auto options = run::compile_options_for(client);
      const auto begin = std::chrono::steady_clock::now();
      const pjrt::Executable made = client.compile(module, options);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      facts = facts_of(made, seconds.count());
    });
  }
  return to_dict(facts);
}

}  // namespace

CompiledFacts facts_of(const pjrt::CompiledProgram& program, double compile_seconds) {
  CompiledFacts facts;
  facts.compile_seconds = compile_seconds;
  facts.cost = program.cost();
  try {
    facts.memory = program.memory_stats();
  } catch (const pjrt::Error& error) {
    if (!error.is_unimplemented()) throw;
  }
  facts.optimized = program.optimized_program();
  return facts;
}

py::dict to_dict(const CompiledFacts& facts) {
  py::dict d;
  d["compile_seconds"] = facts.compile_seconds;
  d["cost"] = facts.cost;
  d["optimized_format"] = facts.optimized.format;
  d["optimized"] = py::bytes(facts.optimized.code);
  py::dict m;
  if (facts.memory) {
    m["arguments"] = facts.memory->argument_bytes;
    m["outputs"] = facts.memory->output_bytes;
    m["temporaries"] = facts.memory->temp_bytes;
    m["reused arguments"] = facts.memory->alias_bytes;
    m["code"] = facts.memory->code_bytes;
    m["peak"] = facts.memory->peak_bytes;
    m["host"] = facts.memory->host_bytes;
  }
  d["memory"] = m;
  return d;
}

void bind_export(py::module_& m) {
  // (name, body as CompiledGraph's, [(dtype, sizes)] of the inputs, "cpu" or "tpu") -> dict.
  m.def("_write_graph", [](const std::string& name, py::object body,
                           const std::vector<NamedType>& inputs, const std::string& platform) {
    std::vector<hlo::Type> types;
    for (const NamedType& t : inputs) types.push_back(to_type(t));
    GraphText text;
    {
      py::gil_scoped_release release;
      tensor::guard([&] {
        text = tensor::write_graph(name, graph_body(body), types, platform_of(platform));
      });
    }
    return to_dict(text);
  });
  // What _write_graph gave, by platform, as a CompiledGraph.
  m.def("_graph_of_text",
        [](const std::string& name, const std::map<std::string, py::dict>& forms) {
          std::map<Platform, GraphText> texts;
          for (const auto& [platform, form] : forms) texts[platform_of(platform)] = from_dict(form);
          return tensor::guard([&] { return tensor::graph_of_text(name, std::move(texts)); });
        });
  // Compiles a module as every program is compiled, past the caches, and tells about the result.
  m.def("_inspect_module", &inspect);
}

}  // namespace torch_tpu
