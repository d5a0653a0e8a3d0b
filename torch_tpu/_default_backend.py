# SPDX-License-Identifier: Apache-2.0 - torch.compile without a backend= means ours where a graph uses the device.
"""PyTorch's compiler takes seconds to import, so nothing here imports it: `install` waits for the
import of its registry of backends, and sets the default there by the function that PyTorch has for
it. Graphs that do not use the device go to Inductor as before.
"""

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable

_REFUSAL = (
    "Inductor has no code generator for tpu: use torch.compile without backend=, or with "
    'backend="tpu"'
)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls functions with a module as soon as it has been imported by somebody."""

    def __init__(self, actions: dict[str, Callable]):
        self.actions = actions

    def find_spec(self, name, path=None, target=None):
        action = self.actions.pop(name, None)
        if action is None:
            return None
        if not self.actions and self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            action(module)

        spec.loader.exec_module = exec_module
        return spec


def default_backend(graph, example_inputs, mode=None, options=None):
    """torch.compile's backend when none is named: "tpu" if the graph uses the device, else "inductor"."""
    import torch

    from torch_tpu import compile

    if compile.uses_device(graph, example_inputs):
        return compile.backend(graph, example_inputs)
    return torch._TorchCompileInductorWrapper(mode or "default", options, None)(
        graph, example_inputs
    )


class _Refuses(type):
    def __getattr__(cls, name):
        raise RuntimeError(_REFUSAL)

    def __call__(cls, *args, **kwargs):
        raise RuntimeError(_REFUSAL)


class _Refusal(metaclass=_Refuses):
    """In the place of Inductor's code generator, which would otherwise look for JAX."""


def _set_default(registry) -> None:
    # torch 2.13 and later; before, backend="tpu" has to be said, and _Refusal says so.
    if hasattr(registry, "set_default_backend"):
        registry.set_default_backend(default_backend)


def _refuse(common) -> None:
    common.register_backend_for_device("tpu", _Refusal, _Refusal)


def _admit(flex) -> None:
    """flex_attention has a list of devices and no hook to add to it; the operator itself takes any."""
    known = flex._validate_device

    def validate(query, key, value):
        if query.device.type != "tpu":
            known(query, key, value)

    flex._validate_device = validate


def install() -> None:
    """Called once, when the device is registered."""
    actions = {
        "torch._dynamo.backends.registry": _set_default,
        "torch._inductor.codegen.common": _refuse,
        "torch.nn.attention.flex_attention": _admit,
    }
    for name in list(actions):
        if name in sys.modules:
            actions.pop(name)(sys.modules[name])
    if actions:
        sys.meta_path.insert(0, _AfterImport(actions))
