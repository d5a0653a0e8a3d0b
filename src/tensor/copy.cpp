// SPDX-License-Identifier: Apache-2.0 - Copies between host and device and within the device, casts, reading a number.
#include <ATen/ATen.h>
#include <ATen/native/CPUFallback.h>
#include <torch/library.h>

#include "src/run/runtime.h"
#include "src/tensor/errors.h"
#include "src/tensor/kernel.h"
#include "src/tensor/register.h"
#include "src/tensor/storage.h"

namespace torch_tpu::tensor {
namespace {

using run::ArrayPtr;
using run::Runtime;

bool on_device(const at::Tensor& t) { return t.device().type() == c10::DeviceType::PrivateUse1; }

// The elements of a host tensor, dense and row-major in `dtype`, as a device array of `sizes`.
ArrayPtr upload(const at::Tensor& src, c10::ScalarType dtype, const hlo::Dims& sizes) {
  at::Tensor dense = src.resolve_conj().resolve_neg().to(dtype);
  if (dense.sizes() != c10::IntArrayRef(sizes)) dense = dense.expand(sizes);
  dense = dense.contiguous();
  return Runtime::instance().upload(dense.const_data_ptr(), {dtype_of(dtype), sizes});
}

// True when the tensor is its whole storage, in dense order (perhaps permuted): then the storage
// simply takes another value. base gets the shape of that value, perm its dimensions' order.
bool covers_storage(const at::Tensor& t, std::vector<int64_t>& perm) {
  if (t.storage_offset() != 0 || !t.is_non_overlapping_and_dense()) return false;
  if (static_cast<size_t>(t.numel() * t.element_size()) != t.storage().nbytes()) return false;
  perm.resize(t.dim());
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::stable_sort(perm.begin(), perm.end(), [&](int64_t a, int64_t b) {
    if (t.stride(a) != t.stride(b)) return t.stride(a) > t.stride(b);
    return t.size(a) > t.size(b);
  });
  return true;
}

void copy_host_to_device(const at::Tensor& dst, const at::Tensor& src) {
  std::vector<int64_t> perm;
  if (dst.numel() == 0) return;
  if (covers_storage(dst, perm) && !dst.is_conj() && !dst.is_neg()) {
    at::Tensor wide = src.sizes() == dst.sizes() ? src : src.expand(dst.sizes());
    at::Tensor ordered = wide.permute(perm);
    ArrayPtr value = upload(ordered, dst.scalar_type(), ordered.sizes().vec());
    std::lock_guard lock(Runtime::instance().mutex());
    slot_of(dst).value = std::move(value);
    return;
  }
  at::Tensor staged = at::empty(src.sizes(), src.options().device(device()));
  copy_host_to_device(staged, src);
  dst.copy_(staged);
}

// A tensor on the device as a host tensor of the same sizes; dense.
at::Tensor download(const at::Tensor& src) {
  Runtime& runtime = Runtime::instance();
  at::Tensor plain = src.is_conj() || src.is_neg() ? src.resolve_conj().resolve_neg() : src;
  at::Tensor out = at::empty(plain.sizes(), plain.options().device(at::kCPU).pinned_memory(false));
  if (plain.numel() == 0) return out;
  ArrayPtr base = base_of(plain);
  if (runtime.client().is_cpu()) {
    // The device's memory is the host's: PyTorch's own strided copy reads it in place.
    pjrt::Buffer& buffer = runtime.await(base);
    auto* bytes = static_cast<char*>(buffer.host_pointer());
    if (bytes != nullptr) {
      at::Tensor view =
          at::from_blob(bytes + plain.storage_offset() * static_cast<int64_t>(plain.element_size()),
                        plain.sizes(), plain.strides(), out.options());
      out.copy_(view);
      return out;
    }
  }
  at::Tensor dense = plain;
  std::vector<int64_t> perm;
  if (!(plain.is_contiguous() && covers_storage(plain, perm) &&
        base->type().dtype == dtype_of(plain.scalar_type())))
    dense = plain.clone(at::MemoryFormat::Contiguous);
  base = base_of(dense);
  runtime.await(base).to_host(out.data_ptr(), out.nbytes());
  return out;
}

void copy_device_to_host(const at::Tensor& dst, const at::Tensor& src) {
  Runtime& runtime = Runtime::instance();
  if (src.numel() == 0 && dst.numel() == 0) return;
  if (runtime.client().is_cpu() && !src.is_conj() && !src.is_neg()) {
    ArrayPtr base = base_of(src);
    pjrt::Buffer& buffer = runtime.await(base);
    auto* bytes = static_cast<char*>(buffer.host_pointer());
    if (bytes != nullptr) {
      at::Tensor view = at::from_blob(
          bytes + src.storage_offset() * static_cast<int64_t>(src.element_size()), src.sizes(),
          src.strides(), src.options().device(at::kCPU).pinned_memory(false));
      dst.copy_(view);
      return;
    }
  }
  dst.copy_(download(src));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  (void)non_blocking;  // host memory is read before this returns, so it may be reused at once
  if (self.is_same(src)) return self;
  return guard([&]() -> at::Tensor& {
    bool to = on_device(self), from = on_device(src);
    if (to && !from && src.device().is_meta())
      TORCH_CHECK_NOT_IMPLEMENTED(false, "Cannot copy out of meta tensor; no data!");
    TORCH_CHECK(
        to ? (from || src.device().is_cpu()) : self.device().is_cpu() || self.device().is_meta(),
        "copy_: cannot copy between ", src.device(), " and ", self.device());
    if (self.device().is_meta()) return self;
    if (!from) {
      copy_host_to_device(self, src);
      return self;
    }
    if (!to) {
      copy_device_to_host(self, src);
      return self;
    }
    at::Tensor s = src;
    // Not resolve_conj(): that clones, and a clone is such a copy.
    if (s.is_conj()) s = at::conj_physical(s.conj());
    if (s.is_neg()) s = at::neg(at::_neg_view(s));
    if (self.is_conj()) {
      at::Tensor target = self.conj();  // clears the bit
      copy_(target, at::conj_physical(s), false);
      return self;
    }
    if (self.is_neg()) {
      at::Tensor target = at::_neg_view(self);
      copy_(target, at::neg(s), false);
      return self;
    }
    call_in_place("aten::copy", self, {s});
    return self;
  });
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  copy_(target, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  at::Tensor target = dst;
  target.resize_(self.sizes());
  copy_(target, self, false);
  return dst;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  return guard([&] {
    Runtime& runtime = Runtime::instance();
    TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(),
                " elements cannot be converted to Scalar");
    at::Tensor plain = self.is_conj() || self.is_neg() ? self.resolve_conj().resolve_neg() : self;
    if (runtime.client().is_cpu()) {
      ArrayPtr base = base_of(plain);
      pjrt::Buffer& buffer = runtime.await(base);
      if (auto* bytes = static_cast<char*>(buffer.host_pointer())) {
        at::Tensor view = at::from_blob(
            bytes + plain.storage_offset() * static_cast<int64_t>(plain.element_size()), {},
            at::TensorOptions().dtype(plain.scalar_type()));
        return at::_local_scalar_dense(view);
      }
    }
    return at::_local_scalar_dense(download(plain));
  });
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(),
              "Expected all tensors to be on the same device, but found at least two devices, ",
              self.device(), " and ", other.device(), "!");
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "Expected object of data type ",
              self.scalar_type(), " but got data type ", other.scalar_type(),
              " for argument 'other'");
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  return at::eq(self, other).all().item<bool>();
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor) {
  return guard([&] { return download(tensor); });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("equal", equal);
  // How compiled graphs take their constants.
  m.impl("lift_fresh_copy", [](const at::Tensor& self) { return self.clone(); });
}

// Conj and neg bits are resolved inside the copies above (otherwise the fallbacks of these keys,
// which copy, would call themselves).
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace torch_tpu::tensor
