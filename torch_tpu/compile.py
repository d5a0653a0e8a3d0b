# SPDX-License-Identifier: Apache-2.0 - torch.compile(backend="tpu"): the backend that dynamo finds by its entry point.
"""For now a graph that dynamo captured is run operator by operator, as it would run without it, so
that programs which ask for this backend work (transformers does for static caches). In the mode
DEFER_AND_FUSE that fuses what torch.compile would. One program a graph is to come.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._dynamo import device_interface


def backend(
    graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor], **options: Any
) -> Callable:
    """What torch.compile calls with a captured graph. Options are accepted and have no effect yet."""
    return graph.forward


class TpuInterface(device_interface.DeviceInterface):
    """Answers dynamo's and Inductor's questions about the device."""

    device = torch.tpu.device
    Event = torch.Event
    Stream = torch.Stream
    current_device = staticmethod(torch.tpu.current_device)
    set_device = staticmethod(torch.tpu.set_device)
    device_count = staticmethod(torch.tpu.device_count)
    is_available = staticmethod(torch.tpu.is_available)
    stream = staticmethod(torch.tpu.stream)
    current_stream = staticmethod(torch.tpu.current_stream)
    set_stream = staticmethod(torch.tpu.set_stream)
    synchronize = staticmethod(torch.tpu.synchronize)
    memory_allocated = staticmethod(torch.tpu.memory_allocated)
    exchange_device = staticmethod(torch.tpu._exchange_device)
    maybe_exchange_device = staticmethod(torch.tpu._maybe_exchange_device)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        torch.tpu.set_stream(
            torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type)
        )

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return torch.tpu.current_stream(device_idx).stream_id

    @staticmethod
    def get_compute_capability(device: torch.types.Device = None) -> str:
        return torch.tpu.get_device_properties(device).generation

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @classmethod
    def is_dtype_supported(cls, dtype: torch.dtype, including_emulation: bool = False) -> bool:
        return dtype in torch.accelerator.get_device_capability()["supported_dtypes"]

    @staticmethod
    def is_triton_capable(device: torch.types.Device = None) -> bool:
        return False

    class Worker:
        """Asked in Inductor's compile processes, which must not wake the device."""

        current_device = staticmethod(torch.tpu.current_device)
        set_device = staticmethod(torch.tpu.set_device)
        get_device_properties = staticmethod(torch.tpu.get_device_properties)


@cache
def register_interface() -> None:
    """Replaces the interface that PyTorch has for a device of this name (Inductor's Pallas route)."""
    # First make PyTorch register its own, which it would otherwise do later, over ours.
    device_interface.get_interface_for_device("cpu")
    device_interface.register_interface_for_device("tpu", TpuInterface)
    device_interface.register_interface_for_device("tpu:0", TpuInterface)


register_interface()
