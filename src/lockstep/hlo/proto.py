"""Reading and changing a serialized ``HloModuleProto`` without its schema compiled in.

Protocol buffers name fields by number, and a number never changes its meaning, so a message can be
edited knowing only the few fields that matter: everything else is carried through byte for byte.
The numbers below are those of XLA's ``hlo.proto`` and ``xla_data.proto``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Module(enum.IntEnum):
    """Fields of ``HloModuleProto``."""

    COMPUTATIONS = 3


class Computation(enum.IntEnum):
    """Fields of ``HloComputationProto``."""

    NAME = 1
    INSTRUCTIONS = 2
    PROGRAM_SHAPE = 4
    ID = 5
    ROOT_ID = 6


class Instruction(enum.IntEnum):
    """Fields of ``HloInstructionProto``."""

    NAME = 1
    OPCODE = 2
    SHAPE = 3
    METADATA = 7
    TUPLE_INDEX = 13
    ID = 35
    OPERAND_IDS = 36
    CALLED_COMPUTATION_IDS = 38


class Metadata(enum.IntEnum):
    """Fields of ``OpMetadata``."""

    OP_NAME = 2
    SOURCE_FILE = 3
    SOURCE_LINE = 4


class Shape(enum.IntEnum):
    """Fields of ``ShapeProto``."""

    ELEMENT_TYPE = 2
    DIMENSIONS = 3
    TUPLE_SHAPES = 4


class ProgramShape(enum.IntEnum):
    """Fields of ``ProgramShapeProto``."""

    PARAMETERS = 1
    RESULT = 2


class ElementType(enum.IntEnum):
    """Values of ``PrimitiveType``."""

    U16 = 7
    F16 = 10
    F32 = 11
    TUPLE = 13


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a protocol buffer ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a message as it lies on the wire."""

    number: int
    wire_type: int
    value: int | bytes

    def encode(self) -> bytes:
        tag = _varint(self.number << 3 | self.wire_type)
        if isinstance(self.value, int):
            return tag + _varint(self.value)
        if self.wire_type == _BYTES:
            return tag + _varint(len(self.value)) + self.value
        return tag + self.value


class Message:
    """A message as the list of its fields, in order. Unknown fields survive unchanged."""

    def __init__(self, fields: Iterable[Field] = ()) -> None:
        self.fields = list(fields)

    @classmethod
    def parse(cls, data: bytes) -> Message:
        """Raises ValueError for bytes that are not a protocol buffer."""
        return cls(_fields(data))

    def encode(self) -> bytes:
        return b"".join(field.encode() for field in self.fields)

    def integer(self, number: int) -> int:
        """The field's value; 0 when it is absent, as protocol buffers have it."""
        values = [f.value for f in self.fields if f.number == number and isinstance(f.value, int)]
        return values[-1] if values else 0

    def integers(self, number: int) -> list[int]:
        """A repeated integer field, packed or not."""
        out: list[int] = []
        for field in self.fields:
            if field.number != number:
                continue
            if isinstance(field.value, int):
                out.append(field.value)
                continue
            at = 0
            while at < len(field.value):
                item, at = _read_varint(field.value, at)
                out.append(item)
        return out

    def parts(self, number: int) -> list[bytes]:
        """A repeated field of strings or messages."""
        return [f.value for f in self.fields if f.number == number and isinstance(f.value, bytes)]

    def part(self, number: int) -> bytes:
        parts = self.parts(number)
        return parts[-1] if parts else b""

    def set(self, number: int, value: int | bytes) -> None:
        """Replaces every occurrence of the field by one (at the first one's place)."""
        field = Field(number, _VARINT if isinstance(value, int) else _BYTES, value)
        at = next((i for i, f in enumerate(self.fields) if f.number == number), len(self.fields))
        rest = [f for f in self.fields[at:] if f.number != number]
        self.fields[at:] = [field, *rest]

    def set_integers(self, number: int, values: Iterable[int]) -> None:
        self.set(number, b"".join(map(_varint, values)))

    def prepend(self, number: int, parts: Iterable[bytes]) -> None:
        self.fields[:0] = [Field(number, _BYTES, part) for part in parts]

    def replace_parts(self, number: int, change: Callable[[bytes], Iterable[bytes]]) -> None:
        """Puts `change(part)` where each part of a repeated field stood."""
        self.fields = [
            new
            for field in self.fields
            for new in (
                [Field(number, _BYTES, part) for part in change(field.value)]
                if field.number == number and isinstance(field.value, bytes)
                else [field]
            )
        ]


@dataclasses.dataclass(frozen=True)
class Body:
    """A computation and what is in it."""

    computation: Message
    instructions: list[Message]
    shapes: dict[int, bytes]
    """The shape of what each instruction gives, by its id."""

    @classmethod
    def parse(cls, computation: bytes) -> Body:
        message = Message.parse(computation)
        instructions = [Message.parse(i) for i in message.parts(Computation.INSTRUCTIONS)]
        shapes = {i.integer(Instruction.ID): i.part(Instruction.SHAPE) for i in instructions}
        return cls(message, instructions, shapes)


class HloProgram:
    """A module, and the bodies of those computations in which one of ``opcodes`` may stand."""

    def __init__(self, module: bytes, opcodes: Sequence[bytes]) -> None:
        """Raises ValueError for bytes that are not a serialized ``HloModuleProto``."""
        self.module = Message()
        self.bodies: dict[bytes, Body] = {}
        """The keys are the bytes of the computations."""
        if any(opcode in module for opcode in opcodes):
            self.module = Message.parse(module)
            for raw in self.module.parts(Module.COMPUTATIONS):
                if any(opcode in raw for opcode in opcodes):
                    self.bodies[raw] = Body.parse(raw)


def _fields(data: bytes) -> Iterator[Field]:
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _read_varint(data, at)
            yield Field(number, wire_type, value)
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(data, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} of field {number} is not known")
        if at + size > len(data):
            raise ValueError(f"field {number} is longer than its protocol buffer")
        yield Field(number, wire_type, data[at : at + size])
        at += size
