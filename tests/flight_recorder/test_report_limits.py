"""How much a report says: its limit, and the table of many processes."""

from __future__ import annotations

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from flight_recorder.jobs import diagnosed, steps
from flight_recorder.simulate import site
from lockstep._run_files import Exit
from lockstep.flight_recorder.diagnose import Diagnosis
from lockstep.flight_recorder.diagnosis_headline import headline
from lockstep.flight_recorder.phrases import place_in_program
from lockstep.flight_recorder.text_report import short, table


@functools.cache
def last_left(processes: int) -> Diagnosis:
    plans = [steps(9)] * (processes - 1) + [steps(5)]
    return diagnosed(*plans, exits={processes - 1: Exit(exit_code=0)})


@settings(deadline=None)
@given(st.sampled_from([2, 3, 7, 20]), st.integers(150, 3000))
def test_the_limit_is_kept_and_no_row_is_cut(processes: int, limit: int) -> None:
    found = last_left(processes)
    text = short(found, limit)
    assert len(text.encode()) <= limit
    first, *rows = text.splitlines()
    if limit >= 1000:
        assert first == headline(found)
        assert rows[0].startswith(f"  process {processes - 1} (pid")
        shown = [row for row in rows if row.startswith("  process")]
        assert all("in step" in row or "after 5" in row for row in shown)
        rest = processes - len(shown)
        assert (f"  and {rest} process{'es' if rest > 1 else ''} more" in rows) is (rest > 0)


def test_many_processes_that_do_the_same_are_one_row_of_the_table() -> None:
    found = last_left(20)
    lines = table(found).splitlines()
    assert lines[2].startswith("> process 19 (pid 119 on host a): ended (exit code 0)")
    assert "  19 processes: waits for process 19 in all-reduce (sum) of 1024 x f32" in table(found)
    assert sum(line.strip().startswith("process ") for line in lines[3:]) == 19


def test_the_table_shows_whole_paths_and_all_likely_causes() -> None:
    text = table(diagnosed(steps(50), steps(37), exits={1: Exit(exit_code=0)}))
    assert "/home/u/train.py:41 in step" in text
    assert text.endswith("under an `if` (--strict finds one on another line).")


def test_several_lines_that_fit_are_all_named() -> None:
    sites = [site(1, line=n, name="step") for n in (3, 5, 7, 9, 11)]
    assert place_in_program(sites[:2]) == "train.py:3 or train.py:5 in step"
    assert place_in_program(sites) == "train.py:3 or train.py:5 or train.py:7 or 2 more in step"
