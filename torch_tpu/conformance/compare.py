# SPDX-License-Identifier: Apache-2.0 - when a result of the device equals PyTorch's, and by which tolerance.
"""Results are compared as PyTorch's tests do.

The tolerance is torch.testing's default for the result's dtype, or what the OpInfo's own
toleranceOverride says for tests of values (`limits`), or the entry in tolerances.py. Where CPU rounds too,
a result that is no farther from the same computation in float64 than CPU's is right as well
(test_ops.py does that for its references). Everything else within 1e-3 is called loose: PyTorch
itself asks no more of a CUDA result (test_compare_cpu in test_ops.py).
"""

import math

import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.utils._pytree import tree_flatten

from torch_tpu.conformance.samples import DEVICE
from torch_tpu.conformance.tolerances import Tolerance

LOOSE = 1e-3
PRECISE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}
# Tests of PyTorch whose tolerances are about the values of an eager operator.
_VALUE_TESTS = {
    None: None,
    "TestCommon": None,
    "TestMathBits": None,
    "TestUnaryUfuncs": None,
    "TestBinaryUfuncs": None,
    "TestReductions": None,
    "TestMasked": None,
    "TestFFT": None,
    "TestLinalg": None,
    "TestForeach": None,
    "TestOperators": None,
}


class Mismatch(AssertionError):
    """A result that is not PyTorch's."""


def limits(op, dtype: torch.dtype) -> Tolerance:
    """What the operator's own tests allow beyond the default of the result's dtype: the widest."""
    rtol = atol = 0.0
    for decorator in op.decorators:
        name = getattr(decorator, "cls_name", None)
        if name not in _VALUE_TESTS or getattr(decorator, "device_type", None) == "mps":
            continue
        if not getattr(decorator, "active_if", True):
            continue
        for inner in getattr(decorator, "decorators", [decorator]):
            if isinstance(inner, toleranceOverride) and dtype in inner.d:
                atol, rtol = max(atol, inner.d[dtype].atol), max(rtol, inner.d[dtype].rtol)
            elif isinstance(inner, precisionOverride) and dtype in inner.d:
                atol = max(atol, inner.d[dtype])
    return Tolerance(rtol, atol)


def distance(mine: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, relative to the largest value: 0 is equal, inf a wrong inf or nan."""
    if not mine.numel():
        return 0.0
    if mine.dtype == torch.bool:
        return 0.0 if torch.equal(mine, other) else math.inf
    wide = torch.complex128 if mine.is_complex() or other.is_complex() else torch.float64
    a, b = mine.detach().to(wide), other.detach().to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0
    gap = (a - b).abs()[~same]
    if not gap.isfinite().all():
        return math.inf
    finite = b.abs()[b.isfinite()]
    scale = finite.max().item() if finite.numel() else 0.0
    return gap.max().item() / scale if scale else gap.max().item()


def leaves(tree) -> list:
    return tree_flatten(tree)[0]


def check_form(actual, expected) -> None:
    """Number of results, kinds, devices, sizes, dtypes and layouts.

    Raises Mismatch.
    """
    ours, theirs = leaves(actual), leaves(expected)
    if len(ours) != len(theirs):
        raise Mismatch(f"{len(ours)} results where CPU has {len(theirs)}")
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            if isinstance(mine, torch.Tensor):
                raise Mismatch(f"a tensor where CPU has {other!r}")
            continue
        if not isinstance(mine, torch.Tensor):
            raise Mismatch(f"{mine!r} where CPU has a tensor")
        if mine.device.type != DEVICE:
            raise Mismatch(f"the result is on {mine.device}")
        for what in ("dtype", "layout"):
            if getattr(mine, what) != getattr(other, what):
                raise Mismatch(f"{what} {getattr(mine, what)}, CPU has {getattr(other, what)}")
        if mine.shape != other.shape:
            raise Mismatch(f"shape {tuple(mine.shape)}, CPU has {tuple(other.shape)}")


def same_strides(actual, expected) -> bool:
    for mine, other in zip(leaves(actual), leaves(expected), strict=True):
        if isinstance(other, torch.Tensor) and other.layout == torch.strided:
            for size, a, b in zip(other.shape, mine.stride(), other.stride(), strict=True):
                if size > 1 and a != b and other.numel():
                    return False
    return True


def _plain(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu().resolve_conj().resolve_neg()
    return x if x.layout == torch.strided else x.to_dense()


def _scalar_equal(mine, other) -> bool:
    if isinstance(other, float) and isinstance(mine, float):
        return math.isclose(mine, other, rel_tol=1e-5) or (mine != mine and other != other)
    return mine == other


def check_values(actual, expected, tolerance: Tolerance) -> None:
    """Values within torch.testing's tolerance for their dtype, or this one where it is wider.

    Raises Mismatch.
    """
    for mine, other in zip(leaves(actual), leaves(expected), strict=True):
        if not isinstance(other, torch.Tensor):
            if not _scalar_equal(mine, other):
                raise Mismatch(f"{mine!r}, CPU has {other!r}")
            continue
        mine, other = _plain(mine), _plain(other)
        if mine.dtype.itemsize == 1 and mine.dtype.is_floating_point:
            mine, other = mine.float(), other.float()
        exact = not (other.dtype.is_floating_point or other.dtype.is_complex)
        given = {}
        if not exact:
            rtol, atol = default_tolerances(other.dtype)
            given = {"rtol": max(rtol, tolerance.rtol), "atol": max(atol, tolerance.atol)}
        try:
            torch.testing.assert_close(mine, other, equal_nan=True, check_stride=False, **given)
        except AssertionError as error:
            raise Mismatch(" ".join(str(error).split())[:300]) from None


def worst_distance(actual, expected) -> float:
    worst = 0.0
    for mine, other in zip(leaves(actual), leaves(expected), strict=True):
        if isinstance(other, torch.Tensor):
            worst = max(worst, distance(_plain(mine), _plain(other)))
    return worst


def _nearer(actual, expected, precise) -> bool:
    """Whether the device is no farther from the precise result than CPU's."""
    for mine, other, ref in zip(leaves(actual), leaves(expected), leaves(precise), strict=True):
        if not isinstance(other, torch.Tensor):
            continue
        mine, other, ref = _plain(mine), _plain(other), _plain(ref)
        if not (ref.is_floating_point() or ref.is_complex()):
            if not torch.equal(mine, other):
                return False
            continue
        # Overflow of the narrow type is part of the right answer.
        ref = ref.to(torch.complex128 if ref.is_complex() else torch.float64)
        if not distance(mine, ref) <= 1.0000001 * distance(other, ref):
            return False
    return True


def judge(actual, expected, tolerance: Tolerance, precise=None) -> tuple[str, float, str]:
    """("ok" | "loose" | "wrong", distance to CPU's result, message).

    `precise` computes the float64 result, and is called only when the comparison with CPU fails.
    """
    try:
        check_form(actual, expected)
        check_values(actual, expected, tolerance)
        return "ok", worst_distance(actual, expected), ""
    except Mismatch as error:
        message = str(error)
    try:
        check_form(actual, expected)
    except Mismatch:
        return "wrong", math.inf, message
    worst = worst_distance(actual, expected)
    if precise is not None:
        reference = precise()
        if reference is not None and len(leaves(reference)) == len(leaves(expected)):
            if _nearer(actual, expected, reference):
                return "ok", worst, ""
            try:
                check_values(actual, _rounded(reference, expected), tolerance)
                return "ok", worst, ""
            except Mismatch:
                pass
    wide = Tolerance(max(LOOSE, tolerance.rtol), max(LOOSE, tolerance.atol))
    try:
        check_values(actual, expected, wide)
        return "loose", worst, message
    except Mismatch:
        return "wrong", worst, message


def _rounded(precise, expected) -> list:
    pairs = zip(leaves(precise), leaves(expected), strict=True)
    return [p.to(e.dtype) if isinstance(e, torch.Tensor) else e for p, e in pairs]
