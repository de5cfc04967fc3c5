"""Sums up the time spent in collectives, by line of the program. Pure.

A collective's time on one device is split at the moment when all members had arrived: before it the
device waited for the slowest, after it data moved. The engine records this moment for some
collectives; for the others it is the latest start among the members. The slowest member is the one
that started last; between hosts this is as accurate as their clocks are synchronized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.flight_recorder.calls import Call, Calls
from lockstep.flight_recorder.format import Entry, State
from lockstep.flight_recorder.model import Run
from lockstep.flight_recorder.phrases import operation, place_in_program
from lockstep.flight_recorder.timeline import History, Position, Track


@dataclass(frozen=True)
class Line:
    """A call site, over all devices and all collectives that are still recorded."""

    where: str
    """``train.py:41 in step``; empty: not known."""
    what: str
    """``all-reduce (sum) of 1024 x f32``; the first one, where a line has several."""
    calls: int
    """Collectives of the device that ran most."""
    bytes: int
    """Bytes of one device in one call, on average."""
    waiting: float
    """Seconds a device waited for the slowest, on average over the devices."""
    moving: float
    """Seconds a device moved data, on average over the devices."""
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
            if place and last and place not in named:
                named.add(place)
                own.slowest[last[1]] += 1
    lines = sorted((_line(own) for own in sums.values()), key=lambda i: -(i.waiting + i.moving))
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


def _line(sums: _Sums) -> Line:
    devices, entries = len(sums.by_device), sum(sums.by_device.values())
    return Line(
        place_in_program(sums.call.sites),
        operation(sums.call.entry),
        max(sums.by_device.values()),
        round(sums.bytes / entries),
        sums.waiting / devices / 1e9,
        sums.moving / devices / 1e9,
        tuple(sums.slowest.most_common()),
        sum(sums.slowest.values()),
    )
