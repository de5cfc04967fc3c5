"""A fault in one process becomes an exception in the others, in time, that names the culprit.

That the death of the launcher leaves nothing behind: tests/launch/test_stop.py. That survivors of
process 0 live on: tests/launch/test_survivors.py. Waits of the application: tests/sync.
"""

from __future__ import annotations

import dataclasses

import pytest

from faults.harness import line, run_fault
from of_this_jax import needs_numbers, where_numbered
from support import assert_unsaid


@dataclasses.dataclass(frozen=True)
class Row:
    """A fault, and what the exception of each survivor has to say."""

    fault: str
    words: tuple[str, ...]
    n: int = 2
    d: int = 1
    culprit: int = 1
    diverges: bool = False
    """The process with the fault is alive, and raises too."""
    status: int | None = None
    """With which the process with the fault ends, where it does not raise."""
    first: str = ""
    """What the launcher says of the first failure."""


def row(fault: str, *words: str, lane: str = "", by_number: bool = False, **more) -> object:
    """``by_number``: nothing but the numbers of executions shows this fault."""
    built = Row(fault, words, **more)
    name = f"{fault}, {built.n}x{built.d}, process {built.culprit}"
    marks = [getattr(pytest.mark, lane)] if lane else []
    marks += [needs_numbers] * by_number
    return pytest.param(built, id=name, marks=marks)


def at(marked: str) -> str:
    return where_numbered(line(marked))


def of(marked: str, program: str) -> str:
    return where_numbered(f", {line(marked)} in {program}")


def moved(marked: str, program: str = "moved") -> str:
    return where_numbered(rf", {program} \(first used at {line(marked)}\)")


GIVEN = r"(?:, given x: [a-z0-9]+\[[\d,]+\])?"
"""Known where the program is known."""
TOTAL, OTHER = of("total", "total"), line("other_total")
GATHERED, RING, BACK = of("gathered", "gathered"), at("ring"), at("ring_back")
MOVE, MORE, ALL = moved("move"), moved("move_more"), moved("gather_all", "_identity_fn")
KILLED = (
    r"^\S+: (Buffer Definition Event: )?MPI error: "  # jaxlib 0.8.0 has the three words between
    r"lockstep: process {} \(pid \d+ on .*\) was killed by SIGKILL"
)
SIGKILL = "killed by SIGKILL (signal 9)"
CIRCLE = r"a circle of waits|these must be the same"

DEATHS = [
    row("kill", KILLED.format(0), culprit=0, status=-9, first=SIGKILL, lane="slow"),
    row("kill", KILLED.format(1), "after 3 collectives", n=3, d=2, status=-9, first=SIGKILL),
    row("kill", KILLED.format(2), n=4, culprit=2, status=-9, first=SIGKILL, lane="slow"),
    row(
        "exception",
        r"process 1 \(pid \d+ on .*failed: FileNotFoundError: no such file: data.npz",
        status=1,
        first="FileNotFoundError: no such file: data.npz",
    ),
    row("exception", r"process 0 \(.*failed: FileNotFoundError", culprit=0, status=1, lane="slow"),
    row("exit", r"process 1 \(.*ended.* after 3 collectives", TOTAL, status=0, lane="full"),
    row("exit", r"process 0 \(.*ended.* after 3 collectives", culprit=0, status=0, lane="slow"),
    row("exit in the compiler", r"process 1 \(.*failed with exit code 7", status=7, lane="full"),
    row("out of memory", r"process 1 \(.*Unable to allocate 32", status=1, lane="full"),
    row(
        "shorter loop",
        r"process 1 \(.*ended.* after 3 collectives",
        rf"waits? in .*4th: all-reduce \(sum\) of 1000 x f32{TOTAL}",
        "Likely: a loop with fewer steps on process 1",
        status=0,
    ),
    row("shorter loop", r"process 0 \(.*ended", TOTAL, d=2, culprit=0, status=0, lane="slow"),
]
DIVERGENCES = [
    row(
        "shape",
        # On a busy machine two of them find the fault before the third has come.
        rf"process 1 \(.*\) called all-reduce \(sum\) of 1001 x f32{TOTAL}{GIVEN}(?:: as the|, "
        rf"where processes 0, 2 called all-reduce \(sum\) of 1000 x f32{TOTAL})",
        rf"called all-reduce \(sum\) of 1000 x f32{TOTAL}",
        "as the 4th collective on 3 devices",
        "Likely: different shapes",
        n=3,
        diverges=True,
    ),
    row("shape", "of 1001 x f32", "of 1000 x f32", TOTAL, d=2, diverges=True, lane="slow"),
    row(
        "argument",
        rf"process 0 \(.*\) called all-gather of 1000 x f32{MOVE}",
        rf"process 1 \(.*\) called all-gather of 1001 x f32{MORE}",
        "Likely: different shapes",
        diverges=True,
    ),
    row(
        "argument, made on a thread",
        rf"process 0 \(.*\) called all-gather of 1000 x f32{MOVE}",
        rf"process 1 \(.*\) called all-gather of 1001 x f32{where_numbered(', moved')}{GIVEN}: as",
        diverges=True,
        lane="full",
    ),
    row(
        "gathered data",
        rf"process 0 \(.*\) called all-reduce \(sum\) of 1000 x f32{TOTAL}",
        rf"process 1 \(.*\) called all-gather of 1000 x f32{ALL}",
        d=2,
        diverges=True,
        lane="full",
    ),
    row("permutation", rf"process 1 \(.*collective-permute.*{BACK}", RING, n=3, diverges=True),
    row("axis", at("along_x"), at("along_y"), d=2, diverges=True, lane="slow"),
    row("axis", at("along_y"), n=4, diverges=True, lane="slow"),
    row(
        "swapped",
        rf"process 0 \(.*\) called all-reduce \(sum\) of 1000 x f32{TOTAL}",
        rf"process 1 \(.*\) called all-gather of \d+ x f32{GATHERED}",
        diverges=True,
        lane="full",
    ),
    row(
        "swapped look-alikes",
        rf"process 0 \(.*\) called all-reduce \(sum\) of 1000 x f32{TOTAL}",
        # The fault comes before the two programs can be told apart by their numbers.
        rf"process 1 \(.*\) called all-reduce \(sum\) of 1000 x f32,.* {OTHER} in .*other_total",
        d=2,
        diverges=True,
        by_number=True,
    ),
    row(
        "swapped look-alikes",
        rf"process 0 \(.*\) called .*{OTHER} in .*other_total, where",
        n=4,
        culprit=0,
        diverges=True,
        by_number=True,
        lane="slow",
    ),
    row("crossing cliques", CIRCLE, at("along_x"), at("along_y"), d=2, diverges=True),
    row("circle of cliques", CIRCLE, at("along_x"), n=4, diverges=True, lane="full"),
    row(
        "one-sided program",
        OTHER,
        r"MPI error: lockstep: only process 1 \(.*\) called .* in other_total, where process 0 \(",
        diverges=True,
        by_number=True,
    ),
]


@pytest.mark.parametrize("row", [*DEATHS, *DIVERGENCES])
def test_all_survivors_raise_and_name_the_culprit(row: Row) -> None:
    outcome = run_fault(row.fault, n=row.n, d=row.d, culprit=row.culprit)
    survivors = [i for i in range(row.n) if i != row.culprit or row.diverges]
    for process in survivors:
        outcome.assert_raised(process, row.culprit, row.words)
        assert outcome.processes[process].status == 20 + process, outcome.result
    if not row.diverges:
        assert outcome.processes[row.culprit].status == row.status, outcome.result
    assert outcome.result.status != 0
    assert row.first in outcome.result.said_by_launcher.splitlines()[0], outcome.result


@pytest.mark.parametrize(
    "d", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_strict_compares_the_lines_that_make_a_call(d: int) -> None:
    seen = run_fault("swapped data", d=d, options=["--strict"])
    ours, theirs = (
        rf"process {process} \(.*\) called all-reduce \(sum\) of 1000 x f32{TOTAL}, "
        rf"called from {line(name)}:\d+-\d+ in "
        for process, name in enumerate(("once", "five_times"))
    )
    for process in range(2):
        seen.assert_raised(process, 1, [ours, theirs, "Likely: the same calls in opposite order"])
    assert ", called from " in seen.result.said_by_launcher, seen.result
    assert_unsaid("nothing is wrong", seen.result.said_by_launcher)


@pytest.mark.slow
def test_the_default_does_not_see_one_program_called_with_other_data() -> None:
    # The same program at the same place: nothing but the line tells the two calls apart.
    unseen = run_fault("swapped data")
    assert all("number" in told.said for told in unseen.processes), unseen.result
