"""Launches of modules that became one executable are one program, on all processes."""

from __future__ import annotations

import dataclasses

from lockstep.flight_recorder import diagnose, run_records
from lockstep.flight_recorder.executables import unified
from lockstep.flight_recorder.format import Entry, Op, ProcessRecord, Ring, State
from lockstep.programs import launches
from lockstep.programs.compilations import Program

CLIQUE = 7


def process(index: int, run_ids: list[int], executables: dict[int, str]) -> run_records.Process:
    entries = tuple(
        Entry(at + 1, CLIQUE, run_id, 1, 0, 0, at, Op.PROGRAM, 0, 0, State.DONE, 1, 1, 1)
        for at, run_id in enumerate(run_ids)
    )
    ring = Ring(2048 * index, 0, len(entries), entries)
    record = ProcessRecord(index, 2, 1, "vm", "", cliques=((CLIQUE, (0, 2048)),), rings=(ring,))
    programs = {
        run_id: Program("jit_step", "a.py:7", str(run_id), (0, 2048), "", executable=made)
        for run_id, made in executables.items()
    }
    return run_records.Process(index, record, launches.sites_of(programs))


def kind_of(*processes: run_records.Process) -> diagnose.Kind:
    return diagnose.diagnose(run_records.Run(processes)).kind


def test_one_executable_of_two_modules() -> None:
    both = process(0, [5, 6, 6], {5: "one", 6: "one"}), process(1, [6, 6, 6], {6: "one"})
    assert kind_of(*both) is diagnose.Kind.NOTHING
    assert kind_of(both[0], process(1, [6, 7, 6], {6: "one", 7: "other"})).is_fault


def test_what_is_the_same_on_one_process_is_so_on_all() -> None:
    """Process 0 has compiled 5 and 6 to one executable, process 1 has 6 and 8 as another one."""
    first = process(0, [5, 6], {5: "on 2 cores", 6: "on 2 cores"})
    second = process(1, [8, 6], {6: "on 64 cores", 8: "on 64 cores"})
    assert kind_of(first, second) is diagnose.Kind.NOTHING


def test_collectives_and_records_without_programs_stay_as_they_are() -> None:
    one = process(0, [5], {5: "one"})
    assert unified([one]) == (one,)
    [site] = one.sites
    engines = dataclasses.replace(site, op="all-reduce", program=6)
    other = dataclasses.replace(process(1, [6], {}), sites=(engines,))
    assert unified([one, other]) == (one, other)
