"""Collectives that are too large for XLA's MPI interface: an error when they are compiled.

XLA hands the length of a collective to MPI as a C `int`: elements of a reduction, bytes of all
else. It does not look whether the length fits, and cuts off what does not, so that an exchange of
5 GiB arrives as one of 1 GiB. The engine sees only what is left, and could refuse every second one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from lockstep.hlo.proto import ElementType, HloProgram, Instruction, Message, Metadata, Shape

LARGEST = (1 << 31) - 1
_BY_ELEMENTS = (b"all-reduce", b"reduce-scatter")
_BY_BYTES = (b"all-gather", b"all-to-all", b"collective-permute")
COLLECTIVES = _BY_ELEMENTS + _BY_BYTES


def check_counts(program: HloProgram) -> None:
    """Raises ValueError for a program, as it is after partitioning, whose collectives do not fit.

    It has to have been read for `COLLECTIVES`.
    """
    for body in program.bodies.values():
        for instruction in body.instructions:
            _check(instruction, body.shapes)


def _check(instruction: Message, shapes: Mapping[int, bytes]) -> None:
    opcode = instruction.part(Instruction.OPCODE)
    if opcode not in COLLECTIVES:
        return
    operands = instruction.integers(Instruction.OPERAND_IDS)
    if opcode == b"all-to-all" and len(operands) == 1:
        return  # of which a part goes to each; XLA makes one operand for each of it
    sizes = itertools.chain.from_iterable(_sizes(shapes[operand]) for operand in operands)
    for elements, width in sizes:
        count = elements if opcode in _BY_ELEMENTS else elements * width
        if count > LARGEST:
            raise ValueError(_text(opcode, elements, width, instruction))


def _sizes(shape: bytes) -> Iterator[tuple[int, int]]:
    """Elements and bytes of an element, of an array or of all those in a tuple."""
    message = Message.parse(shape)
    for element in message.parts(Shape.TUPLE_SHAPES):
        yield from _sizes(element)
    kind = message.integer(Shape.ELEMENT_TYPE)
    if kind != ElementType.TUPLE:
        yield math.prod(message.integers(Shape.DIMENSIONS)), _WIDTHS.get(kind, 1)


# Bytes of an element by ``PrimitiveType``; one for all others: they have eight bits or less.
_WIDTHS = {3: 2, 4: 4, 5: 8, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 18: 16}


def _text(opcode: bytes, elements: int, width: int, instruction: Message) -> str:
    metadata = Message.parse(instruction.part(Instruction.METADATA))
    file = metadata.part(Metadata.SOURCE_FILE).decode()
    name = metadata.part(Metadata.OP_NAME).decode()
    where = f" ({name})" if name else ""
    where += f" at {file}:{metadata.integer(Metadata.SOURCE_LINE)}" if file else ""
    unit = "elements" if opcode in _BY_ELEMENTS else "bytes"
    return (
        f"lockstep: {opcode.decode()}{where} of {elements} elements of {width} bytes on one "
        f"device: between processes XLA can move at most {LARGEST} {unit} of a device in one "
        "collective. Use more devices, or split the array."
    )
