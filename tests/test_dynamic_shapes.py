# SPDX-License-Identifier: Apache-2.0 - torch.compile with open sizes: one program for a range, with the values of each size.
import logging

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo import mark_dynamic

import torch_tpu
from torch_tpu.conformance.tolerances import allowed

r = torch.randn
# (two sizes, within 4 .. 16)
PAIRS = ((5, 6), (16, 16), (9, 4), (4, 13))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def told(caplog):
    """What the log says about bounds."""
    caplog.set_level(logging.INFO, "torch_tpu._bounds")
    return lambda: [record.getMessage() for record in caplog.records]


def as_list(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def run(fn, make, marks, sizes=PAIRS, grad=False, tolerance="sums", low=4, high=16, options=None):
    """Compares with the CPU at each of the sizes; marks: {argument: its dynamic dimensions}."""
    compiled = torch.compile(fn, backend="tpu", options=options)
    for size in sizes:
        host = make(*size)
        device = [a.to("tpu") for a in host]
        for i, dims in marks.items():
            for d in dims:
                mark_dynamic(device[i], d, min=low, max=high)
        wanted = [a.requires_grad_() for a in host if a.is_floating_point()] if grad else []
        got = [a.requires_grad_() for a in device if a.is_floating_point()] if grad else []
        expected, out = as_list(fn(*host)), as_list(compiled(*device))
        for e, o in zip(expected, out, strict=True):
            assert o.shape == e.shape
            assert grad or o.stride() == e.stride()
            torch.testing.assert_close(o.cpu(), e, **allowed(tolerance))
        if grad:
            torch.manual_seed(1)
            weights = [r(e.shape) for e in expected]
            torch.autograd.backward(expected, weights)
            torch.autograd.backward(out, [w.to("tpu") for w in weights])
            for e, o in zip(wanted, got, strict=True):
                torch.testing.assert_close(o.grad.cpu(), e.grad, **allowed(tolerance))


def heads(n):
    return r(2, 3, n, 8)


CASES = {
    "pointwise": (lambda x: (x * 2 + 1).relu(), lambda n, m: [r(n, m)], {0: [0, 1]}, True),
    "reductions": (
        lambda x: [
            x.sum(0),
            x.mean(),
            x.amax(1),
            x.amin(0),
            x.prod(1),
            x.norm(),
            x.var(1),
            x.std(),
        ],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        True,
    ),
    "any_argmax": (
        lambda x: [(x > 2).any(0), (x > -9).all(), x.argmax(1), x.argmin(0), x.max(1)[1]],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        False,
    ),
    "softmax": (
        lambda x: [x.softmax(1), x.log_softmax(0), x.logsumexp(1)],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        True,
    ),
    "matmul": (
        lambda x, y: (x @ y).softmax(-1) @ y.t(),
        lambda n, m: [r(n, m), r(m, 3)],
        {0: [0, 1], 1: [0]},
        True,
    ),
    "linear": (
        lambda x, w, b: F.linear(x, w, b),
        lambda n, m: [r(n, m, 8), r(5, 8), r(5)],
        {0: [0, 1]},
        True,
    ),
    "layer_norm": (
        lambda x, w: F.layer_norm(x, (8,), w) + F.rms_norm(x, (8,), w),
        lambda n, m: [r(n, m, 8), r(8)],
        {0: [0, 1]},
        True,
    ),
    "layer_norm_of_open_size": (
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda n, m: [r(n, m)],
        {0: [1]},
        True,
    ),
    "batch_norm": (
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda n, m: [r(n, 3, m)],
        {0: [0, 2]},
        True,
    ),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda n, m: [heads(n), heads(n), heads(n)],
        {0: [2], 1: [2], 2: [2]},
        True,
    ),
    "attention_with_mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        lambda n, m: [heads(n), heads(m), heads(m), r(n, m)],
        {0: [2], 1: [2], 2: [2], 3: [0, 1]},
        False,
    ),
    "sort": (
        lambda x: [x.sort(1)[0], x.sort(0, descending=True)[1], x.topk(3, 1)[0], x.median(1)[0]],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        False,
    ),
    "cumulative": (
        lambda x: [x.cumsum(1), x.cumprod(0), x.cummax(1)[0], x.double().cumsum(0)],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        False,
    ),
    "cumsum_backward": (lambda x: x.cumsum(1), lambda n, m: [r(n, m)], {0: [0, 1]}, True),
    "conv1d": (
        lambda x, w, b: F.conv1d(x, w, b, padding=1),
        lambda n, m: [r(n, 3, m), r(4, 3, 3), r(4)],
        {0: [0, 2]},
        True,
    ),
    "conv2d_stride": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2),
        lambda n, m: [r(2, 3, n, m), r(4, 3, 3, 3)],
        {0: [2, 3]},
        False,
    ),
    "pooling": (
        lambda x: [F.max_pool2d(x, 2, 1), F.avg_pool2d(x, 3, 1, 1), F.adaptive_avg_pool2d(x, 1)],
        lambda n, m: [r(2, 3, n, m)],
        {0: [2, 3]},
        False,
    ),
    "cat_pad_stack": (
        lambda x, y: [torch.cat([x, y, x]), F.pad(x, (1, 2)), torch.stack([x, x + 1], 1)],
        lambda n, m: [r(n, 3), r(m, 3)],
        {0: [0], 1: [0]},
        True,
    ),
    "slices_and_flip": (
        lambda x: [x[1:], x[-1], x[1:] - x[:-1], x[-2:], x.flip(0).cumsum(0)],
        lambda n, m: [r(n, m)],
        {0: [0]},
        False,
    ),
    "views": (
        lambda x: [x.reshape(-1), x.reshape(-1, 2, 2), x.transpose(0, 1).reshape(-1, 4).sum(1)],
        lambda n, m: [r(n, m, 4)],
        {0: [0, 1]},
        True,
    ),
    "embedding_loss": (
        lambda i, w, t: F.cross_entropy(F.embedding(i, w).flatten(0, 1), t.flatten()),
        lambda n, m: [torch.randint(0, 9, (n, m)), r(9, 7), torch.randint(0, 7, (n, m))],
        {0: [0, 1], 2: [0, 1]},
        True,
    ),
    "indexing": (
        lambda x, i: [x.gather(0, i), x[i[:, 0]], x.index_select(0, i[:, 1]).sum(0)],
        lambda n, m: [r(n, 3), torch.randint(0, n, (n, 3))],
        {0: [0], 1: [0]},
        False,
    ),
    "writing": (
        lambda x, i, s: [x.index_copy(0, i, s), x.index_add(0, i, s), x.index_put((i,), s)],
        lambda n, m: [r(16, 3), torch.randperm(16)[:n], r(n, 3)],
        {1: [0], 2: [0]},
        False,
    ),
    "positions": (
        lambda x: [x.tril(), x + torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[0]],
        lambda n, m: [r(n, m)],
        {0: [0, 1]},
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_within_bounds(name, told):
    fn, make, marks, grad = CASES[name]
    run(fn, make, marks, grad=grad)
    assert told(), "no program within bounds was looked for"
    assert not [line for line in told() if "exact" in line]


@pytest.mark.parametrize(
    "dtype",
    ["float64", "bfloat16", "float16", "int64", "int32", "int16", "uint8", "bool", "complex64"],
)
def test_dtypes(dtype, told):
    run(
        lambda x: [x + x, x.sum(1), x.flip(1), torch.cat([x, x], 0)],
        lambda n, m: [(r(n, m) * 5).to(getattr(torch, dtype))],
        {0: [0, 1]},
        tolerance="low precision",
    )
    assert not [line for line in told() if "exact" in line]


def test_one_program_for_all_sizes():
    fn = torch.compile(lambda x, w: (x @ w).softmax(0).sum(1), backend="tpu")
    w = r(4, 6)
    before = None
    for n in range(2, 33):
        x = r(n, 4)
        xd = x.to("tpu")
        mark_dynamic(xd, 0, min=2, max=32)
        torch.testing.assert_close(fn(xd, w.to("tpu")).cpu(), (x @ w).softmax(0).sum(1))
        torch.tpu.synchronize()
        count = torch.tpu.cache_stats()["programs_compiled"]
        assert before in (None, count)
        before = count


def test_what_is_behind_the_end_is_not_seen(told):
    # The first call leaves NaN and infinities wherever a shorter one could pick them up.
    fn = torch.compile(lambda x: x.log().exp(), backend="tpu")
    total = torch.compile(lambda y: [y.sum(), y.softmax(0), y @ y, y.sort()[0]], backend="tpu")
    for x in (torch.tensor([-1.0] * 16), torch.tensor([1.0, 2.0, 3.0, 4.0])):
        xd = x.to("tpu")
        mark_dynamic(xd, 0, min=2, max=16)
        y = fn(xd)
        mark_dynamic(y, 0, min=2, max=16)
        out = total(y)
    e = torch.tensor([1.0, 2.0, 3.0, 4.0])
    for o, w in zip(out, [e.sum(), e.softmax(0), e @ e, e], strict=True):
        torch.testing.assert_close(o.cpu(), w)
    assert not [line for line in told() if "exact" in line]


@pytest.mark.parametrize("policy,bounds", [("powers_of_two", 2), ("multiples_of:6", 3)])
def test_policies(policy, bounds, told):
    run(
        lambda x: x.softmax(0),
        lambda n: [r(n, 3)],
        {0: [0]},
        sizes=[(5,), (12,), (6,), (8,), (7,), (14,), (13,)][: 5 if bounds == 2 else 7],
        options={"bucket": policy},
        low=2,
        high=64,
    )
    assert len([line for line in told() if "one program serves" in line]) == bounds


def test_policy_of_the_process():
    assert torch_tpu._bounds.current_policy() == "auto"
    with torch_tpu.dynamic_shapes("exact"):
        assert torch_tpu._bounds.current_policy() == "exact"
        fn = torch.compile(lambda x: x.sum(), backend="tpu", dynamic=True)
        assert fn(torch.ones(5, device="tpu")).item() == 5
    assert torch_tpu._bounds.current_policy() == "auto"
    for bad in ("powers", "multiples_of:0", "multiples_of:x"):
        with pytest.raises(ValueError, match="dynamic_shapes"):
            torch_tpu.dynamic_shapes(bad)


def test_dynamic_true_without_bounds(told):
    fn = torch.compile(lambda x, y: torch.cat([x, y], 1).softmax(1), backend="tpu", dynamic=True)
    for n, m in ((5, 7), (6, 5), (8, 8)):
        x, y = r(n, m), r(n, 3)
        torch.testing.assert_close(
            fn(x.to("tpu"), y.to("tpu")).cpu(), torch.cat([x, y], 1).softmax(1)
        )
    assert len([line for line in told() if "one program serves" in line]) == 1


def test_checks_hold_at_the_real_size():
    fn = torch.compile(lambda x, i: x[i], backend="tpu")
    x = torch.arange(5.0).to("tpu")
    mark_dynamic(x, 0, min=2, max=16)
    assert fn(x, torch.tensor([-1, 0], device="tpu")).tolist() == [4.0, 0.0]
    with pytest.raises(IndexError):
        fn(x, torch.tensor([6, 0], device="tpu"))
        torch.tpu.synchronize()


def test_what_has_no_program_within_bounds_is_right_all_the_same(told):
    run(
        lambda x: torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0], device=x.device) * 9),
        lambda n: [r(n, 3)],
        {0: [0]},
        sizes=[(5,), (7,)],
    )
    assert [line for line in told() if "compiled exactly" in line]


def test_leaving_the_bounds_is_logged_and_right(told):
    fn = torch.compile(lambda x: x.softmax(0), backend="tpu")
    x = r(5).to("tpu")
    mark_dynamic(x, 0, min=2, max=16)
    fn(x)
    y = r(20)
    torch.testing.assert_close(fn(y.to("tpu")).cpu(), y.softmax(0))
    assert [line for line in told() if "outside of its bounds, 2 to 16" in line]


def _add(x):
    x.add_(1)
    return x.sum(0)


def _zero_a_column(x):
    x[:, 1] = 0
    return x * 2


@pytest.mark.parametrize("fn", [_add, _zero_a_column])
@pytest.mark.parametrize("layout", ["whole", "transposed", "part"])
def test_inputs_that_are_written(fn, layout, told):
    compiled = torch.compile(fn, backend="tpu")
    for n in (5, 9, 16):
        base = {"whole": r(n, 4), "transposed": r(4, n), "part": r(n + 2, 4)}[layout]
        base, based = base.clone(), base.to("tpu")
        part = {"whole": lambda t: t, "transposed": lambda t: t.t(), "part": lambda t: t[1:-1]}
        x, xd = part[layout](base), part[layout](based)
        also = based.view(-1)  # another view of the same memory
        for _ in range(2):
            mark_dynamic(xd, 0, min=4, max=16)
            torch.testing.assert_close(compiled(xd).cpu(), fn(x))
            torch.testing.assert_close(xd.cpu(), x)
            torch.testing.assert_close(also.cpu(), base.view(-1))
        also.mul_(2)
        torch.testing.assert_close(xd.cpu(), x * 2)
    assert len(told()) == 1
    assert "one program serves" in told()[0]


def test_random_numbers_are_those_of_eager(told):
    def fn(x):
        return F.dropout(F.dropout(x, 0.5) + 1, 0.3) + torch.rand_like(x)

    compiled = torch.compile(fn, backend="tpu")
    for n in (5, 16, 6, 7):
        x = r(n, 3).to("tpu")
        torch.manual_seed(n)
        expected, after = fn(x), torch.rand(3, device="tpu")
        mark_dynamic(x, 0, min=4, max=16)
        torch.manual_seed(n)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.rand(3, device="tpu"), after)
    assert len(told()) == 1
    assert "one program serves" in told()[0]


def test_dropout_is_trained(told):
    run(
        lambda x, w: F.dropout(x @ w, 0.0).sum(1),
        lambda n, m: [r(n, m, 8), r(8, 5)],
        {0: [0, 1]},
        grad=True,
    )
    x = torch.ones(7, 8).to("tpu").requires_grad_()
    mark_dynamic(x, 0, min=4, max=16)
    y = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu")(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert not [line for line in told() if "exact" in line]


def test_a_language_model_answers_prompts_of_any_length(told):
    """Prefill is one program; a prompt of one token is the same program as the steps after it."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    compiled = transformers.LlamaForCausalLM(config).eval().to("tpu")
    compiled.load_state_dict(model.state_dict())
    compiled = torch.compile(compiled, backend="tpu")

    def cache(device):
        made = transformers.StaticCache(config=config, max_cache_len=40)
        made.early_initialization(
            batch_size=1, num_heads=2, head_dim=8, dtype=torch.float32, device=torch.device(device)
        )
        return made

    on_device, count = cache("tpu"), None
    with torch.no_grad():
        for n in (7, 2, 32, 1, 19):
            for layer in on_device.layers:
                layer.cumulative_length.zero_()
            kept, tokens = cache("cpu"), torch.randint(96, (1, n))
            for step in range(3):
                given = tokens.to("tpu")
                if step == 0 and n > 1:
                    mark_dynamic(given, 1, min=2, max=32)
                expected = model(tokens, cache=kept, logits_to_keep=1).logits
                out = compiled(given, cache=on_device, logits_to_keep=1).logits
                torch.testing.assert_close(out.cpu(), expected, **allowed("sums"))
                tokens = expected.argmax(-1)
            torch.tpu.synchronize()
            made = torch.tpu.cache_stats()["programs_compiled"]
            assert count in (None, made)
            count = made
    assert len([line for line in told() if "one program serves" in line]) == 1
    assert not [line for line in told() if "exact" in line]
