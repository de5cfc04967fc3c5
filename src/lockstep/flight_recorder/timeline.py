"""The records of all processes side by side: which devices were in which collective. Pure.

A *place* is one collective of one clique: the clique's hash, and how many collectives the clique
ran before. All members of a clique pass the same places in the same order. A *track* is the history
of one device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from lockstep.flight_recorder.format import TIME_ERROR_NS, Entry, Op, ProcessRecord, Ring, State
from lockstep.flight_recorder.run_records import Process, Run

SAME_BOOT_NS = 1_000_000_000
"""Processes of one host whose clock offsets differ by less have one clock."""

_LATEST = 8
"""This many collectives of a device may be unfinished; a quick scan reads more."""


class Position(NamedTuple):
    """One collective of one clique; a permute's sequence is the rank's own count."""

    clique: int
    sequence: int


@dataclass
class Track:
    """The latest collectives of one device, ascending in number."""

    device: int
    process: int
    entries: tuple[Entry, ...]
    written: int
    shift: int
    """What to add to this track's times to get the common time of all tracks."""
    at: dict[tuple[int, int], Entry] = field(default_factory=dict)
    """The entries by `Position`, without permutes."""
    furthest: dict[int, int] = field(default_factory=dict)
    """The last sequence in each clique."""
    permutes: tuple[Entry, ...] = ()

    @cached_property
    def whole_from(self) -> int:
        """The index in ``entries`` from which the numbers have no gap."""
        first, last = self.entries[:1], self.entries[-1:]
        if last and last[0].number == self.written:
            if self.written - first[0].number + 1 == len(self.entries):
                return 0
        expected = self.written
        for index in range(len(self.entries) - 1, -1, -1):
            if self.entries[index].number != expected:
                return index + 1
            expected -= 1
        return 0

    @cached_property
    def last_done(self) -> int:
        """The number of the last collective that has ended."""
        return next((e.number for e in reversed(self.entries) if e.state == State.DONE), 0)

    @property
    def complete(self) -> bool:
        """Whether all collectives are there, from the first one on."""
        return len(self.entries) == self.written

    @cached_property
    def overlapping(self) -> bool:
        """Whether this device ever began a collective before the one before had ended."""
        return any(
            a.state == State.ENTERED or a.done_ns > b.entered_ns
            for a, b in zip(self.entries, self.entries[1:], strict=False)
        )

    def passed(self, place: Position) -> bool:
        last = self.furthest.get(place.clique)
        # Sequences have 32 bits, and wrap.
        is_ahead = last is not None and 0 < (last - place.sequence) % (1 << 32) < 1 << 31
        return place in self.at or is_ahead

    def lacks(self, place: Position, since: int) -> bool:
        """Whether it is certain that this device has not begun the collective at ``place``.

        ``since`` is the common time at which another member began it: this device can have ended it
        only later. So the entry cannot be among those that were overwritten, if an entry that is
        still there began before ``since``.
        """
        if self.passed(place):
            return False
        if self.complete:
            return True
        kept = self.entries[self.whole_from :]
        return bool(kept) and kept[0].entered_ns + self.shift <= since

    def time(self, ns: int) -> int:
        return ns + self.shift


class History:
    """The records of all processes, indexed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tracks: dict[int, Track] = {}
        self.members: dict[int, tuple[int, ...]] = {}
        self.removed: dict[int, list[Entry]] = {}
        """The calls of each process after it had failed."""
        records = [p.record for p in run.processes if p.record is not None]
        errors = {p.index: _failed_at(p) for p in run.processes}
        shifts = common_clock(records)
        self.members = _members(records)
        for record in records:
            over = failed_since(record)
            for ring in record.rings:
                self._add(
                    record.process, ring, shifts[record.process], over, errors[record.process]
                )

    def _add(
        self, process: int, ring: Ring, shift: int, over: int | None, error: int | None
    ) -> None:
        # After its process's first failure, every further call raises at once and is no collective.
        # After the error that ended the program, exit handlers may make calls that the other
        # processes never make.
        def is_after(e: Entry) -> bool:
            raised = over is not None and e.state == State.RAISED and e.entered_ns > over
            return raised or (error is not None and e.entered_ns > error)

        kept = [e for e in ring.entries if not is_after(e)]
        self.removed.setdefault(process, []).extend(filter(is_after, ring.entries))
        removed = len(ring.entries) - len(kept)
        if removed:
            last = kept[-1].number if kept else ring.written - len(ring.entries)
            ring = Ring(ring.device, ring.local_index, last, tuple(kept))
        meetings = [e for e in ring.entries if e.op != Op.PERMUTE]
        self.tracks[ring.device] = Track(
            ring.device,
            process,
            ring.entries,
            ring.written,
            shift,
            {(e.clique, e.sequence): e for e in meetings},
            {e.clique: e.sequence for e in meetings},
            tuple(e for e in ring.entries if e.op == Op.PERMUTE),
        )

    @cached_property
    def unmapped(self) -> tuple[int, ...]:
        """The processes without a known device."""
        known = {track.process for track in self.tracks.values()}
        return tuple(p.index for p in self.run.processes if p.index not in known)

    def owner(self, device: int) -> tuple[int, ...]:
        """The process of a device; when it is not known, all processes that may own it."""
        track = self.tracks.get(device)
        return (track.process,) if track else self.unmapped

    @cached_property
    def _by_process(self) -> dict[int, list[Track]]:
        found: dict[int, list[Track]] = {}
        for track in self.tracks.values():
            found.setdefault(track.process, []).append(track)
        return found

    def of_process(self, process: int) -> list[Track]:
        return self._by_process.get(process, [])

    def progress(self, process: int) -> tuple[int, int]:
        """How far a process is: collectives that it has begun, and those that have not ended."""
        tracks = self.of_process(process)
        latest = (entry for track in tracks for entry in track.entries[-_LATEST:])
        return sum(t.written for t in tracks), sum(entry.unfinished for entry in latest)

    def devices(self, clique: int) -> tuple[int, ...]:
        """The members of a clique, as far as they are known."""
        if clique in self.members:
            return self.members[clique]
        seen = self.ranks(clique)
        return tuple(seen[rank] for rank in sorted(seen))

    def ranks(self, clique: int) -> dict[int, int]:
        """Rank -> device of a clique, as far as they are known."""
        if clique in self.members:
            return dict(enumerate(self.members[clique]))
        tracks = self.tracks.values()
        return {e.rank: t.device for t in tracks for e in t.entries if e.clique == clique}

    def meetings(self) -> Iterator[tuple[Position, list[tuple[Track, Entry]]]]:
        """Every place with the entries of all tracks that were there; without permutes."""
        found: dict[tuple[int, int], list[tuple[Track, Entry]]] = {}
        for track in self.tracks.values():
            for place, entry in track.at.items():
                found.setdefault(place, []).append((track, entry))
        yield from ((Position(*place), there) for place, there in found.items())

    def meeting(self, place: tuple[int, int]) -> list[tuple[Track, Entry]]:
        """The entries of all tracks that were at a place."""
        return [(t, entry) for t in self.tracks.values() if (entry := t.at.get(place))]

    def first_raise(self) -> int | None:
        """The common time at which the first collective raised."""
        times = [
            track.time(e.done_ns)
            for track in self.tracks.values()
            for e in track.entries
            if e.state == State.RAISED and e.done_ns
        ]
        return min(times, default=None)


def _members(records: list[ProcessRecord]) -> dict[int, tuple[int, ...]]:
    """The devices of each clique in rank order; an unknown one has an id below 0."""
    found: dict[int, list[int]] = {}
    for record in records:
        for clique, devices in record.cliques:
            known = found.setdefault(clique, list(devices))
            if known == list(devices):
                continue  # as on nearly all of them
            for rank, device in enumerate(devices[: len(known)]):
                known[rank] = max(known[rank], device)
    return {
        clique: tuple(d if d >= 0 else -2 - rank for rank, d in enumerate(devices))
        for clique, devices in found.items()
    }


def _failed_at(process: Process) -> int | None:
    """When an exception ended the program, by the process's own monotonic clock."""
    return int(process.error.time * 1e9) + TIME_ERROR_NS if process.error else None


def failed_since(record: ProcessRecord) -> int | None:
    """When the process's collectives began to raise, without a success afterwards; None: never."""
    entries = [e for ring in record.rings for e in ring.entries]
    last_done = max((e.entered_ns for e in entries if e.state == State.DONE), default=0)
    raised = [e.done_ns for e in entries if e.state == State.RAISED and e.done_ns > last_done]
    return min(raised, default=None)


def common_clock(records: list[ProcessRecord]) -> dict[int, int]:
    """Process -> offset to add to its monotonic times, to compare them with those of others.

    Processes of one boot share CLOCK_MONOTONIC to the nanosecond, though each read CLOCK_REALTIME
    at another moment; hosts are compared by CLOCK_REALTIME, as well as their clocks are set.
    """
    shifts: dict[int, int] = {}
    representative: dict[str, int] = {}
    for record in sorted(records, key=lambda r: r.process):
        own = record.realtime_ns - record.monotonic_ns
        base = representative.setdefault(record.host, own)
        shifts[record.process] = base if abs(own - base) < SAME_BOOT_NS else own
    return shifts
