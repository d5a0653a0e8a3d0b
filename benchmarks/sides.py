# SPDX-License-Identifier: Apache-2.0 - starts the worker processes, and makes JAX's own environment.
"""`Side` is the near end of one worker process."""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JAX_ENVIRONMENT = ROOT / ".venv-jax"
JAX_PACKAGES = ["jax==0.10.2", "jaxlib==0.10.2", "numpy"]
PATIENCE = 600  # seconds for one answer: first steps compile


def jax_python() -> Path:
    """The Python of an environment with jax, made on the first call."""
    python = JAX_ENVIRONMENT / "bin" / "python"
    probe = [python, "-c", "import jax"]
    if not python.exists() or subprocess.run(probe, capture_output=True).returncode:
        print(f"Making an environment with jax in {JAX_ENVIRONMENT.name} (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", JAX_ENVIRONMENT], check=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *JAX_PACKAGES], check=True)
    return python


class Neighbours:
    """How busy other processes kept the machine while ours were measured, as a share of all cores.

    Figures taken beside other work are worth nothing: PyTorch's threads wait for each other at every
    operation, and one that is held up slows a small training step a hundred times.
    """

    def __init__(self, pids: list[int]):
        self.pids = pids
        self.start = self._seconds()

    def _seconds(self):
        tick = os.sysconf("SC_CLK_TCK")
        with open("/proc/stat") as stat:
            user, nice, system, _, _, irq, soft, steal = map(int, stat.readline().split()[1:9])
        ours = 0
        for pid in self.pids:
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/stat") as stat:
                ours += sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13]))
        everything = user + nice + system + irq + soft + steal
        return everything / tick, ours / tick, time.perf_counter()

    def share(self) -> float:
        (all0, ours0, t0), (all1, ours1, t1) = self.start, self._seconds()
        others = (all1 - all0) - (ours1 - ours0)
        return max(0.0, others / ((t1 - t0) * os.cpu_count()))


class Side:
    """One worker process; `ask()` sends an order and waits for the answer."""

    verbose = False  # show what the workers print, tracebacks above all

    def __init__(self, side: str, device: str, cache: Path | None = None):
        self.started = time.perf_counter()
        environment = dict(os.environ)
        if side == "jax":
            environment["JAX_PLATFORMS"] = "cpu"
        if cache and side == "jax":
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": str(cache),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        elif cache:
            environment["TORCH_TPU_CACHE_DIR"] = str(cache)
        python = jax_python() if side == "jax" else sys.executable
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.worker", side, device],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if Side.verbose else subprocess.DEVNULL,
        )

    def ask(self, **order) -> dict:
        """The answer, or {"error": ...} when the process failed, died or kept silent."""
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process ended with {self.process.wait()}"}
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            self.process.kill()
            return {"error": f"no answer in {PATIENCE} s"}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": f"process ended: {self.process.wait()}"}

    def age(self) -> float:
        """Seconds since the process was started."""
        return time.perf_counter() - self.started

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
