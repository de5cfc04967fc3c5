"""Sums up the time spent in collectives, by line of the program. Pure.

A collective's time on one device is split at the moment when all members had arrived: before it the
device waited for the slowest, after it data moved. The engine records this moment for some
collectives; for the others it is the latest start among the members. The slowest member is the one
that started last; between hosts this is as accurate as their clocks are synchronized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from lockstep.flight_recorder.calls import Call, Calls
from lockstep.flight_recorder.format import UNTIMED_BYTES, Entry, Op, State
from lockstep.flight_recorder.phrases import LAUNCH, operation, place_in_program
from lockstep.flight_recorder.run_records import Run
from lockstep.flight_recorder.timeline import History, Position, Track

MAX_SIZES = 3
"""So many of the collectives of a line are listed."""


@dataclass(frozen=True)
class Line:
    """A call site, over all devices and all collectives that are still recorded."""

    where: str
    """``train.py:41 in step``; empty: not known."""
    what: str
    """``all-reduce (sum) of 1024 x f32``; where a line has several, the largest first:
    ``all-reduce (sum) of 640 x f32, 10 x f32``."""
    calls: int
    """Collectives of the device that ran most."""
    bytes: int
    """Bytes of one device in one call, on average."""
    waiting: float
    """Seconds a device waited for the slowest, on average over the devices."""
    moving: float | None
    """Seconds a device moved data, on average over the devices; None: none of the collectives was
    so large that this is measured."""
    slowest: tuple[tuple[int, int], ...]
    """Pairs of process and how often it began last, most often first."""
    timed: int
    """The number of collectives whose slowest member is known."""


@dataclass(frozen=True)
class Summary:
    lines: tuple[Line, ...]
    """Sorted by time, longest first."""
    recorded: int
    """Collectives of all devices that are still in the rings."""
    written: int
    """Collectives of all devices that were ever begun."""


@dataclass
class _Sums:
    call: Call
    by_device: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    waiting: int = 0
    moving: int = 0
    is_moving_timed: bool = False
    sizes: dict[tuple[int, int, int], str] = field(default_factory=dict)
    """Bytes, dtype and reduction of the collectives of the line -> in words."""
    slowest: Counter[int] = field(default_factory=Counter)


def summarize(run: Run) -> Summary:
    """Adds up what the records of a run hold. Collectives that did not end are left out."""
    history = History(run)
    calls = Calls(history)
    arrivals = dict(_arrivals(history))
    sums: dict[tuple, _Sums] = {}
    named: set[Position] = set()
    for track in history.tracks.values():
        for entry in track.entries:
            if entry.state != State.DONE:
                continue
            call = calls.of(track, entry)
            place = None if entry.is_permute else Position(entry.clique, entry.sequence)
            last = arrivals.get(place) if place else None
            own = sums.setdefault(_key(call), _Sums(call))
            waiting, moving = _split(track, entry, last[0] if last else None)
            own.by_device[track.device] += 1
            own.bytes += entry.bytes
            own.waiting += waiting
            own.moving += moving
            own.is_moving_timed |= moving > 0 or entry.bytes > UNTIMED_BYTES
            what = LAUNCH if entry.op == Op.PROGRAM else operation(entry)
            own.sizes.setdefault((-entry.bytes, entry.dtype, entry.reduction), what)
            if place and last and place not in named:
                named.add(place)
                own.slowest[last[1]] += 1
    lines = sorted(map(_line, sums.values()), key=lambda i: -(i.waiting + (i.moving or 0)))
    tracks = history.tracks.values()
    return Summary(
        tuple(lines), sum(len(t.entries) for t in tracks), sum(t.written for t in tracks)
    )


def _key(call: Call) -> tuple:
    places = {(s.file or s.used_file, s.line or s.used_line, s.module) for s in call.sites}
    where = tuple(sorted(places))
    return (call.entry.op, where) if where else (call.entry.op, call.entry.signature)


def _arrivals(history: History) -> Iterator[tuple[Position, tuple[int, int]]]:
    """(place, (common time of the last start, its process)) where all members are recorded."""
    for place, there in history.meetings():
        if len(there) == len(history.devices(place.clique)):
            yield place, max((t.time(e.entered_ns), t.process) for t, e in there)


def _split(track: Track, entry: Entry, last: int | None) -> tuple[int, int]:
    """Nanoseconds of waiting and of moving."""
    arrived = entry.arrived_ns
    if not arrived and last is not None:
        arrived = last - track.shift
    arrived = min(max(arrived, entry.entered_ns), entry.done_ns)
    return arrived - entry.entered_ns, entry.done_ns - arrived


def _operations(texts: Sequence[str]) -> str:
    """``all-reduce (sum) of 640 x f32, 10 x f32``."""
    of_kind: dict[str, list[str]] = {}
    for text in texts[:MAX_SIZES]:
        kind, _, size = text.partition(" of ")
        of_kind.setdefault(kind, []).append(size)
    parts = [
        f"{kind} of {', '.join(some)}" if any(some) else kind for kind, some in of_kind.items()
    ]
    if (left := len(texts) - MAX_SIZES) > 0:
        parts.append(f"and {left} more")
    return ", ".join(parts)


def _line(sums: _Sums) -> Line:
    devices, entries = len(sums.by_device), sum(sums.by_device.values())
    return Line(
        place_in_program(sums.call.sites),
        _operations([text for _, text in sorted(sums.sizes.items())]),
        max(sums.by_device.values()),
        round(sums.bytes / entries),
        sums.waiting / devices / 1e9,
        sums.moving / devices / 1e9 if sums.is_moving_timed else None,
        tuple(sums.slowest.most_common()),
        sum(sums.slowest.values()),
    )
