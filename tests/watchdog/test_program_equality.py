"""Comparing the programs behind two numbers: what is not known in time stays unknown."""

from __future__ import annotations

from typing import Any

import pytest

from fake_job import Client, peer
from lockstep.job.kv_store import Store
from lockstep.programs.compilations import Program
from lockstep.watchdog import program_equality
from lockstep.watchdog.program_equality import Comparison, poll


def test_what_is_not_known_in_time_is_neither_yes_nor_no() -> None:
    refreshed: list[None] = []
    assert poll(lambda: None, lambda: refreshed.append(None), 0.1) is None
    assert refreshed


def test_the_answer_is_looked_for_until_it_is_there() -> None:
    for answer in (True, False):
        answers = [None, None, answer]
        assert poll(lambda: answers.pop(0), lambda: None, 10) is answer  # noqa: B023


def test_without_time_it_is_looked_for_once() -> None:
    assert poll(lambda: True, lambda: None, 0) is True
    assert poll(lambda: None, lambda: None, 0) is None


NOTHING: dict[str, list[str]] = {"whole": [], "collectives": [], "exact": []}
LOADED: dict[str, list[str]] = {"whole": ["a"], "collectives": ["b"], "exact": ["a"]}


@pytest.mark.parametrize("there", [NOTHING, LOADED])
def test_a_program_that_was_not_found_is_neither_the_same_nor_another(
    there: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.programs.modules.publish", lambda store: None)
    store, peers = Store(Client()), [peer(0), peer(1)]
    one, other = (Comparison(store, peers, process) for process in (0, 1))
    one.publish({100: NOTHING}, {100: []})
    other.publish({900: there}, {900: []})
    assert one.same(100, 1, 900) is None
    assert other.same(900, 0, 100) is None
    one.publish({100: LOADED}, {100: []})
    assert other.same(900, 0, 100) is (None if there is NOTHING else True)


SUM, MEAN = 1000, 900000
"""The first numbers of two programs."""


def program(name: str, *devices: int) -> Program:
    return Program(f"jit_{name}", "a.py:7", name, devices or (0, 1, 2), "")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[Comparison]:
    """Three processes; what they differ in is the digest and the devices of each one's program."""
    monkeypatch.setattr(program_equality, "_OTHERS_SECONDS", 0.0)
    monkeypatch.setattr("lockstep.programs.modules.publish", lambda store: None)
    monkeypatch.setattr(
        "lockstep.programs.modules.explain",
        lambda _, found: {p: (one.digest, one.devices) for p, one in found.items()},
    )
    store, peers = Store(Client()), [peer(process) for process in range(3)]
    return [Comparison(store, peers, process) for process in range(3)]


def publish(job: list[Comparison], programs: dict[int, Program], only: int | None = None) -> None:
    for process, one in enumerate(job):
        if only in (None, process):
            one.publish(dict.fromkeys(programs, LOADED), {n: [p] for n, p in programs.items()})


@pytest.mark.parametrize("own", [0, 1])
def test_what_a_third_process_runs_is_read_from_its_record(job: list[Comparison], own: int) -> None:
    """All have both programs by now, whichever of two processes is asked."""
    publish(job, {SUM: program("sum"), MEAN: program("mean")})
    mine, theirs = (SUM + 5, MEAN + 3) if own == 0 else (MEAN + 3, SUM + 5)
    found: Any = job[own].difference(mine, 1 - own, theirs, lambda p, n: (p, n) == (2, SUM + 5))
    assert {p: name for p, (name, _) in found.items()} == {0: "sum", 1: "mean", 2: "sum"}
    found = job[own].difference(mine, 1 - own, theirs)  # on a host whose records cannot be read
    assert {p: name for p, (name, _) in found.items()} == {0: "sum", 1: "mean"}


def test_meshes_that_differ_are_told(job: list[Comparison]) -> None:
    turned = (2, 1, 0)
    for process in range(3):
        publish(job, {SUM + process: program("sum", *(turned if process == 1 else ()))}, process)
    executions = {process: SUM + process for process in range(3)}
    found: Any = job[0].meshes(executions)
    assert {p: devices for p, (_, devices) in found.items()} == {
        0: (0, 1, 2),
        1: turned,
        2: (0, 1, 2),
    }
    # Process 1 has the program of the others too: then its order differs, and not its mesh.
    publish(job, {SUM + 1: program("sum", *turned), MEAN: program("sum")}, 1)
    assert job[0].meshes(executions) is None
    assert job[0].meshes({0: SUM, 2: SUM + 2}) is None
