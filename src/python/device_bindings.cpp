// SPDX-License-Identifier: Apache-2.0 - Binds what torch.tpu asks of the device layer.
#include <ATen/DLConvertor.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/utils/pybind.h>

#include "src/device/device.h"
#include "src/device/dlpack.h"
#include "src/device/host_allocator.h"
#include "src/pjrt/client.h"
#include "src/pjrt/plugin.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/factory.h"
#include "src/tensor/generator.h"

namespace py = pybind11;

namespace torch_tpu {
namespace {

py::dict device_info() {
  run::Runtime& runtime = run::Runtime::instance();
  pjrt::Client* client = nullptr;
  int64_t memory = 0;
  {
    py::gil_scoped_release release;
    tensor::guard([&] {
      runtime.require_usable();
      client = &runtime.client();
      memory = runtime.memory_limit();
    });
  }
  const pjrt::Plugin& plugin = *client->plugin();
  pjrt::DeviceDescription device = client->describe(client->device(0));
  py::dict d;
  d["is_cpu"] = client->is_cpu();
  d["kind"] = device.kind;
  d["attributes"] = device.attributes;
  d["total_memory"] = memory;
  d["platform_version"] = client->platform_version();
  d["plugin_path"] = plugin.path();
  d["plugin_api"] = py::make_tuple(plugin.api_major(), plugin.api_minor());
  d["plugin_identity"] = plugin.identity();
  d["plugin_attributes"] = plugin.attributes();
  return d;
}

py::dict host_memory_stats() {
  at::HostStats s = device::host_allocator()->get_stats();
  py::dict d;
  auto put = [&](const std::string& name, const c10::CachingAllocator::Stat& stat) {
    d[(name + ".current").c_str()] = stat.current;
    d[(name + ".peak").c_str()] = stat.peak;
    d[(name + ".allocated").c_str()] = stat.allocated;
    d[(name + ".freed").c_str()] = stat.freed;
  };
  put("active_requests", s.active_requests);
  put("active_bytes", s.active_bytes);
  put("allocations", s.allocations);
  put("allocated_bytes", s.allocated_bytes);
  return d;
}

// A capsule as the DLPack protocol wants it: a consumer renames it; unconsumed, it frees itself.
template <typename Managed>
py::capsule capsule_of(Managed* managed) {
  constexpr const char* name = at::DLPackTraits<Managed>::capsule;
  return py::capsule(managed, name, [](PyObject* o) {
    if (!PyCapsule_IsValid(o, at::DLPackTraits<Managed>::capsule)) return;
    auto* m = static_cast<Managed*>(PyCapsule_GetPointer(o, at::DLPackTraits<Managed>::capsule));
    if (m->deleter != nullptr) m->deleter(m);
  });
}

py::capsule to_dlpack(const at::Tensor& tensor, bool versioned, std::optional<bool> copy) {
  device::HostValue value;
  {
    py::gil_scoped_release release;
    value = device::host_value(tensor, copy);
  }
  if (!versioned) return capsule_of(at::toDLPack(value.tensor));
  DLManagedTensorVersioned* managed = at::toDLPackVersioned(value.tensor);
  managed->flags |= value.shared ? DLPACK_FLAG_BITMASK_READ_ONLY : DLPACK_FLAG_BITMASK_IS_COPIED;
  return capsule_of(managed);
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("_is_available", &device::available);
  m.def("_is_initialized", [] { return run::Runtime::instance().initialized(); });
  m.def("_is_in_bad_fork", [] { return run::Runtime::instance().forked(); });
  m.def("_check_index", &tensor::check_device_index);
  m.def("_init", [] {
    py::gil_scoped_release release;
    tensor::guard([] {
      run::Runtime::instance().require_usable();
      run::Runtime::instance().client();
    });
  });
  m.def("_device_info", &device_info);
  // Where a plugin would come from and why, or why there is none; loads nothing.
  m.def("_plugin_choice", [] {
    return tensor::guard([] {
      pjrt::PluginChoice c = pjrt::Plugin::choose();
      return std::make_pair(c.path, c.reason);
    });
  });
  m.def("_default_generator", [] { return tensor::default_generator(); });
  m.def("_host_memory_stats", &host_memory_stats);
  m.def("_to_dlpack", &to_dlpack, py::arg("tensor"), py::arg("versioned"), py::arg("copy"));
  m.def("_device_value", [](const at::Tensor& host, bool copy) {
    py::gil_scoped_release release;
    return device::device_value(host, copy);
  });
}

}  // namespace torch_tpu
