// SPDX-License-Identifier: Apache-2.0 - Host kernels by PyTorch's own CPU operators, on the buffers in place.
//
// src/ops/host_kernels.cpp says which operators call them, and why.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <dlfcn.h>

#include <algorithm>
#include <limits>

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

// ---- products -------------------------------------------------------------------------------

// (a, b) -> their product over one dimension of each. Split over the longer side of the result,
// into more parts than there are threads, as others may be at work beside this.
void matmul(FfiCall& call) {
  const bool a_first = call.int_attr("lhs_contracted").value() == 0;
  const bool b_last = call.int_attr("rhs_contracted").value() == 1;
  const FfiBuffer y = call.result(0);
  const int64_t axis = y.dims[0] >= y.dims[1] ? 0 : 1;
  const int64_t count = std::min(y.dims[axis], 2 * call.num_threads());
  call.run_pieces(count, [&](int64_t i) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    at::Tensor a = view(call.arg(0)), b = view(call.arg(1));
    if (a_first) a = a.t();
    if (b_last) b = b.t();
    const Part part = part_of(y.dims[axis], i, count);
    at::Tensor& split = axis == 0 ? a : b;
    split = split.narrow(axis, part.begin, part.size);
    at::Tensor out = view(y).narrow(axis, part.begin, part.size);
    at::mm_out(out, a, b);
  });
}

// ---- attention ------------------------------------------------------------------------------

// Tensors of [batch, heads, tokens, size], in memory so or with heads and tokens exchanged. Split
// over the batch, or over the key heads where the batch is small or several query heads share one.
struct Attention {
  Attention(const FfiCall& c, const FfiBuffer& query, const FfiBuffer& key)
      : query_tokens_first(c.int_attr("query_tokens_first").value() != 0),
        key_tokens_first(c.int_attr("key_tokens_first").value() != 0),
        causal(c.int_attr("causal").value() != 0),
        scale(*c.arg(c.num_args() - 1).as<float>()) {
    constexpr int64_t kLeastPiece = 1 << 16;  // elements of the keys
    const int64_t batch = key.dims[0], heads = key.dims[key_tokens_first ? 2 : 1];
    group = query.dims[query_tokens_first ? 2 : 1] / heads;
    const int64_t wanted = 2 * c.num_threads();  // others may be at work beside this
    axis = group == 1 && batch >= wanted ? 0 : 1;
    total = axis == 0 ? batch : heads;
    const int64_t useful = static_cast<int64_t>(key.num_elements) / kLeastPiece;
    count = group > 1 ? heads : std::clamp<int64_t>(std::min(wanted, useful), 1, total);
  }

  // A piece's part of an argument or a result: of the queries, of the keys and values, whose one
  // head then stands for the group, or of what has numbers for queries in the order of the heads.
  at::Tensor queries(const FfiBuffer& buffer, int64_t index) const {
    const at::Tensor t = view(buffer);
    return of_queries(query_tokens_first ? t.transpose(1, 2) : t, index);
  }
  at::Tensor keys(const FfiBuffer& buffer, int64_t index) const {
    at::Tensor t = view(buffer);
    if (key_tokens_first) t = t.transpose(1, 2);
    const Part p = part_of(total, index, count);
    t = t.narrow(axis, p.begin, p.size);
    return group == 1 ? t : t.expand({t.size(0), group, t.size(2), t.size(3)});
  }
  at::Tensor rows(const FfiBuffer& buffer, int64_t index) const {
    const at::Tensor t = view(buffer);
    const int64_t whole = axis == 1 ? total * group : total;
    return t.size(axis) == 1 && whole > 1 ? t : of_queries(t, index);  // 1: the same for all
  }

  bool query_tokens_first, key_tokens_first, causal;
  float scale;
  int64_t group, axis, total, count;

 private:
  at::Tensor of_queries(const at::Tensor& t, int64_t index) const {
    const Part p = part_of(total, index, count);
    const int64_t n = axis == 1 ? group : 1;
    return t.narrow(axis, p.begin * n, p.size * n);
  }
};

// (query, key, value[, bias], scale) -> (out, logsumexp).
void attention(FfiCall& call) {
  const Attention a(call, call.arg(0), call.arg(1));
  call.run_pieces(a.count, [&](int64_t i) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    std::optional<at::Tensor> bias;
    if (call.num_args() == 5) bias = a.rows(call.arg(3), i);
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        a.queries(call.arg(0), i), a.keys(call.arg(1), i), a.keys(call.arg(2), i), 0.0, a.causal,
        bias, a.scale);
    a.queries(call.result(0), i).copy_(out);
    at::Tensor sums = a.rows(call.result(1), i);
    sums.copy_(logsumexp);
    // PyTorch says 0 where a query sees no key.
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    if (bias) sums.masked_fill_(bias->amax(-1).eq(kNothing), kNothing);
  });
}

// (grad_out, query, key, value, out, logsumexp, scale) -> the gradients of query, key and value.
void attention_backward(FfiCall& call) {
  const Attention a(call, call.arg(1), call.arg(2));
  call.run_pieces(a.count, [&](int64_t i) {
    use_one_thread();
    const c10::InferenceMode no_autograd;
    auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        a.queries(call.arg(0), i), a.queries(call.arg(1), i), a.keys(call.arg(2), i),
        a.keys(call.arg(3), i), a.queries(call.arg(4), i), a.rows(call.arg(5), i), 0.0, a.causal,
        {}, a.scale);
    a.queries(call.result(0), i).copy_(dq);
    a.keys(call.result(1), i).copy_(dk);
    a.keys(call.result(2), i).copy_(dv);
  });
}

const bool registered = [] {
  run::Runtime::add_host_kernel("torch_tpu.convolution", convolution);
  run::Runtime::add_host_kernel("torch_tpu.convolution_by_columns", convolution_by_columns);
  run::Runtime::add_host_kernel("torch_tpu.convolution_grad_input", convolution_grad_input);
  run::Runtime::add_host_kernel("torch_tpu.convolution_grad_weight", convolution_grad_weight);
  run::Runtime::add_host_kernel("torch_tpu.matmul", matmul);
  run::Runtime::add_host_kernel("torch_tpu.attention", attention);
  run::Runtime::add_host_kernel("torch_tpu.attention_backward", attention_backward);
  return true;
}();

}  // namespace
}  // namespace torch_tpu::tensor
