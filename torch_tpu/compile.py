# SPDX-License-Identifier: Apache-2.0 - torch.compile(backend="tpu"): the backend that dynamo finds by its entry point.
"""Dynamo gives a graph, AOTAutograd makes of it a forward and a backward graph of aten operators
(functional but for writes to inputs), and each of these becomes one program (`_graph.Piece`).
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._dynamo import device_interface

from torch_tpu import _C, _bounds, _graph


@cache
def decompositions() -> dict:
    """PyTorch's core decompositions of what the operator table has no entry for."""
    from torch._decomp import core_aten_decompositions

    ours = {name for name, how, _ in _C._operator_rows() if how in ("entry", "derived")}
    return {op: fn for op, fn in core_aten_decompositions().items() if op.name() not in ours}


def uses_device(graph: torch.fx.GraphModule, inputs: list) -> bool:
    """Whether an input, a parameter or a value inside of the graph is on the device."""
    values = [*inputs, *graph.parameters(), *graph.buffers()]
    values += [node.meta.get("example_value") for node in graph.graph.nodes]
    return any(isinstance(v, torch.Tensor) and v.device.type == "tpu" for v in values)


def backend(
    graph: torch.fx.GraphModule,
    example_inputs: list[torch.Tensor],
    *,
    made: Callable[[str, _graph.Piece], None] | None = None,
    options: dict[str, Any] | None = None,
    **ignored: Any,
) -> Callable:
    """What torch.compile calls with a captured graph.

    `mode=` is accepted and has no meaning here: there is one way to compile, which is what
    "max-autotune" and "reduce-overhead" ask of other backends. Of `options=`, "bucket" is the policy
    for open sizes (`torch_tpu.dynamic_shapes`); others are ignored. A graph that does not touch the
    device is run as it stands. `made` is told each piece and what it is: "forward", "backward",
    "inference".
    """
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    if not uses_device(graph, example_inputs):
        return graph.forward

    _bounds.tell_leaving(graph)
    policy = _bounds.check_policy((options or {}).get("bucket", _bounds.current_policy()))

    def compiler(what: str, module: torch.fx.GraphModule, inputs: list) -> _graph.Piece:
        piece = _graph.Piece(module, policy=policy)
        if made is not None:
            made(what, piece)
        return piece

    compile_graph = aot_autograd(
        fw_compiler=partial(compiler, "forward"),
        bw_compiler=partial(compiler, "backward"),
        inference_compiler=partial(compiler, "inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return compile_graph(graph, example_inputs)


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
