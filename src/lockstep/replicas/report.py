"""The text of a difference between copies of an array. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from lockstep._words import counted, ranges

MAX_ALSO = 4
"""How many further arrays are named."""


@dataclasses.dataclass(frozen=True)
class Copy:
    """What some devices have in common."""

    devices: tuple[tuple[int, int], ...]
    """The process and the id of each device."""
    value: str = ""
    """The first element that differs; "" if it is not known."""
    bits: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Copies of an array that are not the same."""

    array: int
    """Which of those that were compared."""
    copies: tuple[Copy, ...] = ()
    """Those of the first piece that differs; empty if the others did not wait for it."""
    position: tuple[int, ...] | None = None
    """Where the first element that differs lies in the array; None: not found."""
    parts: tuple[int, int, int] = (0, 0, 0)
    """How many parts of the piece differ, of how many, and the elements of each."""
    others: tuple[int, ...] = ()
    """Further arrays that differ."""
    compared: int = 1


def text(head: str, found: Difference, names: Mapping[int, str], labels: Mapping[int, str]) -> str:
    """The error, whose first line says it all.

    ``names`` are those of the arrays, with their types; ``labels`` those of the processes.
    """
    lines = [f"{head}: {_first_line(found, names[found.array])}"]
    largest = max((len(copy.devices) for copy in found.copies), default=0)
    several = sum(len(copy.devices) == largest for copy in found.copies) > 1
    for copy in found.copies:
        odd = " <- differs" if len(copy.devices) < largest and not several else ""
        lines.append(f"  {_holders(copy, found.copies, labels)}: {_value(copy)}{odd}")
    if found.position is not None:
        lines.append(f"  {_extent(*found.parts)}")
    if found.others:
        lines.append(_also(found, names))
    return "\n".join([*lines, f"Likely: {_likely(found)}."])


def _first_line(found: Difference, name: str) -> str:
    if not found.copies:
        return f"{name} differs; the other processes have gone on, so the place is not known"
    begin = f"{name} is not the same on {_all_holders(found.copies)}"
    if found.position is None:
        return f"{begin}, by its hash; read again, all elements are the same"
    at = f"at {list(found.position)} " if found.position else ""
    values = (f"{copy.value} on {_holders(copy, found.copies)}" for copy in found.copies)
    return f"{begin}: {at}{', '.join(values)}"


def _value(copy: Copy) -> str:
    return f"{copy.value} (bits {copy.bits})" if copy.value else "read again, the same"


def _all_holders(copies: Sequence[Copy]) -> str:
    found = sorted({process for copy in copies for process, _ in copy.devices})
    if len(found) > 1:
        return f"processes {ranges(found)}"
    ids = sorted(device for copy in copies for _, device in copy.devices)
    return f"devices {ranges(ids)} of process {found[0]}"


def _holders(copy: Copy, copies: Sequence[Copy], labels: Mapping[int, str] | None = None) -> str:
    """``process 1``, ``processes 0, 2-3``, ``device 2049 of process 1``."""
    whole, words = [], []
    for process in sorted({process for process, _ in copy.devices}):
        own = sorted(device for p, device in copy.devices if p == process)
        if any(p == process for other in copies if other is not copy for p, _ in other.devices):
            label = (labels or {}).get(process, f"process {process}")
            words.append(f"device{'s' * (len(own) > 1)} {ranges(own)} of {label}")
        else:
            whole.append(process)
    if len(whole) == 1:
        words.insert(0, (labels or {}).get(whole[0], f"process {whole[0]}"))
    elif whole:
        words.insert(0, f"processes {ranges(whole)}")
    return " and ".join(words)


def _extent(differing: int, parts: int, length: int) -> str:
    if length == 1:
        what = f"{differing} of {counted(parts, 'element')} of this piece"
    else:
        what = f"{differing} of {parts} parts of this piece, of {length} elements each,"
    return f"{what} differ{'s' * (differing == 1)}"


def _also(found: Difference, names: Mapping[int, str]) -> str:
    shown = ", ".join(names[i] for i in found.others[:MAX_ALSO])
    more = len(found.others) - MAX_ALSO
    rest = f" and {more} more" if more > 0 else ""
    return f"Also different: {shown}{rest}; {counted(found.compared, 'array')} compared"


def _likely(found: Difference) -> str:
    differing, parts, length = found.parts
    if found.position is None or not found.copies:
        return "the device reads or computes wrongly at times, or another thread writes the array"
    if differing == 1 and parts > 1 and not found.others:
        what = "bit" if _one_bit(found.copies) else "element"
        return (
            f"silent data corruption: one {what} differs, as after a fault of a device's memory. "
            "If it comes again on the same host, take that host out of the job"
        )
    if differing * 2 > parts and parts * length > 1:
        return (
            "each process made the array by itself, from a seed, a time or data of its own. Make "
            "it from the same seed on all processes, or move it there by lockstep.broadcast"
        )
    return (
        "the array was changed on some processes only: in code under an `if` of the process, by a "
        "sum in another order on other hardware, or in programs that diverged before"
    )


def _one_bit(copies: Sequence[Copy]) -> bool:
    if len(copies) != 2:
        return False
    first, second = (int(copy.bits.replace(" ", "").replace("0x", ""), 16) for copy in copies)
    return (first ^ second).bit_count() == 1
