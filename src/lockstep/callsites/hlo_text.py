"""Reads source lines and arguments from the text of a compiled program. Pure.

Newer jaxlibs put tables of stack frames in front of a module's text: files, functions, locations,
and frames with their callers. The arguments have the names that JAX recorded.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lockstep.callsites import frames

_MAX_ARGUMENTS = 256
"""Arguments of a program that are kept, the first and the last: a model has thousands."""
SHAPE = r"(?P<shape>\((?:[^=]|/\*index=)*?\)|\S+)"
"""In a pattern: the shape of an array, or of a tuple, in which XLA numbers every fifth element."""
OP_NAME = re.compile(r'op_name="([^"]*)"')
_FILE = re.compile(r'source_file="([^"]*)"')
_LINE = re.compile(r"source_line=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_MAX_FRAMES = 200
_TABLE_ROW = re.compile(r"(\d+) (?:\"(.*)\"|\{(.*)\})")

Frame = tuple[str, int, str]
"""File, line, function."""


class SourceLine(NamedTuple):
    """The last fields of a `Collective`."""

    file: str = ""
    line: int = 0
    function: str = ""
    through_file: str = ""
    through_line: int = 0


@functools.lru_cache(1024)
def shape(text: str) -> str:
    """Without how it lies in memory, and the numbers that XLA gives to the elements of a tuple."""
    return re.sub(r"\{[\d,:T()]*\}|/\*index=\d+\*/", "", text)


def place(chain: Sequence[Frame]) -> SourceLine:
    """``chain`` is a stack, the innermost frame first."""
    shown = [at for at in chain if not frames.is_on_the_way(at[0])] or chain
    own = next((at for at in shown if not frames.is_library(at[0])), None)
    if own is None:
        return SourceLine(*shown[0][:2]) if shown else SourceLine()
    return SourceLine(*own) if own is shown[0] else SourceLine(*own, *shown[0][:2])


def arguments(text: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The program's arguments, ``x: f32[100,8]``, with these ``names``, or those that JAX recorded.

    Only a text with origins has the latter.
    """
    found = {}
    for line in _parameters(text):
        left, _, right = line.partition(" parameter(")
        number, _, rest = right.partition(")")
        if not number.isdecimal():  # the name of another instruction has these words
            continue
        index = int(number)
        name = names[index] if index < len(names) else _recorded_name(rest)
        found[index] = f"{name or f'argument {index + 1}'}: {shape(left.partition(' = ')[2])}"
    ordered = [found[index] for index in sorted(found)]
    if len(ordered) > _MAX_ARGUMENTS:
        ordered[_MAX_ARGUMENTS // 2 : -_MAX_ARGUMENTS // 2] = []
    return tuple(ordered)


def _parameters(text: str) -> Iterator[str]:
    """The lines of the main computation that have a parameter: most have none."""
    entry = text.find("\nENTRY ")
    end = text.find("\n}", entry)
    at = text.find(" parameter(", entry, end) if entry >= 0 else -1
    while at >= 0:
        after = text.find("\n", at)
        yield text[text.rfind("\n", 0, at) + 1 : after]
        at = text.find(" parameter(", after, end)


def _recorded_name(rest: str) -> str:
    name = OP_NAME.search(rest)
    return name[1].replace("\\'", "'") if name else ""


class Frames:
    """The tables of stack frames in front of a module's text, where there are any."""

    def __init__(self, text: str) -> None:
        self._tables: dict[str, dict[int, str]] = {}
        self._chains: dict[int, list[Frame]] = {}
        rows: dict[int, str] = {}
        for line in text.splitlines():
            if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                rows = self._tables.setdefault(line, {})
            elif row := _TABLE_ROW.fullmatch(line):
                rows[int(row[1])] = row[2] if row[2] is not None else row[3]
            elif line.startswith(("%", "ENTRY")):
                break

    def source_line(self, instruction: str) -> SourceLine:
        """The line that an instruction comes from, by its metadata."""
        frame, file = _FRAME.search(instruction), _FILE.search(instruction)
        at = place(self.chain(int(frame[1]))) if frame else SourceLine()
        if at.file or not file:
            return at
        line = _LINE.search(instruction)
        return SourceLine(file[1], int(line[1]) if line else 0)

    def chain(self, frame: int) -> list[Frame]:
        """A frame and its callers, the innermost first; empty: the text does not have them."""
        if frame not in self._chains:
            self._chains[frame] = self._chain(frame)
        return self._chains[frame]

    def _chain(self, frame: int) -> list[Frame]:
        found: list[Frame] = []
        # XLA prints the parent's number plus one; the first frame has no parent.
        offset = self._field("StackFrames", 1, "parent_frame_id")
        while frame > 0 and len(found) < _MAX_FRAMES:
            location = self._field("StackFrames", frame, "file_location_id")
            if file := self._name("FileNames", location, "file_name_id"):
                function = self._name("FunctionNames", location, "function_name_id")
                found.append((file, self._field("FileLocations", location, "line"), function))
            parent = self._field("StackFrames", frame, "parent_frame_id") - offset
            frame = parent if parent < frame else 0
        return found

    def _name(self, table: str, location: int, field: str) -> str:
        return self._tables.get(table, {}).get(self._field("FileLocations", location, field), "")

    def _field(self, table: str, row: int, name: str) -> int:
        found = re.search(rf"\b{name}=(\d+)", self._tables.get(table, {}).get(row, ""))
        return int(found[1]) if found else 0
