# SPDX-License-Identifier: Apache-2.0 - memory in use on the device, as torch.cuda tells it.
"""Memory of torch.tpu.

Counted are the buffers of tensors and of values in flight, not what a program needs while it runs.
Reading a count waits for the device, since buffers come into being as programs finish.
"""

from typing import Any

import torch

from torch_tpu import _C
from torch_tpu.tpu.devices import _DeviceLike, index_of, tell_cache_warning


def memory_stats(device: _DeviceLike = None) -> dict[str, Any]:
    """Counts by the names torch.cuda.memory_stats uses; empty while the device has not been used."""
    return torch.accelerator.memory_stats(index_of(device))


def memory_allocated(device: _DeviceLike = None) -> int:
    """Bytes of device memory in use."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: _DeviceLike = None) -> int:
    """The most bytes in use since the start, or since reset_peak_memory_stats()."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: _DeviceLike = None) -> int:
    """The same as memory_allocated(): freed buffers go back to the plugin at once."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: _DeviceLike = None) -> int:
    return torch.accelerator.max_memory_reserved(index_of(device))


def mem_get_info(device: _DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes. The total is the device's, or TORCH_TPU_MEMORY_LIMIT_MB. Wakes it."""
    return torch.accelerator.get_memory_info(index_of(device))


def empty_cache() -> None:
    """Drops compiled programs that nothing uses. They come back from the disk cache when needed."""
    torch.accelerator.empty_cache()
    tell_cache_warning()


def reset_peak_memory_stats(device: _DeviceLike = None) -> None:
    index_of(device)
    if _C._is_initialized():
        torch.accelerator.reset_peak_memory_stats(0)


def reset_accumulated_memory_stats(device: _DeviceLike = None) -> None:
    index_of(device)
    if _C._is_initialized():
        torch.accelerator.reset_accumulated_memory_stats(0)


def host_memory_stats() -> dict[str, Any]:
    """Counts of pinned host memory."""
    return _C._host_memory_stats()


def memory_summary(device: _DeviceLike = None, abbreviated: bool = False) -> str:
    """A table for people."""
    index_of(device)
    if not _C._is_initialized():
        return "device tpu:0 has not been used yet"
    free, total = mem_get_info()
    stats = memory_stats()
    host = host_memory_stats()
    rows = [
        ("device memory", "now", "peak"),
        (
            "in use",
            _size(stats["allocated_bytes.all.current"]),
            _size(stats["allocated_bytes.all.peak"]),
        ),
        ("free", _size(free), ""),
        ("total", _size(total), ""),
    ]
    if not abbreviated:
        rows += [
            ("buffers", f"{stats['allocation.all.current']:,}", ""),
            (
                "pinned host memory",
                _size(host["active_bytes.current"]),
                _size(host["active_bytes.peak"]),
            ),
        ]
    lines = [f"{name:<20}{now:>14}{peak:>14}" for name, now, peak in rows]
    rule = "-" * len(lines[0])
    title = f"Memory of tpu:0, {torch.tpu.get_device_name()}"
    return "\n".join([title, rule, lines[0], rule, *lines[1:], rule])


def _size(n: int) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:,} {unit}" if unit == "B" else f"{n:,.1f} {unit}"
        n /= 1024
    raise AssertionError
