// SPDX-License-Identifier: Apache-2.0 - The hooks through which PyTorch reaches the device without knowing it.
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "src/device/device.h"
#include "src/device/host_allocator.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/factory.h"
#include "src/tensor/generator.h"

namespace torch_tpu::device {
namespace {

using c10::DeviceIndex;

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return available(); }
  bool hasPrimaryContext(DeviceIndex) const override {
    const run::Runtime& r = run::Runtime::instance();
    return r.initialized() && !r.forked();
  }
  // PyTorch calls this early and often; the client is made at the first use of the device.
  void init() const override {}

  DeviceIndex deviceCount() const override { return available() ? 1 : 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex index) const override { tensor::check_device_index(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    tensor::check_device_index(index);
    return 0;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    tensor::check_device_index(index);
    return 0;
  }

  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    tensor::check_device_index(index);
    return tensor::default_generator();
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    tensor::check_device_index(index);
    return at::make_generator<tensor::GeneratorImpl>(0);
  }

  at::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Device getDeviceFromPtr(void*) const override {
    TORCH_CHECK(false,
                "tpu memory has no addresses, so a tensor cannot be made around one; copy the data "
                "with torch.tensor(..., device=\"tpu\") or torch.from_numpy(...).to(\"tpu\")");
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    tensor::resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // PyTorch keeps it for ever
  return true;
}();

}  // namespace
}  // namespace torch_tpu::device
