// SPDX-License-Identifier: Apache-2.0 - Algorithms that are one instruction: fft, linear algebra, top_k, custom calls.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "src/hlo/attributes.h"
#include "src/hlo/builder.h"

namespace torch_tpu::hlo {
namespace {

void check_matrices(const char* op, const Value& x, bool square) {
  if (!is_floating(x.dtype()) && !is_complex(x.dtype())) {
    fail(op, "got " + x.type().str() + ", takes float, complex");
  }
  if (x.rank() < 2 || (square && x.dim(-1) != x.dim(-2))) {
    fail(op, "got " + x.type().str() + ", takes " + (square ? "square " : "") + "matrices");
  }
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c >= 0x20 && c < 0x7F && c != '"' && c != '\\') {
      out += c;
      continue;
    }
    constexpr std::string_view kHex = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    out += {'\\', kHex[byte >> 4], kHex[byte & 15]};
  }
  return out + "\"";
}

}  // namespace

Value fft(const Value& x, Fft how, const Dims& length) {
  constexpr const char* kOp = "stablehlo.fft";
  constexpr std::array<std::string_view, 4> kNames = {"FFT", "IFFT", "RFFT", "IRFFT"};
  Builder& b = builder_of(kOp, x);
  const std::string_view name = kNames[static_cast<size_t>(how)];
  const auto n = static_cast<int64_t>(length.size());
  if (n < 1 || n > 3 || n > x.rank()) {
    fail(kOp, "transforms 1 to 3 dimensions, got lengths " + list_text(length) + " for " +
                  x.type().str());
  }
  const bool real_in = how == Fft::RFFT;
  if (real_in ? (x.dtype() != DType::F32 && x.dtype() != DType::F64) : !is_complex(x.dtype())) {
    fail(kOp, std::string(name) + " of " + x.type().str() + ", takes " +
                  (real_in ? "float32, float64" : "complex"));
  }
  Type result = x.type();
  if (how == Fft::RFFT) result.dtype = complex_of(x.dtype());
  if (how == Fft::IRFFT) result.dtype = real_of(x.dtype());
  for (int64_t i = 0; i < n; ++i) {
    const bool last = i == n - 1;
    int64_t& d = result.dims[x.rank() - n + i];
    const int64_t expected = how == Fft::IRFFT && last ? length[i] / 2 + 1 : length[i];
    if (d != expected) {
      fail(kOp, std::string(name) + " with lengths " + list_text(length) + " does not fit " +
                    x.type().str());
    }
    if (last && how == Fft::RFFT) d = length[i] == 0 ? 0 : length[i] / 2 + 1;
    if (last && how == Fft::IRFFT) d = length[i];
  }
  return b.append1(
      kOp, {&x, 1},
      Attributes().ints("fft_length", length).enumeration("fft_type", "fft_type", name).take(),
      std::move(result));
}

Value cholesky(const Value& x, bool lower) {
  constexpr const char* kOp = "stablehlo.cholesky";
  Builder& b = builder_of(kOp, x);
  check_matrices(kOp, x, true);
  return b.append1(kOp, {&x, 1}, Attributes().boolean("lower", lower).take(), x.type());
}

Value triangular_solve(const Value& a, const Value& b, bool left_side, bool lower,
                       bool unit_diagonal, std::string_view transpose) {
  constexpr const char* kOp = "stablehlo.triangular_solve";
  Builder& builder = builder_of(kOp, a);
  builder_of(kOp, b);
  check_matrices(kOp, a, true);
  check_matrices(kOp, b, false);
  const bool batches =
      a.rank() == b.rank() && std::equal(a.dims().begin(), a.dims().end() - 2, b.dims().begin());
  if (a.dtype() != b.dtype() || !batches || b.dim(left_side ? -2 : -1) != a.dim(-1)) {
    fail(kOp, "operands " + a.type().str() + " and " + b.type().str() + " do not fit");
  }
  if (transpose != "NO_TRANSPOSE" && transpose != "TRANSPOSE" && transpose != "ADJOINT") {
    fail(kOp, "transpose is '" + std::string(transpose) +
                  "', expected NO_TRANSPOSE, TRANSPOSE or ADJOINT");
  }
  const Value operands[] = {a, b};
  return builder.append1(kOp, operands,
                         Attributes()
                             .boolean("left_side", left_side)
                             .boolean("lower", lower)
                             .enumeration("transpose_a", "transpose", transpose)
                             .boolean("unit_diagonal", unit_diagonal)
                             .take(),
                         b.type());
}

Values top_k(const Value& x, int64_t k) {
  constexpr const char* kOp = "chlo.top_k";
  Builder& b = builder_of(kOp, x);
  if (x.rank() < 1 || k < 0 || k > x.dim(-1)) {
    fail(kOp, "k = " + std::to_string(k) + " does not fit the last dimension of " + x.type().str());
  }
  Dims dims = x.dims();
  dims.back() = k;
  return b.append(kOp, {&x, 1}, Attributes().i64("k", k).take(),
                  {{x.dtype(), dims}, {DType::S32, dims}});
}

Values custom_call(Builder& b, std::string_view target, std::span<const Value> operands,
                   std::vector<Type> results, std::string backend_config, int api_version,
                   bool has_side_effect) {
  Attributes attributes;
  attributes.i32("api_version", api_version);
  if (api_version == 4) {
    if (!backend_config.starts_with('{')) backend_config = "{" + backend_config + "}";
    attributes.raw("backend_config", backend_config);
  } else {
    attributes.raw("backend_config", quoted(backend_config));
  }
  attributes.raw("call_target_name", quoted(target));
  attributes.boolean("has_side_effect", has_side_effect);
  return b.append("stablehlo.custom_call", operands, attributes.take(), std::move(results));
}

Values call_text(Builder& b, std::shared_ptr<const TextFunction> callee,
                 std::span<const Value> operands, std::vector<Type> results) {
  std::string attributes = Attributes().raw("callee", "@" + callee->name).take();
  return b.append("func.call", operands, std::move(attributes), std::move(results), {},
                  std::move(callee));
}

}  // namespace torch_tpu::hlo
