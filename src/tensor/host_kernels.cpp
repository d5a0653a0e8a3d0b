// SPDX-License-Identifier: Apache-2.0 - Host kernels by PyTorch's own CPU operators, on the buffers in place.
//
// src/ops/host_kernels.cpp says which operators call them, and why.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <dlfcn.h>

#include <algorithm>

#include "src/pjrt/element_type.h"
#include "src/pjrt/ffi.h"
#include "src/run/runtime.h"

namespace torch_tpu::tensor {
namespace {

using pjrt::FfiBuffer;
using pjrt::FfiCall;

at::ScalarType scalar_type(const FfiBuffer& buffer) {
  switch (buffer.type) {
    case pjrt::kF32:
      return at::kFloat;
    case pjrt::kF64:
      return at::kDouble;
    default:
      TORCH_CHECK(false, "host kernels take float32 and float64, not ",
                  pjrt::element_name(buffer.type));
  }
}

at::Tensor view(const FfiBuffer& buffer) {
  return at::from_blob(buffer.data, at::IntArrayRef(buffer.dims.data(), buffer.dims.size()),
                       at::TensorOptions(scalar_type(buffer)));
}

at::IntArrayRef ints(const FfiCall& call, std::string_view name) {
  const auto found = call.int_array_attr(name);
  TORCH_CHECK(found.has_value(), "a host kernel was called without ", name);
  return {found->data(), found->size()};
}

// PyTorch's operators start OpenMP threads of their own in each thread that calls them, and those
// would compete with the plugin's. Work is split by pieces() instead.
void use_one_thread() {
  thread_local const bool done = [] {
    if (void* set = dlsym(RTLD_DEFAULT, "omp_set_num_threads")) {
      reinterpret_cast<void (*)(int)>(set)(1);
    }
    return true;
  }();
  (void)done;
}

struct Convolution {
  explicit Convolution(const FfiCall& call)
      : stride(ints(call, "stride")),
        padding(ints(call, "padding")),
        dilation(ints(call, "dilation")),
        output_padding(ints(call, "output_padding")),
        transposed(call.int_attr("transposed").value() != 0),
        groups(call.int_attr("groups").value()) {}

  at::IntArrayRef stride, padding, dilation, output_padding;
  bool transposed;
  int64_t groups;
};

// Into how many parts of the batch the work on x may be cut: PyTorch takes its slow path where one
// image alone is small.
int64_t batch_parts(const FfiBuffer& x, int64_t threads) {
  constexpr int64_t kSmallImage = 20480;
  const int64_t batch = x.dims[0];
  int64_t image = 1;  // PyTorch counts so
  for (const int64_t dim : x.dims.subspan(1, std::min<size_t>(x.dims.size() - 1, 3))) image *= dim;
  return std::clamp<int64_t>(image > kSmallImage ? batch : batch / 2, 1, threads);
}

struct Part {
  int64_t begin, size;
};
Part part_of(int64_t total, int64_t index, int64_t count) {
  const int64_t begin = total * index / count;
  return {begin, total * (index + 1) / count - begin};
}

// (x, weight) -> y. Split over the batch, or over the output's channels where the weight is
// the larger (oneDNN reorders what it is given in each call).
void convolution(FfiCall& call) {
  const Convolution conv(call);
  const int64_t threads = call.num_threads();
  const bool over_channels =
      !conv.transposed && conv.groups == 1 && call.arg(1).num_elements > call.arg(0).num_elements;
  const int64_t axis = over_channels ? 1 : 0;
  const int64_t total = call.result(0).dims[axis];
  const int64_t count =
      over_channels ? std::min(total, threads) : batch_parts(call.arg(0), threads);
  call.run_pieces(count, [&](int64_t index) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    const Part part = part_of(total, index, count);
    at::Tensor x = view(call.arg(0)), weight = view(call.arg(1));
    if (over_channels) {
      weight = weight.narrow(0, part.begin, part.size);
    } else {
      x = x.narrow(0, part.begin, part.size);
    }
    view(call.result(0))
        .narrow(axis, part.begin, part.size)
        .copy_(at::convolution(x, weight, std::nullopt, conv.stride, conv.padding, conv.dilation,
                               conv.transposed, conv.output_padding, conv.groups));
  });
}

struct Plane {
  int64_t height, width;
};

// What one tap of the kernel sees of a plane: out[i, j] = in[row + i * stride, column + j *
// stride], zero outside of the input.
void copy_tap(const float* in, Plane from, int64_t row, int64_t column, at::IntArrayRef stride,
              Plane to, float* out) {
  // The first position >= 0 and the first >= size, of those that the output has.
  const auto range = [](int64_t start, int64_t step, int64_t size, int64_t count) {
    const auto reach = [&](int64_t bound) {
      return std::clamp<int64_t>((bound - start + step - 1) / step, 0, count);
    };
    return std::pair(start < 0 ? reach(0) : 0, start < size ? reach(size) : 0);
  };
  const auto [top, bottom] = range(row, stride[0], from.height, to.height);
  const auto [left, right] = range(column, stride[1], from.width, to.width);
  if (bottom <= top || right <= left) {
    std::fill_n(out, to.height * to.width, 0.0f);
    return;
  }
  std::fill_n(out, top * to.width, 0.0f);
  std::fill(out + bottom * to.width, out + to.height * to.width, 0.0f);
  const float* line = in + (row + top * stride[0]) * from.width + column;
  if (stride[0] == 1 && stride[1] == 1 && from.width == to.width) {
    // One piece of the input; what wrapped around its sides is set to zero below.
    std::copy(line + left, line + (bottom - top - 1) * from.width + right,
              out + top * to.width + left);
  } else {
    for (int64_t i = top; i < bottom; ++i, line += stride[0] * from.width) {
      for (int64_t j = left; j < right; ++j) out[i * to.width + j] = line[j * stride[1]];
    }
  }
  for (int64_t i = top; i < bottom; ++i) {
    for (int64_t j = 0; j < left; ++j) out[i * to.width + j] = 0.0f;
    for (int64_t j = right; j < to.width; ++j) out[i * to.width + j] = 0.0f;
  }
}

// (x [batch, inputs, h, w], weight) -> y, without groups: the input's windows as columns
// [inputs * taps, batch * pixels], then the weight times these, split over the output's channels.
void convolution_by_columns(FfiCall& call) {
  const Convolution conv(call);
  const FfiBuffer &x = call.arg(0), &w = call.arg(1), &y = call.result(0);
  const Plane from = {x.dims[2], x.dims[3]}, to = {y.dims[2], y.dims[3]};
  const int64_t batch = x.dims[0], inputs = x.dims[1], outputs = w.dims[0];
  const int64_t taps = w.dims[2] * w.dims[3], pixels = to.height * to.width;
  const int64_t threads = call.num_threads();
  const c10::InferenceMode no_autograd;
  const at::Tensor columns = at::empty({inputs * taps, batch * pixels});
  call.run_pieces(std::min(inputs, threads), [&](int64_t index) {
    const Part part = part_of(inputs, index, std::min(inputs, threads));
    float* out = columns.mutable_data_ptr<float>() + part.begin * taps * batch * pixels;
    for (int64_t c = part.begin; c < part.begin + part.size; ++c) {
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t row = tap / w.dims[3] * conv.dilation[0] - conv.padding[0];
        const int64_t column = tap % w.dims[3] * conv.dilation[1] - conv.padding[1];
        for (int64_t n = 0; n < batch; ++n, out += pixels) {
          const float* plane =
              static_cast<const float*>(x.data) + (n * inputs + c) * from.height * from.width;
          copy_tap(plane, from, row, column, conv.stride, to, out);
        }
      }
    }
  });
  call.run_pieces(std::min(outputs, threads), [&](int64_t index) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    const Part part = part_of(outputs, index, std::min(outputs, threads));
    const at::Tensor weight = view(w).narrow(0, part.begin, part.size).flatten(1);
    view(y)
        .narrow(1, part.begin, part.size)
        .copy_(
            at::mm(weight, columns).view({part.size, batch, to.height, to.width}).transpose(0, 1));
  });
}

// (gy, x, weight) -> the gradient of x: each image has its own.
void convolution_grad_input(FfiCall& call) {
  const Convolution conv(call);
  const int64_t count = batch_parts(call.arg(1), call.num_threads());
  call.run_pieces(count, [&](int64_t index) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    const Part part = part_of(call.arg(1).dims[0], index, count);
    view(call.result(0))
        .narrow(0, part.begin, part.size)
        .copy_(std::get<0>(at::convolution_backward(
            view(call.arg(0)).narrow(0, part.begin, part.size),
            view(call.arg(1)).narrow(0, part.begin, part.size), view(call.arg(2)), std::nullopt,
            conv.stride, conv.padding, conv.dilation, conv.transposed, conv.output_padding,
            conv.groups, {true, false, false})));
  });
}

// (gy, x, weight) -> the gradient of weight: a sum over the images.
void convolution_grad_weight(FfiCall& call) {
  const Convolution conv(call);
  const int64_t count = batch_parts(call.arg(1), call.num_threads());
  std::vector<at::Tensor> sums(count);
  call.run_pieces(count, [&](int64_t index) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    const Part part = part_of(call.arg(1).dims[0], index, count);
    sums[index] = std::get<1>(at::convolution_backward(
        view(call.arg(0)).narrow(0, part.begin, part.size),
        view(call.arg(1)).narrow(0, part.begin, part.size), view(call.arg(2)), std::nullopt,
        conv.stride, conv.padding, conv.dilation, conv.transposed, conv.output_padding, conv.groups,
        {false, true, false}));
  });
  use_one_thread();
  const c10::InferenceMode no_autograd;
  at::Tensor result = view(call.result(0));
  result.copy_(sums[0]);
  for (int64_t i = 1; i < count; ++i) result.add_(sums[i]);
}

const bool registered = [] {
  run::Runtime::add_host_kernel("torch_tpu.convolution", convolution);
  run::Runtime::add_host_kernel("torch_tpu.convolution_by_columns", convolution_by_columns);
  run::Runtime::add_host_kernel("torch_tpu.convolution_grad_input", convolution_grad_input);
  run::Runtime::add_host_kernel("torch_tpu.convolution_grad_weight", convolution_grad_weight);
  return true;
}();

}  // namespace
}  // namespace torch_tpu::tensor
