// SPDX-License-Identifier: Apache-2.0 - Sums of products: accumulation types, precision, platform forms.
#include "src/ops/contraction.h"

#include <numeric>

#include "src/ops/host_kernels.h"

namespace torch_tpu::ops {

hlo::Precision contraction_precision(Call& c, DType dtype) {
  // A bfloat16 is what a TPU multiplies anyway; a float16 has more digits than that.
  if (dtype == DType::F32) return c.precision();
  return dtype == DType::BF16 || hlo::is_float8(dtype) ? hlo::Precision::Default
                                                       : hlo::Precision::Highest;
}

namespace {

// One row (for each batch) by a matrix whose rows are contracted, as when a model decodes a token.
bool is_row_by_rows(const Value& lhs, const Value& rhs, const Dims& lhs_batch,
                    const Dims& lhs_contract, const Dims& rhs_contract) {
  int64_t one_row = 1;
  for (const Dims& dims : {lhs_batch, lhs_contract})
    for (int64_t d : dims) one_row *= lhs.dim(d);
  return one_row > 0 && lhs.elements() == one_row && rhs.elements() > one_row &&
         rhs_contract == Dims{rhs.rank() - 1};
}

// ---- by the host's kernel -------------------------------------------------------------------

// (A vector by a matrix is left to XLA: it is as fast there, measured in a model that decodes.)
bool on_host(const Call& c, const Value& lhs, const Value& rhs, const Dims& lhs_contract) {
  constexpr int64_t kLeastProducts = 1 << 20;
  if (!c.host_kernels() || lhs.dtype() != DType::F32 || lhs.rank() != 2 || rhs.rank() != 2 ||
      lhs_contract.size() != 1 || lhs.elements() == 0)
    return false;
  const int64_t summed = lhs.dim(lhs_contract[0]);
  const int64_t products = lhs.elements() / summed * rhs.elements();
  return products >= kLeastProducts && lhs.elements() > summed && rhs.elements() > summed;
}

// A matrix as it lies in memory, and which of its dimensions is summed over.
struct HostMatrix {
  HostMatrix(Call& c, const Value& x, int64_t summed) : value(x), contracted(summed) {
    for (const hlo::Instr* source = c.builder().source(value);
         source != nullptr && source->name == "stablehlo.transpose";
         source = c.builder().source(value)) {
      value = Value(&c.builder(), source->operands[0]);
      contracted = 1 - contracted;
    }
  }
  int64_t rest() const { return value.dim(1 - contracted); }

  Value value;
  int64_t contracted;
};

Value host_product(Call& c, const HostMatrix& lhs, const HostMatrix& rhs) {
  return host_call(c, "matmul", {lhs.value, rhs.value}, {{DType::F32, {lhs.rest(), rhs.rest()}}},
                   HostAttributes()
                       .integer("lhs_contracted", lhs.contracted)
                       .integer("rhs_contracted", rhs.contracted))[0];
}

}  // namespace

Value contract(Call& c, const Value& lhs, const Value& rhs, const Dims& lhs_batch,
               const Dims& rhs_batch, const Dims& lhs_contract, const Dims& rhs_contract) {
  if (on_host(c, lhs, rhs, lhs_contract))
    return host_product(c, {c, lhs, lhs_contract[0]}, {c, rhs, rhs_contract[0]});
  // XLA's CPU plugin would transpose the matrix at every run; the other way round it does not.
  if (c.platform() == Platform::Cpu &&
      is_row_by_rows(lhs, rhs, lhs_batch, lhs_contract, rhs_contract)) {
    Value product = contract(c, rhs, lhs, rhs_batch, lhs_batch, rhs_contract, lhs_contract);
    const auto batches = static_cast<int64_t>(lhs_batch.size());
    Dims dims(product.dims().begin(), product.dims().begin() + batches);
    dims.resize(lhs.rank() - lhs_contract.size(), 1);
    dims.insert(dims.end(), product.dims().begin() + batches,
                product.dims().begin() + (rhs.rank() - 1));
    return hlo::reshape(product, dims);
  }
  const DType compute = hlo::opmath(lhs.dtype());
  const bool narrow = compute != lhs.dtype();
  // XLA's CPU plugin has fast products of float32 only; products of halves are exact there.
  if (narrow && (c.platform() == Platform::Cpu || hlo::is_float8(lhs.dtype()))) {
    return hlo::dot_general(hlo::convert(lhs, compute), hlo::convert(rhs, compute), lhs_batch,
                            rhs_batch, lhs_contract, rhs_contract, compute,
                            hlo::Precision::Highest);
  }
  return hlo::dot_general(lhs, rhs, lhs_batch, rhs_batch, lhs_contract, rhs_contract, compute,
                          contraction_precision(c, lhs.dtype()));
}

Value matrix_product(Call& c, const Value& lhs, const Value& rhs) {
  const int64_t rank = lhs.rank();
  const Dims batch = counting(rank - 2);
  return contract(c, lhs, rhs, batch, batch, {rank - 1}, {rank - 2});
}

Value conjugate(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return x;
  return hlo::complex(hlo::real(x), -hlo::imag(x));
}

Value transposed(const Value& x) {
  Dims order = counting(x.rank());
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return hlo::transpose(x, order);
}

Dims counting(int64_t n, int64_t first) {
  Dims dims(n);
  std::iota(dims.begin(), dims.end(), first);
  return dims;
}

void check_expands(const Call& c, const Dims& from, const Dims& sizes) {
  c.check(from.size() <= sizes.size(), "expand(", from, ", size=", sizes,
          "): the number of sizes provided (", sizes.size(),
          ") must be greater or equal to the number of dimensions in the tensor (", from.size(),
          ")");
  const size_t shift = sizes.size() - from.size();
  for (size_t i = from.size(); i-- > 0;) {
    c.check(from[i] == 1 || from[i] == sizes[i + shift], "The expanded size of the tensor (",
            sizes[i + shift], ") must match the existing size (", from[i],
            ") at non-singleton dimension ", i + shift, ".  Target sizes: ", sizes,
            ".  Tensor sizes: ", from);
  }
}

}  // namespace torch_tpu::ops
