# SPDX-License-Identifier: Apache-2.0 - the checks of one operator: forward, out=, in-place, gradients, errors.
"""The samples of an OpInfo as cases, by check."""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._pytree import tree_map

from torch_tpu.conformance import exceptions, tolerances
from torch_tpu.conformance.cases import Case, Outcome, device_works, first_line
from torch_tpu.conformance.compare import leaves, limits
from torch_tpu.conformance.samples import (
    DEVICE,
    all_samples,
    copy_like,
    describe,
    full_name,
    spread,
    tensors,
    to_device,
    to_dtype,
)
from torch_tpu.conformance.tolerances import Tolerance

CHECKS = (
    "forward",
    "noncontiguous",
    "out",
    "inplace",
    "backward",
    "gradgrad",
    "forward_ad",
    "errors",
)


def applies(op, dtype: torch.dtype, check: str) -> bool:
    """Whether PyTorch says that the operator does this on the CPU in this dtype."""
    if not op.supports_dtype(dtype, "cpu") or (full_name(op), check) in exceptions.NOT_COMPARED:
        return False
    if check in ("backward", "gradgrad", "forward_ad"):
        able = {
            "backward": op.supports_autograd,
            "gradgrad": op.supports_autograd and op.supports_gradgrad,
            "forward_ad": op.supports_forward_ad,
        }
        return able[check] and dtype in op.supported_backward_dtypes("cpu")
    if check == "out":
        return op.supports_out
    if check == "inplace":
        return op.inplace_variant is not None
    if check == "errors":
        return op.error_inputs_func is not None and dtype == _error_dtype(op)
    return True


def _error_dtype(op) -> torch.dtype:
    """Error inputs have dtypes of their own: they run once an op."""
    known = op.supported_dtypes("cpu")
    return torch.float32 if torch.float32 in known else sorted(known, key=str)[0]


def tolerance_of(op, dtype: torch.dtype, check: str) -> Tolerance:
    """PyTorch's, or the wider one of tolerances.py."""
    found = limits(op, dtype)
    wider = tolerances.tolerance(full_name(op), dtype, check)
    if wider is None:
        return found
    return Tolerance(max(found.rtol, wider.rtol), max(found.atol, wider.atol))


def cases(op, dtype: torch.dtype, check: str, limit: int = 0, call=None) -> Iterator[Case]:
    """The cases of one check, `limit` of them spread over all (0: all).

    `call` wraps the operator before it is called on the device, e.g. in torch.compile.
    """
    grads = check in ("backward", "gradgrad")
    every = all_samples(op, dtype, requires_grad=grads)
    tolerance = tolerance_of(op, dtype, check)
    run = _RUN.get(check, _forward)
    name = full_name(op)
    for index in spread(every, limit):
        sample = every[index]
        if check == "inplace" and sample.broadcasts_input:
            continue
        if check == "noncontiguous":
            if any(x.layout != torch.strided for x in tensors((sample.input, sample.args))):
                continue  # has no strides
            sample = sample.noncontiguous()

        def compute(device, wide, sample=sample):
            others = "cpu" if name in exceptions.HOST_ARGUMENTS else device
            value = to_device(sample.input, device)
            tree = (value, *to_device((sample.args, sample.kwargs), others))
            if wide is not None:
                tree = to_dtype(tree, dtype, wide)
            called = call(op) if call is not None and device == DEVICE else op
            with _placed(tree, device):
                return run(op, called, tree, sample.output_process_fn_grad)

        yield Case(
            check,
            index,
            dtype,
            tolerance,
            compute,
            lambda sample=sample: describe(sample),
            form_only=exceptions.form_only(name, sample.args, sample.kwargs),
            equivalent=_picked(name, sample) if name in exceptions.TIES else None,
        )


def _picked(name: str, sample):
    """Replaces the indices in a result by what they pick, when any of equal elements will do."""
    given = dict(zip(exceptions.TIES[name], sample.args, strict=False)) | sample.kwargs
    x = sample.input.detach()

    def pick(result):
        found = []
        for position, y in enumerate(leaves(result)):
            y = y.detach().cpu()
            # (values, indices), once or, for out=, twice; argsort has only indices.
            index = name == "argsort" or position % 2
            if index and y.numel() and x.dim() and not given.get("stable"):
                dim = given.get("dim", -1)
                index = y if y.dim() == x.dim() else y.unsqueeze(dim)
                y = [x.gather(dim, index), torch.tensor(y.shape)]
            found.append(y)
        return found

    return pick


@contextlib.contextmanager
def _placed(tree, device: str):
    """Where a factory's result goes when no argument says so: torch.linspace(0, 1, 5)."""
    if device == "cpu" or any(isinstance(x, torch.Tensor | torch.device) for x in leaves(tree)):
        yield
    else:
        with torch.device(device):
            yield


def _forward(op, call, tree, process):
    value, args, kwargs = tree
    return process(call(value, *args, **kwargs))


def _out(op, call, tree, process):
    """Into a tensor with gaps between the elements, and into an empty one, which is resized."""
    value, args, kwargs = tree
    plain = op(value, *args, **kwargs)
    found = tensors(plain)
    if not found or not isinstance(plain, torch.Tensor | tuple):
        return None
    gaps = [
        torch.empty_strided(
            x.shape, [2 * s for s in x.contiguous().stride()], dtype=x.dtype, device=x.device
        )
        for x in found
    ]
    empty = [torch.empty(0, dtype=x.dtype, device=x.device) for x in found]
    results = []
    for outs in (gaps, empty):
        out = outs[0] if isinstance(plain, torch.Tensor) else tuple(outs)
        result = op(value, *args, **kwargs, out=out)
        if any(x is not y for x, y in zip(tensors(result), outs, strict=True)):
            raise AssertionError("the result is not the out= tensor")
        results.append(process(out))
    return results


def _inplace(op, call, tree, process):
    value, args, kwargs = tree
    if isinstance(value, torch.Tensor):
        value = value.detach().clone()
        if op.inplace_variant(value, *args, **kwargs) is not value:
            raise AssertionError("the result is not the input tensor")
        return process(value)
    if isinstance(value, list):  # _foreach_add_
        value = [x.detach().clone() for x in value]
        op.inplace_variant(value, *args, **kwargs)
        return value
    return None


def _grads(call, tree, process, create_graph: bool):
    value, args, kwargs = tree
    outputs = tensors(process(call(value, *args, **kwargs)))
    outputs = [x for x in outputs if x.requires_grad]
    inputs = [x for x in tensors(tree) if x.requires_grad]
    if not outputs or not inputs:
        return None
    seeds = [noise(x, 1 + i).requires_grad_(create_graph) for i, x in enumerate(outputs)]
    found = torch.autograd.grad(
        outputs, inputs, seeds, allow_unused=True, create_graph=create_graph
    )
    return inputs, seeds, list(found)


def _backward(op, call, tree, process):
    found = _grads(call, tree, process, create_graph=False)
    return found and found[2]


def _gradgrad(op, call, tree, process):
    found = _grads(call, tree, process, create_graph=True)
    if found is None:
        return None
    inputs, seeds, first = found
    outputs = [x for x in first if x is not None and x.requires_grad]
    if not outputs:
        return None
    seconds = [noise(x, 101 + i) for i, x in enumerate(outputs)]
    return list(torch.autograd.grad(outputs, inputs + seeds, seconds, allow_unused=True))


def _forward_ad(op, call, tree, process):
    forward = torch.autograd.forward_ad
    count = 0

    def dual(x):
        nonlocal count
        if not isinstance(x, torch.Tensor) or not (x.is_floating_point() or x.is_complex()):
            return x
        count += 1
        return forward.make_dual(x, noise(x, count))

    with forward.dual_level():
        value, args, kwargs = tree_map(dual, tree)
        outputs = tensors(process(call(value, *args, **kwargs)))
        found = [forward.unpack_dual(x).tangent for x in outputs]
    return found if any(x is not None for x in found) else None


_RUN = {
    "out": _out,
    "inplace": _inplace,
    "backward": _backward,
    "gradgrad": _gradgrad,
    "forward_ad": _forward_ad,
}


def noise(x: torch.Tensor, seed: int) -> torch.Tensor:
    """The same random direction on every device, in every dtype of one kind."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if x.is_complex() else torch.float64
    drawn = torch.randn(x.shape, generator=generator, dtype=wide)
    # Rounded as for the narrow dtype that a precise reference stands in for.
    drawn = drawn.to(torch.complex64 if x.is_complex() else torch.bfloat16)
    return copy_like(drawn.to(x.dtype), x.device.type)


def errors(op, skip=frozenset(), begin=lambda index: None, limit: int = 0) -> Iterator[Outcome]:
    """What PyTorch says is an error raises an exception of the same type; the device works on."""
    torch.manual_seed(0)
    on_cpu = list(op.error_inputs("cpu"))
    torch.manual_seed(0)
    on_device = list(op.error_inputs(DEVICE))
    for index in spread(on_device, limit):
        if index in skip:
            continue
        begin(index)
        error = on_device[index]
        sample, demanded = error.sample_input, error.error_type
        if len(on_cpu) == len(on_device) and _raises(op, on_cpu[index].sample_input) is None:
            yield Outcome("errors", index, "none", message="CPU takes it")
            continue
        raised = _raises(op, sample)
        outcome = Outcome("errors", index, "ok")
        if raised is None:
            outcome.status = "silent"
            outcome.message = (
                f"no {demanded.__name__} ({' '.join(error.error_regex.split())[:120]})"
            )
        elif not isinstance(raised, demanded):
            outcome.status = "error"
            outcome.message = f"not {demanded.__name__} but {first_line(raised)}"
        if outcome.status != "ok":
            outcome.what = describe(sample)[:300]
        if not device_works():
            outcome.status, outcome.message = "wrong", "the device does not go on working"
        yield outcome


def _raises(op, sample) -> Exception | None:
    try:
        op(sample.input, *sample.args, **sample.kwargs)
        torch.tpu.synchronize()
    except Exception as error:
        return error
    return None


__all__ = ["CHECKS", "applies", "cases", "errors", "noise", "tolerance_of"]
