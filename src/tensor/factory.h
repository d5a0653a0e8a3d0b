// SPDX-License-Identifier: Apache-2.0 - Making, resizing and re-pointing tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace torch_tpu::tensor {

// Accepts 0, no index (-1), and this process's LOCAL_RANK: a launcher that starts one process per
// chip tells each to use "its" index, and the only chip a process sees is the right one. Throws
// otherwise.
void check_device_index(int64_t index);

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype);
// Changes the storage's size; what it held stays at its place, new bytes read as zero.
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace torch_tpu::tensor
