# SPDX-License-Identifier: Apache-2.0 - OpInfo's samples, the same values on CPU and on the device.
"""Samples are made on the CPU and copied, so that both devices see the same values and strides."""

import torch
from torch.testing._internal import common_methods_invocations as invocations
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = "tpu"
op_db = [
    *invocations.op_db,
    *invocations.foreach_unary_op_db,
    *invocations.foreach_binary_op_db,
    *invocations.foreach_pointwise_op_db,
    *invocations.foreach_reduce_op_db,
    *invocations.foreach_other_op_db,
]


def full_name(op) -> str:
    """ "div.floor_rounding" for a variant of "div"."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find(names: list[str]) -> list:
    """The OpInfos of these names ("div") or of one variant ("div.floor_rounding").

    Raises LookupError for a name that PyTorch has no OpInfo of.
    """
    found = []
    for name in names:
        ops = [op for op in op_db if name in (op.name, full_name(op))]
        if not ops:
            raise LookupError(f"PyTorch has no OpInfo named {name!r}")
        found += ops
    return found


def spread(every: list, count: int) -> list[int]:
    """Indices of `count` items, spread over all of them; 0 means all.

    A smaller count's indices are among a larger one's, so what passed with many passes with few.
    """
    last = len(every) - 1
    if count == 0 or count > last:
        return list(range(len(every)))
    # The ends, then the middles of what is between, and so on.
    chosen, gaps = [0, last][:count], [(0, last)]
    while len(chosen) < count:
        low, high = gaps.pop(0)
        middle = (low + high) // 2
        if middle > low:
            chosen.append(middle)
            gaps += [(low, middle), (middle, high)]
    return sorted(chosen)


def all_samples(op, dtype: torch.dtype, requires_grad: bool = False) -> list:
    """The op's sample inputs on CPU, with fixed random values."""
    torch.manual_seed(0)
    return list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))


def tensors(tree) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def copy_like(x: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on the device: same values and strides; a leaf that requires grad if x does.

    A view brings its whole storage along, as as_strided can look behind the view's edge.
    """
    with torch.no_grad():
        y = x.detach()
        if y.layout == torch.strided and not y.is_conj() and not y.is_neg() and _is_window(y):
            size = y.untyped_storage().nbytes() // y.element_size()
            y = y.as_strided((size,), (1,), 0).to(device, copy=True)
            y = y.as_strided(x.shape, x.stride(), x.storage_offset())
        else:
            y = y.to(device, copy=True)
    return y.requires_grad_(x.requires_grad)


def _is_window(x: torch.Tensor) -> bool:
    """Whether `x.to(device)` would give other strides or another offset than x has."""
    return x.numel() > 0 and x.untyped_storage().nbytes() != x.numel() * x.element_size()


def to_device(tree, device: str = DEVICE):
    """Copies of the tensors, and the device where the tree names the CPU."""

    def move(x):
        if isinstance(x, torch.Tensor):
            return copy_like(x, device)
        return torch.device(device) if x == "cpu" or isinstance(x, torch.device) else x

    return tree_map(move, tree)


def describe(sample) -> str:
    def short(x):
        if isinstance(x, torch.Tensor):
            return f"{dtype_name(x.dtype)}{tuple(x.shape)}"
        return repr(x)

    args = [short(x) for x in tree_flatten((sample.input, sample.args))[0]]
    args += [f"{k}={tree_map(short, v)}" for k, v in sample.kwargs.items()]
    return f"({', '.join(args)})"


def to_dtype(tree, source: torch.dtype, target: torch.dtype):
    """Tensors of one dtype, and the dtype where it is an argument, turned into another's."""

    def convert(x):
        if isinstance(x, torch.Tensor) and x.dtype == source:
            return x.detach().to(target).requires_grad_(x.requires_grad)
        return target if isinstance(x, torch.dtype) and x == source else x

    return tree_map(convert, tree)
