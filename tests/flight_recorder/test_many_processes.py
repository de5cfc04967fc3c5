"""A job of 1,024 processes on 64 hosts that fails: what is reported is one screen, and soon."""

from __future__ import annotations

import dataclasses
import functools

from flight_recorder.jobs import job, steps
from flight_recorder.simulate import STRIDE
from lockstep._run_files import ErrorRecord, Exit
from lockstep.flight_recorder.diagnose import Diagnosis, Kind, diagnose
from lockstep.flight_recorder.run_records import Process, Run
from lockstep.flight_recorder.text_report import table
from lockstep.launch.failure_report import headline, last_line
from lockstep.processes.first_failure import EndedProcess

COUNT = 1024
A_HOST = 16
DEAD = 700
SCREEN = 50


def as_process(template: Process, index: int) -> Process:
    """A process of the large job that has done what one of two has done."""
    assert template.record is not None
    [(clique, _)] = template.record.cliques
    [ring] = template.record.rings
    entries = tuple(entry._replace(rank=index) for entry in ring.entries)
    host = f"node{index // A_HOST}"
    record = dataclasses.replace(
        template.record,
        process=index,
        num_processes=COUNT,
        pid=1000 + index,
        host=host,
        label=f"process {index} (pid {1000 + index} on {host})",
        cliques=((clique, tuple(range(0, COUNT * STRIDE, STRIDE))),),
        rings=(dataclasses.replace(ring, device=index * STRIDE, entries=entries),),
    )
    return dataclasses.replace(template, index=index, record=record)


@functools.cache
def templates() -> tuple[Process, Process]:
    waits, died = job(steps(9), steps(5)).snapshot({1: Exit(signal=9)}).processes
    return waits, died


@functools.cache
def one_died() -> Diagnosis:
    waits, died = templates()
    processes = [as_process(died if i == DEAD else waits, i) for i in range(COUNT)]
    return diagnose(Run(tuple(processes)))


def test_the_table_is_one_screen_and_names_who_died() -> None:
    found = one_died()
    assert found.kind is Kind.KILLED
    assert found.culprits == (DEAD,)
    lines = table(found).splitlines()
    assert f"process {DEAD} (pid {1000 + DEAD} on node43) was killed by SIGKILL" in lines[0]
    assert "      processes 0-699, 701-1023 on 64 hosts" in lines
    assert len(lines) < SCREEN // 2
    assert max(map(len, lines)) < 400


def test_processes_that_each_do_something_else_are_one_screen() -> None:
    waits, died = templates()
    processes = [as_process(died if i == DEAD else waits, i) for i in range(COUNT)]
    notes = [dataclasses.replace(each, problems=(f"note {each.index}",)) for each in processes]
    lines = table(diagnose(Run(tuple(notes)))).splitlines()
    assert f"process {DEAD} (" in lines[0]
    assert any("processes more" in line for line in lines)
    assert any(line.startswith("Likely causes") or "  - " in line for line in lines)
    assert len(lines) < 2 * SCREEN


def ended(process: int) -> EndedProcess:
    """Process DEAD was killed, and each other one raises the engine's error about it."""
    host = f"node{process // A_HOST}"
    if process == DEAD:
        return EndedProcess(process, Exit(signal=9), 10.0, None, (), host)
    text = (
        f"lockstep: process {DEAD} (pid 1700 on node43) was killed by SIGKILL (signal 9) after 5 "
        f"collectives. process {process} waits in all-reduce (sum) of 1024 x f32, train.py:41"
    )
    record = ErrorRecord(10.0 + process / 1e4, 1, f"JaxRuntimeError: INTERNAL: {text}", text)
    return EndedProcess(process, Exit(exit_code=1), 11.0, record, (), host)


def test_the_launcher_s_report_is_one_screen() -> None:
    endings = [ended(process) for process in range(COUNT)]
    first = endings[DEAD]
    report = headline(first, endings, stopping_at=10.5)
    lines = "\n".join(report).splitlines()
    assert lines[0].startswith(f"process {DEAD} of {COUNT} on node43 failed first: killed by")
    assert len(lines) < SCREEN // 2
    assert f"process {DEAD} of {COUNT} on node43" in last_line(first, endings, COUNT, "")
