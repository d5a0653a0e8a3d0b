// SPDX-License-Identifier: Apache-2.0 - Binds compiled graphs: a call with a list of inputs, and what tracing them needs.
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "src/graph/bounded.h"
#include "src/python/graph_body.h"
#include "src/run/runtime.h"
#include "src/tensor/bounded.h"
#include "src/tensor/capture.h"
#include "src/tensor/compiled.h"
#include "src/tensor/errors.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

using tensor::BoundedGraph;
using tensor::Capture;
using tensor::CompiledGraph;

// A Python object that C++ threads without the GIL may hold and drop.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* o) {
            if (!Py_IsInitialized()) return;  // the interpreter is gone, and so is the object
            py::gil_scoped_acquire gil;
            delete o;
          }};
}

Capture& open_capture() {
  Capture* capture = Capture::current();
  TORCH_CHECK(capture != nullptr, "no graph is being captured");
  return *capture;
}

std::vector<at::Tensor> to_tensors(const py::handle& sequence) {
  std::vector<at::Tensor> out;
  for (const py::handle& h : py::reinterpret_borrow<py::sequence>(sequence))
    out.push_back(h.is_none() ? at::Tensor() : py::cast<at::Tensor>(h));
  return out;
}

// Runs the Python body: fn(inputs, ints) -> [(value, strides or None)].
std::vector<CompiledGraph::Output> run_body(const py::object& fn, const std::vector<at::Tensor>& in,
                                            const std::vector<int64_t>& ints) {
  py::gil_scoped_acquire gil;
  py::list inputs;
  for (const at::Tensor& t : in) inputs.append(t.defined() ? py::cast(t) : py::object(py::none()));
  std::vector<CompiledGraph::Output> out;
  for (const py::handle& h : py::list(fn(std::move(inputs), ints))) {
    auto pair = py::reinterpret_borrow<py::tuple>(h);
    CompiledGraph::Output& o = out.emplace_back();
    if (THPVariable_Check(pair[0].ptr())) {
      o.tensor = THPVariable_Unpack(pair[0].ptr());
      if (!pair[1].is_none()) o.strides = pair[1].cast<std::vector<int64_t>>();
    } else if (!pair[0].is_none()) {
      o.number = pair[0].cast<int64_t>();
    }
  }
  return out;
}

// Tensors, ints and Nones apart: the tensors and Nones, and the ints.
void sort_out(const py::list& args, std::vector<at::Tensor>& tensors, std::vector<int64_t>& ints) {
  const size_t n = args.size();
  tensors.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    PyObject* o = PyList_GET_ITEM(args.ptr(), static_cast<Py_ssize_t>(i));
    if (THPVariable_Check(o)) {
      tensors.push_back(THPVariable_Unpack(o));
    } else if (o == Py_None) {
      tensors.emplace_back();
    } else {
      ints.push_back(py::cast<int64_t>(py::handle(o)));
    }
  }
}

py::list to_list(std::vector<c10::IValue> results) {
  py::list out(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    PyObject* o = nullptr;
    if (results[i].isTensor()) {
      o = THPVariable_Wrap(std::move(results[i]).toTensor());
    } else if (results[i].isInt()) {
      o = PyLong_FromLongLong(results[i].toInt());
    } else {
      o = py::none().release().ptr();
    }
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), o);
  }
  return out;
}

py::list call(CompiledGraph& graph, const py::list& args) {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> ints;
  sort_out(args, tensors, ints);
  std::vector<c10::IValue> results;
  {
    py::gil_scoped_release release;
    results = graph.call(tensors, ints);
  }
  return to_list(std::move(results));
}

py::list call_bounded(BoundedGraph& graph, const py::list& args, const std::vector<int64_t>& sizes,
                      const std::vector<std::vector<int64_t>>& output_sizes) {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> ints;  // follow from the sizes
  sort_out(args, tensors, ints);
  std::vector<c10::IValue> results;
  {
    py::gil_scoped_release release;
    results = graph.call(tensors, sizes, output_sizes);
  }
  return to_list(std::move(results));
}

}  // namespace

CompiledGraph::Body graph_body(py::object fn) {
  return [fn = shared(std::move(fn))](Capture&, const std::vector<at::Tensor>& inputs,
                                      const std::vector<int64_t>& ints) {
    return run_body(*fn, inputs, ints);
  };
}

void bind_compile(py::module_& m) {
  py::class_<CompiledGraph>(m, "CompiledGraph")
      .def(py::init([](const std::string& name, py::object body) {
        return std::make_unique<CompiledGraph>(name, graph_body(std::move(body)));
      }))
      // As the plugin gets them, or as a TPU would.
      .def(
          "_module_texts",
          [](const CompiledGraph& self, bool for_tpu) {
            return self.module_texts(for_tpu ? std::optional(graph::Platform::Tpu) : std::nullopt);
          },
          py::arg("for_tpu") = false)
      // A list of tensors, ints and Nones; gives a list of the same kinds.
      .def("__call__", &call);
  py::register_local_exception<graph::NotBounded>(m, "NotBounded", PyExc_NotImplementedError);
  py::class_<BoundedGraph>(m, "BoundedGraph")
      // samples: (dynamic sizes, dimensions of each dynamic input, the body's integers), the first
      // one at the bounds.
      .def(py::init(
          [](const std::string& name, py::object body, std::vector<bool> dynamic,
             const std::vector<std::tuple<std::vector<int64_t>, std::vector<std::vector<int64_t>>,
                                          std::vector<int64_t>>>& samples) {
            std::vector<BoundedGraph::Sample> all;
            for (const auto& [sizes, tensors, ints] : samples)
              all.push_back({sizes, tensors, ints});
            return std::make_unique<BoundedGraph>(name, graph_body(std::move(body)),
                                                  std::move(dynamic), std::move(all));
          }))
      .def(
          "_module_texts",
          [](const BoundedGraph& self, bool for_tpu) {
            return self.module_texts(for_tpu ? std::optional(graph::Platform::Tpu) : std::nullopt);
          },
          py::arg("for_tpu") = false)
      .def("__call__", &call_bounded);
  m.def("_begin_step", [] {
    py::gil_scoped_release release;
    tensor::guard([] { run::Runtime::instance().begin_step(); });
  });
  m.def("_end_step", [] {
    py::gil_scoped_release release;
    return tensor::guard([] { return run::Runtime::instance().end_step(); });
  });
  m.def("_capture_line", [](std::string line) { open_capture().set_line(std::move(line)); });
  m.def("_capture_random_state", [] { return open_capture().random_state(); });
  m.def("_capture_draw_from", [](const std::optional<at::Tensor>& state) {
    open_capture().draw_from(state.value_or(at::Tensor()));
  });
  m.def("_capture_if",
        [](const at::Tensor& pred, const py::function& on_true, const py::function& on_false) {
          return tensor::guard([&] {
            return tensor::capture_if(
                open_capture(), pred, [&] { return to_tensors(on_true()); },
                [&] { return to_tensors(on_false()); });
          });
        });
  m.def("_capture_while", [](const std::vector<at::Tensor>& init, const py::function& condition,
                             const py::function& body) {
    return tensor::guard([&] {
      return tensor::capture_while(
          open_capture(), init,
          [&](const std::vector<at::Tensor>& now) { return condition(now).cast<at::Tensor>(); },
          [&](const std::vector<at::Tensor>& now) { return to_tensors(body(now)); });
    });
  });
}

}  // namespace torch_tpu
