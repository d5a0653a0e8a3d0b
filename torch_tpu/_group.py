# SPDX-License-Identifier: Apache-2.0 - torch.distributed as one device of many sees it, when none of them is here.
import contextlib
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torch_tpu import _C

_BACKEND = "abstract"


def _make(options: Any, _: Any) -> Any:
    from torch._C._distributed_c10d import FakeProcessGroup

    ranks = list(options.global_ranks_in_group)
    world = dist.get_world_size() if ranks else options.group_size
    host = FakeProcessGroup._create_internal(options.group_rank, options.group_size)
    return _C._abstract_group(
        options.group_rank, ranks or list(range(options.group_size)), world, host
    )


def _copy_in(
    inputs: list[torch.Tensor],
    output: torch.Tensor,
    sizes: list[int],
    size: int,
    rank: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """fsdp::all_gather_copy_in, with what is sent apart from where it arrives: a program has no use for a
    place among the others' parts, and that place would be this rank's."""
    return torch.cat([t.reshape(-1) for t in inputs]), output


def _leave() -> None:
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    if dist.is_initialized():
        dist.destroy_process_group()
    _clear_sharding_prop_cache()  # it knows groups by names that will be given anew


@contextlib.contextmanager
def world(devices: int, rank: int) -> Iterator[None]:
    """This process is one of so many, and within `aot.abstract()` its collectives are traced. Raises
    RuntimeError where torch.distributed is in use, ValueError where there is no such rank."""
    if not 0 <= rank < devices:
        raise ValueError(f"rank {rank} of {devices} devices")
    if dist.is_initialized():
        raise RuntimeError(
            "aot.abstract(topology=...) makes a process group of the topology's devices, and there is one "
            "already; call torch.distributed.destroy_process_group() before"
        )
    import torch.distributed.fsdp  # defines the operator below

    if _BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(_BACKEND, _make, extended_api=True, devices=["tpu", "cpu"])
    store = torch.testing._internal.distributed.fake_pg.FakeStore()
    environment = {
        "RANK": rank,
        "WORLD_SIZE": devices,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": rank,
    }
    library = torch.library.Library("fsdp", "IMPL")
    with warnings.catch_warnings():  # that there is a kernel is known
        warnings.simplefilter("ignore")
        library.impl("all_gather_copy_in", _copy_in, "PrivateUse1")
    with contextlib.ExitStack() as stack:
        stack.callback(library._destroy)
        stack.enter_context(
            mock.patch.dict(os.environ, {k: str(v) for k, v in environment.items()})
        )
        stack.enter_context(mock.patch.object(sys, "excepthook", sys.excepthook))  # init sets it
        # What _leave() forgets is a thread's own, so the backward pass stays in this one.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        dist.init_process_group(_BACKEND, store=store, rank=rank, world_size=devices)
        stack.callback(_leave)

        def join(*_: Any, **__: Any) -> None:
            """A script's own init_process_group(): the group is there."""

        for module in (dist, c10d):
            stack.enter_context(mock.patch.object(module, "init_process_group", join))
        yield


def size() -> int:
    """How many devices the traced program is for."""
    return dist.get_world_size() if dist.is_initialized() else 1


def check_even(tensors: list[torch.Tensor]) -> None:
    """All devices are to run one program. Raises ValueError where some would hold a smaller part of a
    DTensor than others. fully_shard's are no trouble: it pads them, and what is done with a parameter's
    part is done with the padding too."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if size() == 1:
        return
    padded = None
    for t in tensors:
        if not isinstance(t, DTensor):
            continue
        parts = dict.fromkeys(range(t.ndim), 1)
        for placement, count in zip(t.placements, t.device_mesh.shape, strict=True):
            if isinstance(placement, (Shard, _StridedShard)):
                parts[placement.dim] *= count
        for dim, count in parts.items():
            if t.shape[dim] % count == 0:
                continue
            if padded is None:
                managed = [p.sharded_param for p in gc.get_objects() if type(p) is FSDPParam]
                padded = {(p.shape, p.placements) for p in managed}
            if (t.shape, t.placements) in padded:
                continue
            raise ValueError(
                f"a DTensor of shape {tuple(t.shape)} has dimension {dim} divided among {count} devices, "
                "which is uneven: the devices would run different programs. Pad that dimension to a "
                f"multiple of {count}, or place it otherwise"
            )
