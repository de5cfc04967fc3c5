"""The place in the data is saved beside the model, and restored on other numbers of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import Result, run_lockstep

PROGRAM = Path(__file__).parent / "checkpoint_job.py"


def run(folder: Path, kind: str, action: str, n: int) -> list[list[str]]:
    """What each process printed."""
    arguments = [str(folder), kind, action]
    result: Result = run_lockstep(
        [], PROGRAM, n=n, timeout=120, program_args=arguments, forked=True
    )
    return [result.by_process[process] for process in range(n)]


def numbers(lines: list[str]) -> list[list[int]]:
    return [[int(x) for x in line.split()[1:]] for line in lines if line.startswith("rows")]


@pytest.mark.full
@pytest.mark.parametrize("more", [1, 3])
def test_an_indexed_source_goes_on_with_the_next_row_on_any_number(
    tmp_path: Path, more: int
) -> None:
    lines = run(tmp_path, "indexed", "save", n=2)[0]
    saved = lines.index("saved")
    first, rest = numbers(lines[:saved]), numbers(lines[saved:])
    assert sorted(row for batch in first + rest for row in batch) == list(range(53))
    for resumed in run(tmp_path, "indexed", "restore", n=more):
        assert numbers(resumed) == rest


@pytest.mark.full
def test_a_source_of_local_rows_goes_on_on_as_many_processes_and_says_so_on_others(
    tmp_path: Path,
) -> None:
    lines = run(tmp_path, "local", "save", n=2)[0]
    saved = lines.index("saved")
    rest = numbers(lines[saved:])
    assert len(rest) == 5  # process 1 has 37 rows
    assert [numbers(lines) for lines in run(tmp_path, "local", "restore", n=2)] == [rest, rest]
    for lines in run(tmp_path, "local", "restore", n=3):
        assert "has the rows of process 0 of 2" in lines[0]
        assert "goes on with any number" in lines[0]
