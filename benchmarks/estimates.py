# SPDX-License-Identifier: Apache-2.0 - how well a roofline ranks programs that can be timed here: python -m benchmarks.estimates
"""What `torch_tpu.aot` counts in a program for TPUs is counted here in programs of the CPU plugin, a
roofline with this machine's own peaks makes times of it, and those are compared with the clock.

Host kernels are off, as nothing is known of what a custom call does. The peaks are those that a large
product and a large copy reach; 30 us are added for the call of a program.
"""

import os
import statistics
import time
from collections.abc import Callable

os.environ["TORCH_TPU_HOST_KERNELS"] = "0"

import torch
import torch.nn.functional as F
from torch import nn

import torch_tpu

ROUNDS = 15
CALL = 30e-6


def mlp(width: int, batch: int) -> tuple[Callable, tuple]:
    net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    return net.to("tpu"), (torch.randn(batch, width, device="tpu"),)


def block(width: int, heads: int, length: int) -> tuple[Callable, tuple]:
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    return layer.to("tpu").train(), (torch.randn(2, length, width, device="tpu"),)


def training(made: tuple[Callable, tuple]) -> tuple[Callable, tuple]:
    net, inputs = made
    weights = list(net.parameters())
    return lambda x: torch.autograd.grad(net(x).square().mean(), weights), inputs


def data(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, device="tpu")


def programs() -> dict[str, tuple[Callable, tuple]]:
    return {
        "add, 256 x 256": (torch.add, (data(256, 256), data(256, 256))),
        "add, 2048 x 2048": (torch.add, (data(2048, 2048), data(2048, 2048))),
        "chain, 1024 x 1024": (lambda x: (x * x + x).sigmoid() * x - 1, (data(1024, 1024),)),
        "sum of rows, 2048 x 2048": (lambda x: x.sum(-1), (data(2048, 2048),)),
        "softmax, 512 x 512": (lambda x: x.softmax(-1), (data(512, 512),)),
        "softmax, 4096 x 1024": (lambda x: x.softmax(-1), (data(4096, 1024),)),
        "layer norm, 2048 x 512": (lambda x: F.layer_norm(x, (512,)), (data(2048, 512),)),
        "matmul, 128": (torch.matmul, (data(128, 128), data(128, 128))),
        "matmul, 512": (torch.matmul, (data(512, 512), data(512, 512))),
        "matmul, 1024": (torch.matmul, (data(1024, 1024), data(1024, 1024))),
        "matmul, 2048": (torch.matmul, (data(2048, 2048), data(2048, 2048))),
        "matrix by vector, 2048": (torch.mv, (data(2048, 2048), data(2048))),
        "attention, 256 x 64": (
            F.scaled_dot_product_attention,
            tuple(data(1, 8, 256, 64) for _ in range(3)),
        ),
        "mlp, 256, batch 32": mlp(256, 32),
        "mlp, 512, batch 256": mlp(512, 256),
        "mlp, 256, batch 32, training": training(mlp(256, 32)),
        "mlp, 512, batch 256, training": training(mlp(512, 256)),
        "block, 128 x 128": block(128, 4, 128),
        "block, 256 x 256": block(256, 8, 256),
        "block, 128 x 128, training": training(block(128, 4, 128)),
        "block, 256 x 256, training": training(block(256, 8, 256)),
    }


def seconds(function: Callable, inputs: tuple) -> float:
    times = []
    for number in range(ROUNDS + 3):  # the first three warm up
        begin = time.perf_counter()
        function(*inputs)
        torch.tpu.synchronize()
        if number >= 3:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def counts(function: Callable, inputs: tuple) -> tuple[float, float]:
    """Flops and bytes from and to memory."""
    torch._dynamo.reset()
    report = torch_tpu.explain(function, *inputs)
    modules = [program.module for graph in report.graphs for program in graph.programs]
    return sum(m.cost()[0] for m in modules), sum(m.traffic() for m in modules)


def ranks(values: list[float]) -> list[int]:
    order = sorted(range(len(values)), key=values.__getitem__)
    out = [0] * len(values)
    for rank, index in enumerate(order):
        out[index] = rank
    return out


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, of values without ties."""
    n = len(a)
    squares = sum((x - y) ** 2 for x, y in zip(ranks(a), ranks(b), strict=True))
    return 1 - 6 * squares / (n * (n * n - 1))


def main() -> None:
    torch.manual_seed(0)
    big, wide = data(2048, 2048), data(8192, 2048)
    flops_peak = 2 * 2048**3 / seconds(torch.matmul, (big, big))
    bytes_peak = 2 * wide.nbytes / seconds(torch.neg, (wide,))
    print(f"this machine: {flops_peak / 1e9:.0f} Gflop/s, {bytes_peak / 1e9:.1f} GB/s")
    measured, estimated = [], []
    for name, (function, inputs) in programs().items():
        flops, size = counts(function, inputs)
        torch._dynamo.reset()
        measured.append(seconds(torch.compile(function, backend="tpu"), inputs))
        estimated.append(CALL + max(flops / flops_peak, size / bytes_peak))
        print(
            f"{name:32} {flops / 1e6:10.2f} Mflop {size / 1e6:9.2f} MB"
            f"   estimate {estimated[-1] * 1e6:9.0f} us   measured {measured[-1] * 1e6:9.0f} us",
            flush=True,
        )
    print(f"rank correlation: {rank_correlation(measured, estimated):.2f}")


if __name__ == "__main__":
    main()
