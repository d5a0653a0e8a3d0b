# SPDX-License-Identifier: Apache-2.0 - finds and runs PyTorch's Python decompositions for operators without an entry.
"""Called by the C++ side while it traces a call: tensors are placeholders, nothing is executed.

The result is lowered once per call shape and then runs like an entry, without Python.
"""

import functools

import torch


@functools.cache
def _table():
    import torch._decomp
    import torch._refs

    return torch._decomp.decomposition_table


@functools.cache
def find(op: str):
    """The function that PyTorch offers for "aten::name.overload", or None."""
    name, _, overload = op.removeprefix("aten::").partition(".")
    packet = getattr(torch.ops.aten, name, None)
    if packet is None or (overload or "default") not in packet.overloads():
        return None
    overload_op = getattr(packet, overload or "default")
    found = _table().get(overload_op)
    if found is not None:
        return found
    from torch import _refs
    from torch._refs import special
    from torch._refs.nn import functional

    for home in (_refs, functional, special):
        reference = getattr(home, name.removeprefix("special_"), None)
        if callable(reference) and not isinstance(reference, type):
            return reference
    return None


def run(op: str, args: list, kwargs: dict):
    """Result of the decomposition, or NotImplemented when there is none."""
    function = find(op)
    if function is None:
        return NotImplemented
    with torch._C._AutoDispatchBelowAutograd(), torch.no_grad():
        return function(*args, **kwargs)
