"""Simulated jobs whose processes make the given calls."""

from __future__ import annotations

import dataclasses
import random

from flight_recorder.simulate import SECOND, STRIDE, Job, Step, record_of, site
from lockstep._run_files import Exit
from lockstep.flight_recorder.causes import Pattern
from lockstep.flight_recorder.diagnose import Diagnosis, diagnose
from lockstep.flight_recorder.format import Op
from lockstep.flight_recorder.run_records import Run, Site

STEP = Step(0, 1000, elements=1024)
FAR = 50_000_000
"""Between programs whose run ids lie apart."""


def steps(number: int, step: Step = STEP) -> list[Step]:
    return [dataclasses.replace(step, execution=i) for i in range(number)]


def job(
    *plans: list[Step],
    sites: dict[int, tuple[Site, ...]] | None = None,
    most: int | None = None,
    **more,
) -> Job:
    """A process a plan, one device each, in one clique; moved until it is stuck or through.

    ``most`` is how many moves are made at most.
    """
    plan = {p * STRIDE: list(calls) for p, calls in enumerate(plans)}
    everyone = sites or {p: (site(1000, line=41, name="step"),) for p in range(len(plans))}
    made = Job([list(plan)], plan, sites=everyone, **more)
    made.run(random.Random(0), most)
    return made


def diagnosed(*plans: list[Step], exits: dict[int, Exit] | None = None, **more) -> Diagnosis:
    """What is found of such a job, some processes of which have ended."""
    return diagnose(job(*plans, **more).snapshot(exits))


def altered(run: Run, index: int, **changes) -> Run:
    processes = tuple(
        dataclasses.replace(p, **changes) if p.index == index else p for p in run.processes
    )
    return dataclasses.replace(run, processes=processes)


def altered_record(run: Run, index: int, **changes) -> Run:
    return altered(run, index, record=dataclasses.replace(record_of(run, index), **changes))


def realtime(ns: int) -> int:
    return ns + 1000 * SECOND


def patterns(found: Diagnosis) -> list[Pattern]:
    return [cause.pattern for cause in found.causes]


def permute(source: int, *targets: int, program: int = 1000, **more) -> Step:
    return Step(0, program, op=Op.PERMUTE, reduction=0, source=source, targets=targets, **more)
