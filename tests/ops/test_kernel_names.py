# SPDX-License-Identifier: Apache-2.0 - Operators that callers name directly, as kernels of other backends.
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"
aten = torch.ops.aten


def on_device(*tensors):
    return [t.detach().to(DEVICE).requires_grad_(t.requires_grad) for t in tensors]


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    return [torch.randn(2, 3, n, 8, requires_grad=True) for n in (5, 7, 7)]


def check_gradients(ours, theirs, mine, other):
    seed = torch.randn(theirs.shape)
    expected = torch.autograd.grad(theirs, other, seed)
    for a, b in zip(torch.autograd.grad(ours, mine, seed.to(DEVICE)), expected, strict=True):
        assert_close(a.cpu(), b, **allowed("sums"))


def test_attention_of_heads_first(qkv):
    mine = on_device(*qkv)
    expected = F.scaled_dot_product_attention(*qkv, is_causal=True)
    flash = aten._scaled_dot_product_flash_attention(*mine, is_causal=True)
    assert_close(flash[0].cpu(), expected)
    check_gradients(flash[0], expected, mine, qkv)
    bias = torch.randn(2, 3, 5, 7)
    expected = F.scaled_dot_product_attention(*qkv, attn_mask=bias)
    efficient = aten._scaled_dot_product_efficient_attention(*mine, bias.to(DEVICE), True)
    assert_close(efficient[0].cpu(), expected)
    check_gradients(efficient[0], expected, mine, qkv)


# Causal masks of flash attention align the last query with the last key.
def test_attention_of_lengths_first(qkv):
    mine = on_device(*qkv)
    seen = torch.ones(5, 7, dtype=torch.bool).tril(2)
    window = seen & torch.ones(5, 7, dtype=torch.bool).triu(-1 + 2)
    for mask, left in ((seen, -1), (window, 1)):
        expected = F.scaled_dot_product_attention(*qkv, attn_mask=mask)
        given = [x.transpose(1, 2) for x in mine]
        y = aten._flash_attention_forward(
            *given, None, None, 5, 7, 0.0, True, False, window_size_left=left, window_size_right=0
        )
        ours = y[0].transpose(1, 2)
        assert_close(ours.cpu(), expected)
        check_gradients(ours, expected, mine, qkv)
    y = aten._efficient_attention_forward(*given, None, None, None, 5, 7, 0.0, 2, True)
    ours, expected = y[0].transpose(1, 2), F.scaled_dot_product_attention(*qkv, attn_mask=seen)
    assert_close(ours.cpu(), expected)
    check_gradients(ours, expected, mine, qkv)


def test_attention_of_sequences_in_one_row():
    torch.manual_seed(0)
    ends = [0, 3, 4, 9]
    q, k, v = (torch.randn(9, 2, 8, requires_grad=True) for _ in range(3))
    mine = on_device(q, k, v)
    lengths = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
    y = aten._flash_attention_forward(*mine, lengths, lengths, 5, 5, 0.0, True, False)
    parts = []
    for a, b in itertools.pairwise(ends):
        rows = [x[a:b].transpose(0, 1) for x in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*rows, is_causal=True).transpose(0, 1))
    expected = torch.cat(parts)
    assert_close(y[0].cpu(), expected)
    check_gradients(y[0], expected, mine, [q, k, v])


def test_convolutions():
    torch.manual_seed(0)
    x, b = torch.randn(2, 4, 6, 6), torch.randn(3)
    for op, shape, rest in (
        (aten.slow_conv_transpose2d, (4, 3, 3, 3), ([3, 3], b, [2, 2], [1, 1], [1, 1], [1, 1])),
        (aten._slow_conv2d_forward, (3, 4, 3, 3), ([3, 3], b, [1, 1], [1, 1])),
        (aten.slow_conv_dilated2d, (3, 4, 3, 3), ([3, 3], None, [1, 1], [1, 1], [2, 2])),
    ):
        w = torch.randn(shape)
        given = [y.to(DEVICE) if isinstance(y, torch.Tensor) else y for y in rest]
        assert_close(op(x.to(DEVICE), w.to(DEVICE), *given).cpu(), op(x, w, *rest))
    w = torch.randn(4, 1, 3, 3)
    y = aten._conv_depthwise2d(x.to(DEVICE), w.to(DEVICE), [3, 3], None, [1, 1], [0, 0], [1, 1])
    assert_close(y.cpu(), F.conv2d(x, w, groups=4))


def test_pieces():
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    values, places = torch.empty(3, 4, device=DEVICE), torch.empty(3, 4, device=DEVICE).long()
    torch._cummax_helper(x.to(DEVICE), values, places, 1)
    assert_close(values.cpu(), x.cummax(1).values)
    assert torch.equal(places.cpu(), x.cummax(1).indices)
    for op, *args in (
        (aten._compute_linear_combination, torch.randn(3, 4, 4), torch.randn(2, 3)),
        (aten._transform_bias_rescale_qkv, torch.randn(2, 3, 24), torch.randn(24), 2),
        (aten.view_as_real_copy, torch.randn(3, dtype=torch.complex64)),
        (aten.slice_copy, x, 0, 1, 3),
    ):
        expected = op(*args)
        actual = op(*[a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in args])
        single = isinstance(expected, torch.Tensor)
        pairs = [(actual, expected)] if single else zip(actual, expected, strict=True)
        for mine, other in pairs:
            assert_close(mine.cpu(), other)
    shifted = torch.arange(4, device=DEVICE)
    shifted <<= 3
    assert shifted.tolist() == [0, 8, 16, 24]
    out = torch.empty(0, device=DEVICE)
    assert (
        torch._C._nn.adaptive_avg_pool2d(torch.ones(1, 2, 4, 4, device=DEVICE), 2, out=out) is out
    )
    assert out.shape == (1, 2, 2, 2)
    slopes = torch.rrelu_(x.to(DEVICE), 0.25, 0.25, False)
    assert_close(slopes.cpu(), F.leaky_relu(x, 0.25))
    scale, steps, bad = torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    scale, steps, bad = on_device(scale, steps, bad)
    assert torch._amp_update_scale_(scale, steps, bad, 2.0, 0.5, 1) is scale and scale.item() == 2


def test_assertions_wait_for_the_device():
    torch._assert_async(torch.tensor(1, device=DEVICE))
    torch.tpu.synchronize()
    torch._assert_async(torch.tensor(0.0, device=DEVICE), "not what it should be")
    with pytest.raises(RuntimeError, match="not what it should be"):
        torch.tpu.synchronize()
    assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]
