# SPDX-License-Identifier: Apache-2.0 - the module torch.tpu: what torch.cuda offers, for device "tpu".
"""Device "tpu" in the shape of torch.cuda.

Importing this wakes nothing: the client is made when the device is first used. Everything that
torch.accelerator offers is answered by it; this module adds the names that callers expect of a
device module, and what only this device has: modes, the cache of compiled programs, precision.

A process has one device, "tpu:0". Where an index is asked for, 0, None and the process's own
LOCAL_RANK (which launchers hand to "their" process) mean that device; any other is an error.
"""

import atexit

import torch

from torch_tpu import _C
from torch_tpu.tpu import _dlpack, _sharing
from torch_tpu.tpu._dlpack import from_dlpack, to_dlpack
from torch_tpu.tpu.devices import (
    DeviceProperties,
    _exchange_device,  # noqa: F401
    _is_in_bad_fork,  # noqa: F401
    _lazy_init,  # noqa: F401
    _maybe_exchange_device,  # noqa: F401
    can_device_access_peer,
    clock_rate,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_initialized,
    memory_usage,
    power_draw,
    set_device,
    synchronize,
    tell_cache_warning,
    temperature,
    utilization,
)
from torch_tpu.tpu.memory import (
    empty_cache,
    host_memory_stats,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_tpu.tpu.modes import (
    EagerMode,
    Precision,
    cache_stats,
    eager_mode,
    fallback_counts,
    precision,
    reset_cache_stats,
    set_eager_mode,
)
from torch_tpu.tpu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_tpu.tpu.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Event",
    "Precision",
    "Stream",
    "StreamContext",
    "cache_stats",
    "can_device_access_peer",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "eager_mode",
    "empty_cache",
    "fallback_counts",
    "from_dlpack",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "host_memory_stats",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "memory_usage",
    "power_draw",
    "precision",
    "reset_accumulated_memory_stats",
    "reset_cache_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "temperature",
    "to_dlpack",
    "utilization",
]

# One generator a device, as torch.cuda.default_generators.
default_generators: tuple[torch.Generator, ...] = (_C._default_generator(),)

# bfloat16 has float32's range, so it needs no loss scaling, and it is what the hardware multiplies.
# PyTorch keeps this default by thread: threads of the user's own start with its own, float16.
torch.set_autocast_dtype("tpu", torch.bfloat16)

_dlpack.install()
_sharing.install()


def __getattr__(name: str):
    # torch.utils.checkpoint reads this to decide whether random state is to be kept.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


@atexit.register
def _end() -> None:
    """The threads of the device must end while the interpreter still stands."""
    if is_initialized():
        tell_cache_warning()
    _C._shutdown()
