# SPDX-License-Identifier: Apache-2.0 - Random numbers: every distribution against its law.
"""A million draws each. With the seed fixed a test gives the same answer each time; its limit is a
probability of one in a million that a right generator is refused."""

import pytest
import torch
import torch.distributions as d
from scipy import stats

N = 1_000_000
REFUSED = 1e-6


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def t(*values):
    return [torch.tensor(float(v), device="tpu") for v in values]


def key():
    return torch.tensor([5, 0], dtype=torch.uint64, device="tpu")


class first:
    """The distribution of the first of several numbers drawn together."""

    def __init__(self, law):
        self.law = law

    def sample(self, shape):
        return self.law.sample(shape)[..., 0]


def empty(dtype=torch.float32):
    return torch.empty(N, dtype=dtype, device="tpu")


# ---- continuous: Kolmogorov and Smirnov ----------------------------------------------------------

FILLS = {
    "rand": (lambda: torch.rand(N, device="tpu"), stats.uniform()),
    "rand float64": (
        lambda: torch.rand(N, device="tpu", dtype=torch.float64),
        stats.uniform(),
    ),
    "uniform_": (lambda: empty().uniform_(-2, 5), stats.uniform(-2, 7)),
    "randn": (lambda: torch.randn(N, device="tpu"), stats.norm()),
    "randn float64": (lambda: torch.randn(N, device="tpu", dtype=torch.float64), stats.norm()),
    "normal_": (lambda: empty().normal_(3, 0.5), stats.norm(3, 0.5)),
    "exponential_": (lambda: empty().exponential_(2), stats.expon(scale=0.5)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal_": (lambda: empty().log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=2.71828**0.5)),
    "complex randn": (
        lambda: torch.randn(N, device="tpu", dtype=torch.complex64).imag,
        stats.norm(0, 0.5**0.5),
    ),
    "trunc_normal_": (
        lambda: torch.nn.init.trunc_normal_(empty(), a=-1, b=2),
        stats.truncnorm(-1, 2),
    ),
    "rrelu": (
        lambda: -torch.nn.functional.rrelu(empty().fill_(-1), 0.1, 0.4, training=True),
        stats.uniform(0.1, 0.3),
    ),
    "keyed uniform": (lambda: empty()._philox_uniform_(key()), stats.uniform()),
    "keyed normal": (lambda: empty()._philox_normal_(key(), 1, 2), stats.norm(1, 2)),
    "standard gamma": (lambda: torch._standard_gamma(empty().fill_(0.3)), stats.gamma(0.3)),
}
LAWS = {
    "Beta": (lambda: d.Beta(*t(0.7, 2)), stats.beta(0.7, 2)),
    "Cauchy": (lambda: d.Cauchy(*t(0, 1)), stats.cauchy()),
    "Chi2": (lambda: d.Chi2(*t(3)), stats.chi2(3)),
    "Dirichlet": (lambda: first(d.Dirichlet(torch.stack(t(0.7, 2, 3)))), stats.beta(0.7, 5)),
    "Exponential": (lambda: d.Exponential(*t(1.5)), stats.expon(scale=1 / 1.5)),
    "FisherSnedecor": (lambda: d.FisherSnedecor(*t(5, 8)), stats.f(5, 8)),
    "Gamma": (lambda: d.Gamma(*t(4, 2)), stats.gamma(4, scale=0.5)),
    "Gumbel": (lambda: d.Gumbel(*t(1, 2)), stats.gumbel_r(1, 2)),
    "HalfCauchy": (lambda: d.HalfCauchy(*t(2)), stats.halfcauchy(scale=2)),
    "HalfNormal": (lambda: d.HalfNormal(*t(2)), stats.halfnorm(scale=2)),
    "InverseGamma": (lambda: d.InverseGamma(*t(3, 2)), stats.invgamma(3, scale=2)),
    "Laplace": (lambda: d.Laplace(*t(1, 0.5)), stats.laplace(1, 0.5)),
    "LogNormal": (lambda: d.LogNormal(*t(0, 0.5)), stats.lognorm(0.5)),
    "Pareto": (lambda: d.Pareto(*t(1, 3)), stats.pareto(3)),
    "StudentT": (lambda: d.StudentT(*t(4)), stats.t(4)),
    "Uniform": (lambda: d.Uniform(*t(1, 4)), stats.uniform(1, 3)),
    "VonMises": (lambda: d.VonMises(*t(0, 3)), stats.vonmises(3)),
    "Weibull": (lambda: d.Weibull(*t(2, 1.5)), stats.weibull_min(1.5, scale=2)),
}


def check_law(sample, law):
    assert sample.device.type == "tpu"
    found = stats.kstest(sample.double().cpu().numpy(), law.cdf, mode="asymp")
    assert found.pvalue > REFUSED, found
    # The test of Kolmogorov and Smirnov sees little of the tails, the moments much.
    mean, variance = law.stats("mv")
    kurtosis = law.stats("k")
    x = sample.double().cpu()
    if torch.isfinite(torch.tensor([mean, variance])).all():
        assert abs(x.mean().item() - mean) < 6 * (variance / N) ** 0.5
        if torch.isfinite(torch.tensor(kurtosis)):
            assert abs(x.var().item() / variance - 1) < 6 * ((kurtosis + 2) / N) ** 0.5


@pytest.mark.parametrize("name", FILLS)
def test_fills_follow_their_law(name):
    draw, law = FILLS[name]
    check_law(draw(), law)


@pytest.mark.parametrize("name", LAWS)
def test_distributions_follow_their_law(name):
    make, law = LAWS[name]
    check_law(make().sample((N,)), law)


# ---- discrete: chi squared -----------------------------------------------------------------------

DISCRETE = {
    "randint": (lambda: torch.randint(-3, 9, (N,), device="tpu"), stats.randint(-3, 9)),
    "random_": (lambda: empty(torch.int32).random_(100), stats.randint(0, 100)),
    "bernoulli_": (lambda: empty().bernoulli_(0.3), stats.bernoulli(0.3)),
    "dropout": (lambda: torch.dropout(empty().fill_(0.75), 0.25, True), stats.bernoulli(0.75)),
    "geometric_": (lambda: empty().geometric_(0.2), stats.geom(0.2)),
    "Geometric": (lambda: d.Geometric(*t(0.4)).sample((N,)), stats.geom(0.4, loc=-1)),
    "poisson, few": (lambda: torch.poisson(empty().fill_(2.5)), stats.poisson(2.5)),
    "poisson, many": (lambda: torch.poisson(empty().fill_(40)), stats.poisson(40)),
    "binomial, few": (
        lambda: torch.binomial(empty().fill_(12), empty().fill_(0.4)),
        stats.binom(12, 0.4),
    ),
    "binomial, many": (
        lambda: torch.binomial(empty().fill_(200), empty().fill_(0.3)),
        stats.binom(200, 0.3),
    ),
    "NegativeBinomial": (
        lambda: d.NegativeBinomial(*t(5, 0.4)).sample((N,)),
        stats.nbinom(5, 0.6),
    ),
    "multinomial": (
        lambda: torch.multinomial(torch.tensor([1.0, 2, 3], device="tpu"), N, replacement=True),
        stats.rv_discrete(values=((0, 1, 2), (1 / 6, 2 / 6, 3 / 6))),
    ),
    "randperm": (
        # Where 12 things end up: each place as likely as the next.
        lambda: torch.rand(N // 12, 12, device="tpu").argsort(1)[:, 0],
        stats.randint(0, 12),
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_counts_follow_their_law(name):
    draw, law = DISCRETE[name]
    x = draw()
    assert x.device.type == "tpu"
    values, counts = (v.cpu().double() for v in x.unique(return_counts=True))
    expected = torch.from_numpy(law.pmf(values.numpy())) * len(x)
    assert (expected > 0).all(), "a value that cannot be"
    often = expected >= 5
    rest = len(x) - expected[often].sum().item()
    observed = [*counts[often].tolist(), len(x) - counts[often].sum().item()]
    wanted = [*expected[often].tolist(), rest]
    if rest < 5:  # too few for a class of their own
        last, more = observed.pop(), wanted.pop()
        observed[0] += last
        wanted[0] += more
    assert stats.chisquare(observed, wanted, sum_check=False).pvalue > REFUSED
