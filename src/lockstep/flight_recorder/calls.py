"""Collectives with the lines of the user's program that called them. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep.flight_recorder.format import OPS, Entry
from lockstep.flight_recorder.run_records import Caller, Site
from lockstep.flight_recorder.timeline import History, Track


@dataclass(frozen=True, slots=True)
class Call:
    """A collective on one device, with the program lines that may have called it."""

    entry: Entry
    device: int
    sites: tuple[Site, ...] = ()
    """The lines that the compiler's metadata fits; empty: not known."""
    members: tuple[int, ...] = ()
    callers: tuple[Caller, ...] = ()
    """The Python stack of the call, the innermost line first; only with ``--strict``."""
    arguments: tuple[str, ...] = ()
    """The arguments of its program, as in `Site.arguments`; empty: not known."""

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(sorted({site.module for site in self.sites}))

    @property
    def functions(self) -> frozenset[tuple[str, str, int]]:
        """The functions that the call may belong to: by name, a lambda by its line."""
        return frozenset(
            (s.module, s.file, s.line) if "lambda" in s.module else (s.module, "", 0)
            for s in self.sites
        )

    @property
    def shape(self) -> str:
        """The shape of one operand in the program, ``f32[8,128]``; empty: not known."""
        shapes = {site.shape.strip("()").split(", ")[0] for site in self.sites}
        return shapes.pop() if len(shapes) == 1 else ""

    @property
    def threads(self) -> frozenset[str]:
        """The threads that may have made the call: those that first called its program."""
        return frozenset(site.thread for site in self.sites if site.thread)

    @property
    def lines(self) -> frozenset[tuple[str, int]]:
        return frozenset((site.file, site.line) for site in self.sites if site.file)

    @property
    def first_line(self) -> str:
        """The line that first called its program; empty: not known, or several programs fit."""
        found = {site.first_line for site in self.sites}
        return found.pop() if len(found) == 1 else ""

    @property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(site.fingerprint for site in self.sites)

    @property
    def execution(self) -> int | None:
        """The number (from 0) of this execution of its program; None: not known."""
        found = {site.execution(self.entry.run_id) for site in self.sites}
        return found.pop() if len(found) == 1 else None

    @property
    def kind(self) -> tuple:
        """A key: equal for every execution of the same line of the same program."""
        return (*self.entry.signature, self.entry.op_id, self.fingerprints)


@dataclass(frozen=True, slots=True)
class Round:
    """Calls in their order, repeated ``times`` times."""

    calls: tuple[Call, ...]
    times: int = 1


MAX_ROUND = 4


def rounds(calls: Sequence[Call], most: int) -> tuple[Round, ...]:
    """The last of ``calls`` as rounds of at most ``most`` calls in all, the latest last."""
    kinds = [call.kind for call in calls]
    found: list[Round] = []
    end = len(calls)
    while end > 0 and sum(len(r.calls) for r in found) < most:
        length, times = max(
            ((p, _repeats(kinds, end, p)) for p in range(1, MAX_ROUND + 1)),
            key=lambda pt: (pt[0] * pt[1] if pt[1] > 1 else 1, -pt[0]),
        )
        length = length if times > 1 else 1
        found.append(Round(tuple(calls[end - length : end]), times))
        end -= length * times
    return tuple(reversed(found))


def _repeats(kinds: list[tuple], end: int, length: int) -> int:
    """How many times in a row the ``length`` kinds before ``end`` occur."""
    times, last = 1, kinds[end - length : end] if end >= length else None
    while last and (start := end - (times + 1) * length) >= 0:
        if kinds[start : start + length] != last:
            break
        times += 1
    return times


class Sites:
    """The call sites of a run, by process."""

    def __init__(self, history: History) -> None:
        run = history.run
        self._own: dict[int, dict[int, list[Site]]] = {}
        self._all: dict[int, list[Site]] = {}
        self._callers = {p.index: p.callers for p in run.processes}
        self.programs: dict[int, frozenset[str]] = {}
        """Process -> the fingerprints of its programs; no entry: not known."""
        self._arguments: dict[str, tuple[str, ...]] = {}
        for process in run.processes:
            own = self._own.setdefault(process.index, {})
            for site in process.sites:
                if site.arguments:
                    self._arguments[site.fingerprint] = site.arguments
                own.setdefault(site.channel, []).append(site)
                # Another process may have first used the program on another line.
                shared = dataclasses.replace(site, used_file="", used_line=0, first_line="")
                here = site.used_file or site.first_line
                self._all.setdefault(site.channel, []).append(shared if here else site)
            if process.sites:
                late = _programs_of(process.sites, history.removed.get(process.index, ()))
                kept = (e for track in history.of_process(process.index) for e in track.entries)
                late -= _programs_of(process.sites, kept) if late else set()
                fingerprints = {site.fingerprint for site in process.sites}
                self.programs[process.index] = frozenset(fingerprints - late)

    def of(self, process: int, entry: Entry) -> tuple[Site, ...]:
        """The sites that may have made ``entry`` of ``process``; else those of others."""
        if not entry.identified:
            return self._of_caller(process, entry)
        own = self._own.get(process, {}).get(entry.op_id, [])
        return _fitting(own, entry) or _fitting(self._all.get(entry.op_id, []), entry)

    def _of_caller(self, process: int, entry: Entry) -> tuple[Site, ...]:
        """The line that called a collective of NCCL, which does not know of programs."""
        callers = self.callers(process, entry) if entry.site and entry.is_of_nccl else ()
        return tuple(
            Site(0, str(entry.site), line.function, 0, OPS[entry.op], "", line.file, line.line, "")
            for line in callers[:1]
        )

    def arguments(self, sites: Sequence[Site]) -> tuple[str, ...]:
        """The arguments of the program of these lines; empty: they are of several programs."""
        programs = {site.fingerprint for site in sites}
        return self._arguments.get(programs.pop(), ()) if len(programs) == 1 else ()

    def callers(self, process: int, entry: Entry) -> tuple[Caller, ...]:
        """The lines that ``entry.site`` stands for; it means the same lines in all processes."""
        tables = (self._callers.get(process, {}), *self._callers.values())
        return next((table[entry.site] for table in tables if entry.site in table), ())


def _programs_of(sites: Sequence[Site], entries: Iterable[Entry]) -> set[str]:
    """The fingerprints of the programs that these calls may belong to."""
    return {site.fingerprint for entry in entries for site in _fitting(sites, entry)}


UNSEEN_EXECUTIONS = 1 << 17
"""How many executions of a program may have left no entry. The first number of a program is a hash,
so with more of them another program, whose lines are not known yet, would often be taken for it."""


def _fitting(sites: Sequence[Site], entry: Entry) -> tuple[Site, ...]:
    fitting = {
        (s.module, s.fingerprint, s.file, s.line, s.through_line, s.used_file, s.used_line): s
        for s in sites
        if s.channel == entry.op_id
        and s.execution(entry.run_id) is not None
        and s.op.startswith(OPS[entry.op])
    }
    # The id ranges of two programs may overlap. Each earlier execution left an entry, so the number
    # of the execution is below that of the entry, unless the collective stands in a conditional.
    number = {site: site.execution(entry.run_id) or 0 for site in fitting.values()}
    likely = tuple(site for site in number if number[site] < entry.number)
    return likely or tuple(site for site in number if number[site] < UNSEEN_EXECUTIONS)


class Calls:
    """Turns entries into calls."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.sites = Sites(history)

    def of(self, track: Track, entry: Entry) -> Call:
        sites = self.sites.of(track.process, entry)
        callers = self.sites.callers(track.process, entry) if entry.site else ()
        if entry.is_of_nccl:
            callers = callers[1:]  # the site names the first
        members, given = self._history.devices(entry.clique), self.sites.arguments(sites)
        return Call(entry, track.device, sites, members, callers, given)

    def up_to(self, track: Track, number: int) -> list[Call]:
        """The calls of a device up to entry ``number``, the latest last."""
        return [self.of(track, e) for e in track.entries if e.number <= number]

    def seen_before(self, track: Track, call: Call, entry: Entry) -> bool:
        """Whether this device made such a call before ``entry``, in the same clique."""
        return any(
            other.clique == entry.clique and self.of(track, other).kind == call.kind
            for other in track.entries
            if other.number < entry.number
        )
