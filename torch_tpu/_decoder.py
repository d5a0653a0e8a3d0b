# SPDX-License-Identifier: Apache-2.0 - a training step of a decoder language model, laid out over the devices of a pod.
"""What `torch-tpu plan` compiles: the model is only as real as its costs need it to be (Qwen3's and Llama's
shapes, plain PyTorch). Weights and AdamW's state are float32, products are computed in bfloat16."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

# PyTorch 2.13 gave them other names.
_gather = getattr(funcol, "all_gather_single", None) or funcol.all_gather_tensor
_gather_autograd = (
    getattr(funcol, "all_gather_single_autograd", None) or funcol.all_gather_tensor_autograd
)


@dataclass(frozen=True)
class Config:
    """Sizes of a model, as its publisher gives them."""

    layers: int
    width: int
    hidden: int  # of a dense layer, or of one expert
    heads: int
    kv_heads: int
    vocabulary: int
    head: int = 128
    head_norms: bool = True  # queries and keys are normalised (Qwen3)
    tied: bool = False  # the last layer uses the embedding's weight
    experts: int = 0
    chosen: int = 0  # experts for each token

    @property
    def attention_weights(self) -> int:
        return self.width * self.head * 2 * (self.heads + self.kv_heads)

    @property
    def dense_weights(self) -> int:
        """All but the experts'."""
        mlp = self.width * self.experts if self.experts else 3 * self.width * self.hidden
        return self.layers * (self.attention_weights + mlp) + self.vocabulary * self.width * (
            1 if self.tied else 2
        )

    @property
    def expert_weights(self) -> int:
        return self.layers * self.experts * 3 * self.width * self.hidden

    @property
    def active_weights(self) -> int:
        """What each token is multiplied by."""
        share = self.chosen / self.experts if self.experts else 0
        embedding = 0 if self.tied else self.vocabulary * self.width
        return self.dense_weights - embedding + round(self.expert_weights * share)


# From the config.json of each model on huggingface.co.
CONFIGS = {
    "qwen3-0.6b": Config(28, 1024, 3072, 16, 8, 151936, tied=True),
    "qwen3-1.7b": Config(28, 2048, 6144, 16, 8, 151936, tied=True),
    "qwen3-4b": Config(36, 2560, 9728, 32, 8, 151936, tied=True),
    "qwen3-8b": Config(36, 4096, 12288, 32, 8, 151936),
    "qwen3-14b": Config(40, 5120, 17408, 40, 8, 151936),
    "qwen3-32b": Config(64, 5120, 25600, 64, 8, 151936),
    "qwen3-30b-a3b": Config(48, 2048, 768, 32, 4, 151936, experts=128, chosen=8),
    "qwen3-235b-a22b": Config(94, 4096, 1536, 64, 4, 151936, experts=128, chosen=8),
    "llama-3.1-8b": Config(32, 4096, 14336, 32, 8, 128256, head_norms=False),
    "llama-3.1-70b": Config(80, 8192, 28672, 64, 8, 128256, head_norms=False),
}


@dataclass(frozen=True, order=True)
class Layout:
    """How many devices each kind of parallelism takes; the product is the number of devices."""

    data: int = 1  # replicas of the weights
    shard: int = 1  # devices that divide the weights among them (FSDP), with sequences of their own
    expert: int = 1  # devices that divide the experts among them, with sequences of their own
    context: int = 1  # devices that divide a sequence among them
    tensor: int = 1  # devices that divide the weights of a product among them
    recompute: bool = field(default=False)  # activations of a layer are computed again backward

    @property
    def devices(self) -> int:
        return self.batches * self.context * self.tensor

    @property
    def batches(self) -> int:
        """Devices that have different sequences."""
        return self.data * self.shard * self.expert

    @property
    def dense_parts(self) -> int:
        """Into how many parts a weight outside of the experts is divided."""
        return self.shard * self.expert * self.context * self.tensor

    def __str__(self) -> str:
        names = ("data", "shard", "expert", "context", "tensor")
        parts = [f"{n} {getattr(self, n)}" for n in names if getattr(self, n) > 1]
        return ", ".join(parts or ["one device"]) + (", recomputing" if self.recompute else "")


def rotated(x: torch.Tensor, position: torch.Tensor, base: float = 1e6) -> torch.Tensor:
    """Rotary position embedding (arxiv.org/abs/2104.09864). x: (batch, heads, tokens, head)."""
    half = x.shape[-1] // 2
    rate = base ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = position.float()[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    def __init__(self, c: Config, context: dist.ProcessGroup | None):
        super().__init__()
        self.head, self.context = c.head, context
        self.q = nn.Linear(c.width, c.heads * c.head, bias=False)
        self.k = nn.Linear(c.width, c.kv_heads * c.head, bias=False)
        self.v = nn.Linear(c.width, c.kv_heads * c.head, bias=False)
        self.out = nn.Linear(c.heads * c.head, c.width, bias=False)
        norms = c.head_norms
        self.q_norm = nn.RMSNorm(c.head, 1e-6) if norms else nn.Identity()
        self.k_norm = nn.RMSNorm(c.head, 1e-6) if norms else nn.Identity()

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        q, k, v = (m(x).unflatten(-1, (-1, self.head)) for m in (self.q, self.k, self.v))
        q = rotated(self.q_norm(q).transpose(1, 2), position)
        k, v = rotated(self.k_norm(k).transpose(1, 2), position), v.transpose(1, 2)
        mask = None
        if self.context is not None:  # everybody's keys and values, of which the earlier ones count
            k, v = (_gather_autograd(t, 2, self.context) for t in (k, v))
            keys = _gather(position, 0, self.context)
            mask = position[:, None] >= keys
        y = F.scaled_dot_product_attention(
            q, k, v, mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
        )
        return self.out(y.transpose(1, 2).flatten(2))


class Dense(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate = nn.Linear(c.width, c.hidden, bias=False)
        self.up = nn.Linear(c.width, c.hidden, bias=False)
        self.down = nn.Linear(c.hidden, c.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """This device's experts. x: (experts, tokens, width)."""

    def __init__(self, c: Config, here: int):
        super().__init__()
        self.gate = nn.Parameter(torch.empty(here, c.width, c.hidden))
        self.up = nn.Parameter(torch.empty(here, c.width, c.hidden))
        self.down = nn.Parameter(torch.empty(here, c.hidden, c.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(F.silu(torch.bmm(x, self.gate)) * torch.bmm(x, self.up), self.down)


class Mixture(nn.Module):
    """Every expert takes up to a fixed number of tokens of each device, a quarter more than its share;
    what is beyond is dropped. So all sizes are known ahead."""

    def __init__(self, c: Config, group: dist.ProcessGroup | None):
        super().__init__()
        self.c, self.group = c, group
        self.places = dist.get_world_size(group) if group is not None else 1
        self.router = nn.Linear(c.width, c.experts, bias=False)
        self.experts = Experts(c, c.experts // self.places)

    def exchange(self, x: torch.Tensor) -> torch.Tensor:
        if self.group is None:
            return x
        return funcol.all_to_all_single_autograd(x, None, None, self.group)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        c, tokens = self.c, x.flatten(0, 1)
        capacity = max(1, len(tokens) * c.chosen * 5 // (4 * c.experts))
        weight, expert = self.router(tokens).float().softmax(-1).topk(c.chosen, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype).flatten()
        expert = expert.flatten()
        order = expert.argsort(stable=True)  # (token, choice) pairs by expert
        sorted_expert = expert[order]
        first = torch.searchsorted(sorted_expert, torch.arange(c.experts, device=x.device))
        rank = torch.arange(len(order), device=x.device) - first[sorted_expert]
        slot = torch.where(rank < capacity, sorted_expert * capacity + rank, c.experts * capacity)
        source = order // c.chosen
        sent = x.new_zeros(c.experts * capacity + 1, c.width).index_copy(0, slot, tokens[source])
        got = self.exchange(sent[:-1])  # by sender, then by expert of this device
        got = got.view(self.places, -1, capacity, c.width).transpose(0, 1).flatten(1, 2)
        done = self.experts(got).unflatten(1, (self.places, capacity)).transpose(0, 1)
        done = self.exchange(done.reshape(-1, c.width))
        done = torch.cat((done, done.new_zeros(1, c.width)))[slot] * weight[order][:, None]
        return torch.zeros_like(tokens).index_add(0, source, done).view_as(x)


class Layer(nn.Module):
    def __init__(self, c: Config, expert, context):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(c.width, 1e-6), nn.RMSNorm(c.width, 1e-6)
        self.attention = Attention(c, context)
        self.mlp = Mixture(c, expert) if c.experts else Dense(c)

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), position)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self, c: Config, expert=None, context=None, recompute: bool = False):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(Layer(c, expert, context) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.width, 1e-6)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)
        if c.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, position, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, position)
        return self.head(self.norm(x))


_TENSOR_PLAN = {
    "attention.q": ColwiseParallel(),
    "attention.k": ColwiseParallel(),
    "attention.v": ColwiseParallel(),
    "attention.out": RowwiseParallel(),
    "mlp.gate": ColwiseParallel(),
    "mlp.up": ColwiseParallel(),
    "mlp.down": RowwiseParallel(),
}


def _mesh(layout: Layout) -> DeviceMesh:
    names = ("data", "shard", "expert", "context", "tensor")
    return init_device_mesh("tpu", tuple(getattr(layout, n) for n in names), mesh_dim_names=names)


def training_step(
    c: Config, layout: Layout, batch: int, length: int
) -> tuple[Callable, tuple[torch.Tensor, ...]]:
    """A step of AdamW on `batch` sequences of `length` tokens in all, and its inputs on each device: tokens,
    targets, and the tokens' positions. To be called within `aot.abstract(topology)`, whose devices are as many
    as the layout's; with one device, none is needed. Sizes must divide."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    expert = context = None
    mesh = _mesh(layout) if layout.devices > 1 else None
    if layout.expert > 1:
        expert = mesh["expert"].get_group()
    if layout.context > 1:
        context = mesh["context"].get_group()
    with torch.device("tpu"):
        model = Decoder(c, expert, context, layout.recompute)
    if layout.tensor > 1:
        for layer in model.layers:
            parallelize_module(layer, mesh["tensor"], _TENSOR_PLAN)
        parallelize_module(
            model, mesh["tensor"], {"head": ColwiseParallel(output_layouts=Replicate())}
        )
    if mesh is not None:
        dense = mesh["shard", "expert", "context"]._flatten("dense")
        if layout.expert > 1:
            rest = mesh["data", "shard", "context"]._flatten("rest")
            for layer in model.layers:
                experts = layer.mlp.experts
                fully_shard(
                    experts,
                    mesh=rest,
                    mp_policy=policy,
                    shard_placement_fn=lambda p: Shard(p.shape.index(c.width)),
                )
                experts.set_force_sum_reduction_for_comms(True)
                experts.set_gradient_divide_factor(layout.batches * layout.context)
        if layout.data > 1:
            dense = mesh["data", "dense"]
        for layer in model.layers:
            fully_shard(layer, mesh=dense, mp_policy=policy)
        fully_shard(model, mesh=dense, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    def step(tokens, targets, position):
        optimizer.zero_grad()
        with torch.autocast("tpu", torch.bfloat16, enabled=mesh is None):
            logits = model(tokens, position)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    size = (batch // layout.batches, length // layout.context)
    tokens = torch.empty(size, dtype=torch.int64, device="meta")
    position = torch.empty(size[1], dtype=torch.int64, device="meta")
    return step, (tokens, tokens, position)
