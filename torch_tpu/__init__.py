# SPDX-License-Identifier: Apache-2.0 - importing this package makes the device "tpu" known to torch.
"""torch_tpu: a native PyTorch backend for TPUs.

`import torch` alone is enough (PyTorch loads installed backends by itself); importing this package,
before torch or after it, does the same. Nothing here wakes a device: its first use does.
"""

__version__ = "0.3.0.dev0"

from torch_tpu._loader import load

load()

from torch_tpu._step import capture  # noqa: E402, F401 (needs what load() has loaded)
