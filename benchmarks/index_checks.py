# SPDX-License-Identifier: Apache-2.0 - what the run-time check of indices costs: python -m benchmarks.index_checks
"""Forward and backward of an embedding, with the check and without, taking turns in one process.

`F.embedding` checks its indices forward; its gradient trusts them. The other look-up is the same Python
with `aten::_unsafe_index`, which has the same program but for the check. Both have the gradient of
`F.embedding`.
"""

import statistics
import time

import torch

ROUNDS, STEPS = 41, 20
aten = torch.ops.aten


def embedding(look_up):
    class Embedding(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight, ids):
            ctx.save_for_backward(ids)
            ctx.rows = len(weight)
            return look_up(weight, ids)

        @staticmethod
        def backward(ctx, gradient):
            (ids,) = ctx.saved_tensors
            return aten.embedding_dense_backward(gradient, ids, ctx.rows, -1, False), None

    return Embedding.apply


LOOKUPS = {
    "unchecked": embedding(lambda weight, ids: aten._unsafe_index(weight, [ids])),
    "checked": embedding(lambda weight, ids: aten.embedding(weight, ids)),
}


def main() -> None:
    for rows, width, batch, length in ((1000, 64, 8, 32), (4000, 256, 32, 128)):
        torch.manual_seed(0)
        weight = torch.randn(rows, width, device="tpu", requires_grad=True)
        ids = torch.randint(rows, (batch, length), device="tpu")
        gradient = torch.randn(batch, length, width, device="tpu")
        times = {name: [] for name in LOOKUPS}
        for number in range(ROUNDS + 2):  # the first two warm up
            for name, look_up in LOOKUPS.items():
                begin = time.perf_counter()
                for _ in range(STEPS):
                    look_up(weight, ids).backward(gradient)
                    weight.grad = None
                torch.tpu.synchronize()
                if number >= 2:
                    times[name].append((time.perf_counter() - begin) / STEPS * 1e6)
        print(f"{batch} x {length} ids into {rows} x {width}:")
        for name, t in times.items():
            print(f"  {name:10} {statistics.median(t):8.1f} us a step, best {min(t):8.1f}")
        ratios = [c / u for u, c in zip(times["unchecked"], times["checked"], strict=True)]
        print(f"  the check costs {100 * (statistics.median(ratios) - 1):.1f} % (median of rounds)")


if __name__ == "__main__":
    main()
