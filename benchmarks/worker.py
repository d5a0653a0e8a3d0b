# SPDX-License-Identifier: Apache-2.0 - the process that runs one side of one benchmark, told what to do on its input.
"""Reads one JSON object a line and answers with one: `first` (build and do one step), `run`, `facts`.

One process for each side and piece of work, so that peak memory is that work's own and a crash costs
one cell of the table.
"""

import json
import os
import sys
import time


def torch_side(side: str, device: str):
    """(build, wait, facts) for PyTorch: on the CPU, or on the device in the mode that the side names."""
    import torch

    from benchmarks import torch_work

    if side == "cpu" or device == "cpu":
        return (lambda name: torch_work.build(name, "cpu")), (lambda result: None), dict
    mode = "DEFER_AND_FUSE" if side == "fuse" else "DEFER_NEVER"
    torch.tpu.set_eager_mode(getattr(torch.tpu.EagerMode, mode))

    def facts():
        return {
            "device_peak_mib": torch.tpu.max_memory_allocated() / 2**20,
            # Without the cache's folder, which is a path of the machine.
            "cache": {k: v for k, v in torch.tpu.cache_stats().items() if k != "disk_cache"},
            "fallbacks": torch.tpu.fallback_counts(),
            "plugin": torch.tpu.get_device_properties().plugin_version,
        }

    def wait(result):
        torch.tpu.synchronize()

    return (lambda name: torch_work.build(name, device, side)), wait, facts


def jax_side():
    from benchmarks import jax_work

    return jax_work.build, (lambda result: result.block_until_ready()), dict


def peak_mib() -> float:
    """The largest resident size that this process ever had."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


class Worker:
    def __init__(self, side: str, device: str):
        self.build, self.wait, self.facts = (
            jax_side() if side == "jax" else torch_side(side, device)
        )
        self.imported_mib = peak_mib()
        self.step = None

    def first(self, name):
        self.step = self.build(name)
        start = time.perf_counter()
        self.wait(self.step())
        return {"first_seconds": time.perf_counter() - start, **self.told()}

    def run(self, steps, wait_each):
        """Seconds a step."""
        getattr(self.step, "begin", lambda: None)()
        start = time.perf_counter()
        for _ in range(steps):
            result = self.step()
            if wait_each:
                self.wait(result)
        self.wait(result)
        return (time.perf_counter() - start) / steps

    def told(self):
        return {"peak_mib": peak_mib(), "imported_mib": self.imported_mib, **self.facts()}


def main(side: str, device: str) -> None:
    # Answers go out on their own descriptor: whatever a library prints lands on stderr instead.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    worker = None
    for line in sys.stdin:
        order = json.loads(line)
        try:
            worker = worker or Worker(side, device)
            if order["do"] == "first":
                answer(worker.first(order["work"]))
            elif order["do"] == "run":
                answer({"seconds": worker.run(order["steps"], order["wait_each"])})
            else:
                answer(worker.told())
        except Exception as error:  # the table says what went wrong, the other sides go on
            import traceback

            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})


if __name__ == "__main__":
    main(*sys.argv[1:])
