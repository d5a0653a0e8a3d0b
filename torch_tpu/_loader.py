# SPDX-License-Identifier: Apache-2.0 - registers the device "tpu" with PyTorch, once.
"""PyTorch calls `load` through the entry point group "torch.backends" when its import is ending.

That may happen while torch_tpu is itself being imported (`import torch_tpu` comes first and imports
torch), or in a launcher or a forked data loader that will never touch the device. So `load` may be
entered twice, works on a torch whose import is about to end, prints nothing, reads no network, and
creates no PJRT client.
"""

import sys
import threading
from importlib import import_module

_lock = threading.RLock()
# "new", "loading", "loaded"; "new" again after a failure, so that a second try tells the cause too.
_state = "new"


def load() -> None:
    """Make the device "tpu" known to PyTorch. Calling it again does nothing."""
    global _state
    # Before the lock: another thread may hold torch's import lock while it waits for ours.
    import torch

    with _lock:
        if _state != "new":
            return
        _state = "loading"
        try:
            _register(torch)
        except BaseException:
            _state = "new"
            raise
        _state = "loaded"


def _register(torch) -> None:
    extension = _extension(torch)  # first: without it nothing else can be had
    from torch_tpu import _cache_root, _default_backend, _fake, _plugins

    torch.utils.rename_privateuse1_backend("tpu")
    extension._set_plugin_search_paths(_plugins.search_paths())
    _cache_root.connect(extension)

    module = import_module("torch_tpu.tpu")
    if getattr(torch, "tpu", None) is not module:
        torch._register_device_module("tpu", module)
    sys.modules["torch.tpu"] = module
    if not hasattr(torch.Tensor, "is_tpu"):
        torch.utils.generate_methods_for_privateuse1_backend()
    _default_backend.install()
    _fake.install()


def _extension(torch):
    """torch_tpu._C, or an ImportError that says what to do."""
    try:
        from torch_tpu._build_info import TORCH_VERSION
    except ModuleNotFoundError:
        raise ImportError(
            "torch_tpu is here, but its compiled part is not. In a source tree run `make build`; "
            "otherwise reinstall with `pip install --force-reinstall --no-deps torch_tpu`."
        ) from None
    # libtorch's C++ interface changes between minor versions: a mismatch ends in an undefined
    # symbol at best, in a crash at worst.
    built, running = _minor(TORCH_VERSION), _minor(torch.__version__)
    if built != running:
        raise ImportError(
            f"torch_tpu was compiled for torch {built}, and this is torch {torch.__version__}. "
            f"Install torch {built}.*, or compile torch_tpu again: `make clean build` in a source "
            "tree, otherwise `pip install --force-reinstall --no-deps --no-build-isolation "
            "torch_tpu`."
        )
    try:
        return import_module("torch_tpu._C")
    except ModuleNotFoundError as error:
        if error.name != "torch_tpu._C":
            raise
        raise ImportError(
            "torch_tpu has no compiled part for Python "
            f"{sys.version_info.major}.{sys.version_info.minor}. In a source tree run `make clean "
            "build` with this Python; otherwise reinstall torch_tpu."
        ) from None


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
