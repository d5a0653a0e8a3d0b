# SPDX-License-Identifier: Apache-2.0 - one comparison of the device with PyTorch on the CPU, and its outcome.
"""A Case computes the same thing on a device of one's choice; `settle` says how the device did.

Each case ends as one Outcome: "ok"; "loose" (within 1e-3, PyTorch's own limit between CPU and CUDA,
but not within the dtype's tolerance); "wrong"; "error" (an exception that CPU does not raise);
"silent" (no exception where PyTorch demands one); "none" (nothing to compare: CPU does not take it).
"""

import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_tpu.conformance.compare import (
    PRECISE,
    Mismatch,
    check_form,
    check_values,
    judge,
    same_strides,
)
from torch_tpu.conformance.samples import DEVICE
from torch_tpu.conformance.tolerances import Tolerance

# What PyTorch raises for arguments that it does not take.
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AssertionError)


@dataclasses.dataclass
class Outcome:
    check: str
    index: int
    status: str
    worst: float = 0.0
    message: str = ""
    what: str = ""


@dataclasses.dataclass
class Case:
    """compute(device, wide) returns a tree of tensors, or None when there is nothing to compare.

    `wide` is None, or the dtype that takes the place of `dtype` for a precise reference.
    """

    check: str
    index: int
    dtype: torch.dtype
    tolerance: Tolerance
    compute: Callable[[str, torch.dtype | None], Any]
    describe: Callable[[], str]
    form_only: bool = False
    # Maps results that are equally right to the same tree on the CPU.
    equivalent: Callable[[Any], Any] | None = None


def seed_all() -> None:
    torch.manual_seed(7)
    random.seed(7)


def first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n")
    return f"{type(error).__name__}: {text[0] if text else ''}"[:300]


def settle(case: Case, mode: str) -> Iterator[Outcome]:
    """The outcome; in mode "defer" also that of the comparison with Strict (check "agree")."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for outcome in _settle(case, mode):
            if outcome.status not in ("ok", "none"):
                outcome.what = case.describe()[:300]
            yield outcome


def _settle(case: Case, mode: str) -> Iterator[Outcome]:
    def outcome(status, worst=0.0, message="", check=case.check):
        return Outcome(check, case.index, status, worst, message)

    def compute(device, wide=None):
        seed_all()
        return case.compute(device, wide)

    try:
        expected = compute("cpu")
    except REFUSALS as error:
        yield outcome("none", message=first_line(error))
        return
    if expected is None:
        yield outcome("none")
        return
    try:
        strict = _in_strict(compute) if mode == "defer" else None
        actual = compute(DEVICE)
        torch.tpu.synchronize()
        if mode == "defer":
            # What was never seen before runs alone; the second time it is fused.
            actual = compute(DEVICE)
            torch.tpu.synchronize()
        if case.form_only:
            check_form(actual, expected)
            verdict = ("ok", 0.0, "")
        else:
            verdict = judge(actual, expected, case.tolerance, lambda: _precise(case, compute))
            if verdict[0] == "wrong" and case.equivalent is not None:
                check_form(actual, expected)
                check_values(case.equivalent(actual), case.equivalent(expected), case.tolerance)
                verdict = ("ok", 0.0, "")
        if verdict[0] == "ok" and case.check == "forward" and not same_strides(actual, expected):
            verdict = (*verdict[:2], "strides")
    except Mismatch as error:
        yield outcome("wrong", message=str(error))
        return
    except Exception as error:
        yield outcome("error", message=first_line(error))
        return
    yield outcome(*verdict)
    if strict is not None:
        try:
            check_values(actual, strict, case.tolerance)
            yield outcome("ok", check="agree")
        except Mismatch as error:
            yield outcome("wrong", message=str(error), check="agree")


def _in_strict(compute):
    tpu = torch.tpu
    with tpu.eager_mode(tpu.EagerMode.DEFER_NEVER):
        result = compute(DEVICE)
        tpu.synchronize()
    return result


def _precise(case: Case, compute):
    wide = PRECISE.get(case.dtype)
    if wide is None:
        return None
    try:
        return compute("cpu", wide)
    except REFUSALS:
        return None


def device_works() -> bool:
    return (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]
