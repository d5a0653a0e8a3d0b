# SPDX-License-Identifier: Apache-2.0 - PyTorch's OptimizerInfos as cases: several steps of every configuration.
"""Every configuration that PyTorch tests on CUDA (for-loop, foreach, fused, capturable, tensor learning
rates) runs on the device; on the CPU runs its plain form, which is what it has to equal."""

import copy
from collections.abc import Iterator

import torch
from torch.testing._internal.common_optimizers import OptimizerInput, optim_db

from torch_tpu.conformance import tolerances
from torch_tpu.conformance.cases import Case
from torch_tpu.conformance.compare import limits
from torch_tpu.conformance.samples import spread, tensors
from torch_tpu.conformance.tolerances import Tolerance

CHECKS = ("steps",)
STEPS = 5
# A method of line searches: what it keeps depends on the last digit of when it stops.
NO_STATE = {"LBFGS"}
by_name = {info.name: info for info in optim_db}


def applies(info, dtype: torch.dtype, check: str) -> bool:
    return dtype in (torch.float32, torch.float64)


def _configurations(info) -> list[OptimizerInput]:
    found = []
    for given in info.optim_inputs_func("cuda"):
        for form in ("", *info.supported_impls):
            kwargs = copy.deepcopy(given.kwargs)
            kwargs.update({f: f == form for f in info.supported_impls})
            found.append(OptimizerInput(None, kwargs, f"{given.desc} {form}".strip()))
    return found


def cases(info, dtype: torch.dtype, check: str, limit: int = 0) -> Iterator[Case]:
    tolerance = limits(info, dtype)
    wider = tolerances.tolerance(info.name, dtype, check)
    if wider is not None:
        tolerance = Tolerance(max(wider.rtol, tolerance.rtol), max(wider.atol, tolerance.atol))
    every = _configurations(info)
    for index in spread(every, limit):
        given = every[index]

        def compute(device, wide, given=given):
            return _train(info, given, wide or dtype, dtype, device)

        yield Case(check, index, dtype, tolerance, compute, lambda g=given: f"{g.desc}: {g.kwargs}")


def _train(info, given, dtype, drawn_dtype, device):
    """Some steps on fixed gradients; returns the parameters and the optimizer's state."""
    kwargs = copy.deepcopy(given.kwargs)
    if device == "cpu":
        for flag in ("capturable", "foreach", "fused", "differentiable"):
            kwargs.pop(flag, None)
    generator = torch.Generator().manual_seed(3)

    def draw(shape):
        return torch.randn(shape, generator=generator, dtype=drawn_dtype).to(dtype).to(device)

    shapes = ((5, 4), (3, 3)) if info.name == "Muon" else ((5, 4), (7,), (2, 3, 4))
    # `differentiable` steps under autograd, where a leaf that requires grad may not be written.
    params = [draw(s).requires_grad_(not given.kwargs.get("differentiable")) for s in shapes]
    optimizer = info.optim_cls(params, **kwargs)
    for _ in range(1 if info.step_requires_closure else STEPS):
        grads = [draw(p.shape) for p in params]
        if info.only_supports_sparse_grads:
            grads = [_rows_as_sparse(g) for g in grads]

        def closure(grads=grads):
            for p, g in zip(params, grads, strict=True):
                p.grad = g
            return torch.zeros((), dtype=dtype, device=device)

        if info.step_requires_closure:
            # LBFGS: a loss whose gradient follows the parameters.
            def closure(grads=grads):
                optimizer.zero_grad()
                loss = sum(((p - g) ** 2).sum() for p, g in zip(params, grads, strict=True))
                loss.backward()
                return loss

            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    if info.name in NO_STATE:
        return [p.detach() for p in params]
    state = [s for p in params for _, s in sorted(optimizer.state[p].items())]
    return [[p.detach() for p in params], [s.detach() for s in tensors(state) if s.dim() > 0]]


def _rows_as_sparse(x: torch.Tensor) -> torch.Tensor:
    """What the gradient of an embedding looks like."""
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(0)
    return torch.sparse_coo_tensor(rows, x, x.shape)
