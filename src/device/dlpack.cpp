// SPDX-License-Identifier: Apache-2.0 - A tensor's current value as host memory, for DLPack.
#include "src/device/dlpack.h"

#include <ATen/ATen.h>

#include "src/device/device.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::device {

using run::Runtime;

HostValue host_value(const at::Tensor& t, std::optional<bool> copy) {
  TORCH_CHECK(t.device().type() == c10::DeviceType::PrivateUse1,
              "expected a tpu tensor, got one on ", t.device());
  return tensor::guard([&]() -> HostValue {
    Runtime& runtime = Runtime::instance();
    bool plain = !t.is_conj() && !t.is_neg();
    if (!copy.value_or(false) && plain && t.numel() > 0 && runtime.client().is_cpu()) {
      run::ArrayPtr value = tensor::base_of(t);
      auto* bytes = static_cast<char*>(runtime.await(value).host_pointer());
      if (bytes != nullptr) {
        bytes += t.storage_offset() * static_cast<int64_t>(t.element_size());
        // Holding the array keeps its memory, and forbids giving it away to a later program.
        at::Tensor shared = at::from_blob(
            bytes, t.sizes(), t.strides(), [value](void*) {},
            at::TensorOptions().dtype(t.scalar_type()).device(at::kCPU));
        return {shared, true};
      }
    }
    TORCH_CHECK_VALUE(
        copy.value_or(true) || t.numel() == 0,
        "this tpu tensor cannot be shared with the host without copying (copy=False)");
    return {tensor::to_host(t), false};
  });
}

at::Tensor device_value(const at::Tensor& host, bool copy) {
  TORCH_CHECK(host.device().is_cpu(), "expected a CPU tensor, got one on ", host.device());
  auto target = at::TensorOptions().device(the_device());
  if (copy || host.numel() == 0) return host.to(target);
  TORCH_CHECK_VALUE(host.is_contiguous() && !host.is_conj() && !host.is_neg(),
                    "only contiguous memory can be shared with the device (copy=False)");
  return tensor::guard([&] {
    Runtime& runtime = Runtime::instance();
    hlo::Type type{tensor::dtype_of(host.scalar_type()), host.sizes().vec()};
    // The lambda keeps the host tensor, and so its memory, until the device lets go of it.
    run::ArrayPtr value = runtime.adopt(host.data_ptr(), type, [host] {});
    TORCH_CHECK_VALUE(value->buffer().host_pointer() == host.data_ptr(),
                      "the plugin cannot share this memory without copying (copy=False): it needs "
                      "64-byte alignment, and a device whose memory is the host's");
    graph::OutputSpec spec;
    spec.sizes = type.dims;
    spec.contiguous = true;
    return at::Tensor(tensor::make_tensor(std::move(value), spec, host.scalar_type()));
  });
}

}  // namespace torch_tpu::device
