# SPDX-License-Identifier: Apache-2.0 - Fake quantization, and products of numbers of few bits, against CPU or the formula.
import pytest
import torch
from torch.ao.quantization import (
    FusedMovingAvgObsFakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
)
from torch.testing import assert_close

from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"
aten = torch.ops.aten


def same_as_cpu(fn, *args):
    expected = fn(*args)
    actual = fn(*[x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in args])
    if isinstance(expected, torch.Tensor):
        expected, actual = (expected,), (actual,)
    for mine, other in zip(actual, expected, strict=True):
        assert_close(mine.cpu(), other)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(4, 5, 3) * 3


def test_fake_quantize_per_tensor(x):
    same_as_cpu(aten.fake_quantize_per_tensor_affine_cachemask, x, 0.1, 3, 0, 255)
    same_as_cpu(aten.fake_quantize_per_tensor_affine_cachemask, x, 0.1, 3, -8, 7)
    scale, zero = torch.tensor([0.1]), torch.tensor([2], dtype=torch.int32)
    fn = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
    for on in (0, 1):
        same_as_cpu(fn, x, scale, zero, torch.tensor([on]), 0, 15)
    with pytest.raises(RuntimeError, match="zero_point"):
        torch.fake_quantize_per_tensor_affine(x.to(DEVICE), 0.1, 99, 0, 15)


@pytest.mark.parametrize("kind", [torch.int32, torch.float32])
def test_fake_quantize_per_channel(x, kind):
    scale, zero = torch.rand(5) + 0.05, (torch.randn(5) * 3).to(kind)
    same_as_cpu(aten.fake_quantize_per_channel_affine_cachemask, x, scale, zero, 1, -8, 7)


def test_learnable_fake_quantize(x):
    scale, zero = torch.tensor([0.1]), torch.tensor([2.0])
    scales, zeros = torch.rand(5) + 0.05, torch.randn(5) * 3
    grad = torch.randn_like(x)
    same_as_cpu(aten._fake_quantize_learnable_per_tensor_affine, x, scale, zero, 0, 15, 0.5)
    same_as_cpu(
        aten._fake_quantize_learnable_per_tensor_affine_backward, grad, x, scale, zero, 0, 15, 0.5
    )
    same_as_cpu(aten._fake_quantize_learnable_per_channel_affine, x, scales, zeros, 1, -8, 7, 0.5)
    same_as_cpu(
        aten._fake_quantize_learnable_per_channel_affine_backward,
        *(grad, x, scales, zeros, 1, -8, 7, 0.5),
    )


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_observer(channels, symmetric):
    torch.manual_seed(0)
    kind = ("per_channel_" if channels else "per_tensor_") + (
        "symmetric" if symmetric else "affine"
    )
    options = {
        "observer": MovingAveragePerChannelMinMaxObserver
        if channels
        else MovingAverageMinMaxObserver,
        "qscheme": getattr(torch, kind),
        "dtype": torch.qint8,
        "quant_min": -128,
        "quant_max": 127,
    }
    expected = FusedMovingAvgObsFakeQuantize(**options)
    actual = FusedMovingAvgObsFakeQuantize(**options).to(DEVICE)
    for size in (1, 2):
        x = torch.randn(4, 6) * size
        assert_close(actual(x.to(DEVICE)).cpu(), expected(x))
    buffers = dict(actual.named_buffers())
    for name, value in expected.named_buffers():
        assert_close(buffers[name].cpu(), value)


def test_int8_weights():
    torch.manual_seed(0)
    x, scale = torch.randn(3, 8, dtype=torch.bfloat16), torch.rand(5, dtype=torch.bfloat16)
    w = torch.randint(-128, 127, (5, 8), dtype=torch.int8)
    y = aten._weight_int8pack_mm(x.to(DEVICE), w.to(DEVICE), scale.to(DEVICE))
    expected = ((x.float() @ w.float().T) * scale).bfloat16()
    assert_close(y.cpu(), expected, **allowed("low precision"))


@pytest.mark.parametrize("tiles", [2, 4])
def test_int4_weights(tiles):
    torch.manual_seed(0)
    n, k, group = 16, 64, 32
    q, x = torch.randint(0, 16, (n, k)), torch.randn(3, k, dtype=torch.bfloat16)
    both = torch.randn(k // group, n, 2, dtype=torch.bfloat16)
    scale, zero = (part.T[..., None].float() for part in both.unbind(2))
    # Rounded like x, with which it is multiplied.
    w = ((q - 8).reshape(n, k // group, group) * scale + zero).reshape(n, k).bfloat16().float()
    bytes_ = (q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8)
    packed = aten._convert_weight_to_int4pack(bytes_.to(DEVICE), tiles)
    assert packed.shape == (n // 8, k // (16 * tiles), 32, tiles // 2)
    y = aten._weight_int4pack_mm(x.to(DEVICE), packed, group, both.to(DEVICE))
    assert_close(y.cpu().float(), x.float() @ w.T, **allowed("low precision"))


def float8(*shape):
    return torch.randn(*shape).to(torch.float8_e4m3fn)


def swizzled(scale):
    """[rows, blocks] in tiles of 128 by 4 that lie as [32][4][4], as float8 hardware wants them."""
    rows, columns = -(-scale.shape[0] // 128) * 128, -(-scale.shape[1] // 4) * 4
    padded = torch.zeros(rows, columns, dtype=torch.uint8)
    padded[: scale.shape[0], : scale.shape[1]] = scale.view(torch.uint8)
    tiles = padded.view(rows // 128, 4, 32, columns // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1).view(scale.dtype)


def wide(scale, rows, columns):
    return scale.float().repeat_interleave(rows, 0).repeat_interleave(columns, 1)


def check_scaled(actual, a, b):
    assert_close(actual.cpu().float(), a @ b.T, **allowed("low precision"))


@pytest.mark.parametrize("kind", ["tensor", "row", "1x128", "128x128", "mx"])
def test_scaled_product(kind):
    torch.manual_seed(0)
    m, n, k = 32, 48, 256
    a, b = float8(m, k), float8(n, k)
    positive = lambda *shape: torch.rand(*shape) + 0.5  # noqa: E731
    if kind == "tensor":
        sa, sb = positive(1), positive(1)
        wa, wb = sa, sb
    elif kind == "row":
        sa, sb = positive(m, 1), positive(1, n)
        wa, wb = sa, sb.T
    elif kind == "1x128":
        sa, sb = positive(m, 2), positive(2, n)
        wa, wb = wide(sa, 1, 128), wide(sb.T, 1, 128)
    elif kind == "128x128":
        sa, sb = positive(m, 2), positive(2, 1)
        wa, wb = wide(sa, 1, 128), wide(sb.T, 128, 128)[:n]
    else:
        sa, sb = (
            torch.randint(125, 130, (rows, k // 32), dtype=torch.uint8).view(torch.float8_e8m0fnu)
            for rows in (m, n)
        )
        wa, wb = wide(sa, 1, 32), wide(sb, 1, 32)
        sa, sb = swizzled(sa), swizzled(sb)
    x, w = a.to(DEVICE), b.to(DEVICE).T
    y = torch._scaled_mm(x, w, sa.to(DEVICE), sb.to(DEVICE), out_dtype=torch.bfloat16)
    check_scaled(y, a.float() * wa, b.float() * wb)


def test_scaled_product_says_what_its_scales_are():
    torch.manual_seed(0)
    a, b = float8(32, 256), float8(48, 256)
    one, rows = torch.rand(1) + 0.5, torch.rand(32, 1) + 0.5
    columns = torch.rand(1, 48) + 0.5
    y = aten._scaled_mm_v2(
        *(a.to(DEVICE), b.to(DEVICE).T),
        *([rows.to(DEVICE)], [1], [0], [columns.to(DEVICE)], [1], [0]),
        *(None, torch.bfloat16),
    )
    check_scaled(y, a.float() * rows, b.float() * columns.T)
    with pytest.raises(ValueError, match="scale_a must have 32"):
        aten._scaled_mm_v2(
            *(a.to(DEVICE), b.to(DEVICE).T),
            *([one.to(DEVICE)], [1], [0], [columns.to(DEVICE)], [1], [0], None, torch.bfloat16),
        )


def test_product_of_four_bit_floats():
    torch.manual_seed(0)
    m, n, k = 32, 48, 128
    numbers = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    a, b = torch.randint(0, 16, (m, k)), torch.randint(0, 16, (n, k))
    x, w = (
        (t[:, ::2] | t[:, 1::2] << 4).to(torch.uint8).view(torch.float4_e2m1fn_x2).to(DEVICE)
        for t in (a, b)
    )
    sa, sb = (torch.rand(rows, k // 16).add(0.5).to(torch.float8_e4m3fn) for rows in (m, n))
    given = [swizzled(s).to(DEVICE) for s in (sa, sb)]
    y = torch._scaled_mm(x, w.T, *given, out_dtype=torch.bfloat16)
    check_scaled(y, numbers[a] * wide(sa, 1, 16), numbers[b] * wide(sb, 1, 16))


def test_scaled_groups():
    torch.manual_seed(0)
    a, b = float8(8, 16), float8(2, 4, 16)
    sa, sb = torch.rand(8) + 0.5, torch.rand(2, 4) + 0.5
    ends = torch.tensor([3, 8], dtype=torch.int32)
    y = torch._scaled_grouped_mm(
        a.to(DEVICE), b.to(DEVICE).mT, sa.to(DEVICE), sb.to(DEVICE), offs=ends.to(DEVICE)
    )
    second = aten._scaled_grouped_mm_v2(
        *(a.to(DEVICE), b.to(DEVICE).mT),
        *([sa.to(DEVICE)], [1], [0], [sb.to(DEVICE)], [1], [0], ends.to(DEVICE)),
    )
    assert torch.equal(second.cpu(), y.cpu())
    left, right = a.float() * sa[:, None], b.float() * sb[..., None]
    expected = torch.cat([left[:3] @ right[0].T, left[3:] @ right[1].T])
    assert_close(y.cpu().float(), expected, **allowed("low precision"))
