"""What `diagnose` makes of single situations, above all of what is left when a run is over."""

from __future__ import annotations

import dataclasses
import random

import pytest

from flight_recorder.jobs import FAR, altered, altered_record, job, patterns, realtime, steps
from flight_recorder.simulate import SECOND, STRIDE, Job, Step, raised, record_of
from lockstep._run_files import STOPPED, ErrorRecord, Exit
from lockstep.flight_recorder import format
from lockstep.flight_recorder.causes import Pattern
from lockstep.flight_recorder.diagnose import Activity, Kind, diagnose
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.format import ProcessState, State
from lockstep.flight_recorder.run_records import Run
from lockstep.flight_recorder.text_report import short

# --- What is left after the others were told ------------------------------------------------------


def test_errors_that_follow_from_a_death_are_not_the_culprit() -> None:
    made = job(steps(9), steps(5), steps(9))
    at = made.now + SECOND
    run = raised(made.snapshot({1: Exit(signal=9, realtime_ns=realtime(at - 1000))}), at)
    for survivor in (0, 2):
        error = ErrorRecord((at + 5000) / 1e9, 1, "jax.errors.JaxRuntimeError: ...", "")
        run = altered(run, survivor, error=error, exit=Exit(exit_code=1))
    found = diagnose(run)
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))
    assert [row.activity for row in found.rows] == [Activity.WAITS, Activity.KILLED, Activity.WAITS]


@pytest.mark.parametrize("with_record", [True, False])
def test_an_error_that_follows_is_not_the_culprit_without_a_record_either(
    with_record: bool,
) -> None:
    """Its host has told of the error and the exit, and then no more, so its clock is not known."""
    made = job(steps(9), steps(5), steps(9))
    at = made.now + SECOND
    run = raised(made.snapshot({1: Exit(signal=9, realtime_ns=realtime(at - 1000))}), at)
    error = ErrorRecord((at + 5000) / 1e9, 1, "jax.errors.JaxRuntimeError: ...", "")
    ended = Exit(exit_code=1, realtime_ns=realtime(at) + 3 * SECOND)
    changes = {} if with_record else {"record": None}
    found = diagnose(altered(run, 2, error=error, exit=ended, **changes))
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))


def test_a_death_written_down_a_little_after_it_was_felt_is_still_the_cause() -> None:
    made = job(steps(9), steps(5))
    at = made.now + SECOND
    exits = {1: Exit(signal=11, realtime_ns=realtime(at) + SECOND // 5)}
    found = diagnose(raised(made.snapshot(exits), at))
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))


def test_a_process_that_is_killed_by_the_launcher_because_it_never_came_is_late_not_dead() -> None:
    """The deadline raised in process 0; the launcher then had to kill process 1."""
    made = job(steps(9), steps(5))
    at = made.now + 600 * SECOND
    exits = {1: Exit(signal=9, realtime_ns=realtime(at) + 3 * SECOND), 0: Exit(exit_code=1)}
    run = raised(made.snapshot(exits), at)
    found = diagnose(altered_record(run, 1, state=ProcessState.RUNNING))
    assert (found.kind, found.culprits) == (Kind.WAITING, (1,))


@pytest.mark.parametrize(
    ("state", "reason", "kind"),
    [
        (ProcessState.RUNNING, None, Kind.WAITING),
        (ProcessState.ENDED, None, Kind.ENDED),
        (ProcessState.ENDED, STOPPED, Kind.WAITING),
    ],
    ids=["no answer", "after its program", "in its program, which is marked as ended then"],
)
def test_a_signal_of_the_launcher_is_no_cause(
    state: ProcessState, reason: str | None, kind: Kind
) -> None:
    made = job(steps(9), steps(5))
    at = made.now + SECOND
    exits = {1: Exit(signal=2, realtime_ns=realtime(at) + 1000, reason=reason)}
    run = raised(made.snapshot(exits), at)
    found = diagnose(altered_record(run, 1, state=state))
    assert (found.kind, found.culprits) == (kind, (1,))
    if kind is Kind.ENDED:
        assert headline(found).startswith("process 1 (pid 101 on host a) ended after 5 collectives")
        assert patterns(found) == [Pattern.SHORTER_LOOP]


def test_a_process_that_the_launcher_stopped_while_none_waited_is_no_culprit() -> None:
    """The survivor had nothing to do with collectives until the grace period was over."""
    made = job(steps(5), steps(5))
    run = made.snapshot(
        {
            0: Exit(signal=2, realtime_ns=realtime(made.now + 3 * SECOND), reason=STOPPED),
            1: Exit(signal=9, realtime_ns=realtime(made.now)),
        }
    )
    for index in (0, 1):
        run = altered_record(run, index, state=ProcessState.RUNNING)
    found = diagnose(run)
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))
    assert found.rows[0].activity is Activity.BUSY


def test_an_error_of_its_own_counts_though_the_launcher_had_to_stop_the_process() -> None:
    made = job(steps(9), steps(5))
    error = ErrorRecord(made.now / 1e9, 1, "MemoryError", "Traceback ...")
    run = made.snapshot({1: Exit(signal=9, reason=STOPPED)})
    found = diagnose(altered(run, 1, error=error))
    assert (found.kind, found.culprits, patterns(found)) == (Kind.FAILED, (1,), [])


def test_collectives_called_after_the_failure_are_no_mismatch() -> None:
    """Survivors that caught the exception call others, which raise at once."""
    made = job(steps(5), steps(5), steps(4))
    run = raised(made.snapshot({2: Exit(signal=9)}), made.now + 10)
    for index, elements in ((0, 7), (1, 8)):
        ring = record_of(run, index).rings[0]
        last = ring.entries[-1]
        late = last._replace(
            number=last.number + 1,
            sequence=last.sequence + 1,
            elements=elements,
            entered_ns=made.now + 1000 * (index + 1),
            done_ns=made.now + 1000 * (index + 1) + 1,
        )
        longer = dataclasses.replace(ring, written=ring.written + 1, entries=(*ring.entries, late))
        run = altered_record(run, index, rings=(longer,))
    found = diagnose(run)
    assert (found.kind, found.culprits) == (Kind.KILLED, (2,))
    assert found.place is not None
    assert found.place.sequence == 4


def test_the_process_that_raised_by_itself_is_named_not_those_it_left_waiting() -> None:
    made = job(steps(9), steps(5))
    error = ErrorRecord(made.now / 1e9, 1, "ValueError: no such file", "Traceback ...")
    run = raised(made.snapshot({1: Exit(exit_code=1)}), made.now + SECOND)
    run = altered(run, 1, error=error)
    late = ErrorRecord(made.now / 1e9 + 1.1, 1, "jax.errors.JaxRuntimeError: ...", "")
    found = diagnose(altered(run, 0, error=late))
    assert (found.kind, found.culprits) == (Kind.FAILED, (1,))


def test_a_process_that_failed_while_none_waited_is_named() -> None:
    made = job(steps(5), steps(5))
    found = diagnose(made.snapshot({0: Exit(exit_code=0), 1: Exit(exit_code=3)}))
    assert (found.kind, found.culprits, found.place) == (Kind.FAILED, (1,), None)


def test_killed_inside_a_collective_that_all_had_entered() -> None:
    made = job(steps(3), steps(3))
    run = made.snapshot({1: Exit(signal=9)})
    ring = record_of(run, 1).rings[0]
    inside = ring.entries[-1]._replace(state=State.ENTERED, done_ns=0, arrived_ns=0)
    rings = (dataclasses.replace(ring, entries=(*ring.entries[:-1], inside)),)
    found = diagnose(altered_record(run, 1, rings=rings, state=0))
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))


# --- Processes without a record -------------------------------------------------------------------


@pytest.mark.parametrize("late", ["in no collective yet", "not recorded"])
def test_a_process_that_ended_without_a_collective_is_not_taken_for_one_that_may_still_come(
    late: str,
) -> None:
    """Devices without a record may be any process's: here the awaited one is process 1's."""
    run = job(steps(1), [], []).snapshot()
    waiting, awaited, ended = (process.record for process in run.processes)
    assert waiting is not None
    assert awaited is not None
    assert ended is not None
    awaited = dataclasses.replace(awaited, rings=(), state=ProcessState.RUNNING)
    if late == "not recorded":
        awaited = None
    ended = dataclasses.replace(ended, rings=(), state=ProcessState.ENDED)
    waiting = dataclasses.replace(waiting, cliques=((waiting.cliques[0][0], (0, STRIDE)),))
    run = altered(altered(altered(run, 0, record=waiting), 1, record=awaited), 2, record=ended)
    assert diagnose(run).kind is Kind.WAITING
    # But it is, if the other one will not come either.
    lost = altered(run, 1, exit=Exit(reason="it is lost"))
    assert diagnose(lost).kind is Kind.KILLED
    assert diagnose(lost).culprits == (1,)


def test_a_process_killed_before_it_recorded_anything_is_the_culprit() -> None:
    run = job(steps(5), steps(0)).snapshot({1: Exit(signal=9)})
    found = diagnose(altered(run, 1, record=None))
    assert (found.kind, found.culprits) == (Kind.KILLED, (1,))


# --- Rings that have wrapped ----------------------------------------------------------------------


def test_a_wrapped_ring_that_lost_the_place_accuses_no_process() -> None:
    """Process 1 ended; whether it had been in the collective that process 0 was read in, its ring
    does not tell any more."""
    plan = {0: [Step(0, 1)], STRIDE: [Step(0, 1), *steps(40, Step(1, FAR))], 2 * STRIDE: []}
    plan[2 * STRIDE] = steps(40, Step(1, FAR))
    made = Job([[0, STRIDE], [STRIDE, 2 * STRIDE]], plan, ring=8)
    made.move(made.devices[0])
    stale = made.process(0)
    made.run(random.Random(0))
    ended = [made.process(p, Exit(exit_code=0)) for p in (1, 2)]
    assert diagnose(Run((stale, *ended))).kind in (Kind.NOTHING, Kind.WAITING)


def test_a_wrapped_ring_of_which_enough_is_left_still_shows_which_process_ended() -> None:
    made = job(steps(100), steps(99), ring=8)
    found = diagnose(made.snapshot({1: Exit(exit_code=0)}))
    assert (found.kind, found.culprits) == (Kind.ENDED, (1,))
    assert found.place is not None
    assert found.place.sequence == 99


@pytest.mark.parametrize(
    ("state", "cause"),
    [(ProcessState.RUNNING, Pattern.HARD_EXIT), (ProcessState.ENDED, Pattern.SHORTER_LOOP)],
)
def test_an_end_that_is_not_that_of_python_is_no_shorter_loop(
    state: ProcessState, cause: Pattern
) -> None:
    """After ``os._exit(0)`` no exit handler has run, so the record says that the program runs."""
    made = job(steps(9), steps(4))
    record = format.parse(made.file(1, state))
    run = altered(made.snapshot({1: Exit(exit_code=0)}), 1, record=record)
    found = diagnose(run)
    assert (found.kind, found.culprits, patterns(found)) == (Kind.ENDED, (1,), [cause])
    said = "Likely: os._exit(), or exit() in native code, on process 1"
    assert (said in short(found)) == (cause is Pattern.HARD_EXIT)
