// SPDX-License-Identifier: Apache-2.0 - The extension torch_tpu._C: registers the device's operators and binds the core.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/extension.h>

#include <frameobject.h>

#include <algorithm>
#include <string_view>

#include "src/dist/abstract_group.h"
#include "src/pjrt/plugin.h"
#include "src/run/runtime.h"
#include "src/tensor/decompose.h"
#include "src/tensor/errors.h"
#include "src/tensor/kernel.h"
#include "src/tensor/origin.h"
#include "src/tensor/register.h"

namespace py = pybind11;

namespace torch_tpu {

void bind_device(py::module_& m);   // device_bindings.cpp
void bind_compile(py::module_& m);  // compile_bindings.cpp
void bind_export(py::module_& m);   // export_bindings.cpp
void bind_aot(py::module_& m);      // aot_bindings.cpp

namespace {

// Where PyTorch's and our own Python files are, with a slash at the end.
std::vector<std::string>& own_folders() {
  static auto* folders = new std::vector<std::string>;
  return *folders;
}

bool is_own(PyCodeObject* code) {
  const std::string_view file = PyUnicode_AsUTF8(code->co_filename);
  return std::any_of(own_folders().begin(), own_folders().end(),
                     [&](const std::string& folder) { return file.starts_with(folder); });
}

// Where in Python the running operator was called: "file.py:12", the innermost line that is
// neither PyTorch's nor ours (a line of torch.nn.functional tells a user little). Strings are made
// once per line.
const std::string* python_line() {
  if (!Py_IsInitialized()) return nullptr;
  py::gil_scoped_acquire gil;
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return nullptr;
  Py_INCREF(frame);
  PyCodeObject* code = PyFrame_GetCode(frame);
  while (is_own(code)) {
    PyFrameObject* caller = PyFrame_GetBack(frame);
    if (caller == nullptr) break;
    Py_DECREF(frame);
    Py_DECREF(code);
    frame = caller;
    code = PyFrame_GetCode(frame);
  }
  int line = PyFrame_GetLineNumber(frame);
  static auto* lines = new std::map<std::pair<PyCodeObject*, int>, const std::string*>;
  const std::string*& text = (*lines)[{code, line}];
  if (text == nullptr) {
    Py_INCREF(code);  // the key keeps its code object alive
    text = new std::string(std::string(PyUnicode_AsUTF8(code->co_filename)) + ":" +
                           std::to_string(line));
  }
  Py_DECREF(code);
  Py_DECREF(frame);
  return text;
}

// The Python side finds the decomposition and runs it below autograd.
bool run_decomposition(const std::string& op, torch::jit::Stack& stack) {
  py::gil_scoped_acquire gil;
  size_t dot = op.find('.');
  std::string name = op.substr(0, dot),
              overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  const auto& arguments = handle.schema().arguments();
  py::list args;
  py::dict kwargs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    py::object value;
    const c10::Type* t = arguments[i].real_type().get();
    if (t->kind() == c10::TypeKind::OptionalType)
      t = t->castRaw<c10::OptionalType>()->getElementType().get();
    if (t->kind() == c10::TypeKind::ScalarTypeType && stack[i].isInt()) {
      value = py::cast(static_cast<at::ScalarType>(stack[i].toInt()));
    } else {
      value = torch::jit::toPyObject(stack[i]);
    }
    if (arguments[i].kwarg_only()) {
      if (!stack[i].isNone()) kwargs[arguments[i].name().c_str()] = value;
    } else {
      args.append(value);
    }
  }
  py::object out = py::module_::import("torch_tpu._decompositions").attr("run")(op, args, kwargs);
  if (out.ptr() == Py_NotImplemented) return false;
  stack.clear();
  auto push = [&](const py::handle& h) {
    if (h.is_none()) {
      stack.emplace_back();
    } else if (THPVariable_Check(h.ptr())) {
      stack.emplace_back(py::cast<at::Tensor>(h));
    } else {
      stack.emplace_back(py::cast<at::Scalar>(h));
    }
  };
  if (py::isinstance<py::tuple>(out) || py::isinstance<py::list>(out)) {
    for (const py::handle& h : out) push(h);
  } else {
    push(out);
  }
  return true;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "C++ part of torch_tpu; private.";
  tensor::register_operators();
  tensor::register_sparse_operators();
  dist::register_functional_collectives();
  for (const py::object file : {py::module_::import("torch").attr("__file__"),
                                py::module_::import("torch_tpu._loader").attr("__file__")}) {
    const auto path = file.cast<std::string>();
    own_folders().push_back(path.substr(0, path.rfind('/') + 1));
  }
  tensor::set_line_source(&python_line);
  tensor::set_gil_hooks(
      []() -> void* {
        return Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr;
      },
      [](void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); });
  tensor::set_decomposer(&run_decomposition);
  m.def("_set_plugin_search_paths", &pjrt::Plugin::set_search_paths);
  m.def("_synchronize", [] {
    py::gil_scoped_release release;
    tensor::guard([] { run::Runtime::instance().synchronize(); });
  });
  m.def("_shutdown", [] {
    py::gil_scoped_release release;
    run::Runtime::instance().shutdown();
  });
  m.def("_set_mode", [](int mode) {
    py::gil_scoped_release release;
    tensor::guard([&] { run::Runtime::instance().set_mode(static_cast<run::Mode>(mode)); });
  });
  m.def("_mode", [] { return static_cast<int>(run::Runtime::instance().mode()); });
  m.def("_cache_stats", [] {
    auto& r = run::Runtime::instance();
    run::Stats s = r.stats();
    py::dict d;
    d["calls"] = s.calls;
    d["programs_run"] = s.programs_run;
    d["programs_compiled"] = s.compile.compiled;
    d["memory_hits"] = s.memory_hits;
    d["disk_hits"] = s.compile.disk_hits;
    d["root_hits"] = s.compile.root_hits;
    d["compile_seconds"] = s.compile.compile_seconds;
    d["load_seconds"] = s.compile.load_seconds;
    d["wait_for_compile_seconds"] = s.wait_compile_seconds;
    d["run_seconds"] = s.run_seconds;
    d["scalar_uploads"] = s.scalar_uploads;
    d["programs_in_memory"] = r.programs_in_memory();
    d["disk_directory"] = r.initialized() ? r.compile_queue().disk_cache().directory() : "";
    return d;
  });
  m.def("_disk_cache_bytes",
        [] { return run::Runtime::instance().compile_queue().disk_cache().size_on_disk(); });
  // The cache's folder, whether or not there is a device; "" when it is turned off.
  m.def("_cache_directory", [] { return run::DiskCache::Options::from_environment().directory; });
  // (identity of the plugin, what the program is) of an entry's file; None for a damaged one.
  m.def("_decode_cache_entry",
        [](const py::bytes& file) -> std::optional<std::pair<std::string, std::string>> {
          const auto entry = run::decode_entry(std::string_view(file));
          if (!entry) return std::nullopt;
          return std::make_pair(entry->plugin, entry->about);
        });
  m.def("_set_remote_root", [](py::function fetch, py::function store) {
    // They live until the process ends: compile threads may hold copies.
    auto* get = new py::function(std::move(fetch));
    auto* put = new py::function(std::move(store));
    run::CompileQueue::set_remote_root(
        [get](const std::string& name) -> std::optional<std::string> {
          py::gil_scoped_acquire gil;
          const py::object file = (*get)(name);
          if (file.is_none()) return std::nullopt;
          return std::string(py::cast<py::bytes>(file));
        },
        [put](const std::string& name, const std::string& file) {
          py::gil_scoped_acquire gil;
          (*put)(name, py::bytes(file));
        });
  });
  m.def("_take_cache_warning", [] {
    auto& r = run::Runtime::instance();
    return r.initialized() ? r.compile_queue().take_warning() : std::string();
  });
  m.def("_reset_cache_stats", [] { run::Runtime::instance().reset_stats(); });
  m.def("_fallback_counts", &tensor::fallback_counts);
  m.def("_set_cpu_fallback", &tensor::set_cpu_fallback);
  m.def("_operator_rows", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> out;
    for (const auto& r : tensor::operator_rows()) out.emplace_back(r.op, r.how, r.where);
    return out;
  });
  // Collects the StableHLO of every program made from now on, as `platform` ("cpu", "tpu") gets it.
  m.def("_collect_programs", [](bool on) {
    static std::mutex mutex;
    static auto* texts = new std::vector<std::string>;
    static bool observing = false, registered = false;
    auto& r = run::Runtime::instance();
    if (!registered) {
      registered = true;
      r.on_program([](const run::Program& p) {
        std::lock_guard lock(mutex);
        if (observing) texts->push_back(p.module_text(graph::Platform::Tpu));
      });
    }
    std::lock_guard lock(mutex);
    observing = on;
    return std::exchange(*texts, {});
  });
  bind_device(m);
  bind_compile(m);
  bind_export(m);
  bind_aot(m);
}

}  // namespace torch_tpu
