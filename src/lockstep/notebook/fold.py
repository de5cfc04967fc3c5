"""The lines of several processes as one text: ``[0-3] loss 0.5``, once where they are equal. Pure.

A line waits a moment for the same line of the other processes. Then it is given out for those
processes that have it. Lines of one process stay in order.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Any

from lockstep._words import grouped, ranges

HOLD = 0.3
"""Seconds that a line waits for the others."""
LOOK_AHEAD = 64
"""Lines of another process that are searched for an equal one."""


def label(processes: Sequence[int]) -> str:
    """``[0]``, ``[0-3]``, ``[0,2-3]``: ascending numbers."""
    return f"[{ranges(sorted(processes), len(processes)).replace(', ', ',')}]"


@dataclasses.dataclass(frozen=True)
class Line:
    """A complete line of ``stdout`` or ``stderr``."""

    stream: str
    text: str


@dataclasses.dataclass
class _Source:
    """What one process has written. Anything but a `Line` belongs to this process alone."""

    items: deque[tuple[Any, float]] = dataclasses.field(default_factory=deque)
    unfinished: dict[str, str] = dataclasses.field(default_factory=dict)
    ended: bool = False


class Folder:
    """What the processes write that run a cell."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._sources = {process: _Source() for process in processes}

    def feed(self, process: int, stream: str, text: str, now: float) -> None:
        """Takes text of a process; a carriage return starts its line again."""
        source = self._sources[process]
        *lines, rest = (source.unfinished.get(stream, "") + text).split("\n")
        for line in lines:
            source.items.append((Line(stream, line.rstrip("\r").rpartition("\r")[2]), now))
        # A return at the end is kept, since a newline may follow it.
        body, ends = rest.rstrip("\r"), rest.endswith("\r")
        source.unfinished[stream] = body.rpartition("\r")[2] + "\r" * ends

    def put(self, process: int, item: Any, now: float) -> None:
        """Takes what is no text, a figure say; it stays between the lines around it."""
        self._sources[process].items.append((item, now))

    def end(self, process: int, now: float) -> None:
        """The process writes no more."""
        source = self._sources[process]
        for stream, text in source.unfinished.items():
            if text:
                self.feed(process, stream, "\n", now)
        source.ended = True

    def unfinished(self, stream: str) -> list[tuple[tuple[int, ...], str]]:
        """The lines that are not complete yet (progress bars, prompts), equal ones once."""
        groups = grouped(
            (text, process)
            for process, source in self._sources.items()
            if (text := source.unfinished.get(stream, "").rstrip("\r")) and not source.items
        )
        return [(tuple(group), text) for text, group in groups.items()]

    def take(self, now: float, all_of_it: bool = False) -> list[tuple[tuple[int, ...], Any]]:
        """What is to be shown now, each item with the processes that wrote it."""
        taken = []
        while (found := self._next(now, all_of_it)) is not None:
            for process in found[0]:
                self._sources[process].items.popleft()
            taken.append(found)
        return taken

    def _next(self, now: float, all_of_it: bool) -> tuple[tuple[int, ...], Any] | None:
        groups: list[tuple[Any, list[int]]] = []
        for process, source in self._sources.items():
            if source.items:
                item = source.items[0][0]
                same = next((g for first, g in groups if _alike(first, item)), None)
                if same is None:
                    groups.append((item, [process]))
                else:
                    same.append(process)
        awaited = any(not s.items and not s.ended for s in self._sources.values())
        # Lines that another process has behind others of its own come last.
        for item, group in sorted(groups, key=lambda pair: self._comes_later(*pair)):
            oldest = min(self._sources[process].items[0][1] for process in group)
            if all_of_it or not awaited or oldest + HOLD <= now:
                return tuple(group), item
        return None

    def _comes_later(self, item: Any, group: list[int]) -> bool:
        return any(
            _alike(item, source.items[i][0])
            for process, source in self._sources.items()
            if process not in group
            for i in range(1, min(len(source.items), LOOK_AHEAD))
        )


def _alike(one: Any, other: Any) -> bool:
    return isinstance(one, Line) and one == other
