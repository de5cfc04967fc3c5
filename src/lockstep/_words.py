"""Numbers and texts as people read them. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
MAX_RUNS = 6
"""How many runs of numbers are listed before the rest is counted."""
_LEFT_OUT = re.compile(r"^(?:E )? *  and \d+ process(?:es)? more$", re.MULTILINE)
"""The line of `left_out`, also where pytest shows it as a part of an error."""
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of each key; keys and values stay in their order."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def format_size(size: float) -> str:
    """``size`` bytes in the largest binary unit that keeps the number at 1 or more."""
    for unit, factor in reversed(UNITS.items()):
        if size >= factor:
            return f"{size / factor:.4g} {unit}"
    return f"{size:.4g} B"


def format_count(number: float) -> str:
    """``32.0 G``: ``number`` with three digits and a decimal prefix."""
    for prefix, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{three_digits(number / factor)} {prefix}"
    return f"{number:.0f}"


def counted(number: int, what: str) -> str:
    """``"1 device"``, ``"2 devices"``, ``"2 processes"``."""
    plural = "es" if what.endswith("s") else "s"
    return f"{number} {what}{'' if number == 1 else plural}"


def left_out(processes: int) -> str:
    """The line that stands for the rows of ``processes`` processes in a text without room."""
    return f"  and {counted(processes, 'process')} more"


def is_cut(text: str) -> bool:
    """Whether ``text`` has a line of `left_out`, or ends in the middle."""
    return text.endswith("...") or _LEFT_OUT.search(text) is not None


def ranges(numbers: Sequence[int], most: int = MAX_RUNS) -> str:
    """``0-2, 5`` for 0, 1, 2, 5, in the order given; ``most`` runs of many."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:most])
    rest = [f"... ({len(numbers)} in all)"] if len(runs) > most else []
    return ", ".join([*shown, *rest])


def in_ranges(text: str, number: int) -> bool:
    """Whether ``number`` is among the ``text`` that `ranges` has made."""
    ends = (part.split("-") for part in text.split(", "))
    return any(int(end[0]) <= number <= int(end[-1]) for end in ends)


def processes(indices: Sequence[int]) -> str:
    """``process 1``, ``processes 0-2, 5``."""
    return f"process{'es' * (len(indices) > 1)} {ranges(indices)}"


def unit_of_time(seconds: float) -> tuple[float, str]:
    """(how many in a second, its name) of the unit that keeps ``seconds`` at 1 or more."""
    if seconds >= 1:
        return 1.0, "s"
    return (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")


def format_seconds(seconds: float) -> str:
    """Three digits and a unit."""
    factor, unit = unit_of_time(seconds)
    return f"{three_digits(seconds * factor)} {unit}"


def three_digits(value: float) -> str:
    """``value`` with three significant digits, never in powers of ten."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of a text from an unauthenticated peer, without control codes."""
    return "".join(each if each.isprintable() else "?" for each in text[:most])


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
