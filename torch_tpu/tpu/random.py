# SPDX-License-Identifier: Apache-2.0 - seeds and state of the device's random generator.
"""Random numbers of torch.tpu.

The generator is a seed and an offset, kept on the host: reading or setting them never waits and
wakes nothing. A state is 16 bytes, the seed (uint64) and the offset (int64).
"""

from collections.abc import Iterable

from torch import Tensor

from torch_tpu import _C
from torch_tpu.tpu.devices import _DeviceLike, index_of


def get_rng_state(device: _DeviceLike = "tpu") -> Tensor:
    index_of(device)
    return _C._default_generator().get_state()


def set_rng_state(new_state: Tensor, device: _DeviceLike = "tpu") -> None:
    index_of(device)
    _C._default_generator().set_state(new_state)


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Sets the seed; torch.manual_seed() does the same, for the CPU too."""
    _C._default_generator().manual_seed(int(seed))


manual_seed_all = manual_seed


def seed() -> int:
    """Takes a new random seed, and returns it."""
    return _C._default_generator().seed()


def seed_all() -> None:
    seed()


def initial_seed() -> int:
    return _C._default_generator().initial_seed()
