# SPDX-License-Identifier: Apache-2.0 - what is measured, on which sides, and which ratios are promised.
"""Shared by all processes of a benchmark run; imports neither torch nor jax."""

from dataclasses import dataclass

# The sides, in the order of the table. The first is what all others are compared with.
SIDES = {
    "cpu": "PyTorch CPU eager",
    "strict": "tpu Strict",
    "fuse": "tpu DeferAndFuse",
    "compile": "tpu torch.compile",
    "capture": "tpu captured step",
    "jax": "JAX jit (CPU)",
}


@dataclass(frozen=True)
class Work:
    """One line of the table."""

    title: str
    steps: int  # timed steps in a round
    warm: int  # steps before the first round
    unit: str = "ms"  # of the table: "ms" or "us"
    parts: int = 1  # a step is this many equal operations, and the table shows the time of one
    # Wait after each step. Training waits once, at the end of a round, as training loops do; but where
    # a step's result is dropped, a lazy side could otherwise leave out the work.
    wait_each: bool = True


WORKS = {
    "adds": Work("add 8x8 float32, in a chain of 1,000, per add", 10, 3, "us", 1000),
    "mlp": Work("MLP training step (batch 32, hidden 256, SGD)", 200, 10, wait_each=False),
    "gpt": Work(
        "GPT training step (4 layers, width 256, batch 4 x 128, AdamW)", 4, 3, wait_each=False
    ),
    "resnet": Work("ResNet-18-shaped forward (batch 4, 64x64)", 20, 3),
    "token": Work("GPT decode step (4 layers, width 256, cache of 128, batch 1)", 100, 10),
    "decode": Work("SmolLM2-135M decode step (float32, batch 1)", 16, 4),
}

# Work whose first step is timed in fresh processes, with an empty cache and then with a full one.
FIRST = ("mlp", "gpt")


# Above this share of the machine used by other processes during the rounds, nothing is judged.
QUIET = 0.05


@dataclass(frozen=True)
class Promise:
    """What `side` needs, divided by what `base` needs, is at most `limit`."""

    work: str
    side: str
    limit: float
    base: str = "cpu"
    # "time" of a warm step; "memory": the process's peak; "cold" and "warm": time of the first step in
    # a new process, with an empty cache and a full one; "warm/cold": of one side, whatever the base.
    what: str = "time"


PROMISES = (
    Promise("adds", "strict", 2.5),
    Promise("adds", "fuse", 1.0),
    Promise("adds", "strict", 1.0, "jax"),
    Promise("adds", "fuse", 1.0, "jax"),
    Promise("mlp", "strict", 1.2),
    Promise("mlp", "fuse", 0.95),
    Promise("resnet", "strict", 1.1),
    Promise("resnet", "fuse", 1.1),
    Promise("gpt", "capture", 0.75, "jax"),
    Promise("gpt", "capture", 1.05),
    Promise("gpt", "compile", 1.1),
    Promise("mlp", "capture", 0.9, "jax"),
    Promise("token", "compile", 0.9, "jax"),
    Promise("gpt", "capture", 1.1, "jax", "memory"),
    Promise("mlp", "capture", 1.0, "jax", "cold"),
    Promise("gpt", "capture", 1.0, "jax", "cold"),
    Promise("mlp", "capture", 0.6, "jax", "warm"),
    Promise("gpt", "capture", 0.6, "jax", "warm"),
    Promise("gpt", "capture", 0.15, "capture", "warm/cold"),
)
