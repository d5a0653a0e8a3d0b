# SPDX-License-Identifier: Apache-2.0 - reads the serialized HloModuleProto that plugins give of an optimized program.
"""Only the protobuf wire format and the numbers of the few fields that are looked at (xla/service/
hlo.proto and xla/xla_data.proto); neither XLA nor protobuf is needed."""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_ELEMENT_TYPES = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip

_CALLS = ("fusion", "call", "while", "conditional")
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")
_ARITHMETIC = frozenset(
    [
        "abs",
        "add",
        "and",
        "atan2",
        "cbrt",
        "ceil",
        "clamp",
        "compare",
        "cosine",
        "divide",
        "erf",
        "exponential",
        "exponential-minus-one",
        "floor",
        "log",
        "log-plus-one",
        "logistic",
        "maximum",
        "minimum",
        "multiply",
        "negate",
        "not",
        "or",
        "power",
        "remainder",
        "round-nearest-afz",
        "round-nearest-even",
        "rsqrt",
        "select",
        "sign",
        "sine",
        "sqrt",
        "subtract",
        "tan",
        "tanh",
        "xor",
    ]
)


@dataclass
class WindowAxis:
    size: int = 0
    stride: int = 1
    padding_low: int = 0
    window_dilation: int = 1
    base_dilation: int = 1

    def pairs(self, inputs: int, outputs: int) -> int:
        """How often a tap of the window meets an element, and neither padding nor a gap between two."""
        count = 0
        for tap in range(self.size):
            offset = tap * self.window_dilation - self.padding_low
            count += sum(
                0 <= (at := position * self.stride + offset) < (inputs - 1) * self.base_dilation + 1
                and at % self.base_dilation == 0
                for position in range(outputs)
            )
        return count


@dataclass
class Instruction:
    name: str = ""
    opcode: str = ""
    shape: str = ""
    dims: tuple[int, ...] = ()  # of an array
    bytes: int = 0
    main_bytes: int = 0  # of these in the device's main memory, and not on the chip
    parameter: int = 0  # its number
    tuple_index: int = 0  # of a get-tuple-element
    value: int | None = None  # of a constant that is one integer
    direction: str = ""  # of a comparison: "LT"
    id: int = 0
    operands: list[int] = field(default_factory=list)  # ids
    called: list[int] = field(default_factory=list)  # ids of computations
    fusion_kind: str = ""  # "kLoop", "kInput", "kOutput", "kCustom"
    target: str = ""  # of a custom call
    contracted: list[int] = field(default_factory=list)  # dimensions of a dot's first operand
    window: list["WindowAxis"] = field(default_factory=list)
    # Of a convolution: the input's batch and feature dimensions and the spatial ones, the result's
    # feature dimension and the spatial ones.
    input_batch: int = 0
    input_feature: int = 0
    input_spatial: list[int] = field(default_factory=list)
    output_feature: int = 0
    output_spatial: list[int] = field(default_factory=list)
    feature_groups: int = 1
    batch_groups: int = 1
    origin: str = ""  # the operator that it was made of, and the line: "aten::mm at file.py:12"


@dataclass
class Computation:
    name: str = ""
    id: int = 0
    root: int = 0
    instructions: list[Instruction] = field(default_factory=list)

    @cached_property
    def by_id(self) -> dict[int, Instruction]:
        return {i.id: i for i in self.instructions}

    @property
    def result(self) -> Instruction:
        return self.by_id[self.root]

    def source(self, id: int) -> Instruction:
        """The instruction of that id, seen through copies."""
        while (at := self.by_id[id]).opcode in ("copy", "bitcast"):
            id = at.operands[0]
        return at


@dataclass
class Module:
    name: str = ""
    entry_id: int = 0
    computations: list[Computation] = field(default_factory=list)

    @property
    def entry(self) -> Computation:
        return self.computation(self.entry_id)

    @cached_property
    def _by_id(self) -> dict[int, Computation]:
        return {c.id: c for c in self.computations}

    def computation(self, id: int) -> Computation:
        return self._by_id[id]

    def cost(self) -> tuple[int, int]:
        """(flops, bytes accessed). An arithmetic operation on an element counts as one flop, so a
        product and its sum are two; what a custom call does inside is not known; a loop that does not count
        to a constant is one turn. Bytes are those of operands and results, where a fusion is one
        operation."""
        return self._flops(self.entry), self._bytes(self.entry)

    def repeated_flops(self) -> int:
        """What the turns of loops after the first add to the flops of `cost`."""
        return self._flops(self.entry) - self._flops(self.entry, once=True)

    def traffic(self) -> int:
        """Bytes that are read from and written to the device's main memory: like the bytes of `cost`,
        but for what the compiler keeps on the chip, and for the parts that a slice or gather leaves
        alone or that an update in place does not touch."""
        return self._traffic(self.entry)

    def _flops(self, computation: Computation, once: bool = False) -> int:
        known = computation.by_id
        flops = 0
        for i in computation.instructions:
            if i.opcode == "dot":
                first = known[i.operands[0]].dims
                flops += 2 * math.prod(i.dims) * math.prod(first[d] for d in i.contracted)
            elif i.opcode == "convolution":
                inputs = known[i.operands[0]].dims
                pairs = math.prod(
                    axis.pairs(inputs[a], i.dims[b])
                    for axis, a, b in zip(i.window, i.input_spatial, i.output_spatial, strict=True)
                )
                features = inputs[i.input_feature] // i.feature_groups * i.dims[i.output_feature]
                flops += 2 * pairs * features * (inputs[i.input_batch] // i.batch_groups)
            elif i.opcode in ("reduce", "reduce-window", "scatter", "sort", "map"):
                flops += math.prod(known[i.operands[0]].dims)
            elif i.opcode in _ARITHMETIC:
                flops += math.prod(i.dims)
            elif i.opcode in _CALLS:
                turns = 1 if once else self._turns(computation, i)
                flops += turns * sum(self._flops(self.computation(k), once) for k in i.called)
        return flops

    def _turns(self, computation: Computation, loop: Instruction) -> int:
        """Of a loop that counts an integer up to a constant, or 1."""
        if loop.opcode != "while":
            return 1
        condition, body = sorted(
            (self.computation(k) for k in loop.called), key=lambda c: c.result.shape != "pred[]"
        )
        test = condition.result
        if test.opcode != "compare" or test.direction != "LT":
            return 1
        counter, end = (condition.source(o) for o in test.operands)
        state = computation.source(loop.operands[0])
        stepped = body.result
        if not (
            counter.opcode == "get-tuple-element"
            and state.opcode == stepped.opcode == "tuple"
            and end.value is not None
        ):
            return 1
        start = computation.source(state.operands[counter.tuple_index]).value
        add = body.source(stepped.operands[counter.tuple_index])
        step = [body.source(o).value for o in add.operands if add.opcode == "add"]
        if start is None or len(step) != 2 or not (step[0] or step[1]):
            return 1
        return max(0, -((start - end.value) // (step[0] or step[1])))

    def _traffic(self, computation: Computation) -> int:
        known = computation.by_id
        total = 0
        for i in computation.instructions:
            operands = [known[o] for o in i.operands]
            if i.opcode in _CALLS and i.opcode != "fusion":
                total += self._turns(computation, i) * sum(
                    self._traffic(self.computation(k)) for k in i.called
                )
            elif i.opcode.endswith("-start"):  # its result names the operands once more
                total += i.main_bytes
            elif i.opcode == "fusion":
                inner = self.computation(i.called[0])
                written = _updated(inner, inner.root)
                total += i.main_bytes if written is None else min(i.main_bytes, written)
                for number, operand in enumerate(operands):
                    total += min(operand.main_bytes, self._touched(inner, number))
            elif i.opcode == "dynamic-update-slice":
                total += min(i.main_bytes, operands[1].bytes) + operands[1].main_bytes
            elif i.opcode in ("slice", "dynamic-slice", "gather"):
                total += i.main_bytes + min(i.bytes, operands[0].main_bytes)
            elif i.opcode not in _FREE and not i.opcode.endswith("-done"):
                total += i.main_bytes + sum(operand.main_bytes for operand in operands)
        return total

    def _touched(self, computation: Computation, number: int) -> int:
        """How many bytes of a parameter a computation reads."""
        parameter = next(
            i for i in computation.instructions if i.opcode == "parameter" and i.parameter == number
        )
        same, total = {parameter.id}, 0
        for i in computation.instructions:  # operands come before their uses
            at = [k for k, operand in enumerate(i.operands) if operand in same]
            if not at:
                continue
            inner = self.computation(i.called[0]) if i.opcode == "fusion" else None
            if i.opcode in ("bitcast", "copy") or (
                inner and inner.source(inner.root).opcode == "parameter"
            ):
                same.add(i.id)
            elif inner:
                total += sum(self._touched(inner, k) for k in at)
            elif i.opcode in ("slice", "dynamic-slice", "gather") and at == [0]:
                total += i.bytes
            elif i.opcode != "dynamic-update-slice" or at != [0]:
                return parameter.bytes
        return min(total, parameter.bytes)

    def _bytes(self, computation: Computation) -> int:
        known = computation.by_id
        total = 0
        for i in computation.instructions:
            if i.opcode in _CALLS and i.opcode != "fusion":
                total += self._turns(computation, i) * sum(
                    self._bytes(self.computation(k)) for k in i.called
                )
            elif i.opcode not in _FREE:
                total += i.bytes + sum(known[o].bytes for o in i.operands)
        return total

    def __str__(self) -> str:
        lines = [f"HloModule {self.name}"]
        for c in self.computations:
            names = {i.id: i.name for i in c.instructions}
            lines.append(f"\n{'ENTRY ' if c.id == self.entry_id else ''}{c.name} {{")
            for i in c.instructions:
                text = f"{i.opcode}({', '.join(names.get(o, '?') for o in i.operands)})"
                if i.fusion_kind:
                    text += f", kind={i.fusion_kind}"
                if i.target:
                    text += f", target={i.target}"
                if i.called:
                    text += ", calls=" + ", ".join(self.computation(k).name for k in i.called)
                root = "ROOT " if i.id == c.root else ""
                lines.append(f"  {root}{i.name} = {i.shape} {text}")
            lines.append("}")
        return "\n".join(lines)


def _updated(computation: Computation, root: int) -> int | None:
    """What of its result a computation that updates an operand in place writes; None: it does not."""
    known = computation.by_id
    at = known[root]
    while at.opcode == "bitcast":
        at = known[at.operands[0]]
    if at.opcode == "tuple":
        parts = [_updated(computation, o) for o in at.operands]
        if all(part is None for part in parts):
            return None
        sizes = [known[o].bytes for o in at.operands]
        return sum(size if part is None else part for part, size in zip(parts, sizes, strict=True))
    return known[at.operands[1]].bytes if at.opcode == "dynamic-update-slice" else None


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value): a number, or the bytes of a string or message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: int | memoryview
        if kind == 0:
            value, at = _varint(data, at)
        elif kind == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise ValueError("a field is longer than its message")
            value, at = data[at : at + length], at + length
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            (value,) = struct.unpack_from("<Q" if kind == 1 else "<I", data, at)
            at += width
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, value


def _text(value: int | memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _numbers(value: int | memoryview) -> list[int]:
    """Of a repeated field, packed or not."""
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        out.append(number)
    return out


def _shape(data: memoryview) -> tuple[str, tuple[int, ...], int, int]:
    """As text, dimensions of an array, bytes, bytes in the device's main memory."""
    kind, dims, parts, space = 0, [], [], 0
    for number, value in _fields(data):
        if number == 2:
            kind = value
        elif number == 3:
            dims += _numbers(value)
        elif number == 4:
            parts.append(_shape(value))
        elif number == 5:
            space = dict(_fields(value)).get(8, 0)
    if kind == 13:
        text = f"({', '.join(text for text, *_ in parts)})"
        return text, (), sum(p[2] for p in parts), sum(p[3] for p in parts)
    name = _ELEMENT_TYPES.get(kind, f"type{kind}")
    bits = 8 if name == "pred" else int((re.search(r"\d+", name) or "0")[0])
    size = math.prod(dims) * bits // 8
    return f"{name}[{','.join(map(str, dims))}]", tuple(dims), size, 0 if space else size


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _window_axis(data: memoryview) -> WindowAxis:
    found = {number: _signed(value) for number, value in _fields(data)}
    return WindowAxis(
        found.get(1, 0), found.get(2, 1), found.get(3, 0), found.get(5, 1), found.get(6, 1)
    )


def _integer(data: memoryview) -> int | None:
    """Of LiteralProto: its number if it is one s32, s64, u32 or u64."""
    found = [
        n for number, value in _fields(data) if number in (4, 5, 6, 7) for n in _numbers(value)
    ]
    return _signed(found[0]) if len(found) == 1 else None


def _origin(data: memoryview) -> str:
    """Of OpMetadata."""
    found = dict(_fields(data))
    name = _text(found.get(2, b"")).rstrip("/")
    if 3 not in found:
        return name
    return f"{name} at {_text(found[3])}:{found.get(4, 0)}"


def _instruction(data: memoryview) -> Instruction:
    out = Instruction()
    for number, value in _fields(data):
        if number == 1:
            out.name = _text(value)
        elif number == 2:
            out.opcode = _text(value)
        elif number == 3:
            out.shape, out.dims, out.bytes, out.main_bytes = _shape(value)
        elif number == 9:
            out.parameter = value
        elif number == 15:
            out.window = [_window_axis(v) for k, v in _fields(value) if k == 1]
        elif number == 16:
            dims = list(_fields(value))
            one = dict(dims)
            out.input_batch, out.input_feature = one.get(7, 0), one.get(8, 0)
            out.output_feature = one.get(10, 0)
            out.input_spatial = [n for k, v in dims if k == 11 for n in _numbers(v)]
            out.output_spatial = [n for k, v in dims if k == 12 for n in _numbers(v)]
        elif number == 50:
            out.feature_groups = max(1, value)
        elif number == 61:
            out.batch_groups = max(1, value)
        elif number == 30:
            out.contracted = [n for k, v in _fields(value) if k == 1 for n in _numbers(v)]
        elif number == 7:
            out.origin = _origin(value)
        elif number == 11:
            out.fusion_kind = _text(value)
        elif number == 28:
            out.target = _text(value)
        elif number == 35:
            out.id = value
        elif number == 36:
            out.operands += _numbers(value)
        elif number == 38:
            out.called += _numbers(value)
        elif number == 13:
            out.tuple_index = value
        elif number == 63:
            out.direction = _text(value)
        elif number == 8:
            out.value = _integer(value)
    return out


def _computation(data: memoryview) -> Computation:
    out = Computation()
    for number, value in _fields(data):
        if number == 1:
            out.name = _text(value)
        elif number == 2:
            out.instructions.append(_instruction(value))
        elif number == 5:
            out.id = value
        elif number == 6:
            out.root = value
    return out


def parse(data: bytes, with_config: bool = False) -> Module:
    """A HloModuleProto, or (with_config) a HloModuleProtoWithConfig. ValueError for other bytes."""
    view = memoryview(data)
    try:
        if with_config:
            view = next(value for number, value in _fields(view) if number == 1)
        out = Module()
        for number, value in _fields(view):
            if number == 1:
                out.name = _text(value)
            elif number == 3:
                out.computations.append(_computation(value))
            elif number == 6:
                out.entry_id = value
        if not any(c.id == out.entry_id for c in out.computations):
            raise ValueError("it has no entry computation")
    except (ValueError, IndexError, TypeError, struct.error, StopIteration) as error:
        raise ValueError(f"these bytes are no HLO module: {error}") from None
    return out
