# SPDX-License-Identifier: Apache-2.0 - torch_tpu.capture: the operators of a whole training step become one program.
import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch_tpu import _C

P = ParamSpec("P")
R = TypeVar("R")


def capture(step: Callable[P, R]) -> Callable[P, R]:
    """A training step whose operators run as one program.

        @torch_tpu.capture
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

    The function is any function on tensors of the device and needs no change: forward and backward
    passes, optimizers, schedules, clipping, accumulation. Its Python code runs at every call, so
    counters, schedules and branches do what they do without this; its operators are only written
    down, and run together when it returns. A step that writes down the same operators again finds
    its program. Numbers (a learning rate, a bias correction) are inputs of the program, and a tensor
    that is updated in place gives its memory to its new value.

    What the step returns, and what it leaves in tensors that outlive it (`p.grad`), can be read as
    soon as it has returned. Where the host reads a value in the middle (`.item()`, printing a
    tensor, `GradScaler.step` with an optimizer that is not fused), what comes before and what comes
    after become programs of their own; a warning says so once. Nested captures are one. In the
    debug mode operators run one by one as always.
    """
    warned = False

    @functools.wraps(step)
    def captured(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal warned
        _C._begin_step()
        try:
            result = step(*args, **kwargs)
        finally:
            programs = _C._end_step()
        if programs > 1 and not warned:
            warned = True
            warnings.warn(
                f"the captured step {getattr(step, '__qualname__', step)} ran as {programs} programs: "
                "the host read or waited for a value in its middle (.item(), a printed tensor, "
                "synchronize ...). Move that out of the step to have one program",
                stacklevel=2,
            )
        return result

    return captured
