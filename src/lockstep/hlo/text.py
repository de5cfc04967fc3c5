"""Reads the text of a compiled program: computations, instructions, and what they call. Pure.

XLA prints an instruction as ``name = shape opcode(operands), attributes``. The text is read instead
of the protocol buffer because it names what it refers to, and because XLA writes replica groups
into three different fields of the latter.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
_NAME = re.compile(r"%([\w.\-]+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\]")
_BITS = re.compile(r"^[a-z]+?(\d+)")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')

_PRED_BITS = 8
_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, slots=True)
class Array:
    """The type of an array: ``f32[8,128]``, as HLO writes it."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return -(-self.elements * bits_of(self.dtype) // 8)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@functools.cache
def bits_of(dtype: str) -> int:
    """Bits of an element: 32 for ``f32``, 8 for ``pred`` and ``f8e4m3fn``; 0 for a token."""
    if dtype == "pred":
        return _PRED_BITS
    found = _BITS.match(dtype)
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    """The names of the operands; empty for a constant or a parameter."""
    attributes: str
    """The rest of the line, from the comma after the operands."""
    number: int = 0
    """The place of a parameter."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What it gives: one array, or those of a tuple."""
        return arrays(self.shape)

    @property
    def op_name(self) -> str:
        """JAX's path of the operation, or an argument's name; "" where there is none."""
        found = _OP_NAME.search(self.attribute("metadata"))
        return found[1].replace("\\'", "'") if found else ""

    def attribute(self, name: str) -> str:
        """The value of an attribute with its brackets; "" where there is none."""
        start = self.attributes.find(f", {name}=")
        if start < 0:
            return ""
        start += len(name) + 3
        return self.attributes[start : _end(self.attributes, start)]

    def named(self, attribute: str) -> tuple[str, ...]:
        """The computations that an attribute names."""
        return tuple(_NAME.findall(self.attribute(attribute)))


@dataclass(frozen=True)
class Module:
    computations: Mapping[str, Mapping[str, Instruction]]
    """Computation -> its instructions by name, in their order."""
    entry: str
    roots: Mapping[str, str]
    """Computation -> the instruction whose value it gives."""

    def users(self, computation: str, name: str) -> Iterator[Instruction]:
        """The instructions of the computation that have ``name`` among their operands."""
        for each in self.computations[computation].values():
            if name in each.operands:
                yield each


def arrays(shape: str) -> tuple[Array, ...]:
    """The arrays in the text of a shape: ``(f32[8]{0}, s32[])`` has two."""
    return tuple(
        Array(dtype, tuple(int(n.strip(" <=")) for n in dims.split(",") if n.strip()))
        for dtype, dims in _ARRAY.findall(shape)
    )


def parse(text: str) -> Module:
    """Raises ValueError for a text that has no entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    roots: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if current is not None and (found := _INSTRUCTION.match(line)):
            current[found[1]] = _instruction(found[1], line[found.end() :])
            if line.lstrip().startswith("ROOT "):
                roots[name] = found[1]
        elif found := _COMPUTATION.match(line):
            name = found[2]
            current = computations.setdefault(name, {})
            entry = name if found[1] else entry
        elif line.startswith("}"):
            current = None
    if not entry:
        raise ValueError("this is not the text of a compiled program: it has no ENTRY")
    return Module(computations, entry, roots)


def _instruction(name: str, rest: str) -> Instruction:
    end = _end(rest, 0) if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    at = rest.find("(")
    end = _closing(rest, at)
    opcode, inner = rest[:at], rest[at + 1 : end]
    number = int(inner) if opcode == "parameter" and inner.isdigit() else 0
    return Instruction(name, shape, opcode, tuple(_NAME.findall(inner)), rest[end + 1 :], number)


def _end(text: str, start: int) -> int:
    """Where the value that begins at ``start`` ends: at a comma or space outside of brackets."""
    depth, quoted, at = 0, False, start
    while at < len(text):
        char = text[at]
        if quoted:
            at += char == "\\"
            quoted = char != '"'
        elif char == '"':
            quoted = True
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif depth == 0 and char in ", ":
            # `mesh['x'=2], device_ids=(1,0) {'x'}` is one value.
            if not text.startswith((" {", " device_ids=(", ", device_ids=("), at):
                return at
        at += 1
    return at


def _closing(text: str, start: int) -> int:
    """The bracket that closes the one at ``start``."""
    depth, quoted = 0, False
    for at in range(start, len(text)):
        char = text[at]
        if char == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif not quoted and char in _OPEN:
            depth += 1
        elif not quoted and char in _CLOSE:
            depth -= 1
            if depth == 0:
                return at
    return len(text)
