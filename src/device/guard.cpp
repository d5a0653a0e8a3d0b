// SPDX-License-Identifier: Apache-2.0 - The device guard: current device, streams and events, as PyTorch asks for them.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "src/device/device.h"
#include "src/device/stream.h"
#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/factory.h"

namespace torch_tpu::device {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  static constexpr DeviceType static_type = DeviceType::PrivateUse1;
  GuardImpl() = default;
  explicit GuardImpl(DeviceType type) { TORCH_INTERNAL_ASSERT(type == static_type); }

  DeviceType type() const override { return static_type; }

  // There is one device, so it is always the current one.
  Device exchangeDevice(Device d) const override {
    setDevice(d);
    return the_device();
  }
  Device getDevice() const override { return the_device(); }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.type() == static_type, "expected a tpu device, got ", d);
    tensor::check_device_index(d.index());
  }
  void uncheckedSetDevice(Device) const noexcept override {}
  DeviceIndex deviceCount() const noexcept override { return available() ? 1 : 0; }
  void synchronizeDevice(DeviceIndex index) const override {
    tensor::check_device_index(index);
    tensor::guard([] { run::Runtime::instance().synchronize(); });
  }

  // dtype_of() in src/tensor/storage.cpp is the list.
  c10::DeviceCapability getDeviceCapability(Device) const override {
    c10::DeviceCapability c;
    c.capability_data.capability_bits = 0;
    auto& s = c.capability_data.supported_scalar_types;
    s.has_Bool = s.has_Byte = s.has_Char = s.has_Short = s.has_Int = s.has_Long = 1;
    s.has_UInt16 = s.has_UInt32 = s.has_UInt64 = 1;
    s.has_Half = s.has_BFloat16 = s.has_Float = s.has_Double = 1;
    s.has_ComplexFloat = s.has_ComplexDouble = 1;
    s.has_Float8_e4m3fn = s.has_Float8_e5m2 = 1;
    s.has_Float8_e4m3fnuz = s.has_Float8_e5m2fnuz = s.has_Float8_e8m0fnu = 1;
    s.has_Float4_e2m1fn_x2 = 1;
    return c;
  }

  Stream getStream(Device) const override { return current_stream(); }
  Stream getDefaultStream(Device) const override { return default_stream(); }
  Stream getStreamFromGlobalPool(Device d, bool) const override {
    tensor::check_device_index(d.index());
    return new_stream();
  }
  // Priorities mean nothing to a queue that runs in order.
  Stream getNewStream(Device d, int) const override {
    tensor::check_device_index(d.index());
    return new_stream();
  }
  Stream exchangeStream(Stream s) const override { return exchange_stream(s); }
  void* getStreamNativeHandle(const Stream s) const override {
    return reinterpret_cast<void*>(s.id());  // NOLINT: a stream is its number
  }
  bool queryStream(const Stream& s) const override { return query(s); }
  void synchronizeStream(const Stream& s) const override { synchronize(s); }

  void record(void** event, const Stream& stream, DeviceIndex,
              const c10::EventFlag flag) const override {
    device::record(event, stream, flag);
  }
  // What the event stands for was submitted before what the stream gets from now on.
  void block(void*, const Stream&) const override {}
  bool queryEvent(void* event) const override { return query_event(event); }
  void synchronizeEvent(void* event) const override { synchronize_event(event); }
  void destroyEvent(void* event, DeviceIndex) const noexcept override { destroy_event(event); }
  double elapsedTime(void* begin, void* end, DeviceIndex) const override {
    return elapsed_time(begin, end);
  }
  // Memory is held by the programs that use it, not by streams, so none is reused early.
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

}  // namespace
}  // namespace torch_tpu::device
