# SPDX-License-Identifier: Apache-2.0 - when operators run, in what precision they multiply, and what was compiled.
"""Modes, precision and the program cache of torch.tpu."""

import contextlib
import enum
from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu.devices import tell_cache_warning


class EagerMode(enum.Enum):
    """When operators outside torch.compile are run. The values are those of the core."""

    DEFER_NEVER = 0
    """Each at once, without waiting for its result: the default."""
    DEFER_NEVER_AND_LAUNCH_BLOCKING = 1
    """Each at once, and waiting, so that an error names the line that caused it."""
    DEFER_AND_FUSE = 2
    """Many together, as one fused program, when a result is needed."""


def set_eager_mode(mode: EagerMode) -> None:
    """Changes the mode of the process, for all threads. What was deferred so far is submitted."""
    if not isinstance(mode, EagerMode):
        names = ", ".join(f"EagerMode.{m.name}" for m in EagerMode)
        raise TypeError(f"set_eager_mode: mode must be one of {names}; got {mode!r}")
    _C._set_mode(mode.value)


class _Restore(contextlib.ContextDecorator):
    def __init__(self, enter, leave):
        self._enter, self._leave, self._before = enter, leave, []

    def __enter__(self) -> None:
        self._before.append(self._enter())

    def __exit__(self, *exception) -> bool:
        self._leave(self._before.pop())
        return False


def eager_mode(mode: EagerMode | None = None):
    """Without an argument, the mode. With one, a context manager (or decorator) that uses it."""
    if mode is None:
        return EagerMode(_C._mode())
    if not isinstance(mode, EagerMode):
        set_eager_mode(mode)  # raises

    def enter():
        before = eager_mode()
        set_eager_mode(mode)
        return before

    return _Restore(enter, set_eager_mode)


class Precision(enum.Enum):
    """How float32 matrices are multiplied; the values are torch.set_float32_matmul_precision's."""

    DEFAULT = "medium"
    """One pass in bfloat16 on a TPU."""
    HIGH = "high"
    """Three passes in bfloat16."""
    HIGHEST = "highest"
    """float32: the default."""


def precision(mode: Precision) -> contextlib.ContextDecorator:
    """Context manager (or decorator) around torch.set_float32_matmul_precision."""
    if not isinstance(mode, Precision):
        names = ", ".join(f"Precision.{m.name}" for m in Precision)
        raise ValueError(f"precision: mode must be one of {names}; got {mode!r}")

    def enter():
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(mode.value)
        return before

    return _Restore(enter, torch.set_float32_matmul_precision)


def cache_stats() -> dict[str, Any]:
    """What was compiled, what was found, and how long it took.

    programs_compiled, disk_hits (loaded from disk instead), root_hits (from the
    shared root), memory_hits (already there);
    compile_seconds and load_seconds in the compile threads, wait_for_compile_seconds lost waiting
    for them, run_seconds executing; programs_in_memory; disk_cache: its directory and bytes.
    """
    tell_cache_warning()
    stats = _C._cache_stats()
    directory = stats.pop("disk_directory")
    size = _C._disk_cache_bytes() if directory else 0
    stats["disk_cache"] = {"directory": directory, "bytes": size}
    return stats


def reset_cache_stats() -> None:
    """Sets the counters and times of cache_stats() to zero; the cache keeps its programs."""
    _C._reset_cache_stats()


def fallback_counts() -> dict[str, int]:
    """How often each operator ran on the CPU because the device has none (TORCH_TPU_CPU_FALLBACK=1)."""
    return dict(_C._fallback_counts())
