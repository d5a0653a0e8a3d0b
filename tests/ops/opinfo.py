# SPDX-License-Identifier: Apache-2.0 - Drives PyTorch's OpInfo samples through the device and compares with CPU.
"""A test file of an operator family says

    FAMILY = ["add", "div", "nn.functional.gelu"]

    @pytest.mark.parametrize("op, dtype", cases(FAMILY))
    def test_values(op, dtype):
        check_values(op, dtype)

and likewise check_gradients, check_out, check_inplace and check_errors. Each takes a few samples, spread
over all that PyTorch has; TORCH_TPU_OPINFO_SAMPLES raises their number (0: all).
"""

import dataclasses
import math
import os

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "tpu"
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
    torch.complex64,
)
_FEW = {torch.float32: 6}
_OTHERS = 2


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """What a family's functions may be off by, when that is more than assert_close's default."""

    rtol: float
    atol: float


def names(text):
    """A list of op names, written as words."""
    return text.split()


def find(family):
    """The OpInfos of these names ("div") or of one variant ("div.floor_rounding")."""
    found = []
    for name in family:
        ops = [op for op in op_db if name in (op.name, full_name(op))]
        assert ops, f"PyTorch has no OpInfo named {name}"
        found += ops
    return found


def full_name(op):
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def cases(family, dtypes=DTYPES):
    """pytest parameters: every op with every dtype that CPU supports."""
    return [
        pytest.param(op, dtype, id=f"{full_name(op)}-{str(dtype).removeprefix('torch.')}")
        for op in find(family)
        for dtype in dtypes
        if op.supports_dtype(dtype, "cpu")
    ]


def float_cases(family, dtype=torch.float32):
    """The ops that have a gradient, in one dtype."""
    return [
        pytest.param(op, dtype, id=full_name(op))
        for op in find(family)
        if op.supports_autograd and op.supports_dtype(dtype, "cpu")
    ]


def op_cases(family, keep=lambda op: True):
    return [pytest.param(op, id=full_name(op)) for op in find(family) if keep(op)]


def samples(op, dtype, requires_grad=False, limit=None):
    """A few of the op's sample inputs on CPU, spread evenly over all of them."""
    torch.manual_seed(0)
    every = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    wanted = os.environ.get("TORCH_TPU_OPINFO_SAMPLES")
    count = int(wanted) if wanted is not None else limit or _FEW.get(dtype, _OTHERS)
    if count == 0 or count >= len(every):
        return every
    step = (len(every) - 1) / max(count - 1, 1)
    return [every[round(i * step)] for i in range(count)]


def to_device(tree):
    """Copies on the device: same values and strides, leaves that require grad stay leaves that do."""

    def move(x):
        if not isinstance(x, torch.Tensor):
            return torch.device(DEVICE) if x == "cpu" or isinstance(x, torch.device) else x
        return x.detach().to(DEVICE).requires_grad_(x.requires_grad)

    return tree_map(move, tree)


def tensors(tree):
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def compare(actual, expected, tolerance=None, what="", strides=False):
    """Same structure, dtypes, sizes and values; the actual tensors are on the device."""
    ours, theirs = tree_flatten(actual)[0], tree_flatten(expected)[0]
    assert len(ours) == len(theirs), what
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            close = mine == other or (
                isinstance(other, float)
                and (math.isclose(mine, other, rel_tol=1e-5) or (mine != mine and other != other))
            )
            assert close, f"{what}: {mine} is not {other}"
            continue
        assert mine.device.type == DEVICE, f"{what}: the result is on {mine.device}"
        limits = {"rtol": tolerance.rtol, "atol": tolerance.atol} if tolerance else {}
        torch.testing.assert_close(
            mine.detach().cpu(),
            other.detach(),
            equal_nan=True,
            check_stride=strides,
            msg=lambda m: f"{what}: {m}",
            **limits,
        )


def describe(sample):
    def short(x):
        if isinstance(x, torch.Tensor):
            kind = str(x.dtype).removeprefix("torch.")
            return f"{kind}{tuple(x.shape)}"
        return repr(x)

    args = [short(x) for x in tree_flatten((sample.input, sample.args))[0]]
    args += [f"{k}={tree_map(short, v)}" for k, v in sample.kwargs.items()]
    return f"({', '.join(args)})"


def run_on_cpu(fn, sample):
    """CPU's result, or None when CPU itself does not take the sample."""
    try:
        return fn(sample.input, *sample.args, **sample.kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None


def _convert(tree, source, target):
    def convert(x):
        return x.to(target) if isinstance(x, torch.Tensor) and x.dtype == source else x

    return tree_map(convert, tree)


def run_in_float32(op, sample, dtype):
    """A half type's sample computed in float32 and rounded once at the end."""
    args = _convert((sample.input, *sample.args), dtype, torch.float32)
    kwargs = _convert(sample.kwargs, dtype, torch.float32)
    return _convert(op(*args, **kwargs), torch.float32, dtype)


def check_values(op, dtype, tolerance=None, strides=False):
    """Half types may agree with CPU, which often rounds in between, or with float32 rounded once."""
    compared = 0
    every = samples(op, dtype)
    for sample in every:
        expected = run_on_cpu(op, sample)
        if expected is None or any(x.dtype == torch.complex32 for x in tensors(expected)):
            continue
        args, kwargs = to_device((sample.input, *sample.args)), to_device(sample.kwargs)
        actual = op(*args, **kwargs)
        try:
            compare(actual, expected, tolerance, describe(sample), strides)
        except AssertionError:
            if dtype not in (torch.float16, torch.bfloat16):
                raise
            better = run_in_float32(op, sample, dtype)
            compare(actual, better, tolerance, describe(sample), strides)
        compared += 1
    if every and not compared:
        pytest.skip("CPU takes none of the samples, or gives complex32, which the device has not")


def _differentiable(tree):
    return [x for x in tensors(tree) if x.requires_grad]


def check_gradients(op, dtype=torch.float32, tolerance=None, limit=3):
    compared = 0
    for sample in samples(op, dtype, requires_grad=True, limit=limit):
        cpu_args = ((sample.input, *sample.args), sample.kwargs)
        device_args = to_device(cpu_args)
        outputs = []
        for args, kwargs in (cpu_args, device_args):
            result = op(*args, **kwargs)
            if sample.output_process_fn_grad is not None:
                result = sample.output_process_fn_grad(result)
            outputs.append([x for x in tensors(result) if x.requires_grad])
        assert len(outputs[0]) == len(outputs[1]), describe(sample)
        if not outputs[0] or not _differentiable(cpu_args):
            continue
        generator = torch.Generator().manual_seed(0)
        seeds = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs[0]]
        expected = torch.autograd.grad(
            outputs[0], _differentiable(cpu_args), seeds, allow_unused=True
        )
        actual = torch.autograd.grad(
            outputs[1], _differentiable(device_args), to_device(seeds), allow_unused=True
        )
        for mine, other in zip(actual, expected, strict=True):
            assert (mine is None) == (other is None), describe(sample)
            if other is not None:
                compare(mine, other, tolerance, f"gradient of {describe(sample)}")
        compared += 1
    assert compared, "no sample has a gradient"


def check_out(op, dtype=torch.float32, tolerance=None):
    """out= takes the result into a tensor with gaps between its elements, and returns that tensor."""
    for sample in samples(op, dtype, limit=1):
        expected = run_on_cpu(op, sample)
        if expected is None or not all(isinstance(x, torch.Tensor) for x in tensors(expected)):
            continue
        args, kwargs = to_device((sample.input, *sample.args)), to_device(sample.kwargs)
        single = isinstance(expected, torch.Tensor)
        if not single and not isinstance(expected, tuple):
            continue
        outs = [
            torch.empty_strided(
                x.shape, [2 * s for s in x.contiguous().stride()], dtype=x.dtype, device=DEVICE
            )
            for x in tensors(expected)
        ]
        result = op(*args, **kwargs, out=outs[0] if single else tuple(outs))
        assert all(x is y for x, y in zip(tensors(result), outs, strict=True))
        compare(outs, tensors(expected), tolerance, f"out= of {describe(sample)}")


def check_inplace(op, dtype=torch.float32, tolerance=None):
    inplace = op.inplace_variant
    for sample in samples(op, dtype, limit=2):
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        args, kwargs = to_device(sample.args), to_device(sample.kwargs)
        mine = to_device(sample.input.clone())
        expected = sample.input.clone()
        try:
            inplace(expected, *sample.args, **sample.kwargs)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                inplace(mine, *args, **kwargs)
            continue
        result = inplace(mine, *args, **kwargs)
        assert result is mine
        compare(mine, expected, tolerance, f"in-place {describe(sample)}")


def check_errors(op):
    """What PyTorch says is an error raises an exception of the same type; the device works on."""
    for error in op.error_inputs(DEVICE):
        if error.error_type is Exception:
            continue  # a placeholder: some of these are no errors on CPU
        sample = error.sample_input
        with pytest.raises(error.error_type):
            op(sample.input, *sample.args, **sample.kwargs)
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]
