"""A deadlock with a barrier is proved where no process can go on, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import pytest

from flight_recorder.jobs import altered, job, steps
from flight_recorder.simulate import STRIDE, Job, raised
from lockstep._run_files import ErrorRecord, Exit
from lockstep.flight_recorder.diagnose import Activity, Diagnosis, Kind, diagnose
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.run_records import Run
from lockstep.flight_recorder.text_report import table
from lockstep.flight_recorder.timeline import History
from lockstep.flight_recorder.waits import MAX_USES, Barrier, Waits, read_waits

EPOCH = Barrier("barrier/epoch", 2, "barrier('epoch')", "/home/u/train.py", 49)
BEFORE = {"barrier/epoch": 1}


def at_rest(run: Run, waits: dict[int, Waits]) -> Run:
    """The run with these waits, whose processes are at rest."""
    history = History(run)
    for process, own in waits.items():
        rest = dataclasses.replace(own, rest=history.progress(process))
        run = altered(run, process, waits=rest)
    return run


def stopped(*stopping: int, processes: int = 2) -> Run:
    """All processes are on their way through 3 steps; some do not begin the last one."""
    made = job(*[steps(3)] * processes, most=0)
    for process in stopping:
        made.devices[process * STRIDE].stops_at = 2
    made.run(random.Random(0))
    return made.snapshot()


def inside(*barriers: Barrier) -> Waits:
    return Waits(barriers, {b.key: b.use for b in barriers})


def one_in_a_barrier(processes: int = 2) -> Run:
    """Process 0 waits in a barrier after 2 steps, the others in the third step."""
    run = stopped(0, processes=processes)
    there = {0: inside(EPOCH)} | {p: Waits(uses=BEFORE) for p in range(1, processes)}
    return at_rest(run, there)


def with_waits(run: Run, process: int, **changes) -> Run:
    waits = dataclasses.replace(run.processes[process].waits, **changes)
    return altered(run, process, waits=waits)


def check_is_only_a_wait(run: Run) -> Diagnosis:
    found = diagnose(run)
    assert found.kind is Kind.WAITING, headline(found)
    return found


def test_a_barrier_against_a_collective() -> None:
    found = diagnose(one_in_a_barrier())
    assert (found.kind, found.culprits) == (Kind.BARRIER, (0, 1))
    assert headline(found) == (
        "a deadlock: process 0 (pid 100 on host a) waits in barrier('epoch') at train.py:49 for "
        "process 1; process 1 (pid 101 on host a) waits for process 0 in all-reduce (sum) of "
        "1024 x f32, train.py:41 in step"
    )
    assert "> process 0 (pid 100 on host a): waits in barrier('epoch')" in table(found)
    assert "Likely causes:\n  - a barrier under `if jax.process_index() == 0`" in table(found)


def test_processes_that_wait_alike_are_named_together() -> None:
    text = headline(diagnose(one_in_a_barrier(4)))
    assert "for processes 1-3; processes 1-3 wait for process 0 in all-reduce" in text


def test_two_barriers() -> None:
    other = dataclasses.replace(EPOCH, key="same/x", words="assert_same(..., 'x')", line=7)
    waits = {0: inside(EPOCH), 1: inside(other)}
    found = diagnose(at_rest(stopped(0, 1), waits))
    assert found.kind is Kind.BARRIER
    assert headline(found).endswith("waits in assert_same(..., 'x') at train.py:7 for process 0")


def test_after_the_processes_have_raised_it_is_still_the_reason() -> None:
    run = raised(one_in_a_barrier(), 10**9)
    text = "lockstep.MissingProcessError: lockstep: a deadlock"
    gone = tuple(
        dataclasses.replace(p, error=ErrorRecord(0.9 + p.index, 1, text, ""), exit=Exit(p.index, 1))
        for p in run.processes
    )
    assert diagnose(dataclasses.replace(run, processes=gone)).kind is Kind.BARRIER


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_can_go_on_is_waited_for(process: int) -> None:
    found = check_is_only_a_wait(with_waits(one_in_a_barrier(), process, rest=None))
    assert found.rows[0].activity is Activity.BARRIER
    assert headline(found).startswith(
        "process 0 (pid 100 on host a) has not arrived yet (waits in barrier('epoch') at "
        "train.py:49 for process 1); process 1 waits in its 3rd"
    )


@pytest.mark.parametrize("process", [0, 1])
def test_a_process_whose_collectives_have_gone_on_since(process: int) -> None:
    check_is_only_a_wait(with_waits(one_in_a_barrier(), process, rest=(1, 1)))


def test_a_barrier_to_which_the_other_has_come() -> None:
    # Both are released; process 1 has gone on already, and process 0 is slow.
    for uses in ({"barrier/epoch": 2}, {f"barrier/{i}": 1 for i in range(MAX_USES)}):
        check_is_only_a_wait(with_waits(one_in_a_barrier(), 1, uses=uses))


def test_a_barrier_with_a_timeout_of_its_own() -> None:
    limited = dataclasses.replace(EPOCH, has_timeout=True)
    check_is_only_a_wait(with_waits(one_in_a_barrier(), 0, barriers=(limited,)))


def test_a_third_process_may_release_the_collective() -> None:
    # Process 2 has begun no collective, and is not at rest: only the barrier holds process 0.
    run = one_in_a_barrier(3)
    assert diagnose(run).kind is Kind.BARRIER
    check_is_only_a_wait(with_waits(with_waits(run, 1, rest=None), 2, rest=None))


def test_a_missing_process_that_has_ended_ends_the_barrier() -> None:
    run = one_in_a_barrier(3)
    assert diagnose(altered(run, 2, exit=Exit(2, 0))).kind is not Kind.BARRIER


def test_half_a_file_proves_nothing(tmp_path: Path) -> None:
    waits = inside(EPOCH)
    text = json.dumps(waits.values())
    path = tmp_path / "waits.json"
    path.write_text(text)
    assert read_waits(path) == waits
    for length in random.Random(0).sample(range(len(text)), 40):
        path.write_text(text[:length])
        assert read_waits(path) == Waits()
    assert read_waits(tmp_path / "none") == Waits()


def test_a_device_that_a_callback_has_stopped() -> None:
    """Device 1 of process 0 waits for device 0, whose program a callback has ended."""
    plan = {device: steps(3) for device in (0, 1, STRIDE)}
    made = Job([list(plan)], plan)
    made.devices[0].stops_at = 2
    made.run(random.Random(0))
    callback = Waits(callback="OSError: disk full, train.py:7 in log")
    found = diagnose(at_rest(made.snapshot(), {0: callback}))
    assert (found.kind, found.culprits) == (Kind.CALLBACK, (0,))
    assert headline(found).startswith(
        "process 0 (pid 100 on host a) raised OSError: disk full, train.py:7 in log, in a callback "
        "of a compiled program: this has ended the program on its device 0; processes 0-1 wait in "
        "their 3rd"
    )
    assert "> process 0 (pid 100 on host a): waits for its own device 0 in" in table(found)
    # What is not known to be at rest, or has raised nothing, may still come.
    for waits in ({}, {0: Waits()}):
        late = check_is_only_a_wait(at_rest(made.snapshot(), waits))
        assert headline(late).startswith(
            "device 0 of process 0 (pid 100 on host a) has not arrived yet; processes 0-1 wait in"
        )
