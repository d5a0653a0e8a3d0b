// SPDX-License-Identifier: Apache-2.0 - ATen storage <-> device arrays: slots, and who owns what.
//
// Ownership: a tensor's StorageImpl owns a Slot (through its DataPtr's context). The slot holds the
// storage's current base value, an immutable run::Array, or none while nothing has been written
// (contents then read as zeros). All views of a storage share its slot, so a write, which puts a
// new array into the slot, is seen by every view. Op calls in flight hold the arrays they read, not
// the slots. Slots are read and written with Runtime::mutex() held.
//
// Addresses: a storage has a unique, non-zero, never dereferenceable address, so data_ptr() tells
// storages apart and moves with the offset as it does elsewhere. The slot can be found from it,
// because PyTorch sometimes makes a second storage around an address (at::from_blob).
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "src/graph/args.h"
#include "src/graph/record.h"
#include "src/run/array.h"

namespace torch_tpu::tensor {

struct Slot {
  run::ArrayPtr value;
  uint32_t index = 0;  // in the table of addresses
};
void delete_slot(void* slot);
// The slot of a storage that is a second one around another storage's address.
Slot& slot_at(const void* address);

hlo::DType dtype_of(c10::ScalarType type);  // throws for types the device has not
c10::ScalarType scalar_type_of(hlo::DType dtype);

c10::DeviceType device_type();
inline c10::Device device() { return c10::Device(c10::DeviceType::PrivateUse1, 0); }

// The slot of a tensor on the device.
inline Slot& slot_of(const c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (C10_LIKELY(data.get_deleter() == &delete_slot))
    return *static_cast<Slot*>(data.get_context());
  return slot_at(data.get());
}
Slot& slot_of(const at::TensorBase& tensor);

// A storage around an array (or none) of nbytes.
c10::Storage make_storage(run::ArrayPtr value, int64_t nbytes);
// A tensor as an output spec says, around its base value.
at::TensorBase make_tensor(run::ArrayPtr value, const graph::OutputSpec& spec,
                           c10::ScalarType dtype);

// What a tensor's storage is in terms of its base value. For a storage without a value: the
// tensor's own shape where it covers the storage in order, else flat.
hlo::Type base_type(const c10::TensorImpl& tensor);

// The base value of a tensor's storage, made (zeros) when there is none. mutex() must not be held.
run::ArrayPtr base_of(const at::TensorBase& tensor);

c10::Allocator* allocator();

}  // namespace torch_tpu::tensor
