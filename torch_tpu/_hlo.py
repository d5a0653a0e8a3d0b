# SPDX-License-Identifier: Apache-2.0 - reads the serialized HloModuleProto that plugins give of an optimized program.
"""Only the protobuf wire format and the numbers of the few fields that are looked at (xla/service/
hlo.proto and xla/xla_data.proto); neither XLA nor protobuf is needed."""

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

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
class Instruction:
    name: str = ""
    opcode: str = ""
    shape: str = ""
    dims: tuple[int, ...] = ()  # of an array
    bytes: int = 0
    id: int = 0
    operands: list[int] = field(default_factory=list)  # ids
    called: list[int] = field(default_factory=list)  # ids of computations
    fusion_kind: str = ""  # "kLoop", "kInput", "kOutput", "kCustom"
    target: str = ""  # of a custom call
    contracted: list[int] = field(default_factory=list)  # dimensions of a dot's first operand
    kernel_output: int = 0  # dimension of a convolution's second operand
    origin: str = ""  # the operator that it was made of, and the line: "aten::mm at file.py:12"


@dataclass
class Computation:
    name: str = ""
    id: int = 0
    root: int = 0
    instructions: list[Instruction] = field(default_factory=list)


@dataclass
class Module:
    name: str = ""
    entry_id: int = 0
    computations: list[Computation] = field(default_factory=list)

    @property
    def entry(self) -> Computation:
        return next(c for c in self.computations if c.id == self.entry_id)

    def computation(self, id: int) -> Computation:
        return next(c for c in self.computations if c.id == id)

    def cost(self) -> tuple[int, int]:
        """(flops, bytes accessed). An arithmetic operation on an element counts as one flop, so a
        product and its sum are two; what a custom call does inside is not known; a loop counts as one
        turn. Bytes are those of operands and results, where a fusion is one operation."""
        return self._flops(self.entry), self._bytes(self.entry)

    def _flops(self, computation: Computation) -> int:
        known = {i.id: i for i in computation.instructions}
        flops = 0
        for i in computation.instructions:
            if i.opcode == "dot":
                first = known[i.operands[0]].dims
                flops += 2 * math.prod(i.dims) * math.prod(first[d] for d in i.contracted)
            elif i.opcode == "convolution":
                kernel = list(known[i.operands[1]].dims)
                kernel[i.kernel_output] = 1
                flops += 2 * math.prod(i.dims) * math.prod(kernel)
            elif i.opcode in ("reduce", "reduce-window", "scatter", "sort", "map"):
                flops += math.prod(known[i.operands[0]].dims)
            elif i.opcode in _ARITHMETIC:
                flops += math.prod(i.dims)
            elif i.opcode in _CALLS:
                flops += sum(self._flops(self.computation(k)) for k in i.called)
        return flops

    def _bytes(self, computation: Computation) -> int:
        known = {i.id: i for i in computation.instructions}
        total = 0
        for i in computation.instructions:
            if i.opcode in _CALLS and i.opcode != "fusion":
                total += sum(self._bytes(self.computation(k)) for k in i.called)
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


def _shape(data: memoryview) -> tuple[str, tuple[int, ...], int]:
    """As text, dimensions of an array, bytes."""
    kind, dims, parts = 0, [], []
    for number, value in _fields(data):
        if number == 2:
            kind = value
        elif number == 3:
            dims += _numbers(value)
        elif number == 4:
            parts.append(_shape(value))
    if kind == 13:
        return f"({', '.join(text for text, *_ in parts)})", (), sum(size for *_, size in parts)
    name = _ELEMENT_TYPES.get(kind, f"type{kind}")
    bits = 8 if name == "pred" else int((re.search(r"\d+", name) or "0")[0])
    return f"{name}[{','.join(map(str, dims))}]", tuple(dims), math.prod(dims) * bits // 8


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
            out.shape, out.dims, out.bytes = _shape(value)
        elif number == 16:
            out.kernel_output = dict(_fields(value)).get(4, 0)
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
