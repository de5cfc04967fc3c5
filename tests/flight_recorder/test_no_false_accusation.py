"""Whatever moment each process is read at, a correct job is never accused."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from flight_recorder.schedules import Schedule, schedules
from flight_recorder.simulate import Job
from lockstep._run_files import Exit
from lockstep.flight_recorder.diagnose import Kind, diagnose
from lockstep.flight_recorder.run_records import Run

HARMLESS = (Kind.NOTHING, Kind.WAITING)


def job_of(schedule: Schedule, **more) -> Job:
    return Job(schedule.cliques, schedule.plan, identified=schedule.identified, **more)


@settings(deadline=None)
@given(schedules(), st.integers(0, 1 << 32), st.booleans(), st.sampled_from([2, 4, 64]))
def test_every_process_read_at_another_moment(
    schedule: Schedule, seed: int, buffered: bool, ring: int
) -> None:
    rng = random.Random(seed)
    job = job_of(schedule, ring=ring, hosts=("a", "b"), buffered=buffered)
    job.run(rng, rng.randrange(60))
    # As read_run does: first which processes have ended, then the records, each at its own moment.
    exits = {p: Exit(exit_code=0) for p in range(job.processes) if job.through(p)}
    order = rng.sample(range(job.processes), job.processes)
    read = {}
    for process in order:
        job.run(rng, rng.randrange(20))
        read[process] = job.process(process, exits.get(process))
    found = diagnose(Run(tuple(read[p] for p in sorted(read))))
    assert found.kind in HARMLESS, found


@settings(deadline=None)
@given(schedules(), st.integers(0, 1 << 32), st.booleans())
def test_a_whole_correct_run_has_nothing_wrong(
    schedule: Schedule, seed: int, buffered: bool
) -> None:
    job = job_of(schedule, buffered=buffered)
    job.run(random.Random(seed))
    assert all(job.through(p) for p in range(job.processes))
    found = diagnose(job.snapshot({p: Exit(exit_code=0) for p in range(job.processes)}))
    assert found.kind is Kind.NOTHING
    assert not found.culprits


@settings(deadline=None)
@given(schedules(), st.integers(0, 1 << 32), st.data())
def test_a_straggler_is_named_and_not_accused(
    schedule: Schedule, seed: int, data: st.DataObject
) -> None:
    job = job_of(schedule)
    late = data.draw(st.sampled_from(sorted(schedule.plan)))
    stops_at = data.draw(st.integers(0, len(schedule.plan[late])))
    job.devices[late].stops_at = stops_at
    job.run(random.Random(seed))
    found = diagnose(job.snapshot())
    assert found.kind in HARMLESS
    stuck = [d.process for d in job.devices.values() if d.inside]
    if stuck:
        assert found.kind is Kind.WAITING
        assert found.culprits == (job.devices[late].process,)
    else:
        assert found.kind is Kind.NOTHING
