"""Proves a deadlock in which a barrier has a part, or a device that has stopped. Pure.

A collective is released by its members, a barrier by all processes. Take a set of processes that
are at rest: none of them can go on unless one of its waits is released. If each wait of each of
them needs a process of the set, none is ever released: the first one would need another before it.

**Why reading at different moments does no harm.** A process at rest has published the state of its
collectives, and its record, which is read afterwards, still has that state. So no collective has
released it meanwhile. A barrier has not either: it needs another process of the set, which by its
own count of uses had not come to it.

A callback that raises ends the program on one device of its process. The others of that process
wait for it in the next collective: such a process, when it is at rest, waits for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.flight_recorder.run_records import Process
from lockstep.flight_recorder.timeline import History
from lockstep.flight_recorder.wait_graph import ExitKind, Outcome, Wait
from lockstep.flight_recorder.waits import Barrier


def missing(history: History, barrier: Barrier) -> tuple[int, ...]:
    """The processes that have not come to a barrier."""
    processes = history.run.processes
    return tuple(p.index for p in processes if not p.waits.has_come_to(barrier))


def deadlock(
    history: History, waits: Sequence[Wait], ended: Mapping[int, Outcome]
) -> tuple[int, ...]:
    """Processes that wait for each other, or for an own device, forever; empty: not proved."""
    held = {p.index: p for p in history.run.processes if _is_at_rest(history, p, ended[p.index])}
    mine = {index: [w for w in waits if w.track.process == index] for index in held}
    held = {index: p for index, p in held.items() if mine[index] or p.waits.barriers}
    while True:
        staying = {
            index: process
            for index, process in held.items()
            if all(_is_blocked(history, wait, held) for wait in mine[index])
            and all(_holds(history, b, index, held, ended) for b in process.waits.barriers)
        }
        if len(staying) == len(held):
            break
        held = staying
    return tuple(held)


def stopped(history: History, waits: Sequence[Wait], held: Sequence[int]) -> tuple[int, ...]:
    """The processes of ``held`` in which a callback has ended the program on a device."""
    own = {w.track.process for w in waits if own_absent(history, w)}
    processes = history.run.processes
    return tuple(p.index for p in processes if p.index in own & {*held} and p.waits.callback)


def own_absent(history: History, wait: Wait) -> tuple[int, ...]:
    """The devices of the same process that a device waits for."""
    return tuple(d for d in wait.absent if history.owner(d) == (wait.track.process,))


def _is_at_rest(history: History, process: Process, ending: Outcome) -> bool:
    """Whether only another process can release this one.

    One that has raised for this very reason left its waits as they were.
    """
    waits = process.waits
    if waits.rest is None or waits.rest != history.progress(process.index):
        return False
    has_ended = ending.kind in (ExitKind.ENDED, ExitKind.KILLED) and not ending.consequence
    overlapping = any(track.overlapping for track in history.of_process(process.index))
    return not (has_ended or overlapping or any(b.has_timeout for b in waits.barriers))


def _is_blocked(history: History, wait: Wait, held: Mapping[int, Process]) -> bool:
    owners = (history.owner(device) for device in wait.absent)
    return any(of and all(process in held for process in of) for of in owners)


def _holds(
    history: History,
    barrier: Barrier,
    process: int,
    held: Mapping[int, Process],
    ended: Mapping[int, Outcome],
) -> bool:
    """Whether a barrier holds this process: it needs one of ``held``, and raises for none."""
    absent = [other for other in missing(history, barrier) if other != process]
    raises = any(other not in held and ended[other].final for other in absent)
    return not raises and any(other in held for other in absent)
