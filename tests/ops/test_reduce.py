# SPDX-License-Identifier: Apache-2.0 - Reductions, scans, order statistics and distances against CPU.
import math

import pytest
import torch

HALVES = (torch.float16, torch.bfloat16)


def tpu(*args, **kwargs):
    return torch.tensor(*args, device="tpu", **kwargs)


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_are_summed_in_float32(dtype):
    ones = torch.ones(4096, dtype=dtype, device="tpu")
    assert ones.sum().item() == 4096
    assert ones.cumsum(0)[-1].item() == 4096
    assert torch.full((70000,), 1.0, dtype=dtype, device="tpu").mean().item() == 1
    assert (ones * 256).norm().item() == 16384


def test_long_sums_are_exact_enough():
    x = torch.full((1 << 20,), 0.1, device="tpu")
    exact = float(torch.tensor(0.1)) * (1 << 20)
    assert abs(x.sum().item() - exact) < 1e-5 * exact
    assert abs(x.cumsum(0)[-1].item() - exact) < 1e-5 * exact


def test_integers_are_summed_in_int64():
    x = tpu([2**31 - 1] * 3, dtype=torch.int32)
    assert x.sum().dtype == torch.int64 and x.sum().item() == 3 * (2**31 - 1)
    assert tpu([2**62, 2**62 - 1]).sum().item() == 2**63 - 1
    assert tpu([3**20, 3**19]).prod().item() == 3**39
    assert tpu([True, True]).cumsum(0).tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_nan_wins(dtype, place):
    values = [1.0, -2.0, 5.0, 3.0]
    values[place] = math.nan
    x = tpu(values, dtype=dtype)
    for fn in (torch.max, torch.min, torch.amax, torch.amin, torch.median):
        assert math.isnan(fn(x).item())
    for fn in (torch.max, torch.min, torch.median):
        found = fn(x, 0)
        assert math.isnan(found.values.item()) and found.indices.item() == place
    assert x.argmax().item() == x.argmin().item() == place
    running = x.cummax(0)
    assert [math.isnan(v) for v in running.values.tolist()] == [i >= place for i in range(4)]
    assert running.indices[place:].tolist() == [place] * (4 - place)
    assert not math.isnan(x.nanmedian().item())


def test_ties_as_on_cpu():
    x = tpu([[1, 3, 3, 0], [2, 2, 2, 2]])
    assert x.max(1).indices.tolist() == x.argmax(1).tolist() == [1, 0]
    assert x.min(1).indices.tolist() == [3, 0]
    assert x.cummax(1).indices.tolist() == [[0, 1, 2, 2], [0, 1, 2, 3]]
    assert x.mode(1).values.tolist() == [3, 2] and x.mode(1).indices.tolist() == [2, 3]


def test_empty():
    x = torch.zeros(0, 3, device="tpu")
    assert x.sum().item() == 0 and x.prod().item() == 1
    assert math.isnan(x.mean().item()) and math.isnan(x.var().item())
    assert x.sum(0).tolist() == [0, 0, 0] and x.amax(1).shape == (0,)
    assert x.all().item() and not x.any().item()
    assert x.logsumexp(0).tolist() == [-math.inf] * 3
    assert x.cumsum(0).shape == (0, 3)
    with pytest.raises(RuntimeError, match="Specify the reduction dim"):
        x.amax()
    with pytest.raises(IndexError, match="non-zero size"):
        x.max(0)


def test_scalars():
    x = tpu(3.0)
    assert x.sum(0).item() == x.amax(-1).item() == x.cumsum(0).item() == 3
    assert x.max(0).indices.item() == 0 and x.softmax(0).item() == 1
    assert x.sum(0, keepdim=True).shape == ()


@pytest.mark.parametrize("n", [1, 15, 16, 17, 255, 256, 257, 5000])
def test_scans_of_any_length(n):
    x = torch.randint(-3, 4, (3, n, 2), generator=torch.Generator().manual_seed(n))
    mine = x.to("tpu")
    torch.testing.assert_close(mine.cumsum(1).cpu(), x.cumsum(1))
    for fn in (torch.cummax, torch.cummin):
        for ours, theirs in zip(fn(mine, 1), fn(x, 1), strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


@pytest.mark.parametrize("n", [1, 64, 65, 1000])
@pytest.mark.parametrize("right", [False, True])
def test_binary_search(n, right):
    edges = torch.arange(n) * 2.0
    x = torch.tensor([-math.inf, -1, 0, 1, 2, n, 2 * n - 2, 2 * n, math.inf, math.nan])
    expected = torch.searchsorted(edges, x, right=right)
    assert (
        torch.searchsorted(edges.to("tpu"), x.to("tpu"), right=right).tolist() == expected.tolist()
    )
    assert torch.bucketize(x.to("tpu"), edges.to("tpu"), right=right).tolist() == expected.tolist()


def test_new_numbers_compile_nothing():
    x = torch.rand(5, 3, device="tpu")
    x.norm(1.5)
    x.renorm(2, 0, 0.5)
    x.var(correction=0.5)
    torch.tpu.synchronize()
    before = torch.tpu.cache_stats()["programs_compiled"]
    assert math.isclose(x.norm(2.5).item(), x.cpu().norm(2.5).item(), rel_tol=1e-5)
    torch.testing.assert_close(x.renorm(2, 0, 0.25).cpu(), x.cpu().renorm(2, 0, 0.25))
    torch.testing.assert_close(x.var(correction=0.75).cpu(), x.cpu().var(correction=0.75))
    assert torch.tpu.cache_stats()["programs_compiled"] == before
