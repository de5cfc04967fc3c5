"""The order of events, with jobs that are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockstep.bench.cases import Case
from lockstep.bench.job import JobFailed
from lockstep.bench.runner import MAX_FAILURES, MIN_SAMPLES, CaseResult, Jobs, Runner

GIB = 1 << 30
SMALL = Case.of_size("permute", 1024, 2, "f32")
LARGE = Case.of_size("all_reduce", 1 << 20, 2, "f32")
Answers = list[dict[str, Any]]


class FakeJob:
    """Two processes, the second slower by half; every collective takes ``seconds``."""

    def __init__(self, name: str, seconds: float, log: list[tuple[str, str]]) -> None:
        self.name = name
        self.seconds = seconds
        self.log = log
        self.closed = False
        self.spoil: Callable[[str, Answers], Answers] = lambda order, answers: answers

    def request(self, order: str, timeout: float, **values: Any) -> Answers:
        self.log.append((self.name, order))
        answers: Answers = [{}, {}]
        if order == "prepare":
            answers = [{"wrong": 0, "collectives": 1, "copies": 0}] * 2
        if order == "block":
            times = [values["k"] * self.seconds] * values["samples"]
            calls = [self.seconds] * values["calls"]
            slow = [1.5 * time for time in times]
            answers = [
                {"loop": times, "call": calls, "wrong": 0},
                {"loop": slow, "call": calls, "wrong": 0},
            ]
        if order == "copy":
            answers = [{"rate": 1e10}, {"rate": 2e10}]
        return self.spoil(order, answers)

    def close(self) -> None:
        self.closed = True


class Fleet:
    """Starts fake jobs and remembers them."""

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds
        self.log: list[tuple[str, str]] = []
        self.started: list[FakeJob] = []
        self.spoil: dict[str, Callable[[str, Answers], Answers]] = {}

    def start(self, name: str) -> FakeJob:
        job = FakeJob(name, self.seconds[name], self.log)
        job.spoil = self.spoil.get(name, job.spoil)
        self.started.append(job)
        return job

    def runner(self, blocks: int = 4, available: int = 8 * GIB) -> Runner:
        return Runner(Jobs(self.start), tuple(self.seconds), blocks, 10.0, available)


def statuses(result: CaseResult) -> dict[str, str]:
    return {name: m.status for name, m in result.by_implementation.items()}


def fail(order_that_fails: str) -> Callable[[str, Answers], Answers]:
    def spoil(order: str, answers: Answers) -> Answers:
        if order == order_that_fails:
            raise JobFailed("terminate called: connection reset")
        return answers

    return spoil


def test_implementations_take_turns_and_change_the_first_one() -> None:
    fleet = Fleet(a=1e-3, b=5e-3)
    result = fleet.runner().run(SMALL)
    assert statuses(result) == {"a": "ok", "b": "ok"}
    last_preparation = max(i for i, (_, order) in enumerate(fleet.log) if order == "prepare")
    turns = [name for name, order in fleet.log[last_preparation:] if order == "block"]
    assert "".join(turns).endswith("abbaabba")


def test_a_sample_is_the_slowest_process_over_the_number_of_turns() -> None:
    measurement = Fleet(a=1e-3).runner(blocks=2).run(SMALL).by_implementation["a"]
    assert measurement.loop == 13
    assert {round(s, 9) for block in measurement.blocks for s in block} == {1.5e-3}
    assert set(measurement.calls) == {1e-3}


def test_a_case_that_takes_longer_than_a_block_has_several_samples_all_the_same() -> None:
    measurement = Fleet(a=0.5).runner(blocks=2).run(SMALL).by_implementation["a"]
    assert [len(block) for block in measurement.blocks] == [MIN_SAMPLES, MIN_SAMPLES]


def test_the_copy_runs_once_a_block_and_only_for_a_large_all_reduce() -> None:
    fleet = Fleet(a=1e-3, b=1e-3)
    assert fleet.runner().run(LARGE).copy_rates == [3e10] * 4
    assert fleet.runner().run(SMALL).copy_rates == []


def test_a_failure_is_reported_and_the_other_goes_on() -> None:
    fleet = Fleet(a=1e-3, b=1e-3)
    fleet.spoil["b"] = fail("block")
    runner = fleet.runner()
    result = runner.run(SMALL)
    assert statuses(result) == {"a": "ok", "b": "failed"}
    assert "connection reset" in result.by_implementation["b"].reason
    assert len(result.by_implementation["a"].blocks) == 4
    assert [job.closed for job in fleet.started] == [False, True]
    del fleet.spoil["b"]
    assert statuses(runner.run(SMALL)) == {"a": "ok", "b": "ok"}


def test_an_implementation_that_never_works_is_given_up() -> None:
    fleet = Fleet(a=1e-3, b=1e-3)
    fleet.spoil["b"] = fail("prepare")
    runner = fleet.runner(blocks=1)
    for _ in range(MAX_FAILURES):
        runner.run(SMALL)
    result = runner.run(SMALL)
    assert "connection reset" in result.by_implementation["b"].reason
    assert sum(job.name == "b" for job in fleet.started) == MAX_FAILURES


@pytest.mark.parametrize(
    ("found", "status", "reason"),
    [
        ({"wrong": 7}, "wrong", "14 elements"),
        ({"collectives": 2}, "failed", "2 collectives"),  # the compiler has changed the program
    ],
)
def test_what_is_wrong_from_the_start_is_not_timed(
    found: dict[str, int], status: str, reason: str
) -> None:
    def spoil(order: str, answers: Answers) -> Answers:
        return [a | found for a in answers] if order == "prepare" else answers

    fleet = Fleet(a=1e-3)
    fleet.spoil["a"] = spoil
    measurement = fleet.runner().run(SMALL).by_implementation["a"]
    assert (measurement.status, measurement.blocks) == (status, [])
    assert reason in measurement.reason


def test_blocks_with_wrong_numbers_are_left_out() -> None:
    fleet = Fleet(a=1e-3)
    blocks = [0]

    def spoil(order: str, answers: Answers) -> Answers:
        blocks[0] += order == "block"
        # The first two are the calibration, then come the four that count.
        return [a | {"wrong": 1} for a in answers] if blocks[0] == 4 else answers

    fleet.spoil["a"] = spoil
    measurement = fleet.runner().run(SMALL).by_implementation["a"]
    assert measurement.status == "ok"
    assert measurement.wrong_blocks == 1
    assert measurement.reason == "1 of 4 blocks gave wrong numbers"
    assert [bool(block) for block in measurement.blocks] == [True, False, True, True]


def test_a_case_without_room_is_skipped_by_all() -> None:
    fleet = Fleet(a=1e-3, b=1e-3)
    result = fleet.runner(available=1 << 20).run(LARGE)
    assert statuses(result) == {"a": "skipped", "b": "skipped"}
    assert "may be used" in result.by_implementation["a"].reason
    assert fleet.started == []


def test_closing_closes_every_job() -> None:
    fleet = Fleet(a=1e-3, b=1e-3)
    jobs = Jobs(fleet.start)
    Runner(jobs, ("a", "b"), 1, 10.0, GIB).run(SMALL)
    jobs.close()
    assert [job.closed for job in fleet.started] == [True, True]
