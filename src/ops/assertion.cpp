// SPDX-License-Identifier: Apache-2.0 - Assertions that wait for the device, not the host.
#include "src/ops/entry.h"

namespace torch_tpu::ops {

using graph::CheckSpec;

namespace {

// Raises when the host next waits, if the one number is zero.
void require_true(Call& c, const std::string& message) {
  const TensorArg& self = c.meta("self");
  c.check(self.elements() > 0, "Boolean value of Tensor with no values is ambiguous");
  c.check(self.elements() == 1, "Boolean value of Tensor with more than one value is ambiguous");
  c.fail_if(~c.tensor("self", DType::Pred), CheckSpec::Runtime, message);
}

}  // namespace

TPU_OP("aten::_assert_async(Tensor self) -> ()") {
  require_true(c, "Expected Tensor with single nonzero value, but got zero");
  return {};
}
TPU_OP("aten::_assert_async.msg(Tensor self, str assert_msg) -> ()") {
  require_true(c, c.text("assert_msg"));
  return {};
}
// The token orders it in a graph.
TPU_OP(
    "aten::_functional_assert_async.msg(Tensor self, str assert_msg, Tensor dep_token) -> Tensor") {
  require_true(c, c.text("assert_msg"));
  return {c.tensor("dep_token")};
}

}  // namespace torch_tpu::ops
