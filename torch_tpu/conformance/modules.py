# SPDX-License-Identifier: Apache-2.0 - PyTorch's ModuleInfos as cases: forward, gradients, train and eval.
"""A module is made on the CPU and copied, so that both devices have the same parameters."""

import copy
from collections.abc import Iterator

import torch
from torch.testing._internal.common_modules import module_db

from torch_tpu.conformance import exceptions, tolerances
from torch_tpu.conformance.cases import Case, seed_all
from torch_tpu.conformance.compare import limits
from torch_tpu.conformance.opinfo import noise
from torch_tpu.conformance.samples import dtype_name, spread, tensors, to_device, to_dtype
from torch_tpu.conformance.tolerances import Tolerance

CHECKS = ("forward", "backward", "gradgrad")
by_name = {info.name: info for info in module_db}


def applies(info, dtype: torch.dtype, check: str) -> bool:
    if dtype not in info.supported_dtypes("cpu"):
        return False
    differentiable = dtype.is_floating_point or dtype.is_complex
    return check == "forward" or (
        differentiable and (check == "backward" or info.supports_gradgrad)
    )


def cases(info, dtype: torch.dtype, check: str, limit: int = 0) -> Iterator[Case]:
    """Every module input, first of training, then (where it differs) of evaluation."""
    tolerance = limits(info, dtype)
    wider = tolerances.tolerance(info.name, dtype, check)
    if wider is not None:
        tolerance = Tolerance(max(wider.rtol, tolerance.rtol), max(wider.atol, tolerance.atol))
    every = []
    for training in (True, False) if info.train_and_eval_differ else (True,):
        torch.manual_seed(0)
        inputs = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=check != "forward", training=training
        )
        every += [(training, given) for given in inputs if given.forward_input is not None]
    for index in spread(every, limit):
        training, given = every[index]

        def compute(device, wide, given=given, training=training):
            return _run(info, given, dtype, wide, device, check, training)

        def describe(given=given, training=training):
            made = given.constructor_input
            words = [*map(repr, made.args), *(f"{k}={v!r}" for k, v in made.kwargs.items())]
            shapes = [f"{dtype_name(x.dtype)}{tuple(x.shape)}" for x in _tensors_of(given)]
            mode = "train" if training else "eval"
            return f"{mode} ({', '.join(words)}) of {', '.join(shapes)}"

        random = training and info.name in exceptions.RANDOM_MODULES
        yield Case(check, index, dtype, tolerance, compute, describe, random)


def _tensors_of(given):
    return tensors((given.forward_input.args, given.forward_input.kwargs))


def _run(info, given, dtype, wide, device, check, training):
    seed_all()
    made = given.constructor_input
    module = info.module_cls(*copy.deepcopy(made.args), **copy.deepcopy(made.kwargs)).to(dtype)
    module.train(training)
    args, kwargs = copy_inputs(given.forward_input)
    if info.is_lazy:  # sizes, and with them the parameters, come with the first call
        with torch.no_grad():
            module(*args, **kwargs)
        args, kwargs = copy_inputs(given.forward_input)
    module = module.to(device)
    args, kwargs = to_device((args, kwargs), device)
    if wide is not None:
        module = module.to(wide)
        args, kwargs = to_dtype((args, kwargs), dtype, wide)
    seed_all()
    result = module(*args, **kwargs)
    if check == "forward":
        return [tensors(result), list(module.buffers())]
    outputs = [x for x in tensors(result) if x.requires_grad]
    inputs = [*(x for x in tensors((args, kwargs)) if x.requires_grad), *module.parameters()]
    inputs = [x for x in inputs if x.requires_grad]
    if not outputs or not inputs:
        return None
    double = check == "gradgrad"
    seeds = [noise(x, 1 + i).requires_grad_(double) for i, x in enumerate(outputs)]
    first = torch.autograd.grad(outputs, inputs, seeds, allow_unused=True, create_graph=double)
    if not double:
        return list(first)
    outputs = [x for x in first if x is not None and x.requires_grad]
    if not outputs:
        return None
    seconds = [noise(x, 101 + i) for i, x in enumerate(outputs)]
    return list(torch.autograd.grad(outputs, inputs + seeds, seconds, allow_unused=True))


def copy_inputs(given):
    return to_device((given.args, given.kwargs), "cpu")
