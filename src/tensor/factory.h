// SPDX-License-Identifier: Apache-2.0 - Making, resizing and re-pointing tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace torch_tpu::tensor {

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);
// Changes the storage's size; what it held stays at its place, new bytes read as zero.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace torch_tpu::tensor
