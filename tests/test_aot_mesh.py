# SPDX-License-Identifier: Apache-2.0 - programs of many devices: what their collectives compute, and what libtpu makes of them.
import importlib.util

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from torch_tpu import _C, aot

DEVICE = "tpu"
needs_libtpu = pytest.mark.skipif(
    not importlib.util.find_spec("libtpu"), reason="compiling for a TPU needs libtpu"
)


def run_everywhere(build, devices, feed):
    """Traces the program of each device, runs it on as many devices of the CPU plugin, and returns the
    named tensors afterwards, by device.

    build() gives (step, names): a function, and a function that gives local tensors by name. feed(name,
    rank) gives the values before the step; the step's result is named "result".
    """
    modules, inputs, outputs = set(), [], []
    for rank in range(devices):
        with aot.abstract(devices=devices, rank=rank):
            step, names = build()
            step()  # a first step makes state
            before = {_C._value_identity(t): name for name, t in names().items()}
            _C._begin_step()
            result = step()
            after = {_C._value_identity(t): name for name, t in names().items()}
            if result is not None:
                after[_C._value_identity(result)] = "result"
            traced = _C._end_abstract_step([])
        modules.add(traced["module"])
        inputs.append(
            [
                feed(before[identity], rank).to(dtype).reshape(sizes).contiguous()
                for identity, dtype, sizes in traced["inputs"]
            ]
            + [torch.tensor(words).to(dtype) for dtype, words in as_values(traced["scalars"])]
        )
        outputs.append([(after.get(i), dtype, sizes) for i, dtype, sizes in traced["outputs"]])
    assert len(modules) == 1, "devices have different programs"
    results = _C._run_replicas(modules.pop(), inputs)
    return [
        {
            name: raw.view(dtype).reshape(sizes)
            for (name, dtype, sizes), raw in zip(outs, raws, strict=False)
        }
        for outs, raws in zip(outputs, results, strict=True)
    ]


def as_values(scalars):
    for dtype, words in scalars:
        bits = torch.tensor(words, dtype=torch.int64)
        if dtype.itemsize == 4:
            bits = bits.to(torch.int32)
        yield dtype, bits.view(dtype).tolist()


def test_each_collective_computes_what_it_says():
    parts = {"x": torch.randn(8, 8, 3)}  # of each device

    def build():
        mesh = init_device_mesh(DEVICE, (2, 4), mesh_dim_names=("outer", "inner"))
        x = torch.empty(8, 3, device=DEVICE)
        inner, outer = mesh["inner"].get_group(), mesh["outer"].get_group()
        made = {}

        def step():
            made["gathered"] = funcol.all_gather_single(x, 0, inner) + 0
            made["sum"] = funcol.all_reduce(x, "sum", outer) + 0
            made["largest"] = funcol.all_reduce(x, "max", inner) + 0
            made["mean"] = funcol.reduce_scatter_single(x, "avg", 0, inner) + 0
            made["exchanged"] = funcol.all_to_all_single(x, None, None, inner) + 0
            made["sent"] = funcol.broadcast(x, 2, inner) + 0
            made["shifted"] = funcol.permute_tensor(x, [1, 2, 3, 0], inner) + 0
            both = funcol.all_reduce_coalesced([x, x * 2], "sum", inner)
            made["both"] = both[0] + both[1]
            buffer = torch.empty(32, 3, device=DEVICE)
            dist.all_gather_single(buffer, x, group=inner)
            made["buffer"] = buffer
            every = x.clone()
            dist.all_reduce(every)
            made["every"] = every

        return step, lambda: {"x": x, **made}

    x = parts["x"].view(2, 4, 8, 3)
    results = run_everywhere(build, 8, lambda name, rank: parts[name][rank])
    for rank, got in enumerate(results):
        o, i = divmod(rank, 4)
        torch.testing.assert_close(got["gathered"], x[o].flatten(0, 1))
        torch.testing.assert_close(got["buffer"], x[o].flatten(0, 1))
        torch.testing.assert_close(got["sum"], x[:, i].sum(0))
        torch.testing.assert_close(got["every"], x.sum((0, 1)))
        torch.testing.assert_close(got["largest"], x[o].amax(0))
        torch.testing.assert_close(got["mean"], x[o].mean(0)[2 * i : 2 * i + 2])
        torch.testing.assert_close(got["exchanged"], x[o].view(4, 4, 2, 3)[:, i].reshape(8, 3))
        torch.testing.assert_close(got["sent"], x[o, 2])
        torch.testing.assert_close(got["shifted"], x[o, (i - 1) % 4])
        torch.testing.assert_close(got["both"], 3 * x[o].sum(0))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


def test_a_training_step_under_fsdp_and_tensor_parallelism():
    reference = nn.Sequential(Mlp(), Mlp())
    weights = {name: p.detach().clone() for name, p in reference.named_parameters()}
    x, y = torch.randn(2, 4, 8), torch.randn(2, 4, 8)  # a batch for each of two groups

    def build():
        mesh = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("data", "tensor"))
        with torch.device(DEVICE):
            model = nn.Sequential(Mlp(), Mlp())
            a, b = torch.empty(4, 8), torch.empty(4, 8)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for layer in model:
            parallelize_module(layer, mesh["tensor"], plan)
            fully_shard(layer, mesh=mesh["data"])
        fully_shard(model, mesh=mesh["data"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        placed.update({n: (p.placements, p.device_mesh) for n, p in model.named_parameters()})

        def step():
            optimizer.zero_grad()
            loss = F.mse_loss(model(a), b)
            loss.backward()
            optimizer.step()
            return loss.detach()

        def names():
            local = {n: p.to_local() for n, p in model.named_parameters()}
            return {**local, "a": a, "b": b}

        return step, names

    placed = {}

    def part(name, rank):
        """Row-wise parts first go to the data dimension of the mesh, within those of the tensor one."""
        data, tensor = divmod(rank, 2)
        whole = state[name]
        if "down.weight" in name:
            return whole.chunk(2, 1)[tensor].chunk(2, 0)[data]
        if "up" in name:
            whole = whole.chunk(2, 0)[tensor]
        return whole.chunk(2, 0)[data]

    def feed(name, rank):
        if name in ("a", "b"):
            return (x if name == "a" else y)[rank // 2]
        return part(name, rank)

    state = weights
    results = run_everywhere(build, 4, feed)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    losses = [F.mse_loss(reference(x[i]), y[i]) for i in range(2)]
    (sum(losses) / 2).backward()
    optimizer.step()
    state = {name: p.detach() for name, p in reference.named_parameters()}
    for rank, got in enumerate(results):
        torch.testing.assert_close(got["result"].squeeze(), losses[rank // 2].detach())
        for name in state:
            torch.testing.assert_close(got[name], part(name, rank).reshape(got[name].shape))


def test_errors():
    with pytest.raises(ValueError, match="Default process group has not been initialized"):
        dist.all_reduce(torch.ones(2, device=DEVICE))
    with aot.abstract(devices=6):
        with pytest.raises(ValueError, match="cannot be one of a mesh"):
            dist.new_group([0, 1, 3])
        group = dist.new_group([0, 1, 2])
        x = torch.ones(4, device=DEVICE)
        with pytest.raises(RuntimeError, match="cannot be divided"):
            dist.reduce_scatter_single(torch.ones(1, device=DEVICE), x, group=group)
        with pytest.raises(NotImplementedError, match="a program for each"):
            dist.send(x, 1)
        with pytest.raises(RuntimeError, match="process group"), aot.abstract(devices=2):
            pass
        mesh = init_device_mesh(DEVICE, (6,))
        uneven = DTensor.from_local(
            torch.ones(2, device=DEVICE), mesh, [Shard(0)], shape=(8,), stride=(1,)
        )
        with pytest.raises(ValueError, match="uneven"):
            aot.compile(lambda: uneven.full_tensor() + 1, topology="v5e:1x1x1")
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="rank 2 of 2"), aot.abstract(devices=2, rank=2):
        pass


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.silu(self.up(self.norm2(x))))


def fsdp_step(width, layers, vocabulary):
    """An unmodified script's way to a training step over all devices."""
    mesh = init_device_mesh(DEVICE, (dist.get_world_size(),))
    with torch.device(DEVICE):
        model = nn.Sequential(
            nn.Embedding(vocabulary, width),
            *(Block(width, 4) for _ in range(layers)),
            nn.Linear(width, vocabulary, bias=False),
        )
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model[1:-1]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


@needs_libtpu
@pytest.mark.parametrize(
    "topology",
    ["v5p:4x4x4", *(pytest.param(t, marks=pytest.mark.slow) for t in ("v5e:2x2", "v5p:2x2x1"))],
)
def test_libtpu_compiles_a_training_step_for_all_devices(topology):
    with aot.abstract(topology):
        model, step = fsdp_step(256, 2, 512)
        tokens = torch.empty(2, 64, dtype=torch.int64, device="meta")
        report = aot.compile(step, (tokens, tokens))
    assert report.devices == report.replicas == {"v5e:2x2": 4, "v5p:2x2x1": 4}.get(topology, 64)
    local = sum(p.numel() for p in model.parameters()) * 4 // report.devices
    assert report.memory["parameters"] == pytest.approx(local, rel=0.01)
    assert report.memory["optimizer state"] == pytest.approx(2 * local, rel=0.05)
    # What the compiler says that the program takes.
    told = report.compiler_memory
    taken = told["arguments"] + told["outputs"] - told["reused arguments"]
    taken += told["temporaries"] + told["code"]
    assert report.total == pytest.approx(taken, rel=0.05)
    # The products of all weights but the embedding's, three times; and both of attention.
    weights = sum(p.numel() for p in model[1:].parameters() if p.ndim == 2)
    assert report.model_flops == 6 * weights * 128 + 12 * 2 * 2 * 256 * 64**2
    assert "test_aot_mesh.py" in report.stablehlo and "torch_tpu/" not in report.stablehlo
    kinds = {c.kind: c for c in report.collectives}
    assert kinds["all_gather"].group == kinds["reduce_scatter"].group == report.devices
    # Each device gets all parameters but its own, forward and backward (the root's once), and sends gradients.
    assert kinds["reduce_scatter"].bytes >= local * (report.devices - 1)
    assert report.fits and report.executable
