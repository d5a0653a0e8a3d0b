# SPDX-License-Identifier: Apache-2.0 - shapes of results where PyTorch's own rules are those of another device.
"""torch.compile and torch.export ask for a result's shape without a device. PyTorch answers from its meta
kernels; some of them refuse what only CUDA does not take."""

import torch


def _grouped_mm(mode, op, a, b, offs=None, bias=None, out_dtype=None):
    """Every dtype that the operator has an entry for; the meta kernel wants bfloat16."""
    if a.device.type != "tpu":
        return NotImplemented
    if a.dim() == 2 and b.dim() == 2:
        size = (offs.shape[0], a.shape[0], b.shape[1])
    elif a.dim() == 3 and b.dim() == 3:
        size = (*a.shape[:2], b.shape[2])
    else:
        size = (a.shape[-2], b.shape[-1])
    return a.new_empty(size, dtype=out_dtype or a.dtype)


def install() -> None:
    """Called once, when the device is registered."""
    from torch._subclasses.fake_impls import register_op_impl

    if hasattr(torch.ops.aten, "_grouped_mm"):
        register_op_impl(torch.ops.aten._grouped_mm.default)(_grouped_mm)
