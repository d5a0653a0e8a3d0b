# SPDX-License-Identifier: Apache-2.0 - streams and events of device "tpu".
"""Streams and events of torch.tpu.

All streams of a process share one queue that runs in order. So work submitted before a wait always
runs before work submitted after it, on whatever stream: waits hold by construction. Queries and
synchronize() tell and wait for what was really submitted. Times of events are taken by the host when
it sees the work finished (PJRT gives programs no clock), good to about a tenth of a millisecond.
"""

import torch

from torch_tpu.tpu.devices import _DeviceLike, index_of


class _OfTheDevice(type):
    """PyTorch's calls want its own classes exactly, so the classes here make those, and take every
    torch.Stream or torch.Event of the device for an instance."""

    def __instancecheck__(cls, thing) -> bool:
        return isinstance(thing, cls.__mro__[1]) and thing.device.type == "tpu"


class Stream(torch.Stream, metaclass=_OfTheDevice):
    """Makes a torch.Stream of device "tpu". `priority` is accepted: a queue in order has none."""

    def __new__(cls, device: _DeviceLike = None, priority: int = 0, **existing) -> torch.Stream:
        if existing:  # stream_id, device_index, device_type
            return torch.Stream(**existing)
        return torch.Stream(torch.device("tpu", index_of(device)), priority=priority)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


class Event(torch.Event, metaclass=_OfTheDevice):
    """Makes a torch.Event of device "tpu"."""

    def __new__(
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        device: _DeviceLike = None,
    ) -> torch.Event:
        if interprocess or external:
            raise NotImplementedError(
                "a tpu event cannot be shared with another process or captured into a graph: its "
                "queue belongs to this process"
            )
        return torch.Event(
            torch.device("tpu", index_of(device)), enable_timing=enable_timing, blocking=blocking
        )

    @classmethod
    def from_ipc_handle(cls, device, handle):
        raise NotImplementedError("tpu events cannot be shared between processes")


def current_stream(device: _DeviceLike = None) -> torch.Stream:
    """The calling thread's stream."""
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: _DeviceLike = None) -> torch.Stream:
    """The stream of every thread that never chose one."""
    kind = torch._C._autograd.DeviceType.PrivateUse1.value
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=kind)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream the calling thread's; `with torch.tpu.stream(s):` is the better way."""
    if stream is not None:
        _check(stream)
        torch.accelerator.set_stream(stream)


class StreamContext:
    """Context manager that makes a stream the calling thread's; None does nothing."""

    def __init__(self, stream: torch.Stream | None):
        if stream is not None:
            _check(stream)
        self.stream = stream
        self._before: list[torch.Stream] = []

    def __enter__(self):
        if self.stream is not None:
            self._before.append(torch.accelerator.current_stream())
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(self, *exception) -> bool:
        if self.stream is not None:
            torch.accelerator.set_stream(self._before.pop())
        return False


def stream(stream: torch.Stream | None) -> StreamContext:
    return StreamContext(stream)


def _check(stream) -> None:
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"expected a torch.Stream, got {type(stream).__name__}")
    if stream.device.type != "tpu":
        raise ValueError(f"expected a stream of a tpu device, got one of {stream.device}")
