# SPDX-License-Identifier: Apache-2.0 - training steps of models shaped like Qwen3, for all devices of a pod that is not here.
"""torch-tpu aot examples/aot_qwen3.py --topology v5p:4x4x4

QWEN3=8b (FSDP over all devices) or QWEN3=235b-a22b (experts over 16 devices, FSDP over the rest; for
tpu7x:16x16x32), LAYERS=2 for fewer of them, BATCH=1 sequences of SEQUENCE=4096 tokens for each device.
Computes in bfloat16, keeps weights and AdamW's state in float32.
"""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard


@dataclass
class Config:
    layers: int
    heads: int
    kv_heads: int
    width: int = 4096
    hidden: int = 12288  # of a dense layer, or of one expert
    head: int = 128
    experts: int = 0
    chosen: int = 0  # experts for each token
    vocabulary: int = 151936


CONFIGS = {
    "8b": Config(layers=36, heads=32, kv_heads=8),
    "235b-a22b": Config(layers=94, heads=64, kv_heads=4, hidden=1536, experts=128, chosen=8),
}


def rotary(x, base=1e6):
    """x: (batch, heads, tokens, size of a head)."""
    half = x.shape[-1] // 2
    at = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
    rate = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = at[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.q = nn.Linear(c.width, c.heads * c.head, bias=False)
        self.k = nn.Linear(c.width, c.kv_heads * c.head, bias=False)
        self.v = nn.Linear(c.width, c.kv_heads * c.head, bias=False)
        self.out = nn.Linear(c.heads * c.head, c.width, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(c.head, 1e-6), nn.RMSNorm(c.head, 1e-6)

    def forward(self, x):
        heads = [m(x).unflatten(-1, (-1, self.c.head)) for m in (self.q, self.k, self.v)]
        q, k, v = (
            h.transpose(1, 2) for h in (self.q_norm(heads[0]), self.k_norm(heads[1]), heads[2])
        )
        y = F.scaled_dot_product_attention(rotary(q), rotary(k), v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """This device's experts. x: (experts, tokens, width)."""

    def __init__(self, c, here):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(here, c.width, c.hidden))
        self.up = nn.Parameter(torch.empty(here, c.width, c.hidden))
        self.down = nn.Parameter(torch.empty(here, c.hidden, c.width))

    def forward(self, x):
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Mixture(nn.Module):
    """Every expert takes up to a fixed number of tokens of each device, a quarter more than its share;
    what is beyond is dropped. So all sizes are known ahead."""

    def __init__(self, c, group):
        super().__init__()
        self.c, self.group = c, group
        self.router = nn.Linear(c.width, c.experts, bias=False)
        self.experts = Experts(c, c.experts // dist.get_world_size(group))

    def exchange(self, x):
        return funcol.all_to_all_single_autograd(x, None, None, self.group)

    def forward(self, x):
        c, tokens = self.c, x.flatten(0, 1)
        places = dist.get_world_size(self.group)
        capacity = len(tokens) * c.chosen * 5 // (4 * c.experts)
        weight, expert = self.router(tokens).float().softmax(-1).topk(c.chosen, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype).flatten()
        expert = expert.flatten()
        order = expert.argsort(stable=True)  # (token, choice) pairs by expert
        sorted_expert = expert[order]
        first = torch.searchsorted(sorted_expert, torch.arange(c.experts, device=x.device))
        rank = torch.arange(len(order), device=x.device) - first[sorted_expert]
        kept = rank < capacity
        slot = torch.where(kept, sorted_expert * capacity + rank, c.experts * capacity)
        source = order // c.chosen
        sent = x.new_zeros(c.experts * capacity + 1, c.width).index_copy(0, slot, tokens[source])
        got = self.exchange(sent[:-1])  # by sender, then by expert of this device
        got = got.view(places, -1, capacity, c.width).transpose(0, 1).flatten(1, 2)
        done = self.experts(got).unflatten(1, (places, capacity)).transpose(0, 1)
        done = self.exchange(done.reshape(-1, c.width))
        done = torch.cat((done, done.new_zeros(1, c.width)))[slot] * weight[order][:, None]
        return torch.zeros_like(tokens).index_add(0, source, done).view_as(x)


class Layer(nn.Module):
    def __init__(self, c, group):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(c.width, 1e-6), nn.RMSNorm(c.width, 1e-6)
        self.attention = Attention(c)
        self.mlp = Mixture(c, group) if c.experts else Dense(c)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Qwen3(nn.Module):
    def __init__(self, c, group=None):
        super().__init__()
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(Layer(c, group) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.width, 1e-6)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build():
    c = CONFIGS[os.environ.get("QWEN3", "8b")]
    c.layers = int(os.environ.get("LAYERS", c.layers))
    world = dist.get_world_size()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if c.experts:
        # 16 devices share the experts; dense weights are divided among 512 devices and kept by each such group.
        mesh = init_device_mesh(
            "tpu", (world // 512, 32, 16), mesh_dim_names=("replicas", "shards", "experts")
        )
        dense = mesh["shards", "experts"]._flatten("dense")
        rest = mesh["replicas", "shards"]._flatten("rest")
        with torch.device("tpu"):
            model = Qwen3(c, mesh["experts"].get_group())
        for layer in model.layers:
            fully_shard(
                layer.mlp.experts,
                mesh=rest,
                mp_policy=policy,
                shard_placement_fn=lambda p: Shard(p.shape.index(c.width)),
            )
            layer.mlp.experts.set_gradient_divide_factor(world)
            layer.mlp.experts.set_force_sum_reduction_for_comms(True)
        mesh = mesh["replicas", "dense"] if world > 512 else dense
    else:
        mesh = init_device_mesh("tpu", (world,))
        with torch.device("tpu"):
            model = Qwen3(c)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    def step(tokens, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    batch, length = int(os.environ.get("BATCH", 1)), int(os.environ.get("SEQUENCE", 4096))
    tokens = torch.empty(batch, length, dtype=torch.int64, device="meta")
    return step, (tokens, tokens)
