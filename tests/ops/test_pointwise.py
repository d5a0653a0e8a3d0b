# SPDX-License-Identifier: Apache-2.0 - Elementwise operators: values, gradients and their corner cases against CPU.
import pytest
import torch
from opinfo import (
    cases,
    check_errors,
    check_gradients,
    check_inplace,
    check_out,
    check_values,
    float_cases,
    names,
    op_cases,
)

UNARY = names("""
abs acos acosh angle asin asinh atan atanh bitwise_not ceil conj_physical cos cosh deg2rad digamma erf erfc
erfinv exp exp2 expm1 floor frac frexp i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p
log2 logical_not logit mvlgamma nan_to_num neg polygamma positive rad2deg reciprocal round rsqrt sgn sigmoid
sign signbit sin sinc sinh sqrt square tan tanh trunc special.entr special.erfcx special.i0e special.i1
special.i1e special.log_ndtr special.ndtr special.ndtri
""")
BINARY = names("""
__radd__ __rdiv__ __rmod__ __rmul__ __rpow__ __rsub__ add atan2 bitwise_and bitwise_left_shift bitwise_or
bitwise_right_shift bitwise_xor complex copysign div eq float_power floor_divide fmax fmin fmod gcd ge gt
heaviside hypot isclose isin lcm ldexp le logaddexp logaddexp2 logical_and logical_or logical_xor lt maximum
minimum mul ne nextafter polar pow remainder rsub sub true_divide xlogy special.xlog1py special.zeta
""")
TERNARY = names("addcdiv addcmul clamp clamp_max clamp_min lerp masked_fill where")
COPIES = names("alias_copy bool byte char clone double fill float half int long short to zero_")
ACTIVATIONS = [
    f"nn.functional.{name}"
    for name in names("""
celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish prelu relu relu6 selu
silu softplus softshrink softsign tanhshrink threshold
""")
]
LOSSES = [
    f"nn.functional.{name}"
    for name in names("""
binary_cross_entropy binary_cross_entropy_with_logits gaussian_nll_loss huber_loss l1_loss mse_loss
poisson_nll_loss smooth_l1_loss soft_margin_loss
""")
]
FAMILY = UNARY + BINARY + TERNARY + COPIES + ACTIVATIONS + LOSSES


@pytest.mark.parametrize("op, dtype", cases(FAMILY))
def test_values(op, dtype):
    check_values(op, dtype)


@pytest.mark.parametrize("op, dtype", float_cases(FAMILY))
def test_gradients(op, dtype):
    check_gradients(op, dtype)


@pytest.mark.parametrize("op", op_cases(FAMILY, lambda op: op.supports_out))
def test_out(op):
    check_out(op, torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64)


@pytest.mark.parametrize("op", op_cases(FAMILY, lambda op: op.inplace_variant is not None))
def test_inplace(op):
    check_inplace(op, torch.float32 if op.supports_dtype(torch.float32, "cpu") else torch.int64)


@pytest.mark.parametrize("op", op_cases(FAMILY, lambda op: op.error_inputs_func is not None))
def test_errors(op):
    check_errors(op)
