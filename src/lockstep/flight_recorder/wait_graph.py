"""Which devices wait for which, and how each process ended. Pure.

A device in a collective waits for the members that have not begun it. Following the waits leads to
a process that has ended, to one that is outside collectives (a straggler: no fault), or back to the
start: a circle.

**Why a circle cannot come from reading at different moments.** The records are read one after
another. Take devices that by these records wait for each other in a circle, and suppose that some
left their collectives after their records were read. Let A be the first to leave. A waited for the
next device, B; so B had to begin A's collective after B's record was read, and to do that B had to
leave its own collective before A left: a contradiction, so none left. This needs devices that run
one collective at a time. A device whose record shows overlapping collectives is never part of a
circle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from lockstep._run_files import STOP_SIGNALS, STOPPED
from lockstep.flight_recorder.format import Entry, ProcessState, State
from lockstep.flight_recorder.p2p_matching import Pair
from lockstep.flight_recorder.run_records import Process
from lockstep.flight_recorder.timeline import History, Position, Track

NOTICED_NS = 1_000_000_000
"""A death may be recorded this long after the collectives of the others failed because of it."""


class ExitKind(enum.Enum):
    """How a process ended, if it has."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended, when (common time), and whether another's fault led to it."""

    kind: ExitKind
    when: int | None = None
    consequence: bool = False

    @property
    def is_fault(self) -> bool:
        return self.kind in (ExitKind.FAILED, ExitKind.KILLED) and not self.consequence

    @property
    def final(self) -> bool:
        """Whether this process has ended for a reason of its own and will call nothing more."""
        return self.is_fault or (self.kind is ExitKind.ENDED and not self.consequence)


@dataclass(frozen=True, slots=True)
class Wait:
    """A device in an unfinished collective, and the devices that it waits for."""

    track: Track
    entry: Entry
    absent: tuple[int, ...]


def endings(history: History) -> dict[int, Outcome]:
    """Process -> how it ended."""
    first_raise = history.first_raise()
    return {p.index: _ending(p, history, first_raise) for p in history.run.processes}


def _exit_kind(process: Process) -> ExitKind:
    exit, record = process.own_exit, process.record
    if process.error is not None:
        return ExitKind.FAILED
    if exit is not None:
        if exit.signal:
            return ExitKind.KILLED
        if exit.exit_code is not None:
            return ExitKind.FAILED if exit.exit_code else ExitKind.ENDED
        if exit.reason:
            return ExitKind.KILLED
    if record is None:
        return ExitKind.UNKNOWN
    if record.state == ProcessState.FAILED:
        return ExitKind.FAILED
    return ExitKind.ENDED if process.has_ended else ExitKind.RUNNING


def _ending(process: Process, history: History, first_raise: int | None) -> Outcome:
    kind = _exit_kind(process)
    when = _when(process, history)
    if kind is ExitKind.KILLED and process.exit and process.exit.reason == STOPPED:
        return Outcome(kind, when, consequence=True)
    if kind in (ExitKind.RUNNING, ExitKind.UNKNOWN) or first_raise is None:
        return Outcome(kind, when)
    own_raise = any(
        entry.state == State.RAISED and (when is None or track.time(entry.done_ns) <= when)
        for track in history.of_process(process.index)
        for entry in track.entries[-1:]
    )
    if kind is ExitKind.ENDED:  # well, after it was told of a fault
        return Outcome(kind, when, own_raise)
    number = process.exit.signal if process.exit else None
    is_exact = _when_it_failed(process, history) is not None
    grace = 0 if is_exact or number in STOP_SIGNALS else NOTICED_NS
    late = when is not None and when > first_raise + grace
    return Outcome(kind, when, own_raise or late)


def _when(process: Process, history: History) -> int | None:
    failed = _when_it_failed(process, history)
    if failed is not None:
        return failed
    return process.exit.realtime_ns if process.exit else None


def _when_it_failed(process: Process, history: History) -> int | None:
    """The time of its error; None: there is none, or the clock of its host is not known."""
    if process.error is None:
        return None
    shift = next((t.shift for t in history.of_process(process.index)), None)
    if shift is None and process.record is not None:
        shift = process.record.realtime_ns - process.record.monotonic_ns
    return None if shift is None else int(process.error.time * 1e9) + shift


def waits(history: History, pairs: Iterable[Pair], ended: dict[int, Outcome]) -> list[Wait]:
    """Every device that is in a collective, with the members that are not.

    Devices of a process that has ended do not wait.
    """
    unreceived: dict[tuple[int, int], list[int]] = {}
    unsent: dict[tuple[int, int], list[int]] = {}
    for pair in pairs:
        for entry in pair.unreceived:
            unreceived.setdefault((pair.source, entry.number), []).append(pair.target)
        for entry in pair.unsent:
            unsent.setdefault((pair.target, entry.number), []).append(pair.source)
    found = []
    unsure: dict[Position, list[int]] = {}
    for track in history.tracks.values():
        entry = open_entry(track)
        if entry is None or ended[track.process].final:
            continue
        if entry.is_permute:
            # A message may be in flight before its target arrives: check the source first.
            key = (track.device, entry.number)
            absent = unsent.get(key) or unreceived.get(key, [])
            absent = absent + _partners_unknown(history, entry)
        else:
            place = Position(entry.clique, entry.sequence)
            if place not in unsure:  # many wait at one place
                unsure[place] = _unsure(history, place, ended)
            absent = _absent(history, track, entry, unsure[place])
        found.append(Wait(track, entry, tuple(absent)))
    return found


def open_entry(track: Track) -> Entry | None:
    """The first collective that has not ended on this device, or the last one if it raised."""
    for entry in [e for e in track.entries if e.state != State.DONE]:
        if entry.state == State.ENTERED or entry.number > track.last_done:
            return entry
    return None


def _unsure(history: History, place: Position, ended: dict[int, Outcome]) -> list[int]:
    """The members that may be absent at a place, for whichever device waits there."""
    found = []
    for device in history.devices(place.clique):
        other = history.tracks.get(device)
        own = other.at.get(place) if other else None
        has_left = own is not None and own.state == State.ENTERED
        if other is None or not other.passed(place) or (has_left and ended[other.process].final):
            found.append(device)
    return found


def _absent(history: History, track: Track, entry: Entry, unsure: Iterable[int]) -> list[int]:
    """The members for which a device waits, of those that may be absent."""
    place = Position(entry.clique, entry.sequence)
    since = track.time(entry.entered_ns) - history.run.clock_error_ns
    found = []
    for device in unsure:
        other = history.tracks.get(device)
        if other is None or other.lacks(place, since) or (place in other.at and other is not track):
            found.append(device)
    return found


def _partners_unknown(history: History, entry: Entry) -> list[int]:
    devices = history.ranks(entry.clique)
    partners = (devices.get(rank) for rank in (entry.source, *entry.targets) if rank >= 0)
    return [d for d in partners if d is not None and d not in history.tracks]


def circle(found: Iterable[Wait]) -> list[Wait]:
    """Devices of which each waits for the next, and the last for the first; empty: there is none.

    It is the smallest such circle: devices that only wait for one of its members are not in it.
    """
    nodes = {w.track.device: w for w in found if not w.track.overlapping}
    best: list[int] = []
    for start in nodes:
        path = _shortest_path_back(start, nodes)
        if path and (not best or len(path) < len(best)):
            best = path
    return [nodes[device] for device in best]


def _shortest_path_back(start: int, nodes: dict[int, Wait]) -> list[int]:
    came_from: dict[int, int] = {}
    layer = [start]
    while layer:
        following = []
        for device in layer:
            for ahead in nodes[device].absent:
                if ahead == start:
                    path = [device]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    return path[::-1]
                if ahead in nodes and ahead not in came_from:
                    came_from[ahead] = device
                    following.append(ahead)
        layer = following
    return []


def sinks(history: History, found: Iterable[Wait]) -> tuple[int, ...]:
    """The processes at the end of the waits: others wait for them, and they do not wait."""
    waiting = {w.track.device for w in found if w.absent}
    awaited = {device for w in found for device in w.absent}
    ends = awaited - waiting
    return tuple(sorted({p for device in ends for p in history.owner(device)}))
