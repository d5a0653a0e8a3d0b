# SPDX-License-Identifier: Apache-2.0 - tpu tensors through torch.multiprocessing: queues, pipes, arguments of processes.
"""A tensor that is sent to another process arrives as a copy on that process's device.

Other devices share the memory itself. Here it belongs to one process, so writes on one side are not
seen on the other. Tensors that share a storage still do where they arrive, if sent in one message.
"""

import torch
from torch.multiprocessing.reductions import reduce_storage


def _reduce(storage: torch.UntypedStorage):
    if storage.device.type != "tpu":
        return reduce_storage(storage)
    return _rebuild, (storage.cpu(),)


def _rebuild(host: torch.UntypedStorage) -> torch.UntypedStorage:
    return host.to(device="tpu")


def install() -> None:
    torch.multiprocessing.reductions.reduction.register(torch.UntypedStorage, _reduce)
