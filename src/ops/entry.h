// SPDX-License-Identifier: Apache-2.0 - How operator entries are written: TPU_OP and its kin.
//
//   // gelu(x) = x * P(N < x), N standard normal.
//   TPU_POINTWISE("aten::gelu(Tensor self, *, str approximate='none') -> Tensor") {
//     DType compute = hlo::opmath(c.dtype_of("self"));
//     Value x = c.tensor("self", compute);
//     ...
//     return {hlo::convert(y, c.dtype_of("self"))};
//   }
//
// The body gets `c` (graph::Call) and returns one value per result of the schema (an empty Value{}
// for an undefined tensor). In-place, out= and foreach forms, result shapes, dtypes and the cache
// key follow from it: the body is run on types when a call is seen for the first time.
#pragma once

#include "src/graph/op_table.h"

namespace torch_tpu::ops {
using graph::Call;
using graph::Platform;
using graph::TensorArg;
using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;
}  // namespace torch_tpu::ops

#define TORCH_TPU_CONCAT_(a, b) a##b
#define TORCH_TPU_CONCAT(a, b) TORCH_TPU_CONCAT_(a, b)
#define TORCH_TPU_ENTRY_(schema, rule, id)                                             \
  static ::torch_tpu::hlo::Values id([[maybe_unused]] ::torch_tpu::graph::Call& c);    \
  static const ::torch_tpu::graph::OpRegistration TORCH_TPU_CONCAT(id, _registration)( \
      schema, ::torch_tpu::graph::OutputRule::rule, &id, __FILE__, __LINE__);          \
  static ::torch_tpu::hlo::Values id([[maybe_unused]] ::torch_tpu::graph::Call& c)
#define TPU_OP(schema) TORCH_TPU_ENTRY_(schema, Contiguous, TORCH_TPU_CONCAT(op_, __COUNTER__))
#define TPU_APART(schema) TORCH_TPU_ENTRY_(schema, Apart, TORCH_TPU_CONCAT(op_, __COUNTER__))
#define TPU_POINTWISE(schema) \
  TORCH_TPU_ENTRY_(schema, Pointwise, TORCH_TPU_CONCAT(op_, __COUNTER__))
// For families made by a function: TPU_OP_FN("aten::sin(Tensor self) -> Tensor", Pointwise, fn).
#define TPU_OP_FN(schema, rule, fn)                                                             \
  static const ::torch_tpu::graph::OpRegistration TORCH_TPU_CONCAT(registration_, __COUNTER__)( \
      schema, ::torch_tpu::graph::OutputRule::rule, (fn), __FILE__, __LINE__)
