# SPDX-License-Identifier: Apache-2.0 - importing this package makes the device "tpu" known to torch.
"""torch_tpu: a native PyTorch backend for TPUs.

`import torch` alone is enough (PyTorch loads installed backends by itself); importing this package,
before torch or after it, does the same. Nothing here wakes a device: its first use does.
"""

__version__ = "0.3.0.dev0"

from typing import Any

from torch_tpu._loader import load

load()


# Made when they are first asked for: importing the package is part of `import torch`.
_HOMES = {
    "capture": "_step",
    "dynamic_shapes": "_bounds",
    "explain": "_explain",
    "export": "_export",
    "load_exported": "_export",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "aot":
        return import_module("torch_tpu.aot")
    if name not in _HOMES:
        raise AttributeError(f"module 'torch_tpu' has no attribute '{name}'")
    return getattr(import_module(f"torch_tpu.{_HOMES[name]}"), name)
