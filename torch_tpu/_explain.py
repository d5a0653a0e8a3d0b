# SPDX-License-Identifier: Apache-2.0 - explain: what becomes of a function when it is compiled, as text and as a page.
import html
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from torch_tpu import _C, _graph, _hlo, _page

_DRAWN = 400  # instructions in a picture


@dataclass
class Line:
    """A source line: how many operators it became, and the flops of its contractions."""

    ops: Counter = field(default_factory=Counter)
    flops: int = 0


@dataclass
class Program:
    """A compiled program. Numbers are the plugin's; where it does not tell flops and bytes accessed,
    they are counted in the optimized HLO. What is not known is missing or None."""

    stablehlo: str
    optimized: str  # HLO as text
    module: _hlo.Module | None
    flops: float | None
    bytes_accessed: float | None
    memory: dict[str, int]  # bytes: arguments, outputs, temporaries, reused arguments, code ...
    compile_seconds: float

    def fusions(self) -> list[dict]:
        """Name, kind, shape and the opcodes inside of each fusion."""
        if self.module is None:
            return []
        return [
            {
                "name": i.name,
                "kind": i.fusion_kind,
                "shape": i.shape,
                "ops": dict(_inside(self.module, i)),
            }
            for c in self.module.computations
            for i in c.instructions
            if i.opcode == "fusion"
        ]


@dataclass
class Graph:
    """A graph of aten operators that torch.compile made; one program, or several around `between`."""

    kind: str  # "forward", "backward", "inference"
    code: str
    lines: dict[str, Line]  # by "file.py:12"; "" for operators of no line
    between: list[str]  # operators that are run by themselves, and their lines
    programs: list[Program]


@dataclass
class Report:
    """What `torch_tpu.explain` found; `print(report)`, `report.html("page.html")`."""

    name: str
    graphs: list[Graph]
    breaks: list[str]  # why the function is not one graph

    @property
    def text(self) -> str:
        return "\n".join(_report_lines(self))

    def __str__(self) -> str:
        return self.text

    def html(self, path: str | os.PathLike) -> None:
        """Writes one page that needs no other file and no network."""
        Path(path).write_text(_html(self), encoding="utf-8")


def _inside(module: _hlo.Module, instruction: _hlo.Instruction) -> Counter:
    return Counter(
        i.opcode
        for k in instruction.called
        for i in module.computation(k).instructions
        if i.opcode != "parameter"
    )


# ---- finding out -----------------------------------------------------------------------------
def _between(piece: _graph.Piece) -> Iterator[str]:
    for node in piece.between():
        line = _graph._line(node)
        yield f"{_name(node)}{f' at {line}' if line else ''}"


def _name(node: torch.fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _flops(node: torch.fx.Node) -> int:
    """Those of contractions and attention, after PyTorch's own formulas."""
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    try:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
        return int(formula(*args, **kwargs, out_val=node.meta["val"]))
    except Exception:  # a formula that does not know this form of the operator
        return 0


def _source_lines(module: torch.fx.GraphModule) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for node in module.graph.nodes:
        if isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            line = lines.setdefault(_graph._line(node), Line())
            line.ops[_name(node)] += 1
            line.flops += _flops(node)
    return dict(sorted(lines.items(), key=lambda item: -item[1].flops))


def _program(text: str) -> Program:
    seen = _C._inspect_module(text)
    module, optimized = None, ""
    if seen["optimized_format"].startswith("hlo"):
        try:
            module = _hlo.parse(seen["optimized"], seen["optimized_format"] == "hlo_with_config")
            optimized = str(module)
        except ValueError as error:
            optimized = f"(the plugin's optimized program cannot be read: {error})"
    elif seen["optimized_format"]:
        optimized = seen["optimized"].decode("utf-8", "replace")
    cost = seen["cost"]
    if not cost and module is not None:
        cost = dict(zip(("flops", "bytes accessed"), module.cost(), strict=True))
    return Program(
        stablehlo=text,
        optimized=optimized,
        module=module,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
        memory=seen["memory"],
        compile_seconds=seen["compile_seconds"],
    )


def explain(fn: Callable, *inputs: Any, **kwargs: Any) -> Report:
    """What `torch.compile(fn, backend="tpu")` makes of a call with these inputs.

    fn: a function or module; it is called once, with inputs (tensors on "tpu" of any shape and
    dtype, and whatever else it takes), and has the effects that it has. A backward pass is told of if fn
    runs it. The report has the graphs of aten operators and where they came from line by line; for
    each program its StableHLO, the optimized HLO with its fusions, flops, bytes accessed, memory by
    category and how long the compiler took (the caches are passed by for that); why the function
    is not one graph or one program, where it is not.

    Raises what fn raises, and ValueError if fn does nothing on the device.
    """
    made: list[tuple[str, _graph.Piece]] = []
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    from torch_tpu import compile as compiler

    before = Counter(counters["graph_break"])
    backend = partial(compiler.backend, made=lambda what, piece: made.append((what, piece)))
    # Each explanation counts as a compilation of the same code.
    with config.patch(recompile_limit=1 << 20, accumulated_recompile_limit=1 << 20):
        torch.compile(fn, backend=backend)(*inputs, **kwargs)
    torch.tpu.synchronize()
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    graphs = []
    for what, piece in made:
        graphs.append(
            Graph(
                kind=what,
                code=piece.module.print_readable(print_output=False),
                lines=_source_lines(piece.module),
                between=list(_between(piece)),
                programs=[_program(text) for text in piece.module_texts()],
            )
        )
    if not graphs:
        raise ValueError(
            f"explain: {name} does nothing on the device that could be compiled; are its inputs and "
            "parameters on 'tpu'?"
        )
    breaks = [reason for reason, _ in (Counter(counters["graph_break"]) - before).items()]
    return Report(name, graphs, breaks)


# ---- as text ---------------------------------------------------------------------------------
def _counts(ops: dict[str, int]) -> str:
    return ", ".join(f"{name} x{n}" if n > 1 else name for name, n in ops.items())


def _summary(program: Program) -> list[tuple[str, str]]:
    rows = [
        ("flops", _page.amount(program.flops, "flop")),
        ("bytes accessed", _page.amount(program.bytes_accessed, "B")),
        ("compile time", f"{program.compile_seconds:.3f} s"),
    ]
    rows += [
        (f"memory: {k}", _page.amount(v, "B"))
        for k, v in program.memory.items()
        if v or k != "host"
    ]
    return rows


def _report_lines(report: Report) -> Iterator[str]:
    programs = sum(len(g.programs) for g in report.graphs)
    yield f"{report.name}: {len(report.graphs)} graphs, {programs} programs"
    for reason in report.breaks:
        yield f"graph break: {reason}"
    for n, graph in enumerate(report.graphs):
        yield f"\n== graph {n} ({graph.kind})"
        yield graph.code.strip()
        yield "\n-- by source line (flops: matrix products, convolutions and attention)"
        for where, line in graph.lines.items():
            yield f"{_page.amount(line.flops, 'flop'):>12}  {where or '(no line)'}: {_counts(line.ops)}"
        for op in graph.between:
            yield f"run between programs: {op}"
        for m, program in enumerate(graph.programs):
            yield f"\n-- program {n}.{m}"
            for key, value in _summary(program):
                yield f"{key:>28}: {value}"
            for f in program.fusions():
                yield f"fusion {f['name']} ({f['kind']}) {f['shape']}: {_counts(f['ops'])}"
            yield f"\n-- program {n}.{m}: StableHLO\n{program.stablehlo.strip()}"
            yield f"\n-- program {n}.{m}: optimized HLO\n{program.optimized or '(not told)'}"


# ---- as a page -------------------------------------------------------------------------------
_COLOURS = {
    "parameter": "#e8eef7",
    "constant": "#f0f0f0",
    "fusion": "#cfe8cf",
    "dot": "#f7d9b8",
    "convolution": "#f7d9b8",
    "custom-call": "#f3c6c6",
    "while": "#e2d4f0",
    "conditional": "#e2d4f0",
    "call": "#e2d4f0",
}


def _drawn(module: _hlo.Module) -> _hlo.Computation:
    """The entry, or what it does nothing but call."""
    computation = module.entry
    while True:
        work = [
            i
            for i in computation.instructions
            if i.opcode not in ("parameter", "constant", "tuple", "get-tuple-element")
        ]
        if len(work) != 1 or work[0].opcode != "call" or not work[0].called:
            return computation
        computation = module.computation(work[0].called[0])


def _picture(module: _hlo.Module) -> str:
    """The instructions of the program in rows, each below those that it needs, as SVG."""
    computation = _drawn(module)
    everything = computation.instructions
    shown = everything[:_DRAWN]
    row: dict[int, int] = {}
    rows: list[list[_hlo.Instruction]] = []
    for i in shown:
        row[i.id] = 1 + max((row[o] for o in i.operands if o in row), default=-1)
        while len(rows) <= row[i.id]:
            rows.append([])
        rows[row[i.id]].append(i)
    width, height, gap_x, gap_y = 150, 38, 14, 34
    place: dict[int, tuple[float, float]] = {}
    total = max((len(r) for r in rows), default=1) * (width + gap_x) + gap_x
    for y, members in enumerate(rows):
        # Below the middle of what it needs, as far as there is room.
        def middle(i: _hlo.Instruction) -> float:
            above = [place[o][0] for o in i.operands if o in place]
            return sum(above) / len(above) if above else 0.0

        members.sort(key=middle)
        left = (total - len(members) * (width + gap_x)) / 2
        for x, i in enumerate(members):
            place[i.id] = (left + x * (width + gap_x) + gap_x / 2, gap_y / 2 + y * (height + gap_y))
    out = []
    for i in shown:
        x, y = place[i.id]
        for o in i.operands:
            if o in place:
                ox, oy = place[o]
                out.append(
                    f'<line x1="{ox + width / 2:.0f}" y1="{oy + height:.0f}" '
                    f'x2="{x + width / 2:.0f}" y2="{y:.0f}" stroke="#999"/>'
                )
    for i in shown:
        x, y = place[i.id]
        tip = [f"{i.name} = {i.shape} {i.opcode}"]
        if i.called:
            tip.append(_counts(_inside(module, i)))
        label = f"{i.opcode} {i.fusion_kind or i.target}".strip()
        out.append(
            f'<g><title>{html.escape(chr(10).join(tip))}</title><rect x="{x:.0f}" y="{y:.0f}" '
            f'width="{width}" height="{height}" rx="4" stroke="#666" '
            f'fill="{_COLOURS.get(i.opcode, "#fff")}"/>'
            f'<text x="{x + 6:.0f}" y="{y + 15:.0f}">{html.escape(label[:24])}</text>'
            f'<text x="{x + 6:.0f}" y="{y + 30:.0f}" fill="#555">{html.escape(i.shape[:24])}</text></g>'
        )
    note = ""
    if len(everything) > len(shown):
        note = f"<p>The first {len(shown)} of {len(everything)} instructions.</p>"
    bottom = len(rows) * (height + gap_y)
    return (
        f'{note}<div class="picture"><svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" '
        f'height="{bottom}">{"".join(out)}</svg></div>'
    )


def _html(report: Report) -> str:
    out = [_page.begin(report.name)]
    out += [f"<p>Graph break: {html.escape(reason)}</p>" for reason in report.breaks]
    for n, graph in enumerate(report.graphs):
        out.append(f"<h2>Graph {n} ({graph.kind})</h2>")
        out.append(_page.details("Operators", graph.code))
        out.append(
            _page.table(
                ["source line", "flops of contractions", "operators"],
                [
                    [where or "(no line)", _page.amount(line.flops, "flop"), _counts(line.ops)]
                    for where, line in graph.lines.items()
                ],
            )
        )
        out += [f"<p>Run between programs: {html.escape(op)}</p>" for op in graph.between]
        for m, program in enumerate(graph.programs):
            out.append(f"<h3>Program {n}.{m}</h3>")
            out.append(_page.table(["", ""], [list(r) for r in _summary(program)]))
            if program.module is not None:
                out.append(_picture(program.module))
            fusions = [
                [f["name"], f["kind"], f["shape"], _counts(f["ops"])] for f in program.fusions()
            ]
            if fusions:
                out.append(_page.table(["fusion", "kind", "result", "instructions"], fusions))
            out.append(_page.details("StableHLO", program.stablehlo))
            out.append(_page.details("Optimized HLO", program.optimized or "(not told)"))
    out.append(_page.END)
    return "\n".join(out)
