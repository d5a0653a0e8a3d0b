# SPDX-License-Identifier: Apache-2.0 - Reading and writing by index, embeddings, sorting: values, gradients, errors.
import pytest
import torch
from torch.testing import assert_close

INF, NAN = float("inf"), float("nan")


# ---- index and index_put -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "where",
    [
        (slice(None), [0, -1, 2]),
        ([0, 1], slice(None), [1, 0]),
        ([[0], [2]], [[1, 3]]),
        (..., [4, 0]),
        (2, [1, 1], slice(1, 4, 2)),
        (slice(None), None, [1, 2], 0),
        ([], slice(None), 0),
    ],
    ids=str,
)
def test_index_tensors_stand_where_they_stood(where):
    x = torch.arange(60.0).reshape(3, 4, 5)
    on_cpu = tuple(torch.tensor(i, dtype=torch.long) if isinstance(i, list) else i for i in where)
    on_device = tuple(i.to("tpu") if isinstance(i, torch.Tensor) else i for i in on_cpu)
    assert_close(x.to("tpu")[on_device].cpu(), x[on_cpu])
    mine, expected = x.to("tpu"), x.clone()
    mine[on_device] = expected[on_cpu] = torch.tensor(7.0)
    assert_close(mine.cpu(), expected)


def test_index_by_mask_and_by_mask_with_numbers():
    x = torch.arange(12.0).reshape(3, 4)
    mask = x % 3 == 0
    rows = torch.tensor([True, False, True])
    d = x.to("tpu")
    assert_close(d[mask.to("tpu")].cpu(), x[mask])
    assert_close(
        d[rows.to("tpu"), torch.tensor([0, 1], device="tpu")].cpu(), x[rows, torch.tensor([0, 1])]
    )
    d[mask.to("tpu")] = -1.0
    x[mask] = -1.0
    assert_close(d.cpu(), x)
    d[mask.to("tpu")] = torch.arange(4.0, device="tpu")
    x[mask] = torch.arange(4.0)
    assert_close(d.cpu(), x)


def test_index_put_accumulates_duplicates():
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
        x = torch.zeros(3, 2, dtype=dtype, device="tpu")
        rows = torch.tensor([1, 1, -1, 1], device="tpu")
        x.index_put_((rows,), torch.ones(4, 2, dtype=dtype, device="tpu"), accumulate=True)
        assert x.cpu().real.tolist() == [[0, 0], [3, 3], [1, 1]]


def test_index_put_into_a_view_writes_the_base():
    x = torch.zeros(4, 6, device="tpu")
    x.t()[1:5][torch.tensor([0, 2], device="tpu"), 1] = 5.0
    expected = torch.zeros(4, 6)
    expected[1, [1, 3]] = 5.0
    assert_close(x.cpu(), expected)


@pytest.mark.parametrize(
    "error, call",
    [
        (IndexError, lambda x, i: x[i]),
        (IndexError, lambda x, i: x.index_put((i,), torch.ones((), device="tpu"))),
        (IndexError, lambda x, i: x.index_select(0, i)),
        (RuntimeError, lambda x, i: x.index_add(0, i, torch.ones(1, 2, device="tpu"))),
        (IndexError, lambda x, i: x.take(i + 10)),
        (IndexError, lambda x, i: torch.nn.functional.embedding(i, x)),
        (RuntimeError, lambda x, i: x.gather(0, i[None])),
        (RuntimeError, lambda x, i: x.scatter(0, i[None], 1.0)),
    ],
)
def test_index_out_of_range_is_an_error_and_the_device_lives(error, call):
    x = torch.ones(3, 2, device="tpu")
    with pytest.raises(error, match=r"out of (range|bounds)"):
        call(x, torch.tensor([3], device="tpu")).cpu()
    assert (x + 1).sum().item() == 12


def test_index_errors_that_need_no_device():
    x = torch.ones(3, 2, device="tpu")
    with pytest.raises(IndexError, match="too many indices"):
        x[0, 0, 0]
    with pytest.raises(IndexError, match="could not be broadcast together with shapes"):
        x[torch.tensor([0, 1], device="tpu"), torch.tensor([0, 1, 0], device="tpu")]
    with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape"):
        x[torch.tensor([0, 1], device="tpu")] = torch.ones(3, 2, device="tpu")
    with pytest.raises(RuntimeError, match=r"expected index .* to be no larger"):
        x.gather(0, torch.zeros(1, 5, dtype=torch.long, device="tpu"))


# ---- scatter -------------------------------------------------------------------------------------


def test_scatter_reduces_halves_in_float32():
    index = torch.zeros(1, 4096, dtype=torch.long, device="tpu")
    ones = torch.ones(1, 4096, dtype=torch.bfloat16, device="tpu")
    total = torch.zeros(1, 2, dtype=torch.bfloat16, device="tpu").scatter_add(1, index, ones)
    assert total.tolist() == [[4096, 0]]


def test_scatter_reduce_propagates_nan():
    x = torch.tensor([1.0, 2.0], device="tpu")
    index = torch.tensor([0, 0, 1], device="tpu")
    src = torch.tensor([NAN, 5.0, 0.0], device="tpu")
    y = x.scatter_reduce(0, index, src, "amax")
    assert torch.isnan(y[0]).item() and y[1].item() == 2


def test_zero_dim_and_empty_arguments():
    x = torch.tensor(2.0, device="tpu")
    i = torch.tensor(0, device="tpu")
    assert x.gather(0, i).item() == 2
    assert x.index_select(0, i).shape == ()
    assert x.scatter(0, i, torch.tensor(3.0, device="tpu")).item() == 3
    empty = torch.empty(0, 3, device="tpu")
    assert empty.index_select(1, torch.tensor([0, 2], device="tpu")).shape == (0, 2)
    assert empty[torch.empty(0, dtype=torch.long, device="tpu")].shape == (0, 3)


# ---- embedding -----------------------------------------------------------------------------------


def test_embedding_gradient_skips_padding_and_counts():
    weight = torch.randn(5, 3)
    index = torch.tensor([[0, 2, 2], [4, 1, 2]])
    for options in ({"padding_idx": 2}, {"scale_grad_by_freq": True}):
        grads = []
        for device in ("cpu", "tpu"):
            w = weight.detach().to(device).requires_grad_()
            y = torch.nn.functional.embedding(index.to(device), w, **options)
            (y * y).sum().backward()
            grads.append(w.grad.cpu())
        assert_close(grads[1], grads[0])


def test_embedding_max_norm_scales_rows_in_place():
    weight = torch.randn(5, 3) * 3
    index = torch.tensor([1, 3, 1])
    for norm in (2.0, 1.0, 3.0, INF):
        w, d = weight.clone(), weight.to("tpu")
        a = torch.nn.functional.embedding(index, w, max_norm=1.0, norm_type=norm)
        b = torch.nn.functional.embedding(index.to("tpu"), d, max_norm=1.0, norm_type=norm)
        assert_close(b.cpu(), a)
        assert_close(d.cpu(), w)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_embedding_bag_with_an_empty_bag(mode, padding):
    weight = torch.randn(6, 4)
    index = torch.tensor([1, 2, 2, 5, 0, 2])
    offsets = torch.tensor([0, 2, 2, 5])
    results = []
    for device in ("cpu", "tpu"):
        w = weight.detach().to(device).requires_grad_()
        y = torch.nn.functional.embedding_bag(
            index.to(device), w, offsets.to(device), mode=mode, padding_idx=padding
        )
        (y * torch.arange(4.0, device=device)).sum().backward()
        results.append((y.detach().cpu(), w.grad.cpu()))
    assert_close(results[1], results[0])


# ---- sort ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
)
def test_sort_is_stable_and_knows_where_nan_and_zeros_go(dtype, descending):
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (3, 50)).to(dtype)
    if dtype.is_floating_point:
        x[:, 5], x[:, 9], x[:, 20], x[:, 30], x[:, 31] = NAN, INF, -INF, 0.0, -0.0
    values, places = torch.sort(x, dim=1, descending=descending, stable=True)
    mine, where = torch.sort(x.to("tpu"), dim=1, descending=descending, stable=True)
    assert_close(mine.cpu(), values, equal_nan=True)
    assert torch.equal(where.cpu(), places)
    if dtype.is_floating_point:
        assert torch.equal(mine.cpu().signbit(), values.signbit())


def test_sort_keeps_whole_int64():
    x = torch.tensor([2**62, -(2**63), 2**63 - 1, 0, 2**62 + 1])
    assert torch.equal(x.to("tpu").sort().values.cpu(), x.sort().values)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int64])
def test_topk(dtype, largest):
    torch.manual_seed(0)
    x = torch.randperm(120).reshape(4, 30).to(dtype)
    if dtype.is_floating_point:
        x[0, 3], x[1, 4], x[2, 5] = NAN, -INF, INF
    for dim, k in ((1, 5), (0, 2), (1, 30), (1, 0)):
        values, places = x.topk(k, dim, largest)
        mine, where = x.to("tpu").topk(k, dim, largest)
        assert_close(mine.cpu(), values, equal_nan=True)
        assert torch.equal(where.cpu(), places)
    with pytest.raises(RuntimeError, match="out of range"):
        x.to("tpu").topk(31)


@pytest.mark.parametrize("shape", [(1, 4, 6, 3), (6,), (2, 1, 6, 1)])
def test_index_copy_of_one_row(shape):
    """What a key-value cache gets for each token: a write in place."""
    dim = shape.index(6)
    cache, row = (
        torch.randn(shape),
        torch.randn([1 if d == dim else n for d, n in enumerate(shape)]),
    )
    for place in (0, 3, 5):
        index = torch.tensor([place])
        expected = cache.index_copy(dim, index, row)
        mine = cache.to("tpu")
        mine.index_copy_(dim, index.to("tpu"), row.to("tpu"))
        assert torch.equal(mine.cpu(), expected)
    with pytest.raises(IndexError):
        cache.to("tpu").index_copy_(dim, torch.tensor([6], device="tpu"), row.to("tpu")).cpu()
