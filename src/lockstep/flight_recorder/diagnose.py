"""Finds what is wrong with a run, from the records of its processes. Pure.

`diagnose` checks, in this order:

1. Was the traffic between hosts changed? Whatever the processes did then follows from it.
2. Do the processes run programs that differ (`lockstep.programs` has found it)?
3. Did members of a clique call different collectives?
4. Do processes wait for each other in barriers and collectives, or for a device of their own that
   an exception of a callback has stopped?
5. Has a process ended that others wait for?
6. Do devices wait for each other in a circle?
7. Which processes have not arrived yet? This alone is no fault.

The records may be read one after another while the processes run, and still a healthy run is never
reported as a fault: the description of a call in an entry never changes, a process's exit is read
before its record, and a circle of waits cannot come from reading at different moments (see
`lockstep.flight_recorder.wait_graph`).
"""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep._jax_compat.texts import is_of_collective
from lockstep.flight_recorder import barriers, causes, wait_graph
from lockstep.flight_recorder.calls import Call, Calls, Round, rounds
from lockstep.flight_recorder.causes import Cause
from lockstep.flight_recorder.executables import unified
from lockstep.flight_recorder.format import Entry, Op, State
from lockstep.flight_recorder.mismatch import (
    Mismatch,
    first_mismatch,
    first_permute_mismatch,
    grouped,
)
from lockstep.flight_recorder.p2p_matching import pairs
from lockstep.flight_recorder.program_difference import Difference
from lockstep.flight_recorder.run_records import Process, Run
from lockstep.flight_recorder.timeline import History, Position, Track
from lockstep.flight_recorder.wait_graph import ExitKind, Outcome, Wait
from lockstep.flight_recorder.waits import Barrier

RECENT = 4
"""How many different calls a row shows before the current one."""
BRIEF_SECONDS = 1.0
"""A wait of a running job that is shorter is no news (`lockstep.processes.running_job`)."""


class Kind(enum.Enum):
    """The kinds of diagnoses."""

    NOTHING = "nothing wrong"
    CHANGED = "traffic was changed"
    PROGRAMS = "programs differ"
    MISMATCH = "mismatch"
    ONE_SIDED = "program on one side only"
    PERMUTE = "permutation mismatch"
    ENDED = "a process ended early"
    FAILED = "a process failed"
    KILLED = "a process was killed"
    CYCLE = "cycle between cliques"
    BARRIER = "deadlock at a barrier"
    CALLBACK = "a callback raised"
    WAITING = "waiting for a straggler"

    @property
    def is_fault(self) -> bool:
        """Whether the job cannot go on. `WAITING` may pass."""
        return self not in (Kind.NOTHING, Kind.WAITING)


class Activity(enum.Enum):
    """What a process does, or did last."""

    WAITS = "waits"
    BARRIER = "waits in a barrier"
    MOVES = "moves data"
    RAISED = "raised"
    BUSY = "in no collective"
    ENDED = "ended"
    FAILED = "failed"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Row:
    """One process."""

    process: Process
    activity: Activity
    culprit: bool
    call: Call | None
    """The call to show: the one that differs, else the one that waits, else the last one."""
    in_call: bool
    """Whether the process is in that call, or ended in it; else it has left it."""
    own_absent: tuple[int, ...]
    """The devices of the process that have not come to the call in which another one waits."""
    recent: tuple[Round, ...]
    """The calls before it on the same device, the latest last."""
    latest: tuple[Round, ...]
    """The latest calls, with the one to show."""
    waits_for: tuple[int, ...]
    """Processes."""
    ran: int | None
    """Collectives completed in the clique of the diagnosis, or in all cliques where there is no
    place; None: not known."""
    progress: tuple[int, int] = (0, 0)
    """How far the process is: see `History.progress`."""
    barriers: tuple[tuple[Barrier, tuple[int, ...]], ...] = ()
    """The barriers that the process waits in, and the processes that have not come to each."""

    @property
    def index(self) -> int:
        return self.process.index

    @property
    def awaits_lines(self) -> bool:
        """Whether the process has not written the line of this call yet."""
        if self.call is None or not self.in_call:
            return False
        of_others = [site for site in self.call.sites if site not in self.process.sites]
        return not self.call.sites or not all(site.file for site in of_others)


@dataclass(frozen=True)
class Diagnosis:
    """The fault of a run: its kind, the processes that caused it, and its place."""

    kind: Kind
    culprits: tuple[int, ...] = ()
    """Processes, ascending; both sides of a mismatch without a majority."""
    place: Position | None = None
    members: tuple[int, ...] = ()
    """The devices of the place's clique; empty: not known."""
    rows: tuple[Row, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    """The processes that were in the same collective, the largest group first."""
    circle: tuple[int, ...] = ()
    """Processes of which each waits for the next, and the last for the first."""
    causes: tuple[Cause, ...] = ()
    unit: str = "collective"
    """What is counted: collectives, permutes or programs."""
    several_cliques: bool = False
    attempt: int = 0
    difference: Difference | None = None
    """In what the programs differ."""


def is_of_threads(found: Diagnosis) -> bool:
    """Whether calls differ because several threads make them: then no program is at fault."""
    return any(cause.pattern is causes.Pattern.THREADS for cause in found.causes)


def diagnose(run: Run) -> Diagnosis:
    """Finds what is wrong with a run, from the records of its processes."""
    return _Case(dataclasses.replace(run, processes=unified(run.processes))).diagnosis()


class _Case:
    """One run under examination."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.history = History(run)
        self.calls = Calls(self.history)
        self.pairs = pairs(self.history)
        self.ended = wait_graph.endings(self.history)
        self.waits = wait_graph.waits(self.history, self.pairs, self.ended)
        self._waits_of = collections.defaultdict[int, list[wait_graph.Wait]](list)
        for wait in self.waits:
            self._waits_of[wait.track.process].append(wait)

    def diagnosis(self) -> Diagnosis:
        if any(process.changed_traffic for process in self.run.processes):
            return self._make(Kind.CHANGED)
        mismatch = first_mismatch(self.history)
        if self.run.difference:
            return self._programs_differ(self.run.difference, mismatch)
        if mismatch is None and (mismatch := first_permute_mismatch(self.history, self.pairs)):
            return self._diverged(Kind.PERMUTE, mismatch)
        if mismatch is not None:
            return self._diverged(Kind.MISMATCH, mismatch)
        stuck = barriers.deadlock(self.history, self.waits, self.ended)
        if stopped := barriers.stopped(self.history, self.waits, stuck):
            return self._make(Kind.CALLBACK, stopped, self._wait_for(set(stopped)))
        if any(self.run.processes[index].waits.barriers for index in stuck):
            return self._make(Kind.BARRIER, stuck, self._wait_for(set(stuck)), why=causes.BARRIER)
        sinks = wait_graph.sinks(self.history, self.waits)
        dead = [p for p in sinks if self.ended[p].final and self._is_surely_awaited(p)]
        if dead:
            return self._dead(dead)
        if around := wait_graph.circle(self.waits):
            return self._circle(around)
        faults = [p for p, ending in self.ended.items() if ending.is_fault]
        if faults:
            return self._dead(faults)
        if any(w.entry.state == State.ENTERED or w.absent for w in self.waits):
            return self._waiting(sinks)
        return self._make(Kind.NOTHING)

    def _is_surely_awaited(self, process: int) -> bool:
        """Whether a wait can end only by this process, or by others that have ended too.

        The owner of a device without a record may be any of several processes; while one of them
        runs, it may still arrive.
        """
        owners = (self.history.owner(device) for wait in self.waits for device in wait.absent)
        return any(process in of and all(self.ended[p].final for p in of) for of in owners)

    def _diverged(self, kind: Kind, mismatch: Mismatch) -> Diagnosis:
        called = {}
        for group in mismatch.groups:
            for process, entry in group.calls:
                called.setdefault(process, entry)
        first = [(g.calls[0][0], g.entry) for g in mismatch.groups[:2]]
        why = causes.of_mismatch(self.history, self.calls, first, kind is Kind.PERMUTE)
        if kind is Kind.MISMATCH and any(c.pattern is causes.Pattern.ONE_SIDED for c in why):
            kind = Kind.ONE_SIDED
        groups = tuple(g.processes for g in mismatch.groups)
        odd = mismatch.odd
        if kind is Kind.ONE_SIDED and len(odd) == len(called):  # there is no majority
            odd = next((g for g in groups if g == causes.alone(why)), odd)
        return self._make(kind, odd, mismatch.place, called=called, groups=groups, why=why)

    def _programs_differ(self, found: Difference, mismatch: Mismatch | None) -> Diagnosis:
        calls = [call for group in mismatch.groups for call in group.calls] if mismatch else []
        called = dict(reversed(calls))
        why = (causes.Cause(causes.OF_PROGRAMS[found.kind]),)
        place = mismatch.place if mismatch else None
        diagnosis = self._make(Kind.PROGRAMS, found.culprits, place, called=called, why=why)
        return dataclasses.replace(diagnosis, difference=found)

    def _dead(self, dead: Sequence[int]) -> Diagnosis:
        def order(process: int) -> tuple[bool, bool, float, bool, int]:
            ending, error = self.ended[process], self.run.processes[process].error
            # gloo's error that a connection is closed may come before the end of that process.
            follows = error is not None and is_of_collective(error.summary.partition(": ")[2])
            when = float("inf") if ending.when is None else ending.when
            was_killed = ending.kind is ExitKind.KILLED
            return (not ending.is_fault, follows, when, not was_killed, process)

        first = min(dead, key=order)
        kind = Kind[self.ended[first].kind.name]
        culprits = [p for p in dead if self.ended[p].kind is self.ended[first].kind]
        wait = self._wait_for(set(culprits))
        why = causes.of_death(self.history, self.calls, self.run.processes[first], wait)
        return self._make(kind, culprits, wait, why=why)

    def _circle(self, around: list[Wait]) -> Diagnosis:
        first = around.index(min(around, key=lambda w: w.track.process))
        around = around[first:] + around[:first]
        processes = tuple(dict.fromkeys(w.track.process for w in around))
        cliques = {w.entry.clique for w in around}
        called = {w.track.process: w.entry for w in reversed(around)}
        kind = Kind.CYCLE
        groups: tuple[tuple[int, ...], ...] = ()
        if len(cliques) == 1:
            permutes = all(w.entry.is_permute for w in around)
            kind = Kind.PERMUTE if permutes else Kind.MISMATCH
            calls = [(w.track.process, w.entry) for w in self.waits if w.entry.clique in cliques]
            groups = tuple(g.processes for g in grouped(calls, self.run.programs_vary))
        why = causes.of_circle([self.history.devices(clique) for clique in cliques])
        return self._make(
            kind, processes, around[0], called=called, groups=groups, circle=processes, why=why
        )

    def _waiting(self, sinks: Sequence[int]) -> Diagnosis:
        wait = self._wait_for(set(sinks))
        # Another process may have waited first for a device of such a process.
        own = (w for w in self.waits if w.track.process in sinks)
        found = (causes.of_own_device(self.history, self.calls, w) for w in own)
        why = next(filter(None, found), ())
        return self._make(Kind.WAITING, sinks, wait, why=why)

    def _wait_for(self, processes: set[int]) -> Wait | None:
        """The earliest wait for one of ``processes``, else the earliest wait."""

        def order(wait: Wait) -> tuple[bool, int, int]:
            owners = {p for device in wait.absent for p in self.history.owner(device)}
            direct = bool(owners & processes)
            return (not direct, wait.track.time(wait.entry.entered_ns), wait.track.process)

        return min((w for w in self.waits if w.absent), key=order, default=None)

    def _make(
        self,
        kind: Kind,
        culprits: Sequence[int] = (),
        at: Position | Wait | None = None,
        *,
        called: dict[int, Entry] | None = None,
        groups: tuple[tuple[int, ...], ...] = (),
        circle: tuple[int, ...] = (),
        why: tuple[Cause, ...] = (),
    ) -> Diagnosis:
        place = Position(at.entry.clique, at.entry.sequence) if isinstance(at, Wait) else at
        members = self.history.devices(place.clique) if place else ()
        involved = list((called or {}).values())
        involved += [at.entry] if isinstance(at, Wait) else []
        rows = tuple(
            self._row(p, p.index in culprits, place, (called or {}).get(p.index))
            for p in self.run.processes
        )
        cliques = {e.clique for t in self.history.tracks.values() for e in t.entries}
        return Diagnosis(
            kind,
            tuple(sorted(culprits)),
            place,
            members,
            rows,
            groups,
            circle,
            why,
            self._unit(involved[:1]),
            len(cliques) > 1,
            self.run.attempt,
        )

    def _unit(self, involved: Sequence[Entry]) -> str:
        if any(entry.is_permute for entry in involved):
            return "permute"
        last = (track.entries[-1] for track in self.history.tracks.values() if track.entries)
        return "program" if any(entry.op == Op.PROGRAM for entry in last) else "collective"

    def _row(
        self, process: Process, culprit: bool, place: Position | None, called: Entry | None
    ) -> Row:
        index = process.index
        waits = self._waits_of[index]
        wait = min(waits, key=lambda w: (not w.absent, w.entry.number), default=None)
        track, entry = self._shown(index, place, called, wait)
        calls = self.calls.up_to(track, entry.number) if track and entry else []
        owners = {p for w in waits for device in w.absent for p in self.history.owner(device)}
        activity = self._activity(self.ended[index], wait, process)
        inside = [(b, barriers.missing(self.history, b)) for b in process.waits.barriers]
        return Row(
            process,
            activity,
            culprit,
            calls[-1] if calls else None,
            entry is not None and (entry.unfinished or entry is called),
            barriers.own_absent(self.history, wait) if wait else (),
            rounds(calls[:-1], RECENT),
            rounds(calls, RECENT),
            tuple(sorted(owners - {index})) if activity is Activity.WAITS else (),
            self._ran(index, place),
            self.history.progress(index),
            tuple(inside),
        )

    def _shown(
        self, process: int, place: Position | None, called: Entry | None, wait: Wait | None
    ) -> tuple[Track | None, Entry | None]:
        tracks = self.history.of_process(process)
        for track in tracks:
            if called is not None and any(entry is called for entry in track.entries):
                return track, called
        if wait is not None:
            return wait.track, wait.entry
        used = [t for t in tracks if t.entries]
        if not used:
            return (tracks[0] if tracks else None), None
        track = max(used, key=lambda t: t.time(t.entries[-1].entered_ns))
        return track, track.entries[-1]

    def _activity(self, ending: Outcome, wait: Wait | None, process: Process) -> Activity:
        if ending.final:
            return Activity[ending.kind.name]
        if wait is not None and wait.absent:
            return Activity.WAITS
        if wait is not None:
            return Activity.RAISED if wait.entry.state == State.RAISED else Activity.MOVES
        if process.waits.barriers:
            return Activity.BARRIER
        return Activity.UNKNOWN if process.record is None else Activity.BUSY

    def _ran(self, process: int, place: Position | None) -> int | None:
        tracks = self.history.of_process(process)
        if place is None:
            done = [sum(e.unfinished for e in t.entries[-1:]) for t in tracks]
            return max((t.written - d for t, d in zip(tracks, done, strict=True)), default=None)
        last = [
            entry.sequence + (entry.state == State.DONE)
            for track in tracks
            if (entry := track.at.get(Position(place.clique, track.furthest.get(place.clique, -1))))
        ]
        nothing = 0 if tracks and all(t.complete for t in tracks) else None
        return max(last, default=nothing)
