# SPDX-License-Identifier: Apache-2.0 - which devices there are, what they are called and what they can do.
"""Devices of torch.tpu."""

import re
import warnings
from dataclasses import dataclass, field
from functools import cache

import torch

from torch_tpu import _C

_DeviceLike = torch.device | str | int | None


def index_of(device: _DeviceLike) -> int:
    """The index that a device argument means: always 0; an error for what is not the device."""
    if device is None:
        return 0
    if isinstance(device, bool) or not isinstance(device, torch.device | str | int):
        raise TypeError(
            f"a device is a torch.device, a string, an int or None, not {type(device).__name__}"
        )
    index = device
    if not isinstance(device, int):
        device = torch.device(device)
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        index = device.index if device.index is not None else 0
    try:
        _C._check_index(index)
    except (RuntimeError, TypeError) as error:
        message = str(error).splitlines()[0] if isinstance(error, RuntimeError) else None
        raise ValueError(message or f"there is no device tpu:{index}") from None
    return 0


def is_available() -> bool:
    """Whether the device can be used: a PJRT plugin is installed. Wakes nothing."""
    return _C._is_available()


def device_count() -> int:
    """1 when there is a plugin, else 0: one process, one device."""
    return int(_C._is_available())


def is_initialized() -> bool:
    """Whether the device has been used, so that its client exists."""
    return _C._is_initialized() and not _C._is_in_bad_fork()


def init() -> None:
    """Wakes the device: loads the plugin and makes its client. Its first use does the same."""
    _C._init()


def _lazy_init() -> None:
    """What PyTorch calls before it touches the device, also before calls that need no client (a
    generator, an event, torch.accelerator.synchronize). So this wakes nothing; it raises what would
    keep the device from waking."""
    if not is_initialized():
        if _C._is_in_bad_fork():
            _C._init()  # says so
        _C._plugin_choice()


def _is_in_bad_fork() -> bool:
    """True in a child that was forked after the device was used: the child cannot use it."""
    return _C._is_in_bad_fork()


def current_device() -> int:
    return 0


def set_device(device: _DeviceLike) -> None:
    """Accepts the one device there is."""
    index_of(device)


def _exchange_device(device: int) -> int:
    if device >= 0:
        index_of(device)
    return 0


_maybe_exchange_device = _exchange_device


class device:
    """Context manager that makes a device the current one: of the one there is, a check."""

    def __init__(self, device: _DeviceLike):
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception) -> bool:
        return False


class device_of(device):
    """The same, for the device of a tensor or storage; does nothing for one on another device."""

    def __init__(self, obj):
        on_device = getattr(obj, "device", torch.device("cpu")).type == "tpu"
        super().__init__(obj.device if on_device else None)


def synchronize(device: _DeviceLike = None) -> None:
    """Waits for everything that was submitted, and raises what went wrong in it."""
    index_of(device)
    _C._synchronize()
    tell_cache_warning()


def tell_cache_warning() -> None:
    """A compile thread found a damaged entry of the disk cache: the user hears of it when something
    waits or asks, at the latest at the end of the process."""
    if message := _C._take_cache_warning():
        warnings.warn(message, RuntimeWarning, stacklevel=3)


@dataclass(frozen=True)
class DeviceProperties:
    """What torch.tpu.get_device_properties() tells."""

    name: str  # "TPU v5e"; "TPU (XLA CPU plugin)" when there is no TPU and the CPU plays its part
    total_memory: int  # bytes that programs may use
    multi_processor_count: int
    platform: str  # "tpu" or "cpu"
    is_emulated: bool  # True: this is the CPU
    device_kind: str  # as the plugin says it
    generation: str  # "v5e"; "" when emulated
    major: int  # the generation's number; 0 when emulated
    minor: int
    plugin_path: str
    plugin_version: str  # "PJRT C API 0.106" and what the plugin adds
    plugin_identity: str  # hash of the plugin file; part of the keys of cached programs
    attributes: dict = field(repr=False)  # coordinates and the like, as the plugin tells


# How libtpu calls the generations, and how people do.
_KINDS = (
    (r"v?7", "v7"),
    (r"v6 ?(lite|e)", "v6e"),
    (r"v5 ?(lite|e)", "v5e"),
    (r"v5", "v5p"),
    (r"v(\d+)", None),
)


def generation_of(kind: str) -> str:
    """ "v5e" of "TPU v5 lite"."""
    for pattern, generation in _KINDS:
        if match := re.search(pattern, kind, re.IGNORECASE):
            return generation or f"v{match[1]}"
    return ""


@cache
def _properties() -> DeviceProperties:
    info = _C._device_info()
    emulated = info["is_cpu"]
    generation = "" if emulated else generation_of(info["kind"])
    if emulated:
        name = "TPU (XLA CPU plugin)"
    else:
        name = f"TPU {generation}" if generation else f"TPU ({info['kind']})"
    version = "PJRT C API {}.{}".format(*info["plugin_api"])
    if info["platform_version"]:
        version += f", {info['platform_version']}"
    return DeviceProperties(
        name=name,
        total_memory=info["total_memory"],
        multi_processor_count=1,
        platform="cpu" if emulated else "tpu",
        is_emulated=emulated,
        device_kind=info["kind"],
        generation=generation,
        major=int(re.sub(r"\D", "", generation) or 0),
        minor=0,
        plugin_path=info["plugin_path"],
        plugin_version=version,
        plugin_identity=info["plugin_identity"],
        attributes=info["attributes"],
    )


def get_device_properties(device: _DeviceLike = None) -> DeviceProperties:
    """What the device is. Wakes it."""
    index_of(device)
    return _properties()


def get_device_name(device: _DeviceLike = None) -> str:
    """ "TPU v5e" and the like; "TPU (XLA CPU plugin)" without a TPU. Wakes the device."""
    return get_device_properties(device).name


def get_device_capability(device: _DeviceLike = None) -> tuple[int, int]:
    """The TPU's generation, (5, 0) for v5e and v5p; (0, 0) when the CPU plays its part."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return including_emulation or not get_device_properties().is_emulated


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What torch.autocast("tpu") may compute in. Without a dtype it takes bfloat16 on the thread that
    imported torch, and PyTorch's float16 on others."""
    return [torch.bfloat16, torch.float16]


def can_device_access_peer(device: _DeviceLike, peer_device: _DeviceLike) -> bool:
    """False: a process has one device."""
    index_of(device)
    index_of(peer_device)
    return False


def ipc_collect() -> None:
    """Does nothing: device memory is not shared between processes."""


def _not_measured(what: str):
    def function(device: _DeviceLike = None) -> int:
        index_of(device)
        raise NotImplementedError(
            f"torch.tpu cannot tell the {what}: a PJRT plugin does not measure it. On a TPU machine "
            "the tool tpu-info does"
        )

    return function


utilization = _not_measured("utilization of the device")
memory_usage = _not_measured("share of time in which memory was read or written")
temperature = _not_measured("temperature")
power_draw = _not_measured("power that is drawn")
clock_rate = _not_measured("clock rate")
