# SPDX-License-Identifier: Apache-2.0 - Random fills: the stream, reproducibility, ranges and moments of every distribution.
import math

import pytest
import torch

N = 100_000


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def on_device(*shape, dtype=torch.float32):
    return torch.empty(*shape, dtype=dtype, device="tpu")


def check_moments(x, mean, std, four=None):
    """Within six standard errors."""
    x = x.double().cpu()
    n = x.numel()
    assert abs(x.mean().item() - mean) < 6 * std / math.sqrt(n)
    kurtosis = 3.0 if four is None else four
    assert abs(x.std().item() / std - 1) < 6 * math.sqrt((kurtosis - 1) / (4 * n))


# ---- the stream ----------------------------------------------------------------------------------


def test_words_are_the_published_philox_vectors():
    # Random123: Philox 4x32-10 with key 0 and counter 0. Bits 8 and up of a word are the uniform number.
    torch.tpu.manual_seed(0)
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert on_device(4).uniform_().tolist() == [(w >> 8) * 2.0**-24 for w in words]


def test_same_seed_same_numbers_and_offsets_advance():
    torch.manual_seed(5)
    a = [torch.randn(7, device="tpu"), torch.rand(3, device="tpu"), torch.randperm(9, device="tpu")]
    torch.manual_seed(5)
    b = [torch.randn(7, device="tpu"), torch.rand(3, device="tpu"), torch.randperm(9, device="tpu")]
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.cpu(), y.cpu())
    assert not torch.equal(torch.randn(7, device="tpu").cpu(), a[0].cpu())


def test_state_can_be_saved_and_restored():
    torch.rand(5, device="tpu")
    state = torch.tpu.get_rng_state()
    a = torch.rand(5, device="tpu").cpu()
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(5, device="tpu").cpu(), a)


def test_generators_are_independent():
    g, h = (torch.Generator("tpu").manual_seed(3) for _ in range(2))
    before = torch.tpu.get_rng_state()
    a = torch.randn(6, device="tpu", generator=g)
    b = torch.randn(6, device="tpu", generator=h)
    assert torch.equal(a.cpu(), b.cpu())
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_new_parameters_compile_nothing():
    x = on_device(16)
    x.normal_(0, 1), x.uniform_(0, 1), x.bernoulli_(0.5)
    x.normal_(1, 2), x.uniform_(1, 2), x.bernoulli_(0.25)
    before = torch.tpu.cache_stats()["programs_compiled"]
    for i in range(5):
        x.normal_(i, i + 0.5), x.uniform_(-i, i), x.bernoulli_(0.1 * i)
    assert torch.tpu.cache_stats()["programs_compiled"] == before


# ---- continuous ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str
)
def test_uniform(dtype):
    x = on_device(N, dtype=dtype).uniform_(-1, 3)
    assert x.min().item() >= -1 and x.max().item() < 3
    check_moments(
        x, 1 if dtype.itemsize > 2 else x.double().mean().item(), 4 / math.sqrt(12), four=1.8
    )
    assert torch.rand(N, dtype=dtype, device="tpu").max().item() < 1


def test_uniform_without_width_and_bad_range():
    assert (on_device(5).uniform_(2, 2) == 2).all().item()
    with pytest.raises(RuntimeError, match=r"from, to\) range"):
        on_device(2).uniform_(1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_normal(dtype):
    x = torch.randn(N, dtype=dtype, device="tpu")
    assert torch.isfinite(x).all().item()
    check_moments(x, 0, 1)
    # Quantiles of the tail: P(|z| > 3) = 0.0027.
    share = (x.abs() > 3).double().mean().item()
    assert abs(share - 0.0027) < 6 * math.sqrt(0.0027 / N) + (
        5e-4 if dtype == torch.bfloat16 else 0
    )
    check_moments(on_device(N, dtype=torch.float64).normal_(5, 0.5), 5, 0.5)


def test_normal_of_tensors():
    mean = torch.arange(4.0, device="tpu").repeat(N // 4, 1)
    std = torch.tensor([0.0, 1.0, 2.0, 3.0], device="tpu")
    x = torch.normal(mean, std).cpu()
    assert torch.equal(x[:, 0], torch.zeros(N // 4))
    for i in (1, 2, 3):
        check_moments(x[:, i], i, i)
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, -1.0)
    with pytest.raises(RuntimeError, match="std >= 0"):
        torch.normal(mean, std - 1).cpu()


def test_complex_normal_has_variance_one():
    z = torch.randn(N, dtype=torch.complex64, device="tpu")
    check_moments(z.real, 0, math.sqrt(0.5))
    check_moments(z.imag, 0, math.sqrt(0.5))


def test_other_continuous_fills():
    check_moments(on_device(N).exponential_(2.0), 0.5, 0.5, four=9)
    assert (on_device(N).exponential_() > 0).all().item()
    median = on_device(N).cauchy_(3, 2).median().item()
    assert abs(median - 3) < 0.1
    x = on_device(N).log_normal_(0.5, 0.25)
    check_moments(x.log(), 0.5, 0.25)


@pytest.mark.parametrize("alpha", [0.1, 0.7, 1.0, 4.0, 50.0])
def test_gamma(alpha):
    x = torch._standard_gamma(torch.full((N,), alpha, device="tpu"))
    assert (x > 0).all().item()
    check_moments(x, alpha, math.sqrt(alpha), four=3 + 6 / alpha)


def test_dirichlet_sums_to_one():
    alpha = torch.tensor([0.5, 1.0, 3.0], device="tpu").expand(N, 3)
    x = torch._sample_dirichlet(alpha)
    assert torch.allclose(x.sum(1), torch.ones(N, device="tpu"))
    assert torch.allclose(x.mean(0).cpu(), torch.tensor([0.5, 1.0, 3.0]) / 4.5, atol=0.01)


def test_gradients_of_gamma_and_dirichlet_draws():
    alpha = torch.tensor([0.3, 1.0, 2.5, 7.0, 9.0, 30.0], dtype=torch.float64)
    for draw in (0.05, 0.7, 2.0, 8.5, 33.0):
        x = torch.full_like(alpha, draw)
        expected = torch._standard_gamma_grad(alpha, x)
        actual = torch._standard_gamma_grad(alpha.to("tpu"), x.to("tpu")).cpu()
        torch.testing.assert_close(actual, expected)
    x = (
        torch.tensor([0.01, 0.2, 0.5, 0.8, 0.99], dtype=torch.float64)[:, None]
        .expand(5, 6)
        .contiguous()
    )
    total = (alpha + torch.tensor([1.0, 8.0, 0.5, 9.0, 20.0, 31.0])).expand(5, 6).contiguous()
    alpha = alpha.expand(5, 6).contiguous()
    expected = torch._dirichlet_grad(x, alpha, total)
    actual = torch._dirichlet_grad(x.to("tpu"), alpha.to("tpu"), total.to("tpu")).cpu()
    torch.testing.assert_close(actual, expected)


# ---- discrete ------------------------------------------------------------------------------------


def test_bernoulli():
    for x, p in (
        (on_device(N).bernoulli_(0.3), 0.3),
        (torch.bernoulli(torch.full((N,), 0.6, device="tpu")), 0.6),
        (on_device(N, dtype=torch.int64).bernoulli_(torch.tensor(0.9, device="tpu")), 0.9),
    ):
        assert set(x.unique().tolist()) == {0, 1}
        check_moments(x, p, math.sqrt(p * (1 - p)), four=1 / (p * (1 - p)))
    assert on_device(N).bernoulli_(0.0).sum().item() == 0
    assert on_device(N).bernoulli_(1.0).sum().item() == N
    with pytest.raises(RuntimeError, match=r"p to be in \[0, 1\]"):
        on_device(2).bernoulli_(1.5)


def test_random_integers():
    x = torch.randint(-3, 4, (N,), device="tpu")
    assert sorted(x.unique().tolist()) == [-3, -2, -1, 0, 1, 2, 3]
    check_moments(x, 0, 2.0, four=1.8)
    big = on_device(N, dtype=torch.int64).random_(-(2**62), 2**62)
    assert big.min().item() < -(2**61) and big.max().item() > 2**61
    every = on_device(N, dtype=torch.int64).random_(-(2**63), None)
    assert every.min().item() < -(2**62) and every.max().item() > 2**62
    assert on_device(N, dtype=torch.uint8).random_().unique().numel() == 256
    assert set(on_device(N, dtype=torch.bool).random_().unique().tolist()) == {False, True}
    x = on_device(N).random_()
    assert torch.equal(x, x.floor()) and x.max().item() <= 2**24
    with pytest.raises(RuntimeError, match="'from' to be less than 'to'"):
        on_device(2).random_(3, 3)


def test_geometric():
    for dtype in (torch.float32, torch.int64):
        x = on_device(N, dtype=dtype).geometric_(0.25)
        assert x.min().item() == 1
        check_moments(x, 4, math.sqrt(0.75) / 0.25, four=9 + 0.25**2 / 0.75)


@pytest.mark.parametrize("rate", [0.0, 0.5, 9.0, 11.0, 1000.0])
def test_poisson(rate):
    x = torch.poisson(torch.full((N,), rate, device="tpu"))
    assert torch.equal(x, x.floor())
    if rate == 0:
        assert x.sum().item() == 0
    else:
        check_moments(x, rate, math.sqrt(rate), four=3 + 1 / rate)


@pytest.mark.parametrize(
    "count, p", [(5, 0.3), (40, 0.9), (100, 0.5), (1000, 0.02), (10, 0.0), (10, 1.0)]
)
def test_binomial(count, p):
    x = torch.binomial(
        torch.full((N,), float(count), device="tpu"), torch.full((N,), p, device="tpu")
    )
    assert x.min().item() >= 0 and x.max().item() <= count
    if p in (0.0, 1.0):
        assert (x == count * p).all().item()
    else:
        variance = count * p * (1 - p)
        check_moments(x, count * p, math.sqrt(variance), four=3 + (1 - 6 * p * (1 - p)) / variance)


def test_permutation():
    for n in (0, 1, 2, 1000):
        assert sorted(torch.randperm(n, device="tpu").tolist()) == list(range(n))
    firsts = torch.stack([torch.randperm(4, device="tpu")[0] for _ in range(400)]).tolist()
    assert all(60 < firsts.count(i) < 140 for i in range(4))
    assert torch.randperm(5, dtype=torch.int32, device="tpu").dtype == torch.int32


def test_multinomial():
    weights = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0], device="tpu")
    for x in (
        torch.multinomial(weights, N, replacement=True),
        torch.multinomial(weights.expand(N, 5), 1).flatten(),
    ):
        shares = torch.bincount(x.cpu(), minlength=5) / N
        assert shares[0] == 0 and shares[3] == 0
        assert torch.allclose(shares, torch.tensor([0, 1, 3, 0, 4]) / 8, atol=0.01)
    rows = torch.multinomial(torch.rand(50, 7, device="tpu"), 7)
    assert torch.equal(rows.sort(1).values.cpu(), torch.arange(7).expand(50, 7))
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(weights, 6)
    with pytest.raises(RuntimeError, match="sum of probabilities"):
        torch.multinomial(torch.zeros(3, device="tpu"), 1).cpu()
    with pytest.raises(RuntimeError, match="element < 0"):
        torch.multinomial(-weights, 1).cpu()


# ---- dropout -------------------------------------------------------------------------------------


def test_dropout_scales_what_it_keeps_and_its_gradient_likewise():
    x = torch.ones(N, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.25)
    kept = y != 0
    assert torch.allclose(y[kept], torch.tensor(4 / 3, device="tpu"))
    check_moments(kept, 0.75, math.sqrt(0.1875), four=1 / 0.1875)
    y.sum().backward()
    assert torch.equal(x.grad != 0, kept)
    assert torch.nn.functional.dropout(x, 1.0).sum().item() == 0
    assert torch.equal(torch.nn.functional.dropout(x, 0.5, training=False), x)


def test_rrelu_keeps_its_slopes_for_the_gradient():
    x = torch.linspace(-2, 2, 101, device="tpu", requires_grad=True)
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    slope = x.grad[x < 0]
    assert (
        (slope >= 0.1).all().item() and (slope < 0.3).all().item() and slope.unique().numel() > 40
    )
    assert torch.allclose(y[x < 0], (x * x.grad)[x < 0])
    flat = torch.nn.functional.rrelu(x, 0.1, 0.3, training=False)
    assert torch.allclose(flat[x < 0], (0.2 * x)[x < 0])


# ---- streams that a key names ------------------------------------------------------------------


DEVICE = "tpu"


def philox(seed, offset):
    """Salmon et al., 2011: four words of 32 bits."""
    mask = 0xFFFFFFFF
    key, c = [seed & mask, seed >> 32], [offset & mask, offset >> 32, 0, 0]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(q >> 32) ^ c[1] ^ key[0], q & mask, (p >> 32) ^ c[3] ^ key[1], p & mask]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return c


def test_keys():
    seed, offset = 123456789012345, 7
    key = torch.tensor([seed, offset], dtype=torch.uint64, device=DEVICE)
    split = torch.ops.aten._philox_key_split(key, 3).cpu()
    for i in range(3):
        w = philox(seed, offset + i)
        assert split[i].tolist() == [w[0] | w[1] << 32, w[2] | w[3] << 32]
    folded = torch.ops.aten._philox_key_fold_in(key, 2).cpu()
    assert folded.tolist() == split[2].tolist()
    drawn = torch.empty(2, 3, device=DEVICE)._philox_uniform_(key).flatten().tolist()
    words = [w for i in range(2) for w in philox(seed, offset + i)]
    assert drawn == [(w & 0xFFFFFF) / 2**24 for w in words[:6]]
    normal = torch.empty(100_000, device=DEVICE)._philox_normal_(key, 1.0, 2.0).cpu()
    assert abs(normal.mean() - 1) < 0.03 and abs(normal.std() - 2) < 0.03


def test_each_key_of_a_batch_fills_its_row():
    keys = torch.tensor([[1, 0], [2, 5]], dtype=torch.uint64, device=DEVICE)
    rows = torch.empty(2, 6, device=DEVICE)._philox_uniform_(keys.unsqueeze(1)).cpu()
    for key, row in zip(keys, rows, strict=True):
        assert torch.equal(torch.empty(6, device=DEVICE)._philox_uniform_(key).cpu(), row)
