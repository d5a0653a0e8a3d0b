# SPDX-License-Identifier: Apache-2.0 - what ran where: plugin, mode, programs compiled, cache hits, times, memory.
"""Prints what torch.tpu tells about the work done so far in this process."""

import torch


def main(device: str, seconds: float) -> None:
    """`seconds` is the time the work on the device took as the user saw it."""
    print("\nWhat ran where")
    if device == "cpu":
        print("  everything: PyTorch's own CPU kernels, in float32; no programs, no cache")
        return
    properties = torch.tpu.get_device_properties()
    stats = torch.tpu.cache_stats()
    rows = [
        ("device", properties.name),
        ("plugin", f"{properties.plugin_version}: {properties.plugin_path}"),
        ("mode", torch.tpu.eager_mode().name),
        ("programs compiled", f"{stats['programs_compiled']:,}"),
        ("  found on disk", f"{stats['disk_hits']:,}"),
        ("  found in memory", f"{stats['memory_hits']:,} times"),
        ("time on the device", f"{seconds:.1f} s, as a stop watch beside it would show"),
        ("  compiling", f"{stats['compile_seconds']:.1f} s, in the background where possible"),
        ("  running", f"{stats['run_seconds']:.1f} s"),
        ("peak memory", f"{torch.tpu.max_memory_allocated() / 2**20:.0f} MiB"),
    ]
    for name, value in rows:
        print(f"  {name:20s} {value}")
