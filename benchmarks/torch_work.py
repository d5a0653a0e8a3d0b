# SPDX-License-Identifier: Apache-2.0 - the benchmarked work in PyTorch, the same code on every device.
"""`build(name, device, side)` returns a function that does one step and returns its result."""

import torch
import torch.nn.functional as F
from torch import nn


def build(name: str, device: str, side: str = ""):
    """side "compile": the model goes through torch.compile; "capture": the step is captured whole."""
    torch.manual_seed(0)
    work = {
        "adds": adds,
        "mlp": mlp,
        "gpt": gpt,
        "resnet": resnet,
        "token": token,
        "decode": decode,
    }[name]
    if side == "compile":
        work.compiled = True
    step = work(device)
    if side == "capture":
        import torch_tpu

        step = torch_tpu.capture(step)
    return step


def compiled(work, model):
    """The model as the side wants it."""
    if getattr(work, "compiled", False):
        return torch.compile(model, backend="tpu", dynamic=False)
    return model


def adds(device):
    x = torch.zeros(8, 8, device=device)
    one = torch.ones(8, 8, device=device)

    def step():
        y = x
        for _ in range(1000):
            y = y + one
        return y

    return step


def training(model, optimizer, x, y):
    """One step of the loop that everybody writes."""

    def step():
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def mlp(device):
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = compiled(mlp, nn.Sequential(*layers).to(device))
    x, y = torch.randn(32, 64).to(device), torch.randint(10, (32,)).to(device)
    return training(model, torch.optim.SGD(model.parameters(), lr=0.01), x, y)


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A small GPT with learned positions."""

    def __init__(self, vocabulary=1024, length=128, width=256, layers=4, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))


def gpt(device):
    model = compiled(gpt, GPT().to(device))
    ids = torch.randint(1024, (4, 129))
    x, y = ids[:, :-1].to(device), ids[:, 1:].to(device)
    return training(model, torch.optim.AdamW(model.parameters(), lr=3e-4), x, y)


class token:
    """One token of greedy decoding with the GPT and a static key-value cache, read by the host."""

    LENGTH, PROMPT, HEADS = 128, 16, 4

    def __init__(self, device):
        self.model = GPT(length=self.LENGTH, heads=self.HEADS).eval().to(device)
        width = self.model.norm.weight.numel()
        shape = (1, self.HEADS, self.LENGTH, width // self.HEADS)
        self.cache = [
            (torch.zeros(shape, device=device), torch.zeros(shape, device=device))
            for _ in self.model.blocks
        ]
        self.positions = torch.arange(self.LENGTH, device=device)
        self.place = torch.full((1,), self.PROMPT, device=device)
        self.first = torch.zeros(1, 1, dtype=torch.int64, device=device)
        self.forward = compiled(token, self.next_token)
        self.begin()

    def begin(self):
        self.place.fill_(self.PROMPT)
        self.token = self.first

    def next_token(self, ids):
        model = self.model
        x = model.tokens(ids) + model.places(self.place)
        seen = (self.positions <= self.place)[None]
        for block, (keys, values) in zip(model.blocks, self.cache, strict=True):
            qkv = block.qkv(block.norm1(x)).view(1, 1, 3, self.HEADS, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            keys.index_copy_(2, self.place, k)
            values.index_copy_(2, self.place, v)
            mixed = F.scaled_dot_product_attention(q, keys, values, seen)
            x = x + block.out(mixed.transpose(1, 2).reshape(x.shape))
            x = x + block.down(F.gelu(block.up(block.norm2(x))))
        self.place.add_(1)
        return model.head(model.norm(x)).argmax(-1)

    @torch.no_grad()
    def __call__(self):
        self.token = self.forward(self.token)
        self.token.item()
        return self.token


class Residual(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outer), nn.BatchNorm2d(outer)
        self.short = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.short(x))


def resnet(device):
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers = [*stem, nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inner, outer, stride), Residual(outer, outer, 1)]
        inner = outer
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    model = compiled(resnet, nn.Sequential(*layers).eval().to(device))
    x = torch.randn(4, 3, 64, 64).to(device)

    @torch.no_grad()
    def step():
        return model(x)

    return step


class decode:  # a class because each round starts again at the same position
    """One token of greedy decoding with a static key-value cache, read by the host as a chat does."""

    PROMPT = 32

    def __init__(self, device):
        from transformers import StaticCache

        from examples.demo import smollm2

        self.model, _ = smollm2.load(device, say=lambda line: None)
        self.model = compiled(decode, self.model)
        self.cache = StaticCache(self.model.config, max_cache_len=256)
        ids = torch.randint(1000, (1, self.PROMPT)).to(device)
        with torch.no_grad():
            self.first = self.model(ids, past_key_values=self.cache).logits[:, -1:].argmax(-1)
        self.token = self.first

    def begin(self):
        self.token = self.first
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.PROMPT)

    @torch.no_grad()
    def __call__(self):
        logits = self.model(self.token, past_key_values=self.cache).logits
        self.token = logits[:, -1:].argmax(-1)
        self.token.item()
        return self.token
