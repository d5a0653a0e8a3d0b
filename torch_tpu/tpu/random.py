# SPDX-License-Identifier: Apache-2.0 - seeds and state of the device's random generator.
"""Random numbers of torch.tpu.

The generator is a seed and an offset, kept on the host: reading or setting them never waits and
wakes nothing. A state is 16 bytes, the seed (uint64) and the offset (int64).
"""

from collections.abc import Iterable

from torch import Tensor
from torch._compile import _disable_dynamo

from torch_tpu import _C
from torch_tpu.tpu.devices import _DeviceLike, index_of


@_disable_dynamo
def get_rng_state(device: _DeviceLike = "tpu") -> Tensor:
    index_of(device)
    return _C._default_generator().get_state()


@_disable_dynamo
def set_rng_state(new_state: Tensor, device: _DeviceLike = "tpu") -> None:
    index_of(device)
    _C._default_generator().set_state(new_state)


@_disable_dynamo
def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state()]


@_disable_dynamo
def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


@_disable_dynamo
def manual_seed(seed: int) -> None:
    """Sets the seed; torch.manual_seed() does the same, for the CPU too."""
    _C._default_generator().manual_seed(int(seed))


manual_seed_all = manual_seed


@_disable_dynamo
def seed() -> int:
    """Takes a new random seed, and returns it."""
    return _C._default_generator().seed()


@_disable_dynamo
def seed_all() -> None:
    seed()


@_disable_dynamo
def initial_seed() -> int:
    return _C._default_generator().initial_seed()
