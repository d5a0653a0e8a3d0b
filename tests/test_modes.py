# SPDX-License-Identifier: Apache-2.0 - the modes give equal results, and training settles to a fixed set of programs.
"""A mode decides when programs are cut, nothing else."""

import pytest
import torch
from torch import nn

from torch_tpu.conformance.tolerances import allowed

tpu = torch.tpu
EAGER, BLOCKING, FUSE = tpu.EagerMode
MODES = pytest.mark.parametrize("mode", list(tpu.EagerMode), ids=lambda m: m.name)


@pytest.fixture(autouse=True)
def start_alike():
    torch.manual_seed(0)
    yield
    tpu.set_eager_mode(EAGER)


def made():
    """Programs that were not in memory, compiled or from disk."""
    tpu.synchronize()
    stats = tpu.cache_stats()
    return stats["programs_compiled"] + stats["disk_hits"]


def run():
    tpu.synchronize()
    return tpu.cache_stats()["programs_run"]


# ---- small training loops ----------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x.flatten(1)[:, :8])


class Conv(nn.Module):
    """Running statistics and an in-place activation."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 4, 4)

    def forward(self, x):
        y = torch.relu_(self.norm(self.conv(x.unsqueeze(1))))
        return self.head(torch.max_pool2d(y, 2).flatten(1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.norm = nn.LayerNorm(8)
        self.qkv = nn.Linear(8, 24, bias=False)  # the key's bias has no gradient but noise
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        tokens = (x.flatten(1)[:, :6] * 100).long().remainder(16)
        y = self.embed(tokens)
        q, k, v = self.qkv(self.norm(y)).view(-1, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        y = y + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(
            1, 2
        ).flatten(2)
        return self.head(y).mean(1)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


class Training:
    """Steps whose learning rate is another every time."""

    def __init__(self, model, optimizer, device, clip=True):
        torch.manual_seed(1)
        self.model, self.device, self.clip = model().to(device), device, clip
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.batches = torch.randn(5, 6, 4, 4)
        self.labels = torch.randint(0, 4, (5, 6))
        self.count = 0

    def step(self, read=True):
        i = self.count % 5
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 / (1 + self.count)
        x, y = self.batches[i].to(self.device), self.labels[i].to(self.device)
        loss = nn.functional.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item() if read else loss.detach()

    def state(self):
        return {k: v.cpu() for k, v in self.model.state_dict().items()}


CASES = [(Mlp, "SGD"), (Conv, "SGD"), (Attention, "AdamW")]


@pytest.mark.parametrize("model, optimizer", CASES, ids=[m.__name__ for m, _ in CASES])
def test_training_is_the_same_in_every_mode_and_settles(model, optimizer):
    host = Training(model, optimizer, "cpu")
    losses = [host.step() for _ in range(6)]
    states = []
    for mode in tpu.EagerMode:
        with tpu.eager_mode(mode):
            training = Training(model, optimizer, "tpu")
            found = [training.step() for _ in range(3)]
            after_three = made()
            found += [training.step() for _ in range(3)]
            assert made() == after_three, f"{mode}: step four or later made new programs"
            torch.testing.assert_close(found, losses, **allowed("layers"))
            states.append(training.state())
            torch.testing.assert_close(states[-1], host.state(), **allowed("training"))
    # The same programs one by one are the same numbers; fused, roundings may differ.
    eager, blocking, fused = states
    torch.testing.assert_close(blocking, eager, rtol=0, atol=0)
    torch.testing.assert_close(fused, eager, **allowed("layers"))


# ---- how fusing cuts ---------------------------------------------------------------------------


def test_a_step_that_reads_its_loss_is_a_few_programs():
    calls = []
    with tpu.eager_mode(FUSE):
        training = Training(Mlp, "SGD", "tpu", clip=False)
        for _ in range(5):
            training.step()
        before, called = run(), tpu.cache_stats()["calls"]
        for _ in range(10):
            training.step()
        programs, calls = (run() - before) / 10, (tpu.cache_stats()["calls"] - called) / 10
    # Some 25 operators; 64 fit in a window, and reading the loss cuts it in two at most.
    assert 15 < calls < 60
    assert programs <= 3


@pytest.mark.parametrize("length", [1, 5, 37, 100])
def test_a_loop_without_reads_comes_back_to_the_same_programs(length):
    """Windows line up with the loop, whether its body is shorter or longer than one."""
    with tpu.eager_mode(FUSE):
        x = torch.zeros(length + 1, device="tpu")

        def body(x):
            for i in range(length):
                # Not the same operator again and again: the body has a first call and a last.
                x = x * 0.5 if i == 0 else x + i
            return x

        for _ in range(200 // length + 6):
            x = body(x)
        before, begun = made(), run()
        count = 300 // length + 4
        for _ in range(count):
            x = body(x)
        assert made() - before <= 2  # the rest that synchronize() itself cuts off
        # A program holds up to 64 calls; bodies are not split more than they must be.
        assert run() - begun <= max(count * length / 16, count * (length // 64 + 1)) + 2
        host = torch.zeros(length + 1)
        for _ in range(200 // length + 6 + count):
            host = body(host)
        torch.testing.assert_close(x.cpu(), host)


def test_training_without_reads_settles_too():
    with tpu.eager_mode(FUSE):
        training = Training(Mlp, "SGD", "tpu", clip=False)

        def epoch():
            for _ in range(12):
                loss = training.step(read=False)
            return loss

        epoch()
        tpu.synchronize()
        epoch()
        before, begun = made(), run()
        loss = epoch()
        assert made() == before
        assert run() - begun <= 12  # three steps to a window
        host = Training(Mlp, "SGD", "cpu", clip=False)
        expected = [host.step() for _ in range(36)]
        torch.testing.assert_close(loss.item(), expected[-1], **allowed("layers"))


def test_values_that_nobody_reads_are_not_computed_twice():
    """A result that is read later is an output of its program; asking again runs nothing."""
    with tpu.eager_mode(FUSE):
        x = torch.arange(4.0, device="tpu")
        kept = x * 3
        (x + 1).sum().item()
        before = run()
        assert kept.tolist() == [0, 3, 6, 9]
        assert kept.tolist() == [0, 3, 6, 9]
        assert run() == before


@MODES
def test_a_new_number_is_no_new_program(mode):
    with tpu.eager_mode(mode):
        x = torch.ones(3, device="tpu")

        def step(n):
            y = (x * n + n).clamp(max=n * 1.5).add_(x, alpha=n)
            y[1] = n
            return torch.addcmul(y, x, x, value=n).tolist()

        step(2.0), step(1.5)
        before = made()
        for n in (0.5, 3.25, -1.0):
            host = torch.ones(3)
            y = (host * n + n).clamp(max=n * 1.5).add_(host, alpha=n)
            y[1] = n
            assert step(n) == torch.addcmul(y, host, host, value=n).tolist()
        assert made() == before


def test_switching_modes_keeps_what_was_deferred():
    x = torch.zeros(3, device="tpu")
    for mode in (FUSE, EAGER, FUSE, BLOCKING, FUSE):
        tpu.set_eager_mode(mode)
        y = x.view(3)
        x += 1
        y[0] += 1
    tpu.set_eager_mode(EAGER)
    assert x.tolist() == [10, 5, 5]


@MODES
def test_the_same_random_numbers_in_every_mode(mode):
    with tpu.eager_mode(mode):
        tpu.manual_seed(3)
        x = torch.rand(5, device="tpu")
        y = torch.empty(2, 3, device="tpu").normal_() + torch.randn(3, device="tpu")
        z = torch.randperm(6, device="tpu")
        found = x.tolist(), y.tolist(), z.tolist()
    global first_numbers
    if mode is EAGER:
        first_numbers = found
    assert found == first_numbers
