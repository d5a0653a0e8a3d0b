# SPDX-License-Identifier: Apache-2.0 - reads the serialized HloModuleProto that plugins give of an optimized program.
"""Only the protobuf wire format and the numbers of the few fields that are looked at (xla/service/
hlo.proto and xla/xla_data.proto); neither XLA nor protobuf is needed."""

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


@dataclass
class Instruction:
    name: str = ""
    opcode: str = ""
    shape: str = ""
    id: int = 0
    operands: list[int] = field(default_factory=list)  # ids
    called: list[int] = field(default_factory=list)  # ids of computations
    fusion_kind: str = ""  # "kLoop", "kInput", "kOutput", "kCustom"
    target: str = ""  # of a custom call
    op_name: str = ""


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


def _shape(data: memoryview) -> str:
    kind, dims, parts = 0, [], []
    for number, value in _fields(data):
        if number == 2:
            kind = value
        elif number == 3:
            dims += _numbers(value)
        elif number == 4:
            parts.append(_shape(value))
    if kind == 13:
        return f"({', '.join(parts)})"
    return f"{_ELEMENT_TYPES.get(kind, f'type{kind}')}[{','.join(map(str, dims))}]"


def _instruction(data: memoryview) -> Instruction:
    out = Instruction()
    for number, value in _fields(data):
        if number == 1:
            out.name = _text(value)
        elif number == 2:
            out.opcode = _text(value)
        elif number == 3:
            out.shape = _shape(value)
        elif number == 7:
            for inner, text in _fields(value):
                if inner == 2:
                    out.op_name = _text(text)
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
