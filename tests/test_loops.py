# SPDX-License-Identifier: Apache-2.0 - equal layers as loops: the values of training steps, and what ahead-of-time compilation tells.
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torch_tpu
from torch_tpu import _C, _progress, aot
from torch_tpu.conformance.tolerances import allowed

DEVICE = "tpu"


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.dropout(self.down(F.gelu(self.up(x))))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int = 32, dropout: float = 0.0, again: bool = False):
        super().__init__()
        self.embedding = nn.Embedding(50, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.head = nn.Linear(width, 50)
        self.again = again

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return self.head(x)


def make_step(model, optimizer, clip=False):
    def step(tokens, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-3)


def train(turns, optimizer, clip, **model_options):
    torch.manual_seed(1)
    model = Decoder(3, **model_options).to(DEVICE)
    tokens = torch.randint(0, 50, (2, 9)).to(DEVICE)
    _C._loop_steps(turns, 50)
    try:
        made = optimizer(model.parameters())
        step = torch_tpu.capture(make_step(model, made, clip))
        losses = [step(tokens, tokens) for _ in range(2)]
    finally:
        _C._loop_steps(0, 0)
    state = [p.detach() for p in model.parameters()] + [p.grad for p in model.parameters()]
    return [t.cpu() for t in losses + state]


@pytest.mark.parametrize(
    "optimizer, clip, options",
    [
        (sgd, False, {"dropout": 0.2}),
        (adam, True, {"again": True}),
    ],
    ids=["dropout", "checkpoints and clipping"],
)
def test_steps_with_loops_compute_the_same(optimizer, clip, options):
    flat = train(0, optimizer, clip, **options)
    looped = train(3, optimizer, clip, **options)
    for a, b in zip(flat, looped, strict=True):
        torch.testing.assert_close(a, b, **allowed("layers"))


def test_layers_become_two_loops_and_the_report_stays_right():
    pytest.importorskip("libtpu", reason="compiling for a TPU needs libtpu")

    def report(loops):
        with aot.abstract():
            model = Decoder(6, width=256).to(DEVICE)
            step = make_step(model, adam(model.parameters()))
            tokens = torch.empty(4, 128, dtype=torch.int64, device="meta")
            return aot.compile(step, (tokens, tokens), topology="v6e:1x1x1", loops=loops)

    flat, looped = report(False), report(True)
    # The backward pass of the last layer has a gradient to add to that is laid out in another way.
    assert [turns for turns, _ in looped.loops] == [5, 5]
    assert not flat.loops
    assert looped.stablehlo.count("\n") < 0.7 * flat.stablehlo.count("\n")
    for what in ("parameters", "optimizer state", "gradients", "inputs"):
        assert looped.memory.get(what, 0) == flat.memory.get(what, 0)
    assert looped.memory["code"] < flat.memory["code"]
    assert looped.memory["temporaries"] < 2 * flat.memory["temporaries"]
    assert looped.flops == pytest.approx(flat.flops, rel=0.05)
    assert looped.model_flops == flat.model_flops
    assert "5 turns of" in str(looped)


def test_progress_is_shown_where_it_is_asked_for(capfd, monkeypatch):
    monkeypatch.setattr(_progress, "_EVERY_IN_A_LOG", 0.01)
    with _progress.shown("work"):
        time.sleep(0.05)
    assert capfd.readouterr().err == ""
    with _progress.shown("work", always=True):
        time.sleep(0.2)
    assert "work: 0:00, " in capfd.readouterr().err
