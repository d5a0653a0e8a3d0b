# SPDX-License-Identifier: Apache-2.0 - seeds, states and generators of device "tpu".
"""The numbers themselves are tested with the operators; here is what is promised about their source."""

import hashlib
import struct

import pytest
import torch

tpu = torch.tpu


@pytest.fixture(autouse=True, params=list(tpu.EagerMode), ids=lambda m: m.name)
def mode(request):
    with tpu.eager_mode(request.param):
        yield


def draw(n=5, generator=None):
    return torch.rand(n, device="tpu", generator=generator).tolist()


def test_a_seed_determines_the_numbers():
    torch.manual_seed(7)
    a = draw()
    assert draw() != a
    tpu.manual_seed(7)
    assert draw() == a
    tpu.manual_seed_all(7)
    assert draw() == a
    tpu.manual_seed(8)
    assert draw() != a
    assert tpu.initial_seed() == 8


STREAMS = {
    "rand": lambda: torch.rand(1000, device="tpu"),
    "randn": lambda: torch.randn(1000, device="tpu"),
    "randint": lambda: torch.randint(0, 1 << 40, (1000,), device="tpu"),
    "dropout": lambda: torch.dropout(torch.ones(1000, device="tpu"), 0.3, True),
    "randperm": lambda: torch.randperm(1000, device="tpu"),
}
# Of the first two thousand numbers after manual_seed(42), in every mode and on every plugin. A change
# here changes what users' seeds give them: it has to be meant.
DIGESTS = {
    "rand": "a276b94f9eca0309",
    "randn": "871945741a71805d",
    "randint": "9bcb0b76ade5f86f",
    "dropout": "021e46e9d35e0c33",
    "randperm": "20d0fd4cc6c8e864",
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_seed_gives_the_same_bits_in_every_mode_and_on_every_plugin(name):
    def bits(draw):
        torch.manual_seed(42)
        first, second = draw(), draw()
        assert not torch.equal(first.cpu(), second.cpu())
        return hashlib.sha256(first.cpu().numpy().tobytes() + second.cpu().numpy().tobytes())

    for _ in range(2):  # DeferAndFuse puts together what it saw before
        assert bits(STREAMS[name]).hexdigest()[:16] == DIGESTS[name]
    assert bits(torch.compile(STREAMS[name])).hexdigest()[:16] == DIGESTS[name]


def test_seed_takes_a_random_one():
    a = tpu.seed()
    assert tpu.initial_seed() == a
    assert tpu.seed() != a
    tpu.seed_all()
    assert tpu.initial_seed() != a


def test_the_state_is_seed_and_offset():
    tpu.manual_seed(0x123456789ABCDEF0)
    state = tpu.get_rng_state()
    assert state.dtype == torch.uint8
    assert state.device.type == "cpu"
    assert struct.unpack("<Qq", bytes(state.tolist())) == (0x123456789ABCDEF0, 0)
    draw()
    seed, offset = struct.unpack("<Qq", bytes(tpu.get_rng_state().tolist()))
    assert seed == 0x123456789ABCDEF0
    assert offset > 0  # random fills advance the state natively


def test_a_state_continues_where_it_was_taken():
    tpu.manual_seed(1)
    draw()
    state = tpu.get_rng_state("tpu:0")
    a, b = draw(), draw(17)
    tpu.set_rng_state(state, device="tpu")
    assert (draw(), draw(17)) == (a, b)
    tpu.set_rng_state_all([state])
    assert draw() == a
    (everything,) = tpu.get_rng_state_all()
    assert everything.shape == (16,)


@pytest.mark.parametrize(
    ("state", "words"),
    [(torch.zeros(5, dtype=torch.uint8), "16 bytes"), (torch.zeros(16), "ByteTensor|uint8|dtype")],
)
def test_a_wrong_state_is_refused_and_changes_nothing(state, words):
    before = tpu.get_rng_state()
    with pytest.raises((RuntimeError, TypeError), match=words):
        tpu.set_rng_state(state)
    assert torch.equal(tpu.get_rng_state(), before)
    with pytest.raises(ValueError, match="tpu:1"):
        tpu.get_rng_state(1)


def test_fork_rng():
    torch.manual_seed(5)
    a = draw()
    torch.manual_seed(5)
    with torch.random.fork_rng(device_type="tpu"):
        assert draw() == a
        draw()
    assert draw() == a
    torch.manual_seed(5)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.manual_seed(99)
    assert draw() == a


def test_generators_are_independent():
    g = torch.Generator(device="tpu").manual_seed(3)
    assert g.device == torch.device("tpu", 0)
    h = torch.Generator("tpu:0")
    h.manual_seed(3)
    torch.manual_seed(4)
    a = draw()
    assert draw(generator=g) == draw(generator=h)
    assert draw(generator=g) == draw(generator=h)
    torch.manual_seed(4)
    assert draw() == a
    state = g.get_state()
    b = draw(generator=g)
    h.set_state(state)
    assert draw(generator=h) == b
    assert g.initial_seed() == 3
    clone = g.clone_state()
    assert draw(generator=clone) == draw(generator=g)
    assert tpu.default_generators[0].initial_seed() == 4


def test_a_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        torch.rand(3, device="tpu", generator=torch.Generator("cpu"))
    with pytest.raises(RuntimeError, match="tpu"):
        torch.rand(3, generator=torch.Generator("tpu"))


def test_checkpoint_replays_dropout():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    x = torch.ones(64, device="tpu", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5) * 3, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    assert 0 < y.count_nonzero().item() < 64
