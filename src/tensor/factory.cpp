// SPDX-License-Identifier: Apache-2.0 - empty, resize_, set_ and the view operators, which are metadata only.
#include "src/tensor/factory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <cstdlib>

#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {
namespace {

void check_device(std::optional<c10::Device> d) {
  if (d) check_device_index(d->index());
}

void check_layout(std::optional<c10::Layout> layout) {
  TORCH_CHECK_NOT_IMPLEMENTED(!layout || *layout == c10::Layout::Strided, "tpu tensors of layout ",
                              *layout, " cannot be made this way");
}

at::Tensor empty_memory_format(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                               std::optional<at::Layout> layout, std::optional<at::Device> where,
                               std::optional<bool> pin, std::optional<at::MemoryFormat> format) {
  check_device(where);
  check_layout(layout);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  auto type = c10::dtype_or_default(dtype);
  dtype_of(type);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, allocator(), keys, type, format);
}

at::Tensor empty_strided_op(at::IntArrayRef size, at::IntArrayRef stride,
                            std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                            std::optional<at::Device> where, std::optional<bool> pin) {
  check_device(where);
  check_layout(layout);
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  return empty_strided(size, stride, c10::dtype_or_default(dtype));
}

// PyTorch's own is for backends that choose strides themselves; gradients get the layout of their
// parameter through it.
at::Tensor new_empty_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                             std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                             std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return at::empty_strided(size, stride, dtype.value_or(self.scalar_type()), layout,
                           device.value_or(self.device()), pin_memory);
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  at::TensorBase base = self;
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size && !format) return self;
  impl->set_sizes_contiguous(size);
  auto bytes = static_cast<size_t>(at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<size_t>(self.storage_offset())));
  if (self.numel() > 0 && bytes > self.storage().nbytes())
    resize_storage(self.storage().unsafeGetStorageImpl(), bytes);
  if (format) {
    TORCH_CHECK(*format != at::MemoryFormat::Preserve, "Unsupported memory format ", *format);
    impl->empty_tensor_restride(*format);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  at::native::checkSetStorage(self, std::move(source), offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  at::OptionalIntArrayRef strides =
      stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt;
  if (strides) {
    self.unsafeGetTensorImpl()->set_sizes_and_strides(size, *strides);
  } else {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  }
  auto need = static_cast<size_t>(at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.element_size(), static_cast<size_t>(offset)));
  if (self.numel() > 0 && need > self.storage().nbytes())
    resize_storage(self.storage().unsafeGetStorageImpl(), need);
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, at::Storage source) {
  auto n = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(source), 0, {n}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.unsafeGetTensorImpl() == source.unsafeGetTensorImpl()) return self;
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(),
                     source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  return set_storage(self, make_storage({}, 0), 0, {0}, {});
}

bool is_set_to(const at::Tensor& self, const at::Tensor& other) {
  return self.is_alias_of(other) && self.storage_offset() == other.storage_offset() &&
         self.sizes() == other.sizes() && self.strides() == other.strides();
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}
at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}
at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}
at::Tensor unfold(const at::Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return at::native::unfold(self, dim, size, step);
}
// Tensors of the device are plain strided tensors, so a module's parameters keep their identity
// when they move here (PyTorch's own list of such backends has no place for ours).
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto plain = [](const at::Tensor& t) {
    return t.layout() == at::kStrided &&
           (t.device().is_cpu() || t.device().is_cuda() || t.device().type() == device_type()) &&
           !t.is_mkldnn() && !t.unsafeGetTensorImpl()->is_python_dispatch() && !t.is_quantized();
  };
  return plain(self) && plain(from);
}
void record_stream(at::Tensor&, at::Stream) {
  // Nothing to do: programs run in the order of submission, whatever their stream.
}

}  // namespace

void check_device_index(int64_t index) {
  if (index == 0 || index == -1) return;
  const char* rank = std::getenv("LOCAL_RANK");
  if (index > 0 && rank != nullptr && std::atoi(rank) == index) return;
  TORCH_CHECK(false, "there is no device tpu:", index,
              ": a process has one tpu device, tpu:0 (start one process per chip for more)");
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype) {
  dtype_of(dtype);
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, allocator(), keys, dtype);
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  run::Runtime& runtime = run::Runtime::instance();
  run::ArrayPtr old;
  {
    std::lock_guard lock(runtime.mutex());
    old = slot_of(*storage).value;
    if (!old || old->type().elements() == 0 || nbytes == 0) {
      slot_of(*storage).value = {};
      storage->set_nbytes(nbytes);
      return;
    }
  }
  // Resizing a storage with contents is rare: take it through the host.
  guard([&] {
    pjrt::Buffer& buffer = runtime.await(old);
    auto width = static_cast<size_t>(hlo::byte_size(old->type().dtype));
    size_t have = static_cast<size_t>(old->type().bytes());
    std::vector<char> bytes((std::max(nbytes, have) + width - 1) / width * width, 0);
    buffer.to_host(bytes.data(), have);
    hlo::Type type{old->type().dtype, {static_cast<int64_t>((nbytes + width - 1) / width)}};
    run::ArrayPtr made = runtime.upload(bytes.data(), type);
    std::lock_guard lock(runtime.mutex());
    slot_of(*storage).value = std::move(made);
    storage->set_nbytes(nbytes);
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided_op);
  m.impl("new_empty_strided", new_empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("set_", set_nothing);
  m.impl("is_set_to", is_set_to);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("record_stream", record_stream);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

}  // namespace torch_tpu::tensor
