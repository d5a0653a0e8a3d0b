# SPDX-License-Identifier: Apache-2.0 - graphs of aten operators as programs: capture, and the splits around what cannot be.
"""A `Piece` is a callable made of an FX graph. At its first call with inputs of some shape the graph
is run once on placeholders, through the same kernels that serve eager calls, and what they would
have submitted becomes one program. A known shape costs one call into C++.

What has no place in a program (operators whose result's size depends on data, tensors on the CPU,
operators of other libraries) is run as it stands, between two programs.
"""

import contextlib
import itertools
import logging
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from torch_tpu import _C, _bounds

log = logging.getLogger(__name__)
aten = torch.ops.aten

_serial = itertools.count()
# Namespaces whose operators are functions of their arguments and have kernels of ours. Operators of
# other libraries may print, count, or look at their inputs.
_NAMESPACES = ("aten", "prims")
_LAST_LINE = re.compile(r'File "([^"]+)", line (\d+)')


@contextlib.contextmanager
def _below_autograd():
    """Where kernels see plain tensors: no autograd, no autocast, no modes of the user's."""
    # Some of these guards hold from when they are made: each is made where it is entered.
    with (
        _disable_current_modes(),
        torch._C._DisableAutocast(),
        torch._C._AutoDispatchBelowAutograd(),
        torch.no_grad(),
    ):
        yield


def _values(node: Node) -> list[Any]:
    return tree_leaves(node.meta.get("val"))


def _tensors(node: Node) -> list[torch.Tensor]:
    return [v for v in _values(node) if isinstance(v, torch.Tensor)]


def _on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "tpu"


def _has_unknown_size(tensor: torch.Tensor) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(tensor))


def _is_number(node: Node) -> bool:
    """Python arithmetic on sizes."""
    values = _values(node)
    return bool(values) and all(
        isinstance(v, (int, torch.SymInt, torch.SymBool, torch.SymFloat, float)) for v in values
    )


def _fits(node: Node) -> bool:
    """Whether the node has a place in a program, as far as can be seen from outside."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            return False
        if target in (aten._local_scalar_dense.default, aten.item.default):
            return False
    if isinstance(target, torch._ops.HigherOrderOperator) and "effects" in target.name():
        return False
    outputs = _tensors(node)
    if not all(_on_device(t) for t in outputs) or any(_has_unknown_size(t) for t in outputs):
        return False
    # A number that lives on the CPU is an input of the program; other CPU tensors are not.
    return all(
        _on_device(t) or t.dim() == 0
        for argument in node.all_input_nodes
        for t in _tensors(argument)
        if argument.op != "get_attr"
    )


def _is_ordered(node: Node) -> bool:
    """Whether it may not change places with others like it."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return True
    return isinstance(target, torch._ops.OpOverload) and (
        target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags
    )


def _line(node: Node) -> str:
    """ "file.py:12": the user's line behind an operator, or nothing."""
    found = _LAST_LINE.findall(node.meta.get("stack_trace") or "")
    return f"{found[-1][0]}:{found[-1][1]}" if found else ""


class _Sizes:
    """The values that the graph's symbols have in this call."""

    def __init__(self):
        self.symbols = {}

    def learn(self, node: Node, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            known = node.meta.get("val")
            if isinstance(known, torch.Tensor):
                for symbolic, real in zip(known.shape, value.shape, strict=False):
                    self._learn(symbolic, real)
        else:
            self._learn(node.meta.get("val"), value)

    def _learn(self, symbolic: Any, real: int) -> None:
        if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_symbol:
            self.symbols[symbolic.node.expr] = sympy.Integer(real)

    def strides(self, node: Node) -> list[int] | None:
        """Those that whoever made the graph expects of the node's value."""
        known = node.meta.get("val")
        if not isinstance(known, torch.Tensor) or known.layout != torch.strided:
            return None
        out = []
        for stride in known.stride():
            if isinstance(stride, torch.SymInt):
                expression = stride.node.expr.xreplace(self.symbols)
                if not expression.is_Integer:
                    return None
                stride = int(expression)
            out.append(stride)
        return out


class _NodeFailed(Exception):
    def __init__(self, node: Node, graph: torch.fx.Graph):
        super().__init__(str(node))
        self.node, self.graph = node, graph


def _with_strides(value: torch.Tensor, strides: list[int] | None) -> torch.Tensor:
    if strides is None or list(value.stride()) == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(
        value
    )


def _cond(run: "_Run", pred, on_true, on_false, operands):
    if not isinstance(pred, torch.Tensor):
        return (on_true if pred else on_false)(*operands)
    return _C._capture_if(pred, lambda: on_true(*operands), lambda: on_false(*operands))


def _while_loop(run: "_Run", condition, body, carried, extra):
    tensors = [c for c in carried if isinstance(c, torch.Tensor)]
    if len(tensors) != len(carried):
        raise NotImplementedError("a while_loop that carries numbers")
    return _C._capture_while(
        tensors,
        lambda now: condition(*now, *extra),
        lambda now: body(*now, *extra),
    )


def _state_of_generator() -> torch.Tensor:
    state = torch.tpu.get_rng_state().view(torch.int64)
    return state.to("tpu")


def _save_random_state(run: "_Run", op, *args, **kwargs):
    """What a recomputed random operator will draw from again: (state, result)."""
    state = _C._capture_random_state() if run.capturing else _state_of_generator()
    return state, op(*args, **kwargs)


def _with_random_state(run: "_Run", state, op, *args, **kwargs):
    if run.capturing:
        _C._capture_draw_from(state)
        try:
            return op(*args, **kwargs)
        finally:
            _C._capture_draw_from(None)
    now = torch.tpu.get_rng_state()
    torch.tpu.set_rng_state(state.cpu().view(torch.uint8))
    try:
        return op(*args, **kwargs)
    finally:
        torch.tpu.set_rng_state(now)


# Higher-order operators that are not what PyTorch makes of them on a device it does not know.
_HIGHER_ORDER: dict[Any, Callable] = {
    torch.ops.higher_order.run_and_save_rng_state: _save_random_state,
    torch.ops.higher_order.run_with_rng_state: _with_random_state,
}
# Control flow that would read its condition on the host.
_CONTROL_FLOW: dict[Any, Callable] = {
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
}


class _Run:
    """One run of a graph on placeholders."""

    def __init__(self, module: GraphModule, capturing: bool = True):
        self.module = module
        self.capturing = capturing
        self.sizes = _Sizes()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        env: dict[Node, Any] = {}
        given = iter(inputs)
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
                self.sizes.learn(node, env[node])
            elif node.op == "output":
                return self.output(node, env)
            else:
                try:
                    env[node] = self.node(node, env)
                except _NodeFailed:
                    raise
                except Exception as error:
                    raise _NodeFailed(node, self.module.graph) from error
        return None

    def output(self, node: Node, env: dict) -> Any:
        return torch.fx.node.map_arg(node.args[0], env.__getitem__)

    def node(self, node: Node, env: dict) -> Any:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(self.module)
            if isinstance(value, GraphModule) and self.capturing:
                return _Subgraph(value)
            return value
        args = torch.fx.node.map_arg(node.args, env.__getitem__)
        kwargs = torch.fx.node.map_arg(node.kwargs, env.__getitem__)
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            if self.capturing and (line := _line(node)):
                _C._capture_line(line)
            # A tensor may have other strides here than where the graph was made, and then lets
            # itself be viewed otherwise.
            if target in (aten.view.default, aten._unsafe_view.default):
                return args[0].reshape(args[1])
            if target is aten.as_strided.default:
                wanted = self.sizes.strides(node.args[0])
                return target(_with_strides(args[0], wanted), *args[1:], **kwargs)
        elif target in _HIGHER_ORDER:
            return _HIGHER_ORDER[target](self, *args, **kwargs)
        elif self.capturing and target in _CONTROL_FLOW:
            return _CONTROL_FLOW[target](self, *args, **kwargs)
        return target(*args, **kwargs)


class _Subgraph:
    """The function argument of a higher-order operator."""

    def __init__(self, module: GraphModule):
        self.module = module

    def __call__(self, *args: Any) -> Any:
        return _Run(self.module)(args)


class _Outputs(_Run):
    """Gives each output with the strides that the caller counts on."""

    def output(self, node: Node, env: dict) -> Any:
        out = []
        for value in node.args[0]:
            if isinstance(value, Node):
                out.append((env[value], self.sizes.strides(value)))
            else:
                out.append((value, None))
        return out


class Piece:
    """An FX graph of aten operators as a function of a list of inputs."""

    def __init__(
        self,
        module: GraphModule,
        eager: frozenset[str] = frozenset(),
        is_part: bool = False,
        policy: str | None = None,
    ):
        """eager: names of nodes that have failed to be captured. is_part: it holds none of them, nor
        others that have no place in a program. policy: which sizes share a program."""
        self.policy = policy or _bounds.current_policy()
        self.bounds: _bounds.Bounds | None = None
        self._boxed_call = True  # AOTAutograd hands over its list of inputs
        self.module = module
        self.eager = eager
        self.constants: list[torch.Tensor] = []
        self.parts: _Parts | None = None
        self.program: _C.CompiledGraph | None = None
        if not is_part:
            _forget_host_random_states(module)
            _fold_constants(module)
        nodes = [n for n in module.graph.nodes if n.op == "call_function"]
        if not is_part and (not nodes or any(n.name in eager or not _fits(n) for n in nodes)):
            self.parts = _Parts(module, eager, self.policy)
        else:
            self.constants = _constants_to_inputs(module)
            # By placeholder: whether it takes a number, and those of CPU tensors that nothing uses
            # (compiled autograd hands over the like).
            inputs = module.graph.find_nodes(op="placeholder")
            self.numbers = [_is_number(n) for n in inputs]
            self.unused = [
                i
                for i, n in enumerate(inputs)
                if not n.users and not all(map(_on_device, _tensors(n)))
            ]
            self.program = _C.CompiledGraph(f"graph_{next(_serial)}", self._trace)
            self.bounds = _bounds.bounds_of(module, self._trace, self.policy)

    def _trace(self, tensors: list, ints: list) -> list:
        tensors, ints = iter(tensors), iter(ints)
        inputs = [next(ints if number else tensors) for number in self.numbers]
        with _below_autograd():
            return _Outputs(self.module)(inputs)

    def __call__(self, args: list) -> list:
        if self.program is None:
            return self.parts(args)
        for i in self.unused:
            args[i] = None
        inputs = args + self.constants if self.constants else args
        if self.bounds is not None and (out := self.bounds(inputs)) is not None:
            args.clear()
            return out
        try:
            out = self.program(inputs)
        except _NodeFailed as failure:
            self._split(failure)
            return self(args)
        args.clear()  # what only this list held is free as soon as the program has run
        return out

    def module_texts(self, for_tpu: bool = False) -> list[str]:
        """The StableHLO of its programs so far, as the plugin gets it or as a TPU would."""
        if self.parts is None:
            bounded = self.bounds.module_texts(for_tpu) if self.bounds is not None else []
            return self.program._module_texts(for_tpu) + bounded
        pieces = [step for step, *_ in self.parts.steps if isinstance(step, Piece)]
        return [text for piece in pieces for text in piece.module_texts(for_tpu)]

    def between(self) -> Iterator[Node]:
        """The operators that are run by themselves, between programs."""
        for step, nodes, *_ in self.parts.steps if self.parts is not None else ():
            yield from step.between() if isinstance(step, Piece) else nodes

    def _split(self, failure: _NodeFailed) -> None:
        """Nothing has been run yet, so the call can be made again in parts."""
        node = failure.node
        if failure.graph is not self.module.graph:  # inside of a higher-order operator
            node = None
            cause: BaseException | None = failure
            while cause is not None:
                if isinstance(cause, _NodeFailed) and cause.graph is self.module.graph:
                    node = cause.node
                cause = cause.__cause__
        log.info("%s is run between programs: %s", node, failure.__cause__)
        names = {node.name} if node is not None else {n.name for n in self.module.graph.nodes}
        self.parts = _Parts(self.module, self.eager | names, self.policy, self.constants)
        self.program = self.bounds = None


def _forget_host_random_states(module: GraphModule) -> None:
    """PyTorch thinks of them as tensors on the CPU; ours are on the device."""
    for node in module.graph.nodes:
        if node.target is torch.ops.higher_order.run_and_save_rng_state:
            for user in node.users:
                if user.args[1] == 0:
                    user.meta["val"] = None
        elif node.target is torch.ops.higher_order.run_with_rng_state:
            node.args[0].meta["val"] = None


def _fold_constants(module: GraphModule) -> None:
    """Evaluates what depends on nothing but constants on the CPU, once."""
    constant: dict[Node, Any] = {}
    for node in list(module.graph.nodes):
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor) and not _on_device(value):
                constant[node] = value
            continue
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        if not all(n in constant for n in node.all_input_nodes) or _is_ordered(node):
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        if not all(isinstance(v, torch.Tensor) for v in _values(node)) or _has_output(node):
            continue
        with _below_autograd():
            value = node.target(
                *torch.fx.node.map_arg(node.args, constant.__getitem__),
                **torch.fx.node.map_arg(node.kwargs, constant.__getitem__),
            )
        if not isinstance(value, torch.Tensor):
            continue
        name = f"_folded_{node.name}"
        module.register_buffer(name, value, persistent=False)
        with module.graph.inserting_before(node):
            folded = module.graph.get_attr(name)
        folded.meta = dict(node.meta)
        node.replace_all_uses_with(folded)
        if not _on_device(value):
            constant[folded] = value
    module.graph.eliminate_dead_code(lambda n: _is_ordered(n) or n.op in ("placeholder", "output"))


def _has_output(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _constants_to_inputs(module: GraphModule) -> list[torch.Tensor]:
    """Tensors that the graph has as attributes become inputs at the end."""
    constants: list[torch.Tensor] = []
    placeholders = module.graph.find_nodes(op="placeholder")
    seen: dict[str, Node] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        value = operator.attrgetter(node.target)(module)
        if not isinstance(value, torch.Tensor) or not _on_device(value):
            continue
        if node.target not in seen:
            first = next(iter(module.graph.nodes))
            with (
                module.graph.inserting_after(placeholders[-1])
                if placeholders
                else module.graph.inserting_before(first)
            ):
                made = module.graph.placeholder(f"constant_{len(constants)}")
            made.meta = {"val": node.meta.get("val", value)}
            placeholders.append(made)
            seen[node.target] = made
            constants.append(value)
        node.replace_all_uses_with(seen[node.target])
        module.graph.erase_node(node)
    return constants


class _Parts:
    """A graph cut where something has no place in a program."""

    def __init__(
        self, module: GraphModule, eager: frozenset[str], policy: str, constants: Sequence = ()
    ):
        self.module = module
        self.constants = list(constants)
        self.inputs = module.graph.find_nodes(op="placeholder")
        (self.result,) = module.graph.find_nodes(op="output")
        self.steps = []
        stages = _stages(module, eager)
        last = {
            n: stage for stage, nodes in enumerate(stages) for m in nodes for n in m.all_input_nodes
        }
        kept = set(self.result.all_input_nodes)
        for stage, nodes in enumerate(stages):
            if not nodes:
                continue
            inside = set(nodes)
            outputs = [n for n in nodes if n in kept or any(u not in inside for u in n.users)]
            free = [n for n, s in last.items() if s == stage and n not in kept]
            if stage % 2:
                self.steps.append((_run_nodes(module, nodes), nodes, outputs, free))
            else:
                sources, piece = _cut_out(module, nodes, outputs, policy)
                self.steps.append((piece, sources, outputs, free))

    def __call__(self, args: list) -> list:
        env: dict[Node, Any] = dict(zip(self.inputs, args + self.constants, strict=True))
        args.clear()
        for step, sources, outputs, free in self.steps:
            if isinstance(step, Piece):
                env.update(zip(outputs, step([env[n] for n in sources]), strict=True))
            else:
                step(env)
            for node in free:
                env.pop(node, None)
        out = torch.fx.node.map_arg(self.result.args[0], env.__getitem__)
        return list(out)


def _stages(module: GraphModule, eager: frozenset[str]) -> list[list[Node]]:
    """Nodes by turns: programs are of even number, what is run as it stands of odd number."""
    stage: dict[Node, int] = {}
    last_ordered: Node | None = None
    for node in module.graph.nodes:
        if node.op == "get_attr":
            continue
        if node.op != "call_function":
            continue
        needs = [n for n in node.all_input_nodes if n in stage]
        if node.target is operator.getitem and needs:
            stage[node] = stage[needs[0]]
            continue
        odd = node.name in eager or not _fits(node)
        if _is_number(node) and node.name not in eager:
            # Arithmetic on sizes goes where its arguments are known.
            odd = any(stage[n] % 2 for n in needs)
        if _is_ordered(node):
            if last_ordered is not None:
                needs.append(last_ordered)
            target = node.target
            if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
                # Not before those that read what it writes to.
                for argument in node.all_input_nodes:
                    needs += [u for u in argument.users if u in stage]
            last_ordered = node
        at = int(odd)
        for n in needs:
            at = max(at, stage[n] + (stage[n] % 2 != odd))
        stage[node] = at
    out: list[list[Node]] = [[] for _ in range(max(stage.values(), default=-1) + 1)]
    for node, at in stage.items():
        out[at].append(node)
    return out


def _run_nodes(module: GraphModule, nodes: list[Node]) -> Callable[[dict], None]:
    run = _Run(module, capturing=False)
    attributes = [n for node in nodes for n in node.all_input_nodes if n.op == "get_attr"]

    def step(env: dict) -> None:
        with _below_autograd():
            for node in attributes:
                env[node] = run.node(node, env)
            for node in nodes:
                env[node] = run.node(node, env)

    return step


def _cut_out(
    module: GraphModule, nodes: list[Node], outputs: list[Node], policy: str
) -> tuple[list[Node], Piece]:
    """The nodes as a graph of their own, and whose values it takes."""
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    sources: list[Node] = []
    inside = set(nodes)
    for node in nodes:
        for argument in node.all_input_nodes:
            if argument in inside or argument in copies:
                continue
            if argument.op == "get_attr":
                continue
            copies[argument] = graph.placeholder(argument.name)
            copies[argument].meta = dict(argument.meta)
            sources.append(argument)
    for node in nodes:
        for argument in node.all_input_nodes:
            if argument.op == "get_attr" and argument not in copies:
                copies[argument] = graph.node_copy(argument, copies.__getitem__)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[n] for n in outputs))
    return sources, Piece(GraphModule(module, graph), is_part=True, policy=policy)
