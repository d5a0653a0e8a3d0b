# SPDX-License-Identifier: Apache-2.0 - Matrix products, attention and their special cases against CPU.
import pytest
import torch
import torch.nn.functional as F

from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"


@pytest.mark.parametrize("name", ["addmm", "baddbmm", "addbmm"])
def test_beta_zero_does_not_look_at_self(name):
    shape = (2, 3, 4)
    a, b = torch.randn(shape), torch.randn(2, 4, 3)
    if name == "addmm":
        a, b = a[0], b[0]
    expected = torch.bmm(a, b).sum(0) if name == "addbmm" else a @ b
    self = torch.full(expected.shape, float("nan"), device=DEVICE)
    actual = getattr(torch, name)(self, a.to(DEVICE), b.to(DEVICE), beta=0)
    torch.testing.assert_close(actual.cpu(), expected)


def test_whole_numbers_are_exact():
    a = torch.tensor([[2**40 + 1, -3], [5, 2**33]])
    assert torch.equal((a.to(DEVICE) @ a.to(DEVICE)).cpu(), a @ a)


def test_bfloat16_accumulates_in_float32():
    ones = torch.ones(1, 4096, dtype=torch.bfloat16, device=DEVICE)
    assert (ones @ ones.T).item() == 4096


def test_float32_products_have_float32_precision():
    a = torch.randn(64, 64)
    error = (a.to(DEVICE) @ a.to(DEVICE)).cpu().double() - a.double() @ a.double()
    assert error.abs().max() < 2e-5


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5)), ((3,), (2, 2))])
def test_shape_errors(shapes):
    a, b = (torch.randn(s, device=DEVICE) for s in shapes)
    with pytest.raises(RuntimeError, match=r"multiplied|matrix"):
        torch.mm(a, b)
    assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).sum().item() == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_grouped_mm(dtype):
    rows, inner, columns = torch.randn(37, 16), torch.randn(3, 16, 8), torch.tensor([5, 5, 37])
    rows, inner = rows.to(dtype), inner.to(dtype)
    offsets = columns.to(torch.int32)
    actual = torch._grouped_mm(rows.to(DEVICE), inner.to(DEVICE), offs=offsets.to(DEVICE)).cpu()
    parts = rows.float().tensor_split([5, 5])
    expected = torch.cat([p @ m for p, m in zip(parts, inner.float(), strict=True)]).to(dtype)
    torch.testing.assert_close(actual, expected)
    # The same ranges along the contracted dimension: the gradient of the matrices.
    left, right = torch.randn(6, 37).to(dtype), torch.randn(37, 8).to(dtype)
    actual = torch._grouped_mm(left.to(DEVICE), right.to(DEVICE), offs=offsets.to(DEVICE)).cpu()
    pairs = zip(left.float().split([5, 0, 32], 1), right.float().split([5, 0, 32]), strict=True)
    torch.testing.assert_close(actual, torch.stack([a @ b for a, b in pairs]).to(dtype))


def attention_inputs(dtype=torch.float32, heads=2, key_heads=2, queries=5, keys=7, value_size=6):
    torch.manual_seed(0)
    q = torch.randn(2, heads, queries, 8, dtype=dtype)
    k = torch.randn(2, key_heads, keys, 8, dtype=dtype)
    return q, k, torch.randn(2, key_heads, keys, value_size, dtype=dtype)


def attention(device, inputs, mask=None, **options):
    leaves = [x.detach().to(device).requires_grad_() for x in inputs]
    mask = None if mask is None else mask.to(device)
    out = F.scaled_dot_product_attention(*leaves, mask, **options)
    seed = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).to(device)
    return [x.detach().cpu() for x in (out, *torch.autograd.grad(out, leaves, seed))]


MASKS = {
    "none": None,
    "bool": torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.6,
    "row": torch.arange(5)[:, None].expand(5, 7) != 2,  # query 2 sees nothing
    "additive": torch.randn(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)),
    "heads": torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1)),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(mask, scale):
    inputs = attention_inputs()
    expected = attention("cpu", inputs, MASKS[mask], scale=scale)
    actual = attention(DEVICE, inputs, MASKS[mask], scale=scale)
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, **allowed("layers"))


def test_attention_causal_and_grouped():
    inputs = attention_inputs(heads=6, key_heads=2)
    for options in ({"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}):
        for mine, other in zip(
            attention(DEVICE, inputs, **options), attention("cpu", inputs, **options), strict=True
        ):
            torch.testing.assert_close(mine, other, **allowed("layers"))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("heads", [2, 4])  # 4: two query heads share a key head
@pytest.mark.parametrize("orders", ["heads", "tokens", "query", "keys"])
def test_attention_in_any_order_of_heads_and_tokens(mask, heads, orders):
    """In memory. Keys and values of one size: the CPU plugin has a kernel of its own for these."""

    def laid_out(x, tokens_first):
        return x.transpose(1, 2).contiguous().transpose(1, 2) if tokens_first else x

    q, k, v = attention_inputs(heads=heads, value_size=8)
    q, k, v = (x.repeat(1, 1, 12, 1) for x in (q, k, v))  # enough for that kernel
    q = laid_out(q, orders in ("tokens", "query"))
    k, v = (laid_out(x, orders in ("tokens", "keys")) for x in (k, v))
    chosen = MASKS[mask]
    if chosen is not None:
        chosen = chosen.repeat(*[1] * (chosen.dim() - 2), 12, 12)
        if mask == "heads" and heads == 4:
            chosen = chosen.repeat(2, 1, 1)
    for causal in (False, True) if chosen is None else (False,):
        options = {"enable_gqa": heads != 2, "is_causal": causal}
        expected = attention("cpu", (q, k, v), chosen, **options)
        actual = attention(DEVICE, (q, k, v), chosen, **options)
        for mine, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(mine, other, **allowed("layers"))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_encoder_layers_without_gradients(norm_first, padded):
    """eval() and no_grad() take PyTorch's fast path: other operators than training."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5]) if padded else None

    def run(device):
        model.to(device)
        mask = None if padding is None else padding.to(device)
        with torch.no_grad():
            out = model(x.to(device), src_key_padding_mask=mask).cpu()
            _, weights = model.layers[0].self_attn(*[x.to(device)] * 3, key_padding_mask=mask)
        # What a padded position holds is nobody's promise: nested tensors leave zeros there.
        return out if padding is None else out.masked_fill(padding[..., None], 0), weights.cpu()

    torch.testing.assert_close(run(DEVICE), run("cpu"), **allowed("layers"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_half_hides_the_future(dtype):
    q, k, v = (x.to(DEVICE) for x in attention_inputs(dtype, queries=7))
    first = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    v[:, :, 4:] = 1000
    k[:, :, 4:] = -50
    second = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(first[:, :, :4].cpu(), second[:, :, :4].cpu())


def test_attention_dropout_keeps_the_mean_and_its_gradient():
    torch.manual_seed(0)
    q, k = torch.zeros(1, 1, 64, 4, device=DEVICE), torch.zeros(1, 1, 64, 4, device=DEVICE)
    v = torch.ones(1, 1, 64, 2, device=DEVICE, requires_grad=True)
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
    assert abs(out.mean().item() - 1) < 0.05
    assert out.std().item() > 0
    (grad,) = torch.autograd.grad(out, v, torch.ones_like(out))
    # The same weights were dropped on the way back.
    assert abs(grad.sum().item() - out.sum().item()) < 1e-2


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind):
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(4, 6, num_layers=2, bidirectional=True)
    x = torch.randn(5, 3, 4)
    expected, _ = layer(x)
    expected.square().sum().backward()
    expected_grads = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    layer.to(DEVICE)
    actual, _ = layer(x.to(DEVICE))
    actual.square().sum().backward()
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), **allowed("layers"))
    for p, other in zip(layer.parameters(), expected_grads, strict=True):
        torch.testing.assert_close(p.grad.cpu(), other, **allowed("layers"))


def test_one_row_by_a_transposed_matrix():
    """What a model does when it decodes a token: the CPU plugin gets it the other way round."""
    torch.manual_seed(0)
    row, weight, bias = torch.randn(1, 16), torch.randn(24, 16), torch.randn(24)
    query, keys = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 9, 16)

    def products(row, weight, bias, query, keys):
        return (
            torch.nn.functional.linear(row, weight, bias),
            row @ weight.t(),
            row @ weight.t().contiguous(),
            torch.einsum("bhqd,bgkd->bhgqk", query, keys),
            torch.nn.functional.scaled_dot_product_attention(query, keys, keys, enable_gqa=True),
            row[:, :0] @ weight[:, :0].t(),
        )

    given = (row, weight, bias, query, keys)
    for mine, other in zip(products(*(x.to("tpu") for x in given)), products(*given), strict=True):
        torch.testing.assert_close(mine.cpu(), other)


@pytest.mark.parametrize("shape", [(130, 70, 129), (1, 300, 260), (260, 300, 1)])
@pytest.mark.parametrize("transposed", [(), (0,), (1,), (0, 1)])
def test_large_products_of_transposed_matrices(shape, transposed):
    """Large enough for the CPU plugin's host kernel, which takes them as they lie."""
    torch.manual_seed(0)
    rows, inner, columns = shape
    pair = [torch.randn(rows, inner), torch.randn(inner, columns)]
    for i in transposed:
        pair[i] = pair[i].t().contiguous().t()
    a, b = (x.to(DEVICE) for x in pair)
    expected = pair[0].double() @ pair[1].double()
    torch.testing.assert_close((a @ b).cpu().double(), expected, **allowed("sums"))
    torch.testing.assert_close((b.t() @ a.t()).cpu().double(), expected.t(), **allowed("sums"))
