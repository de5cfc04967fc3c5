"""Whether a process of a pool waits in vain: for others that have left the function.

Between two calls a process of a pool lives on, so the watchdog does not count it as ended. The
caller knows which processes have left the function, and reads the records that the processes keep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lockstep._run_files import Exit
from lockstep._words import processes
from lockstep.flight_recorder import diagnose, run_records, text_report
from lockstep.flight_recorder.format import ProcessState
from lockstep.pool.outcome import Kind, Outcome
from lockstep.system import stack_dump

QUIET_SECONDS = 1.0
_BARRIER = "lockstep/sync/barrier.py"
MAX_TEXT = 900
"""Bytes of the report: the engine's exception has room for 1,000."""


def waits_in_vain(run_dir: Path, answered: Mapping[int, Outcome], count: int) -> str | None:
    """What is wrong, where every process outside ``answered`` waits for those; else None.

    ``answered``: the processes that have returned or raised. ``count``: all of them.
    """
    found = _diagnosed(run_dir, answered)
    if found is None or not found.kind.is_fault or found.place is None:
        return None
    waiting = [row for row in found.rows if row.index not in answered]
    if len(found.rows) != count or any(
        row.activity is not diagnose.Activity.WAITS for row in waiting
    ):
        return None
    left = sorted(answered)
    them = "them" if len(left) > 1 else "it"
    return f"lockstep: {processes(left)} left the function; the others wait for {them}.\n" + (
        text_report.short(found, MAX_TEXT).replace(" ended (exit code 0)", " returned")
    )


def awaited(
    run_dir: Path, answered: Mapping[int, Outcome], stacks: Mapping[int, str]
) -> dict[int, tuple[int, ...]]:
    """For each process outside ``answered`` that waits for others: which ones.

    The records have the collectives; that a process is in a barrier shows in its stack.
    """
    found = _diagnosed(run_dir, answered)
    waits = {row.index: row.waits_for for row in found.rows if row.waits_for} if found else {}
    in_barrier = {rank for rank, text in stacks.items() if stack_dump.is_in(text, _BARRIER)}
    others = tuple(sorted((answered.keys() | stacks.keys()) - in_barrier))
    return waits | dict.fromkeys(in_barrier, others)


def becomes_quiet(run_dir: Path, refresh: Callable[[], bool]) -> bool:
    """Whether no process is in a collective: a later call begins with nothing in flight.

    ``refresh`` brings the records up to date, and says whether they are.

    A function may return before all devices are done with its last collective, so a while passes
    before the answer is no.
    """
    deadline = time.monotonic() + QUIET_SECONDS
    while True:
        if not refresh():
            return False
        found = _diagnosed(run_dir, {})
        if found is None or found.kind is diagnose.Kind.NOTHING:
            return True
        if found.kind.is_fault or time.monotonic() > deadline:
            return False
        time.sleep(0.02)


def progress(run_dir: Path) -> tuple[int, ...]:
    """How many collectives each device has begun: equal twice where nothing moves."""
    run = _read(run_dir)
    if run is None:
        return ()
    return tuple(r.written for p in run.processes if p.record for r in p.record.rings)


def _diagnosed(run_dir: Path, answered: Mapping[int, Outcome]) -> diagnose.Diagnosis | None:
    run = _read(run_dir)
    if run is None:
        return None
    ended = tuple(_as_ended(process, answered) for process in run.processes)
    return diagnose.diagnose(dataclasses.replace(run, processes=ended))


def _as_ended(process: run_records.Process, answered: Mapping[int, Outcome]) -> run_records.Process:
    outcome = answered.get(process.index)
    if outcome is None:
        return process
    failure = outcome.failure if outcome.kind is Kind.RAISED else None
    # The program of a process is the function here, so the record must not say that it runs.
    state = ProcessState.FAILED if failure else ProcessState.ENDED
    record = process.record and dataclasses.replace(process.record, state=state)
    return dataclasses.replace(
        process,
        record=record,
        exit=Exit(exit_code=1 if failure else 0),
        error=failure.record if failure else None,
    )


def _read(run_dir: Path) -> run_records.Run | None:
    """The records; None where there are none: the engine is not used, or nothing has run yet."""
    with contextlib.suppress(Exception):  # a record that cannot be read must not hide the outcome
        run = run_records.read_run(run_dir, 0)
        if all(process.record for process in run.processes):
            return run
    return None
