# SPDX-License-Identifier: Apache-2.0 - ahead-of-time compilation: programs for TPUs that are not here, and what they will cost.
"""A program is traced without values, compiled by libtpu for the chips that a topology names, and weighed:

with torch_tpu.aot.abstract():                       # tensors on "tpu" take no memory
    model = Model().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x, y):
        ...

    report = torch_tpu.aot.compile(step, (x, y), topology="v6e:1x1x1")
print(report)
"""

import contextlib
import gc
import html
import json
import os
import re
import runpy
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from torch_tpu import _C, _group, _hlo, _page, _progress


@dataclass(frozen=True)
class Chip:
    """One chip of a TPU generation, from the tables in Google's documentation of Cloud TPU."""

    name: str
    flops: float  # bfloat16, per second
    bandwidth: float  # of its HBM, bytes per second
    hbm: int  # bytes
    cores: int  # devices that it is to the compiler
    links: float  # to its neighbours, bytes per second, out of the chip


# cloud.google.com/tpu/docs: "System architecture", one page a generation.
CHIPS = {
    "v4": Chip("TPU v4", 275e12, 1.228e12, 32 << 30, 1, 300e9),
    "v5e": Chip("TPU v5e", 197e12, 0.819e12, 16 << 30, 1, 200e9),
    "v5p": Chip("TPU v5p", 459e12, 2.765e12, 95 << 30, 1, 600e9),
    "v6e": Chip("TPU v6e", 918e12, 1.640e12, 32 << 30, 1, 400e9),
    "tpu7x": Chip("TPU7x", 2307e12, 7.38e12, 192 << 30, 2, 600e9),
}


@contextlib.contextmanager
def abstract(
    topology: str | None = None, *, devices: int | None = None, rank: int = 0
) -> Iterator[None]:
    """Within it nothing runs on device "tpu" and its tensors take no memory: a new tensor has a shape,
    a dtype and strides. Reading a value (`.item()`, printing, a copy to the CPU) raises RuntimeError.
    Tensors that had values before keep them, unless they are written to. Holds for all threads.

    topology: the program is one of many devices: this process is device `rank` of `devices` (all that the
    topology has), as if a launcher had started it. `torch.distributed` is set up so that
    `init_device_mesh("tpu", ...)`, `fully_shard`, DTensor and collectives work; a call of
    `init_process_group` is allowed and does nothing. Raises RuntimeError where there is a process group.
    """
    with contextlib.ExitStack() as stack:
        _C._begin_abstract()
        stack.callback(_C._end_abstract)
        if topology is not None or devices is not None:
            count = devices or device_count(topology)
            stack.enter_context(_group.world(count, rank))
            stack.enter_context(_within(topology))
        yield


_topologies: list[str] = []  # of the abstract() that we are in, innermost last


@contextlib.contextmanager
def _within(topology: str | None) -> Iterator[None]:
    if topology is not None:
        _topologies.append(topology)
    try:
        yield
    finally:
        if topology is not None:
            _topologies.pop()


def device_count(topology: str) -> int:
    """How many devices a topology has. Raises RuntimeError where libtpu does not know it."""
    return _C._describe_topology(topology)["devices"]


def load(path: str | os.PathLike) -> tuple[Callable, Sequence[Any]]:
    """What the function `build` of a Python file returns: a function or module and a sequence of inputs,
    as `compile` takes them. The file and `build` run within `abstract()`. Raises ValueError where there is no
    such function, or it returns something else."""
    with abstract():
        build = runpy.run_path(os.fspath(path), run_name="__aot__").get("build")
        if not callable(build):
            raise ValueError(
                f"{path} defines no build(); torch-tpu aot calls it for a function and its inputs"
            )
        made = build()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise ValueError(
            f"build() of {path} must return (function, inputs), got {type(made).__name__}"
        )
    return made


# ---- what a program costs --------------------------------------------------------------------
@dataclass
class Buffer:
    """A large value in the program."""

    bytes: int
    shape: str
    origin: str  # the operator, and the line that called it


@dataclass
class Collective:
    """Calls of one kind of collective in groups of one size."""

    kind: str  # as StableHLO calls it
    group: int  # devices in each; 0: a permutation of all
    calls: int
    bytes: int  # that a device sends at the least, in all calls
    link: str = "ICI"  # the devices of a topology are one slice


@dataclass
class Report:
    """What `compile` found. Sizes in bytes, of one device; times in seconds, all estimates."""

    name: str
    topology: str
    devices: int
    chip: Chip | None  # None: a generation that this version does not know
    memory: dict[str, int]  # by category; they add up to `total`
    limit: int  # of one device; 0: not known
    flops: float  # the compiler's count, each turn of a loop counted
    traffic: int  # bytes from and to the device's main memory, counted in the optimized program
    bytes_accessed: float  # the compiler's count: operands and results, those on the chip included
    model_flops: int  # of the products, convolutions and attention that the function asked for
    compiler_seconds: float | None  # the compiler's own estimate of the run time, where it has one
    compile_seconds: float
    calls: int  # operators
    loops: list[tuple[int, int]]  # turns, and instructions of one, of what repeats in the program
    largest: list[Buffer]
    fingerprint: str
    platform_version: str
    collectives: list[Collective]
    replicas: int  # devices that the program is compiled for; 1: it runs on each by itself
    trace_seconds: float  # the function's own Python code, and writing its program down
    compiler_memory: dict[str, int]  # the compiler's own account, where it made an executable
    stablehlo: str = field(repr=False)
    optimized: str = field(repr=False)  # HLO as text
    executable: bytes = field(repr=False)  # loads where this libtpu drives such chips
    refusal: str = ""  # why the compiler made no executable: the program does not fit

    @property
    def total(self) -> int:
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        return not self.refusal and (not self.limit or self.total <= self.limit)

    @property
    def bounds(self) -> dict[str, float]:
        """Roofline: how long each resource is busy at least."""
        if self.chip is None:
            return {}
        cores = self.chip.cores
        bounds = {
            "arithmetic (bfloat16 peak)": self.flops / (self.chip.flops / cores),
            "memory": (self.traffic or self.bytes_accessed) / (self.chip.bandwidth / cores),
        }
        if self.collectives:
            sent = sum(c.bytes for c in self.collectives)
            bounds["links between chips"] = sent / (self.chip.links / cores)
        return bounds

    @property
    def seconds(self) -> float | None:
        """The compiler's estimate, or else the roofline's."""
        if self.compiler_seconds:
            return self.compiler_seconds
        return max(self.bounds.values(), default=None)

    @property
    def utilization(self) -> float | None:
        """Model flops utilization: flops that the model asks for, by what the chip could do in that
        time. An estimate, as the time is one."""
        if self.chip is None or not self.seconds:
            return None
        return self.model_flops / self.seconds / (self.chip.flops / self.chip.cores)

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def json(self, path: str | os.PathLike | None = None) -> str:
        """Everything but the program's texts and bytes, as JSON; also written to path if there is one."""
        facts = {
            "name": self.name,
            "topology": self.topology,
            "devices": self.devices,
            "chip": self.chip.name if self.chip else None,
            "memory": self.memory,
            "total": self.total,
            "limit": self.limit,
            "fits": self.fits,
            "refusal": self.refusal,
            "flops": self.flops,
            "traffic": self.traffic,
            "bytes_accessed": self.bytes_accessed,
            "model_flops": self.model_flops,
            "seconds": self.seconds,
            "estimated_seconds": {
                "compiler": self.compiler_seconds,
                **{f"roofline, {name}": value for name, value in self.bounds.items()},
            },
            "model_flops_utilization": self.utilization,
            "trace_seconds": self.trace_seconds,
            "compile_seconds": self.compile_seconds,
            "loops": self.loops,
            "compiler_memory": self.compiler_memory,
            "collectives": [vars(c) for c in self.collectives],
            "replicas": self.replicas,
            "largest": [vars(b) for b in self.largest],
            "fingerprint": self.fingerprint,
            "platform_version": self.platform_version,
        }
        text = json.dumps(facts, indent=1)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def html(self, path: str | os.PathLike) -> None:
        """Writes one page that needs no other file and no network."""
        Path(path).write_text(_html(self), encoding="utf-8")

    def save(self, path: str | os.PathLike) -> None:
        """Writes the executable."""
        Path(path).write_bytes(self.executable)


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    amount = _page.amount
    yield "devices", f"{report.devices} ({report.chip.name if report.chip else 'unknown chips'})"
    yield (
        "flops",
        f"{amount(report.flops, 'flop')} (the model's: {amount(report.model_flops, 'flop')})",
    )
    yield "bytes from and to HBM", amount(report.traffic, "B")
    if report.traffic:
        yield "arithmetic intensity", f"{report.flops / report.traffic:.1f} flop/B"
    for c in report.collectives:
        group = f" in groups of {c.group}" if c.group else ""
        yield f"{c.kind}{group}", f"{c.calls} calls, {amount(c.bytes, 'B')} sent by {c.link}"
    if report.compiler_seconds:
        yield "time, the compiler's estimate", amount(report.compiler_seconds, "s")
    for name, value in report.bounds.items():
        yield f"time, roofline estimate: {name}", amount(value, "s")
    if report.utilization is not None:
        yield "model flops utilization, estimate", f"{report.utilization:.1%}"
    yield (
        "compiled in",
        f"{report.compile_seconds:.1f} s, after {report.trace_seconds:.1f} s for {report.calls} operators",
    )
    if report.loops:
        loops = ", ".join(f"{turns} turns of {size} instructions" for turns, size in report.loops)
        yield "loops", loops


def _verdict(report: Report) -> str:
    if not report.limit:
        return f"needs {_gib(report.total)} of a device's memory"
    if report.fits:
        return f"fits: {_gib(report.total)} of {_gib(report.limit)} ({report.total / report.limit:.0%})"
    return (
        f"does NOT fit: {_gib(report.total)} or more of {_gib(report.limit)}. A smaller batch, activation "
        "checkpointing (torch.utils.checkpoint), or more devices take less; the largest values are below"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.2f} MiB"


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.name} on {report.topology}: {_verdict(report)}"
    for what, size in report.memory.items():
        share = size / report.total if report.total else 0
        yield f"  {what:<20}{_gib(size):>14}  {'#' * round(40 * share)}"
    for what, value in _rows(report):
        yield f"  {what}: {value}"
    if report.largest:
        yield "  largest values:"
    for b in report.largest:
        yield f"    {_gib(b.bytes):>12}  {b.shape}  {b.origin}"


_SHADES = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#bab0ac")


def _bar(report: Report) -> str:
    """Memory by category on one line as long as the device's memory."""
    width, height = 900, 46
    whole = max(report.limit, report.total, 1)
    x, out = 0.0, []
    for shade, (what, size) in zip(_SHADES, report.memory.items(), strict=False):
        w = width * size / whole
        out.append(
            f"<g><title>{html.escape(what)}: {_gib(size)}</title>"
            f'<rect x="{x:.1f}" y="4" width="{w:.1f}" height="30" fill="{shade}"/></g>'
        )
        x += w
    if report.limit:
        at = width * report.limit / whole
        out.append(
            f'<line x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="38" stroke="#000" stroke-width="2"/>'
        )
    keys = " ".join(
        f'<span style="color:{shade}">&#9632;</span> {html.escape(what)} {_gib(size)}'
        for shade, (what, size) in zip(_SHADES, report.memory.items(), strict=False)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 4}" height="{height}">'
        f"{''.join(out)}</svg><p>{keys}</p>"
    )


def _html(report: Report) -> str:
    out = [
        _page.begin(f"{report.name} on {report.topology}"),
        f"<p>{html.escape(_verdict(report))}</p>",
    ]
    out.append(_bar(report))
    out.append(_page.table(["", ""], [list(row) for row in _rows(report)]))
    if report.largest:
        out.append("<h2>Largest values</h2>")
        out.append(
            _page.table(
                ["size", "shape", "made by"],
                [[_gib(b.bytes), b.shape, b.origin] for b in report.largest],
            )
        )
    out.append(_page.details("StableHLO", report.stablehlo))
    out.append(_page.details("Optimized HLO", report.optimized or "(not told)"))
    out.append(_page.END)
    return "\n".join(out)


# ---- tracing ---------------------------------------------------------------------------------
def _placeholder(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.device.type == "tpu":
        return value
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="tpu")
    return made.requires_grad_(value.requires_grad)


def _state() -> tuple[dict[int, str], list[torch.Tensor]]:
    """What the tensors of this process hold, by the identity of their values; and the tensors."""
    tensors, optimizers = [], []
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, torch.Tensor):
            tensors.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(thing)
    roles: dict[int, str] = {}

    def name(tensor: torch.Tensor, role: str) -> None:
        for t in _plain(tensor):
            roles[_C._value_identity(t)] = role

    for t in tensors:
        if not isinstance(t, torch.nn.Parameter):
            name(t, "other state")
    for t in tensors:
        if isinstance(t, torch.nn.Parameter):
            name(t, "parameters")
            if t.grad is not None:
                name(t.grad, "gradients")
    for optimizer in optimizers:
        for t in pytree.tree_leaves([list(s.values()) for s in optimizer.state.values()]):
            if isinstance(t, torch.Tensor):
                name(t, "optimizer state")
    return roles, tensors


def _plain(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of the device that it consists of: itself, or what a DTensor has here."""
    if is_traceable_wrapper_subclass(tensor):
        parts = [getattr(tensor, part) for part in tensor.__tensor_flatten__()[0]]
        return [t for part in parts if isinstance(part, torch.Tensor) for t in _plain(part)]
    plain = (
        tensor.device.type == "tpu"
        and tensor.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    )
    return [tensor] if plain else []


def _attention_flops(query, key, value, *_, **__) -> int:
    """Of both products, for all pairs of places, as model flops are usually counted."""
    batch, heads, length, size = query
    return 2 * batch * heads * length * key[-2] * (size + value[-1])


def _attention_backward_flops(_, query, key, value, *__, **___) -> int:
    return 2 * _attention_flops(query, key, value)


_ATTENTION = {
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable: _attention_flops,
    torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward: (
        _attention_backward_flops
    ),
}


class _LocalFlops(FlopCounterMode):
    """Counts what this device does: a DTensor's operators, which it takes for those of all devices
    together, are looked at as the operators on its parts."""

    class _Mode(_FlopCounterMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(hasattr(t, "__tensor_flatten__") for t in types):
                return NotImplemented
            return super().__torch_dispatch__(func, types, args, kwargs)

    def __enter__(self):
        self.flop_counts.clear()
        self.mod_tracker.__enter__()
        self.mode = self._Mode(self)
        self.mode.__enter__()
        return self


@dataclass
class _Trace:
    module: str
    memory: dict[str, int]  # of arguments and results by category
    model_flops: int
    calls: int
    loops: list[tuple[int, int]]
    largest: list[Buffer]
    collectives: list[Collective]


def _trace(function: Callable, args: tuple, kwargs: dict, warm_up: int, loops: int) -> _Trace:
    for _ in range(warm_up):  # makes what a first step makes, such as the state of an optimizer
        function(*args, **kwargs)
    roles, tensors = _state()
    _group.check_even(tensors)
    for leaf in pytree.tree_leaves((args, kwargs)):
        for t in _plain(leaf) if isinstance(leaf, torch.Tensor) else ():
            roles[_C._value_identity(t)] = "inputs"
    with_values = [t for t in tensors if any(p is t for p in _plain(t)) and _C._has_value(t)]
    identities = [_C._value_identity(t) for t in with_values]
    held = [(t, _C._hold_value(t)) for t in with_values]
    _C._begin_step()
    counter = _LocalFlops(display=False, custom_mapping=_ATTENTION)
    try:
        with counter:
            result = function(*args, **kwargs)
    except BaseException:
        _C._end_abstract_step([])
        for t, value in held:
            _C._restore_value(t, value)
        raise
    after, _ = _state()
    for leaf in pytree.tree_leaves(result):
        for t in _plain(leaf) if isinstance(leaf, torch.Tensor) else ():
            after[_C._value_identity(t)] = "results"
    step = _C._end_abstract_step(identities, loops)
    for t, value in held:
        _C._restore_value(t, value)
    if not step["module"]:
        raise ValueError("aot.compile: the function does nothing on device 'tpu'")
    memory: Counter = Counter()
    for identity, dtype, sizes in step["inputs"]:
        memory[roles.get(identity, "constants")] += _bytes(dtype, sizes)
    aliased = set(step["donations"])
    for i, (identity, dtype, sizes) in enumerate(step["outputs"]):
        if i not in aliased:
            memory[after.get(identity, "results")] += _bytes(dtype, sizes)
    largest = [
        Buffer(size, shape, f"{op} at {line}" if ":" in line else f"{op}, {line}".rstrip(", "))
        for size, shape, op, line in step["largest"]
    ]
    return _Trace(
        step["module"],
        dict(memory),
        counter.get_total_flops(),
        step["calls"],
        step["loops"],
        largest,
        [Collective(*c) for c in step["collectives"]],
    )


def _bytes(dtype: torch.dtype, sizes: Sequence[int]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count * dtype.itemsize


_NOTHING = {
    "memory": {},
    "cost": {},
    "optimized_format": "",
    "compile_seconds": 0.0,
    "fingerprint": b"",
    "serialized": b"",
}


def _temporaries(refusal: str) -> int:
    """Bytes, as the compiler puts it: "HLO temporaries (32.00G)"."""
    found = re.search(r"temporaries \((\d+(?:\.\d+)?)([KMGT]?)\)", refusal)
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " ")) if found else 0


_ORDER = (
    "parameters",
    "optimizer state",
    "gradients",
    "other state",
    "inputs",
    "constants",
    "results",
)


# Instructions that loops must save: about half a minute of compilation. Shorter programs are faster flat, as
# the compiler sees beyond one layer.
_LONG = 4000


def compile(
    function: Callable,
    inputs: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: str | None = None,
    warm_up: int = 1,
    loops: bool | None = None,
    progress: bool = False,
) -> Report:
    """Compiles one call of a function for TPUs that need not be here.

    function: a function, module, or training step on tensors of device "tpu"; made within
    `abstract()`, its tensors take no memory. It is called with `inputs` and `kwargs`, whose tensors may
    be on any device ("meta" too): only their shapes, dtypes and strides count. First `warm_up` times
    without being looked at, as a first step makes the optimizer's state. Tensors that it writes to keep
    their values. topology: as libtpu spells it: "v4:2x2x1", "v5e:1x1x1", "v5p:2x2x1", "v6e:1x1x1",
    "tpu7x:1x1x1"; by default that of the `abstract(topology)` that we are in, or else "v6e:1x1x1". A program
    without collectives is one of one device, and runs on each. One with collectives is compiled for all
    devices of the topology, rank i on the i-th in libtpu's order.

    loops: equal layers become one loop, which is compiled once: its program has the weights (and gradients,
    and optimizer state) of such layers stacked along a new first dimension. None: where the program would be
    long without. progress: a line on stderr every half a minute; on a terminal there is always one.

    Raises RuntimeError where the function reads a value, or needs libtpu that is not installed; ValueError
    if it does nothing on the device, has collectives among another number of devices, or is not the same on
    all of them; and what the compiler says, if it refuses the program. A program that is too large for the
    chip's memory is no error: the report says so, and which values are the largest.
    """
    name = getattr(function, "__name__", None) or type(function).__name__
    topology = topology or (_topologies[-1] if _topologies else "v6e:1x1x1")
    with abstract():
        args, named = pytree.tree_map(_placeholder, (tuple(inputs), dict(kwargs or {})))
        worth = _LONG if loops is None else 0 if loops else -1
        begin = time.perf_counter()
        with _progress.shown(f"{name}: tracing", progress):
            trace = _trace(function, args, named, warm_up, worth)
        traced = time.perf_counter()
    where = _C._describe_topology(topology)
    replicas = _group.size() if trace.collectives else 1
    if replicas not in (1, where["devices"]):
        raise ValueError(
            f"aot.compile: the program has collectives among {replicas} devices, and {topology} has "
            f"{where['devices']}; make it within aot.abstract(topology={topology!r})"
        )
    refused = ""
    try:
        with _progress.shown(f"{name}: compiling for {topology}", progress):
            made = _C._inspect_for_topology(trace.module, topology, True, replicas)
    except torch.OutOfMemoryError as error:  # the compiler's word for a program that does not fit
        refused = str(error)
        made = _NOTHING
    chip = CHIPS.get(topology.split(":")[0])
    memory = {what: trace.memory[what] for what in _ORDER if trace.memory.get(what)}
    told = made["memory"]
    memory["temporaries"] = _temporaries(refused) if refused else told.get("temporaries", 0)
    memory["code"] = told.get("code", 0)
    # What the compiler pads arguments and results to.
    known = sum(trace.memory.values())
    layout = (
        told.get("arguments", 0) + told.get("outputs", 0) - told.get("reused arguments", 0) - known
    )
    if layout > 0:
        memory["padding"] = layout
    optimized, largest, traffic, repeated = "", trace.largest, 0, 0
    if made["optimized_format"].startswith("hlo"):
        module = _hlo.parse(made["optimized"], made["optimized_format"] == "hlo_with_config")
        optimized, traffic, repeated = str(module), module.traffic(), module.repeated_flops()
        largest = _largest(module)
    cost = made["cost"]
    told_seconds = cost.get("optimal_seconds", 0.0)  # negative where it does not know a part's
    limit = where["attributes"].get("device_memory_bytes_limit", "")
    return Report(
        name=name,
        topology=topology,
        devices=where["devices"],
        chip=chip,
        memory=memory,
        limit=int(limit) if limit.isdigit() else (chip.hbm // chip.cores if chip else 0),
        flops=cost.get("flops", 0.0) + repeated,
        traffic=traffic,
        bytes_accessed=cost.get("bytes accessed", 0.0),
        model_flops=trace.model_flops,
        # The compiler takes a loop for one turn.
        compiler_seconds=told_seconds if told_seconds > 0 and not repeated else None,
        compile_seconds=made["compile_seconds"],
        calls=trace.calls,
        loops=trace.loops,
        largest=largest,
        fingerprint=made["fingerprint"].hex(),
        platform_version=where["platform_version"],
        collectives=trace.collectives,
        replicas=replicas,
        trace_seconds=traced - begin,
        compiler_memory=dict(told),
        stablehlo=trace.module,
        optimized=optimized,
        executable=made["serialized"],
        refusal=refused,
    )


def _made(module: _hlo.Module, computation: _hlo.Computation) -> Iterator[_hlo.Instruction]:
    """What makes a value, in loops too."""
    for i in computation.instructions:
        if i.opcode == "while":
            for called in i.called:
                yield from _made(module, module.computation(called))
        elif i.opcode not in ("parameter", "tuple", "get-tuple-element", "bitcast", "constant"):
            yield i


def _largest(module: _hlo.Module, count: int = 10) -> list[Buffer]:
    """The largest values that are made in the program; equal ones once."""
    found: dict[tuple[str, str], Buffer] = {}
    times: dict[tuple[str, str], int] = defaultdict(int)
    for i in _made(module, module.entry):
        key = (i.shape, i.origin)
        times[key] += 1
        found.setdefault(key, Buffer(i.bytes, i.shape, i.origin or i.name))
    most = sorted(found.items(), key=lambda item: -item[1].bytes)[:count]
    for key, buffer in most:
        if times[key] > 1:
            buffer.origin += f" (x{times[key]})"
    return [buffer for _, buffer in most]
