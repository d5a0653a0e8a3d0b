# SPDX-License-Identifier: Apache-2.0 - what the run-time check of indices costs: python -m benchmarks.index_checks
"""Forward and backward of a look-up, with the check and without, taking turns in one process.

`weight[ids]` is checked in both directions, `aten::_unsafe_index` in none; they are the same programs
otherwise. `embedding` is what models use: checked forward.
"""

import statistics
import time

import torch
import torch.nn.functional as F

ROUNDS, STEPS = 25, 20
LOOKUPS = {
    "unchecked": lambda weight, ids: torch.ops.aten._unsafe_index(weight, [ids]),
    "checked": lambda weight, ids: weight[ids],
    "embedding": lambda weight, ids: F.embedding(ids, weight),
}


def main() -> None:
    for rows, width, batch, length in ((1000, 64, 8, 32), (4000, 256, 32, 128)):
        torch.manual_seed(0)
        weight = torch.randn(rows, width, device="tpu", requires_grad=True)
        ids = torch.randint(rows, (batch, length), device="tpu")
        gradient = torch.randn(batch, length, width, device="tpu")
        times = {name: [] for name in LOOKUPS}
        for number in range(ROUNDS + 2):  # the first two warm up
            for name, lookup in LOOKUPS.items():
                begin = time.perf_counter()
                for _ in range(STEPS):
                    lookup(weight, ids).backward(gradient)
                    weight.grad = None
                torch.tpu.synchronize()
                if number >= 2:
                    times[name].append((time.perf_counter() - begin) / STEPS * 1e6)
        print(f"{batch} x {length} ids into {rows} x {width}:")
        for name, t in times.items():
            print(f"  {name:10} {statistics.median(t):8.1f} us a step, best {min(t):8.1f}")


if __name__ == "__main__":
    main()
