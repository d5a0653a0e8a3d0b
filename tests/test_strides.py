# SPDX-License-Identifier: Apache-2.0 - results have the strides that the CPU gives them.
"""Inputs in every memory order, through elementwise operators, concatenation and image operators."""

import itertools

import pytest
import torch
import torch.nn.functional as F

SHAPE = (2, 3, 4, 5)


def layouts(shape):
    """Functions of the device, one a memory order; the values do not matter."""
    wide = [n * (1 + (d == 3)) for d, n in enumerate(shape)]
    return {
        "contiguous": lambda d: torch.rand(shape).to(d),
        "channels_last": lambda d: (
            torch.rand(shape).to(d).contiguous(memory_format=torch.channels_last)
        ),
        "permuted": lambda d: (
            torch.rand([shape[i] for i in (2, 0, 3, 1)]).to(d).permute(1, 3, 0, 2)
        ),
        "expanded": lambda d: torch.rand(1, shape[1], 1, shape[3]).to(d).expand(shape),
        "strided": lambda d: torch.rand(wide).to(d)[..., ::2],
    }


LAYOUTS = layouts(SHAPE)
UNARY = {
    "exp": torch.exp,
    "relu": F.relu,
    "gelu": F.gelu,
    "x + 1": lambda x: x + 1,
    "to float64": lambda x: x.to(torch.float64),
    "clone": torch.clone,
    "zeros_like": torch.zeros_like,
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 1.0),
    "bernoulli": torch.bernoulli,
    "softmax": lambda x: x.softmax(1),
    "cat": lambda x: torch.cat([x, x], 1),
}
BINARY = {
    "add": torch.add,
    "maximum": torch.maximum,
    "where": lambda a, b: torch.where(a > 0.5, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "mse_loss": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "cat": lambda a, b: torch.cat([a, b]),
}
IMAGE = {
    "conv2d": lambda x: F.conv2d(x, torch.ones(4, 3, 2, 2, device=x.device)),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x, torch.ones(3, 4, 2, 2, device=x.device)),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x, 3),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "pad": lambda x: F.pad(x, (1, 1, 1, 1)),
}


def strides(call, makers, device):
    return call(*(make(device) for make in makers)).stride()


@pytest.mark.parametrize("call", {**UNARY, **IMAGE}.values(), ids={**UNARY, **IMAGE})
def test_of_one_tensor(call):
    for name, make in LAYOUTS.items():
        assert strides(call, [make], "tpu") == strides(call, [make], "cpu"), name


@pytest.mark.parametrize("call", BINARY.values(), ids=BINARY)
def test_of_two_tensors(call):
    for (a, make_a), (b, make_b) in itertools.product(LAYOUTS.items(), repeat=2):
        expected = strides(call, [make_a, make_b], "cpu")
        assert strides(call, [make_a, make_b], "tpu") == expected, (a, b)


@pytest.mark.parametrize("name", ["conv2d", "max_pool2d", "batch_norm", "interpolate"])
def test_of_gradients(name):
    for layout, make in LAYOUTS.items():
        found = []
        for device in ("tpu", "cpu"):
            x = make(device).requires_grad_()
            IMAGE[name](x).sum().backward()
            found.append(x.grad.stride())
        assert found[0] == found[1], layout
