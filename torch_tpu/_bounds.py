# SPDX-License-Identifier: Apache-2.0 - Dynamic shapes: which sizes one program serves, and calls of such programs.
"""Where Dynamo leaves a size open, one program serves all sizes up to a bound: it computes on
buffers that are as large as the bound, with the real sizes as run-time inputs, and masks what lies
behind them (`src/graph/bounded.h`). What has no such program is compiled for its exact sizes.
"""

import contextlib
import itertools
import logging
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from torch_tpu import _C

log = logging.getLogger(__name__)

# Larger upper bounds are no bounds: PyTorch has some for every size.
_UNBOUNDED = 2**31
_serial = itertools.count()
_default_policy = "auto"


def check_policy(policy: str) -> str:
    """The policy, if it is one. Raises ValueError, TypeError."""
    if not isinstance(policy, str):
        raise TypeError(f"dynamic_shapes(): policy must be a str, got {type(policy).__name__}")
    name, _, step = policy.partition(":")
    good = name in ("auto", "powers_of_two", "exact") and not _
    if name == "multiples_of":
        good = step.isdecimal() and int(step) > 0
    if not good:
        raise ValueError(
            f"dynamic_shapes(): policy is {policy!r}, expected 'auto', 'powers_of_two', "
            "'multiples_of:n' with n > 0, or 'exact'"
        )
    return policy


class dynamic_shapes(contextlib.ContextDecorator):
    """Chooses which sizes share a program where `torch.compile` leaves a size open.

    A size is open with `dynamic=True`, `torch._dynamo.mark_dynamic(t, dim, min=, max=)`, or after it
    has changed once. The policy says how large the buffers are that such a program works on:

    - ``"auto"`` (the default): as large as the `max` of `mark_dynamic`, so one program serves the
      whole range; without a `max`, the next power of two.
    - ``"powers_of_two"``: the next power of two (at most `max`). Small sizes are cheaper; there are
      log2(max) programs.
    - ``"multiples_of:n"``: the next multiple of n (at most `max`).
    - ``"exact"``: the size itself: a program for each size.

    As a function call it sets the policy of this process; as a context manager or decorator, that
    of the graphs that are compiled inside. `torch.compile(..., options={"bucket": policy})` sets it
    for one function. What cannot be computed within bounds is compiled for its exact sizes, and the
    logger "torch_tpu._bounds" (level INFO) tells why. Raises ValueError for other policies.
    """

    def __init__(self, policy: str = "auto"):
        global _default_policy
        self.policy = check_policy(policy)
        self.before: list[str] = []
        self.outer = _default_policy
        _default_policy = policy

    def __enter__(self) -> "dynamic_shapes":
        global _default_policy
        self.before.append(self.outer)
        _default_policy = self.policy
        return self

    def __exit__(self, *exc: Any) -> None:
        global _default_policy
        _default_policy = self.before.pop()


def current_policy() -> str:
    return _default_policy


def _bound(value: int, upper: int | None, policy: str) -> int | None:
    """The size of the buffers for a size."""
    name, _, step = policy.partition(":")
    if name == "exact":
        return None
    if name == "auto" and upper is not None:
        return upper
    if name == "multiples_of":
        bound = -(-value // int(step)) * int(step)
    else:
        bound = 1 << max(value - 1, 1).bit_length()
    return bound if upper is None else min(bound, upper)


def _expression(value: Any) -> sympy.Expr:
    return value.node.expr if isinstance(value, torch.SymInt) else sympy.Integer(int(value))


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and not value.node.expr.is_number


class _Functions:
    """Expressions in the symbols as one Python function."""

    def __init__(self, symbols: list[sympy.Symbol], expressions: Any):
        from torch.utils._sympy.printers import PythonPrinter

        names = {s: sympy.Symbol(f"_s{i}", integer=True) for i, s in enumerate(symbols)}
        printer = PythonPrinter()

        def text(e: Any) -> str:
            if isinstance(e, (list, tuple)):
                return "[" + ", ".join(text(x) for x in e) + "]"
            return printer.doprint(e.xreplace(names))

        source = f"lambda {', '.join(str(n) for n in names.values())}: {text(expressions)}"
        self.function = eval(source, {"math": math, "torch": torch})

    def __call__(self, values: tuple[int, ...]) -> Any:
        return self.function(*values)


class Bounds:
    """Calls a graph whose inputs' sizes are open. Gives None where it must be called exactly."""

    def __init__(self, module: GraphModule, body: Callable, policy: str):
        """body: as that of a CompiledGraph. Raises _C.NotBounded if there is nothing to be done."""
        self.body = body
        self.policy = policy
        # By bounds and by which sizes are equal: the program and the sizes it takes; None: exact.
        self.graphs: dict[tuple, tuple[_C.BoundedGraph, list[int]] | None] = {}
        self.calls: dict[tuple, tuple] = {}
        placeholders = module.graph.find_nodes(op="placeholder")
        self.sources: dict[sympy.Symbol, tuple[int, int | None]] = {}
        ranges: dict[sympy.Symbol, tuple[int, int | None]] = {}
        dynamic, tensors, ints = [], [], []
        for i, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, (torch.SymInt, int)):
                ints.append(_expression(value))
                self._learn(value, (i, None), ranges)
                continue
            if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
                dynamic.append(False)
                if isinstance(value, (torch.SymFloat, torch.SymBool)):
                    raise _C.NotBounded("an input is a number that is not an integer")
                continue
            dynamic.append(any(_is_symbolic(s) for s in value.shape))
            if not dynamic[-1]:
                continue
            tensors.append([_expression(s) for s in value.shape])
            for d, size in enumerate(value.shape):
                self._learn(size, (i, d), ranges)
        self.symbols = list(self.sources)
        self.upper = [ranges[s][1] for s in self.symbols]
        self.lower = [ranges[s][0] for s in self.symbols]
        free = set().union(*(e.free_symbols for sizes in [*tensors, ints] for e in sizes))
        if not self.symbols or free - set(self.symbols):
            raise _C.NotBounded("a size is not that of a dimension of an input")
        self.dynamic = dynamic
        self.inputs = _Functions(self.symbols, (tensors, ints))
        (output,) = module.graph.find_nodes(op="output")
        sizes, numbers = [], []
        for value in output.args[0]:
            known = value.meta.get("val") if isinstance(value, Node) else value
            shape = known.shape if isinstance(known, torch.Tensor) else ()
            sizes.append([_expression(s) for s in shape])
            is_number = isinstance(known, (int, torch.SymInt)) and not isinstance(known, bool)
            numbers.append(_expression(known) if is_number else sympy.Integer(0))
        self.numbers = [
            i
            for i, value in enumerate(output.args[0])
            if isinstance(value, Node) and isinstance(value.meta.get("val"), torch.SymInt)
        ]
        self.outputs = _Functions(self.symbols, (sizes, numbers))
        self.expressions = self._odd_expressions(module)

    def _learn(self, value: Any, source: tuple, ranges: dict) -> None:
        if not _is_symbolic(value) or not value.node.expr.is_symbol:
            return
        symbol = value.node.expr
        if symbol in self.sources:
            return
        self.sources[symbol] = source
        found = value.node.shape_env.var_to_range.get(symbol)
        lower, upper = 2, None
        if found is not None:
            if found.upper.is_Integer and found.upper < _UNBOUNDED:
                upper = int(found.upper)
            if found.lower.is_Integer:
                lower = int(found.lower)
        ranges[symbol] = (lower, upper)

    def _odd_expressions(self, module: GraphModule) -> _Functions | None:
        """Sizes in the graph that are not sums of products."""
        odd = set()
        for node in module.graph.nodes:
            values = torch.utils._pytree.tree_leaves(node.meta.get("val"))
            for value in values:
                sizes = value.shape if isinstance(value, torch.Tensor) else (value,)
                for size in sizes:
                    if isinstance(size, torch.SymBool):
                        raise _C.NotBounded("a condition depends on a size")
                    if not _is_symbolic(size):
                        continue
                    e = size.node.expr
                    if e.free_symbols - set(self.symbols):
                        raise _C.NotBounded("a size depends on data")
                    if not e.is_polynomial(*self.symbols):
                        odd.add(e)
        self.odd = sorted(odd, key=str)
        return _Functions(self.symbols, self.odd) if odd else None

    def _samples(self, bounds: tuple[int, ...], wide: bool) -> list[tuple[int, ...]]:
        """The bounds, and sizes near them that tell the symbols apart."""
        rng = random.Random(7)
        reach = [max(min(11, (b - 1) // 2), 3 if wide else 1) for b in bounds]
        count = len(bounds) + 3
        best: list[tuple[int, ...]] = []
        for _ in range(200):
            found = [bounds]
            for _ in range(count):
                if wide:
                    found.append(tuple(b + rng.randint(1, 13) for b in bounds))
                else:
                    found.append(
                        tuple(b - rng.randint(1, r) for b, r in zip(bounds, reach, strict=True))
                    )
            rows = torch.tensor([[1, *f] for f in found], dtype=torch.float64)
            independent = int(torch.linalg.matrix_rank(rows)) == len(bounds) + 1
            distinct = len(set(found)) + sum(len({f[k] for f in found}) for k in range(len(bounds)))
            if independent and (not best or distinct > self._distinct(best)):
                best = found
        if not best:
            raise _C.NotBounded("the bounds are too small to tell sizes apart")
        return best

    @staticmethod
    def _distinct(found: list[tuple[int, ...]]) -> int:
        return len(set(found)) + sum(len({f[k] for f in found}) for k in range(len(found[0])))

    def _check_odd(self, bounds: tuple[int, ...], samples: list[tuple[int, ...]]) -> None:
        """What looks like a sum of products at the samples must be one at all sizes."""
        if self.expressions is None:
            return
        rows = torch.tensor([[1, *f] for f in samples], dtype=torch.float64)
        at = [self.expressions(s) for s in samples]
        others = list(self._some_sizes(bounds))
        there = [self.expressions(o) for o in others]
        more = torch.tensor([[1, *o] for o in others], dtype=torch.float64)
        for i, e in enumerate(self.odd):
            values = torch.tensor([a[i] for a in at], dtype=torch.float64)
            fitted = torch.linalg.pinv(rows) @ values
            if (rows @ fitted - values).abs().max() > 1e-3:
                continue
            real = torch.tensor([t[i] for t in there], dtype=torch.float64)
            if (more @ fitted - real).abs().max() > 1e-3:
                raise _C.NotBounded(f"a size is {e}")

    def _some_sizes(self, bounds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for k in range(len(bounds)):
            low = min(self.lower[k], bounds[k])
            step = max((bounds[k] - low) // 64, 1)
            for v in range(low, bounds[k] + 1, step):
                yield (*bounds[:k], v, *bounds[k + 1 :])

    def _graph(self, bounds: tuple[int, ...], args: list, values: tuple, outputs: list) -> Any:
        """Makes the program for these bounds with the first call, and gives that call's results."""
        why: Exception | None = None
        alone = tuple(range(len(bounds)))
        # Sizes that are equal in this call may have to be; then the program is for such calls only.
        equal = _pattern(values, bounds)
        for pattern in (alone, equal) if equal != alone else (alone,):
            first = [pattern.index(k) for k in range(max(pattern) + 1)]
            for wide in (False, True):
                try:
                    chosen = self._samples(tuple(bounds[i] for i in first), wide)
                    full = [tuple(s[k] for k in pattern) for s in chosen]
                    self._check_odd(bounds, full)
                    graph = _C.BoundedGraph(
                        f"bounded_{next(_serial)}",
                        self.body,
                        self.dynamic,
                        [(s, *self.inputs(f)) for s, f in zip(chosen, full, strict=True)],
                    )
                    out = graph(args, [values[i] for i in first], outputs)
                except Exception as error:
                    why = why or error
                    log.debug("no program within bounds %s: %s", bounds, error, exc_info=True)
                    continue
                self.graphs[bounds, pattern] = graph, first
                log.info(
                    "one program serves sizes up to %s",
                    dict(zip(self.symbols, bounds, strict=True)),
                )
                return out
        log.info("sizes up to %s are compiled exactly, one by one: %s", bounds, why)
        self.graphs[bounds, equal] = None
        return None

    def module_texts(self, for_tpu: bool) -> list[str]:
        """StableHLO of the programs that have been made."""
        made = [m[0] for m in self.graphs.values() if m is not None]
        return [text for graph in made for text in graph._module_texts(for_tpu)]

    def __call__(self, args: list) -> list | None:
        values = tuple(args[i] if d is None else args[i].shape[d] for i, d in self.sources.values())
        known = self.calls.get(values)
        if known is None:
            bounds: tuple | None = tuple(
                _bound(v, upper, self.policy) for v, upper in zip(values, self.upper, strict=True)
            )
            keys: tuple = ()
            if None in bounds or any(b < v for b, v in zip(bounds, values, strict=True)):
                bounds = None
            else:
                keys = (bounds, tuple(range(len(bounds)))), (bounds, _pattern(values, bounds))
            if len(self.calls) > 4096:
                self.calls.clear()
            known = self.calls[values] = (bounds, keys, *self.outputs(values))
        bounds, keys, sizes, numbers = known
        if bounds is None:
            return None
        for key in keys:
            if key in self.graphs:
                made = self.graphs[key]
                if made is None:
                    return None
                graph, first = made
                out = graph(args, [values[i] for i in first], sizes)
                break
        else:
            out = self._graph(bounds, args, values, sizes)
            if out is None:
                return None
        for i in self.numbers:
            out[i] = numbers[i]
        return out


def _pattern(values: tuple[int, ...], bounds: tuple[int, ...]) -> tuple[int, ...]:
    """Numbers of groups: sizes of one group are equal, and so are their bounds."""
    groups: dict[tuple[int, int], int] = {}
    return tuple(groups.setdefault(pair, len(groups)) for pair in zip(values, bounds, strict=True))


_ranges: dict[tuple, tuple[int, int]] = {}


def tell_leaving(graph: GraphModule) -> None:
    """Logs sizes that are outside of the bounds that the same code was compiled for before."""
    compilation = torch._guards.CompileContext.current_compile_id()
    if compilation is None:
        return
    if compilation.frame_compile_id == 0:  # the first of its code: a reset gives numbers anew
        for key in [key for key in _ranges if key[0] == compilation.frame_id]:
            del _ranges[key]
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            key = (compilation.frame_id, node.name, d)
            now = size if isinstance(size, int) else size.node.hint
            if key in _ranges and isinstance(now, int):
                low, high = _ranges[key]
                if not low <= now <= high:
                    log.warning(
                        "size %d of dimension %d of %s is outside of its bounds, %d to %d: "
                        "compiled anew",
                        now,
                        d,
                        node.name,
                        low,
                        high,
                    )
            if _is_symbolic(size) and size.node.expr.is_symbol:
                found = size.node.shape_env.var_to_range.get(size.node.expr)
                if found is not None and found.upper.is_Integer and found.upper < _UNBOUNDED:
                    _ranges[key] = int(found.lower), int(found.upper)


def bounds_of(module: GraphModule, body: Callable, policy: str) -> Bounds | None:
    """For a graph with open sizes, unless the policy is to be exact."""
    if policy == "exact":
        return None
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and any(_is_symbolic(s) for s in value.shape):
            break
    else:
        return None
    try:
        return Bounds(module, body, policy)
    except _C.NotBounded as error:
        log.info("a graph of open sizes is compiled for exact sizes: %s", error)
        return None
