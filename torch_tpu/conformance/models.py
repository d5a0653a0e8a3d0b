# SPDX-License-Identifier: Apache-2.0 - whole models as cases: forward and a training step, eager and compiled.
"""A model is made on the CPU and copied, so that both devices have the same weights. In mode "compile" it
is `torch.compile(model, backend="tpu")` on the device, and as it stands on the CPU."""

import collections
import functools
import gc
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_leaves

from torch_tpu.conformance import tolerances, zoo
from torch_tpu.conformance.cases import Case, seed_all
from torch_tpu.conformance.samples import DEVICE, to_device, to_dtype
from torch_tpu.conformance.tolerances import Tolerance

CHECKS = ("forward", "step")
by_name = zoo.by_name


def applies(info: zoo.Model, dtype: torch.dtype, check: str) -> bool:
    return dtype == torch.float32


def cases(
    info: zoo.Model, dtype: torch.dtype, check: str, limit: int = 0, compiled=None
) -> Iterator[Case]:
    """One case a check. With `compiled` the model is compiled, and `compiled(check, graphs, programs)` is
    told what graphs it became and the text of their programs for a TPU."""
    found = tolerances.tolerance("models", dtype, check)
    wider = tolerances.tolerance(info.name, dtype, check)
    if wider is not None:
        found = Tolerance(max(found.rtol, wider.rtol), max(found.atol, wider.atol))

    def compute(device, wide):
        seed_all()
        model = _without_chance(info.make())
        given = info.inputs(model)
        model = model.to(wide or dtype)
        if wide is not None:
            given = to_dtype(given, dtype, wide)
        model, given = model.to(device), to_device(given, device)
        if compiled is None or device != DEVICE:
            return _RUN[check](model, model, given)
        run, pieces = _compiled(model)
        try:
            return _RUN[check](model, run, given)
        finally:
            compiled(check, _graphs(pieces), [t for _, p in pieces for t in p.module_texts(True)])

    def describe():
        return info.cls

    yield Case(check, 0, dtype, found, compute, describe)
    gc.collect()


def _compiled(model: torch.nn.Module):
    """The model compiled, and the list of (kind, piece) that grows while it is."""
    from torch_tpu import compile

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    pieces = []
    backend = functools.partial(compile.backend, made=lambda *piece: pieces.append(piece))
    return torch.compile(model, backend=backend), pieces


def _graphs(pieces: list) -> dict:
    """How many graphs of each kind, why they are not one, and what runs by itself between programs."""
    between = [str(node.target) for _, piece in pieces for node in piece.between()]
    return {
        "graphs": dict(collections.Counter(what for what, _ in pieces)),
        "breaks": dict(torch._dynamo.utils.counters["graph_break"]),
        "between": dict(collections.Counter(between)),
    }


def _without_chance(model: torch.nn.Module) -> torch.nn.Module:
    """No dropout and no dropped layers: a device's random numbers are its own."""
    for part in model.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for home in (part, getattr(part, "config", None)):
            for name, value in list(vars(home).items()) if home is not None else ():
                if isinstance(value, float) and ("drop" in name or name in _CHANCES):
                    setattr(home, name, 0.0)
    return model


# Fields of configs and modules, other than those with "drop" in their names, that draw at random in training.
_CHANCES = ("mask_time_prob", "mask_feature_prob", "router_jitter_noise", "jitter_noise")


def _floats(result) -> list[torch.Tensor]:
    leaves = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
    return [x for x in leaves if x.is_floating_point()]


def _forward(model, run, given):
    model.eval()
    with torch.no_grad():
        return _floats(run(**given))


def _step(model, run, given):
    """The loss, the gradients, and the parameters and buffers after a step of AdamW."""
    model.train()
    # So large an eps that noise in a gradient that should be zero stays small.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)
    result = run(**given)
    loss = getattr(result, "loss", None)
    if loss is None:
        loss = sum(x.square().mean() for x in _floats(result) if x.requires_grad)
    loss.backward()
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    optimizer.step()
    return [
        loss.detach(),
        gradients,
        [p.detach() for p in model.parameters()],
        list(model.buffers()),
    ]


_RUN = {"forward": _forward, "step": _step}
