"""Times of different hosts are compared only as far as their clocks are known."""

from __future__ import annotations

import pytest

from lockstep.flight_recorder.format import Entry, ProcessRecord, Ring, State
from lockstep.flight_recorder.run_records import Process, Run
from lockstep.flight_recorder.timeline import History
from lockstep.flight_recorder.wait_graph import endings, waits

CLIQUE, OTHER = 5, 6
BEGAN = 1_000_000
"""When device 0 came to the collective in which it is."""


def entry(number: int, clique: int, sequence: int, began: int, state: State) -> Entry:
    ended = began + 1 if state == State.DONE else 0
    return Entry(number, clique, 9, 1, 4, 16, sequence, 0, 9, 1, state, began, ended, ended)


def record(process: int, written: int, *entries: Entry) -> ProcessRecord:
    ring = Ring(process, 0, written, entries)
    cliques = ((CLIQUE, (0, 1)), (OTHER, (1, 2)))
    label, host = f"process {process}", "ab"[process]
    return ProcessRecord(process, 2, 1, host, label, cliques=cliques, rings=(ring,))


@pytest.mark.parametrize(("error", "absent"), [(0, (1,)), (50, ()), (5, (1,))])
def test_what_a_host_ran_before_another_one_waits_counts_beyond_the_error_of_the_clocks(
    error: int, absent: tuple[int, ...]
) -> None:
    waiting = record(0, 1, entry(1, CLIQUE, 7, BEGAN, State.ENTERED))
    # What it ran before its ring began is lost: perhaps that collective, if it ran after BEGAN.
    elsewhere = record(1, 900, entry(900, OTHER, 900, BEGAN - 10, State.DONE))
    run = Run((Process(0, waiting), Process(1, elsewhere)), clock_error_ns=error)
    history = History(run)
    [wait] = waits(history, [], endings(history))
    assert wait.absent == absent
