"""Comparing the launches of processes through the store."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_job import Client
from lockstep.flight_recorder.format import Entry, Op, ProcessRecord, Ring, State
from lockstep.job.kv_store import Store
from lockstep.programs.compilations import Program
from lockstep.watchdog.launch_comparison import Launches, _Group

OWNER = {0: 0, 2048: 1, 4096: 2}
CLIQUE = 7


@dataclasses.dataclass
class Process:
    """One process, and what it launches."""

    number: int
    store: Store
    members: tuple[int, ...] = tuple(OWNER)
    executables: dict[int, str] = dataclasses.field(default_factory=dict)
    """What the compiler has made of a program, by its run id."""

    def __post_init__(self) -> None:
        self.launches = Launches(self.store, self.number, OWNER, self.programs)
        self.entries: list[Entry] = []
        self.first = 0

    def begins_at(self, number: int) -> None:
        """As if it had launched so many before."""
        self.first = number
        group = self.launches._groups.setdefault(CLIQUE, _Group())
        group._next = number

    def programs(self) -> dict[int, Program]:
        made = self.executables.items()
        return {i: Program("jit_step", "", str(i), (0, 2048), "", executable=e) for i, e in made}

    def launch(self, *run_ids: int) -> None:
        for run_id in run_ids:
            at = len(self.entries)
            sequence = (self.first + at) % 2**32
            self.entries.append(
                Entry(
                    at + 1, CLIQUE, run_id, 1, 0, 0, sequence, Op.PROGRAM, 0, 0, State.DONE, 1, 1, 1
                )
            )

    def differs(self, is_last: bool = False) -> bool:
        ring = Ring(0, 0, len(self.entries), tuple(self.entries[-1024:]))
        record = ProcessRecord(
            self.number, 3, 1, "vm", "", cliques=((CLIQUE, self.members),), rings=(ring,)
        )
        return self.launches.differ(record, is_last)


def two() -> tuple[Process, Process]:
    store = Store(Client())
    return Process(0, store), Process(1, store)


def test_equal_launches_are_no_news_however_far_each_process_is() -> None:
    first, second = two()
    first.launch(*[5, 6] * 100)
    second.launch(*[5, 6] * 70)
    assert not first.differs()
    assert not second.differs()
    second.launch(*[5, 6] * 100)
    assert not second.differs()


def test_another_program_is_found_where_it_was_launched() -> None:
    first, second = two()
    first.launch(5, 6, 5)
    second.launch(5, 5, 6)
    assert not first.differs()
    assert second.differs()
    assert second.launches.where == " as their launch number 2"


def test_a_difference_that_is_long_ago_is_found() -> None:
    first, second = two()
    first.launch(5, 6, *[5] * 500)
    second.launch(5, 5, *[5] * 500)
    first.differs()
    assert second.differs()
    assert "before their launch number" in second.launches.where


def test_a_launch_that_is_not_known_differs_from_none() -> None:
    first, second = two()
    first.launch(5, 0, *[5] * 200)
    second.launch(5, 6, *[5] * 200)
    first.differs()
    assert not second.differs()


def test_programs_of_some_processes_are_compared_with_the_first_of_them() -> None:
    store = Store(Client())
    second, third = (Process(number, store, (2048, 4096)) for number in (1, 2))
    second.launch(5)
    third.launch(6)
    assert not second.differs()
    assert third.differs()


@pytest.mark.parametrize("launches", [3, 300])
def test_modules_that_became_one_executable_are_one_program(launches: int) -> None:
    """One process has restored from a checkpoint what the other starts with on one device."""
    first, second = two()
    first.executables = second.executables = {5: "one", 6: "one", 7: "another"}
    first.launch(5, *[6] * launches)
    second.launch(6, *[6] * launches)
    assert not first.differs()
    assert not second.differs()
    second.launch(7)
    first.launch(6)
    first.differs()
    assert second.differs()


@pytest.mark.parametrize("launches", [3, 300])
def test_one_module_that_became_two_executables_is_one_program(launches: int) -> None:
    """Hosts with other numbers of cores compile it in other ways."""
    first, second = two()
    first.executables, second.executables = {5: "on 2 cores"}, {5: "on 64 cores"}
    first.launch(*[5] * launches)
    second.launch(*[5] * launches)
    assert not first.differs()
    assert not second.differs()


def test_whichever_process_ends_last_sees_what_differs() -> None:
    for order in ((0, 1), (1, 0)):
        processes = two()
        processes[0].launch(5, 6)
        processes[1].launch(5, 7)
        assert [processes[i].differs(is_last=True) for i in order] == [False, True]


@given(st.lists(st.integers(1, 3), max_size=300), st.data())
def test_any_one_other_launch_is_found(runs: list[int], data: st.DataObject) -> None:
    first, second = two()
    first.launch(*runs)
    changed = list(runs)
    if runs:
        at = data.draw(st.integers(max(0, len(runs) // 64 * 64 - 64), len(runs) - 1))
        changed[at] = 9
    second.launch(*changed)
    first.differs()
    assert second.differs() is bool(runs)


FIRST = 2**32 - 100
"""Sequences of launches have 32 bits."""


def two_that_begin_late() -> tuple[Process, Process]:
    first, second = two()
    for each in (first, second):
        each.begins_at(FIRST)
    return first, second


def test_equal_launches_are_no_news_where_their_numbers_wrap() -> None:
    first, second = two_that_begin_late()
    for _ in range(5):
        first.launch(*[5, 6] * 20)
        second.launch(*[5, 6] * 20)
        assert not first.differs()
        assert not second.differs()


@pytest.mark.parametrize("before", [10, 97, 100, 101, 150, 700])
def test_a_difference_is_found_on_both_sides_of_the_wrap(before: int) -> None:
    first, second = two_that_begin_late()
    first.launch(*[5] * before, 6, *[5] * 100)
    second.launch(*[5] * before, 5, *[5] * 100)
    assert not first.differs()
    assert second.differs()
