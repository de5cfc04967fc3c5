"""The first difference between two programs that came as executables, by their text. Pure.

An executable that was saved and loaded has no module of its own: what the compiler made of it is
all that is known. Its instructions have the lines of the program that was saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lockstep.callsites import hlo_metadata
from lockstep.callsites.hlo_text import SourceLine
from lockstep.flight_recorder import program_difference as found

_NAMES = re.compile(r"%[\w.-]+")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?(%[\w.-]+) = (\(.*?\)|\S+?)(?:\{[^{}]*\})? ([\w-]+)\((.*)"
)
_VALUE = re.compile(r"= \S+ constant\((.*?)\)(?:,|$)")
_SHOWN = 80

Found = tuple[str, str, tuple[str, str], tuple[SourceLine, SourceLine]]
"""Kind, subject, what each side has, and its lines."""


def first_difference(ours: str, theirs: str) -> Found | None:
    """None: the texts are the same."""
    whole = (hlo_metadata.computations(text) for text in (ours, theirs))
    some = [list(filter(None, text.splitlines())) for text in whole]
    bare = [[_NAMES.sub("%", line) for line in lines] for lines in some]
    alike = zip(*bare, strict=False)
    at = next((i for i, (a, b) in enumerate(alike) if a != b), min(map(len, bare)))
    if at == max(map(len, bare)):
        return None
    places = tuple(
        _place(lines, at, text) for lines, text in zip(some, (ours, theirs), strict=True)
    )
    mine, other = (lines[at] if at < len(lines) else "" for lines in some)
    values = [_VALUE.search(line) for line in (mine, other)]
    if values[0] and values[1]:
        texts = [found_value[1][:_SHOWN] for found_value in values if found_value]
        return found.CONSTANT, "a constant", (texts[0], texts[1]), (places[0], places[1])
    texts = [_told(line) for line in (mine, other)]
    return found.OPERATIONS, "an instruction", (texts[0], texts[1]), (places[0], places[1])


def _told(line: str) -> str:
    """``multiply of f32[4]``."""
    if (one := _INSTRUCTION.match(line)) is None:
        return line.strip()[:_SHOWN] or "nothing more"
    return f"{one[3]} of {one[2]}"[:_SHOWN]


def _place(lines: Sequence[str], at: int, text: str) -> SourceLine:
    """The line that an instruction comes from; a constant's is that of the instruction using it."""
    if at >= len(lines):
        return SourceLine()
    places = hlo_metadata.places(text)
    one = _INSTRUCTION.match(lines[at])
    name = one[1] if one else ""
    for _ in range(4):
        if name in places:
            return places[name]
        used = re.compile(rf"{re.escape(name)}(?![\w.-])")
        users = (_INSTRUCTION.match(line) for line in lines[at + 1 :])
        name = next((user[1] for user in users if user and used.search(user[4])), "")
        if not name:
            break
    return SourceLine()
