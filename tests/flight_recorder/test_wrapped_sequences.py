"""Numbers of collectives have 32 bits: a diagnosis is the same where they wrap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from flight_recorder.jobs import STEP, job, steps
from flight_recorder.simulate import with_entries
from lockstep._run_files import Exit
from lockstep.flight_recorder.diagnose import Kind, diagnose
from lockstep.flight_recorder.run_records import Run

DONE = 5
"""Collectives that all have made; some wait in the next one."""


def shifted(run: Run, by: int) -> Run:
    """The same run, ``by`` collectives later in its life."""
    return with_entries(run, lambda e: e._replace(sequence=(e.sequence + by) % 2**32))


def behind(**exit: Any) -> Run:
    exits = {2: Exit(**exit)} if exit else {}
    return job(steps(9), steps(9), steps(DONE)).snapshot(exits)


def mismatch() -> Run:
    other = dataclasses.replace(STEP, elements=7, execution=DONE)
    return job(steps(9), [*steps(DONE), other]).snapshot()


RUNS: dict[str, tuple[Callable[[], Run], Kind]] = {
    "ended": (lambda: behind(exit_code=0), Kind.ENDED),
    "killed": (lambda: behind(signal=9), Kind.KILLED),
    "another call": (mismatch, Kind.MISMATCH),
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("until_wrap", range(DONE + 4))
def test_a_diagnosis_is_the_same_where_numbers_wrap(name: str, until_wrap: int) -> None:
    make, kind = RUNS[name]
    run = make()
    found, late = diagnose(run), diagnose(shifted(run, 2**32 - until_wrap))
    assert found.kind is kind
    assert (late.kind, late.culprits) == (found.kind, found.culprits)
