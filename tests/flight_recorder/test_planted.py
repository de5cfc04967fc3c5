"""One divergence planted in a random schedule: the process and the place are named."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flight_recorder.schedules import Schedule, schedules
from flight_recorder.simulate import STRIDE, Job, Step, raised
from lockstep._run_files import Exit
from lockstep.flight_recorder.diagnose import Diagnosis, Kind, diagnose
from lockstep.flight_recorder.format import Op
from lockstep.flight_recorder.run_records import Run

HARMLESS = [kind for kind in Kind if not kind.is_fault]


def planted(
    schedule: Schedule, data: st.DataObject, change
) -> tuple[Job, int, dict[int, list[Step]]]:
    """Changes the calls of one process's devices; all its devices do the same."""
    process = data.draw(st.integers(0, schedule.processes - 1), label="process")
    own = [d for d in schedule.plan if d // STRIDE == process]
    plan = dict(schedule.plan)
    for device in own:
        plan[device] = change(list(schedule.plan[device]))
    job = Job(schedule.cliques, plan, identified=schedule.identified)
    job.run(random.Random(data.draw(st.integers(0, 1 << 32), label="seed")))
    return job, process, schedule.plan


def first_differences(job: Job, process: int, correct: dict[int, list[Step]]) -> set:
    """The places at which a device of ``process`` is not where the others are."""
    found = set()
    for device in job.of(process):
        for clique in range(len(job.cliques)):

            def of(steps: list[Step], clique: int = clique) -> list[Step]:
                return [s for s in steps if s.clique == clique and s.op != Op.PERMUTE]

            mine, theirs = of(device.steps), of(correct[device.id])
            same = 0
            while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
                same += 1
            if mine != theirs:
                found.add((job.hash(clique), same))
    return found


def place(found: Diagnosis) -> tuple[int, int] | None:
    return (found.place.clique, found.place.sequence) if found.place else None


def assert_same_afterwards(job: Job, run: Run, found: Diagnosis) -> None:
    """Once all waiting processes have raised and ended, the same is found in what is left."""
    told = {d.process for d in job.devices.values() if d.inside}
    told -= {p.index for p in run.processes if p.exit is not None}
    after = raised(run, job.now + 1000, told)
    for code in (0, 1):  # 0: it caught the exception, saved and went home
        ended = tuple(
            dataclasses.replace(p, exit=Exit(exit_code=code)) if p.index in told else p
            for p in after.processes
        )
        again = diagnose(dataclasses.replace(after, processes=ended))
        assert (again.kind, again.culprits) == (found.kind, found.culprits)
        assert again.place == found.place


def assert_blamed(job: Job, process: int, found: Diagnosis) -> None:
    """A job that is stuck is so because of ``process``.

    One device of it may be idle while another is stuck: then more may still come from the process,
    and it is named as late.
    """
    if not any(d.inside for d in job.devices.values()):
        assert found.kind is Kind.NOTHING
        return
    idle = any(d.through for d in job.of(process)) and not job.through(process)
    assert found.kind.is_fault or (idle and found.kind is Kind.WAITING)
    assert process in found.culprits


@settings(deadline=None)
@given(schedules(permutes=False), st.data())
def test_another_shape_dtype_or_reduction(schedule: Schedule, data: st.DataObject) -> None:
    change = data.draw(
        st.sampled_from(
            [{"elements": 5}, {"dtype": 3}, {"reduction": 3}, {"op": Op.REDUCE_SCATTER}]
        )
    )
    wanted = data.draw(st.integers(0, 11), label="call")
    calls = sorted({(s.clique, s.program, s.execution) for p in schedule.plan.values() for s in p})
    victim = calls[wanted % len(calls)] if calls else None

    def other(steps: list[Step]) -> list[Step]:
        return [
            dataclasses.replace(s, **change) if (s.clique, s.program, s.execution) == victim else s
            for s in steps
        ]

    job, process, correct = planted(schedule, data, other)
    stuck = any(d.inside for d in job.devices.values())
    run = job.snapshot()
    found = diagnose(run)
    if not stuck:  # only devices of this process are members
        assert found.kind is Kind.NOTHING
        return
    assert found.kind is Kind.MISMATCH
    assert process in found.culprits
    assert_same_afterwards(job, run, found)
    assert place(found) in first_differences(job, process, correct)
    sizes = [len(group) for group in found.groups]
    if sizes[0] > sizes[1]:
        assert found.culprits == (process,)


@settings(deadline=None)
@given(schedules(), st.data())
def test_a_process_that_ends_early(schedule: Schedule, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, 11), label="kept")
    job, process, _ = planted(schedule, data, lambda steps: steps[:kept])
    through = [p for p in range(job.processes) if job.through(p)]
    run = job.snapshot({p: Exit(exit_code=0) for p in through})
    found = diagnose(run)
    stuck = [d for d in job.devices.values() if d.inside]
    if stuck and process in through:
        assert found.kind is Kind.ENDED
        assert found.culprits == (process,)
        assert_same_afterwards(job, run, found)
        assert place(found) in {(e.entries[-1].clique, e.entries[-1].sequence) for e in stuck}
    elif not stuck:
        assert found.kind is Kind.NOTHING


@settings(deadline=None)
@given(schedules(), st.data())
def test_a_process_that_is_killed(schedule: Schedule, data: st.DataObject) -> None:
    job = Job(schedule.cliques, schedule.plan, identified=schedule.identified)
    process = data.draw(st.integers(0, schedule.processes - 1), label="process")
    rng = random.Random(data.draw(st.integers(0, 1 << 32), label="seed"))
    job.run(rng, rng.randrange(1 + sum(map(len, schedule.plan.values()))))
    assume(not job.through(process))
    for device in job.of(process):
        device.stops_at = device.at
        if device.inside:  # frozen in the middle of its call
            device.steps = [
                *device.steps[: device.at],
                dataclasses.replace(device.steps[device.at]),
            ]
            device.inside = False
    job.run(rng)
    run = job.snapshot({process: Exit(signal=9)})
    found = diagnose(run)
    assert found.kind is Kind.KILLED
    assert found.culprits == (process,)
    assert_same_afterwards(job, run, found)


@settings(deadline=None)
@given(schedules(identified=True), st.data())
def test_two_calls_swapped(schedule: Schedule, data: st.DataObject) -> None:
    """On one clique, look-alike or not, and on two that cross."""
    at = data.draw(st.integers(0, 10), label="at")

    def swap(steps: list[Step]) -> list[Step]:
        if len(steps) > 1:
            here = at % (len(steps) - 1)
            steps[here], steps[here + 1] = steps[here + 1], steps[here]
        return steps

    job, process, correct = planted(schedule, data, swap)
    found = diagnose(job.snapshot())
    assert_blamed(job, process, found)
    assert found.kind in (Kind.MISMATCH, Kind.CYCLE, Kind.PERMUTE, *HARMLESS)
    if found.kind is Kind.MISMATCH and not found.circle:
        assert place(found) in first_differences(job, process, correct)


@settings(deadline=None)
@given(schedules(identified=True), st.data())
def test_a_call_left_out(schedule: Schedule, data: st.DataObject) -> None:
    calls = sorted({s.call for steps in schedule.plan.values() for s in steps})
    victim = calls[data.draw(st.integers(0, 11), label="call") % len(calls)] if calls else None

    def leave_out(steps: list[Step]) -> list[Step]:
        return [s for s in steps if s.call != victim]

    job, process, correct = planted(schedule, data, leave_out)
    through = [p for p in range(job.processes) if job.through(p)]
    found = diagnose(job.snapshot({p: Exit(exit_code=0) for p in through}))
    assert_blamed(job, process, found)
    if found.kind is Kind.MISMATCH and not found.circle:
        assert place(found) in first_differences(job, process, correct)
