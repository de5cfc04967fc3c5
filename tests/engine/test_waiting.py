"""Deadlines and divergence: every waiting process raises, names process and call, and can go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanes import sample
from support import run_lockstep

PROGRAM = Path(__file__).parent / "programs" / "waiting.py"


def errors(case: str, n: int, d: int, timeout: str = "2") -> dict[int, str]:
    """What each process caught. All of them must have gone on after it, and fail again."""
    result = run_lockstep(
        ["--collective-timeout", timeout],
        PROGRAM,
        n=n,
        d=d,
        program_args=[case],
        timeout=90,
        forked=True,
    )
    caught = {}
    for process in range(n):
        lines = dict(line.split(": ", 1) for line in result.by_process[process] if ": " in line)
        assert {"error", "again", "busy"} <= lines.keys(), result
        caught[process] = lines["error"]
        busy, looks = map(int, lines["busy"].split(" of "))
        # A wait that spins is busy at every look.
        assert looks < 20 or busy < looks / 2, f"process {process} did not sleep: {result}"
    return caught


@sample(
    ("case", "words"),
    [
        ("psum", "all-reduce (sum) of 8 x f32"),
        ("psum_scatter", "reduce-scatter (sum) of"),
        ("all_gather", "all-gather of"),
        ("all_to_all", "all-to-all of"),
        ("ppermute", "collective-permute of 32 bytes"),
    ],
    0,
)
def test_the_deadline_names_the_operation_and_the_missing_processes(case: str, words: str) -> None:
    caught = errors(case, n=3 if case == "psum" else 2, d=2)
    last = len(caught) - 1
    for process, text in caught.items():
        assert words in text, text
        assert re.search(rf"Not arrived: [^|]*process {last} \(pid \d+ on \S+\)", text), text
        assert not re.search(r"Not arrived: [^|]*process 0", text), text
        assert "waited 2 s" in text, text
        assert "LOCKSTEP_COLLECTIVE_TIMEOUT" in text, (process, text)
        assert re.search(r"\| .* waits? in (its|their) [12](st|nd).*, waiting\.py:\d+ in ", text), (
            text
        )


@sample(
    ("case", "ours", "theirs"),
    [
        ("length", "all-reduce (sum) of 8 x f32", "all-reduce (sum) of 9 x f32"),
        ("dtype", "all-reduce (sum) of 8 x f32", "all-reduce (sum) of 8 x s32"),
        ("reduction", "all-reduce (sum) of 8 x f32", "all-reduce (max) of 8 x f32"),
        ("operation", "all-reduce (sum) of 8 x f32", "all-gather of 8 x f32"),
        ("order", "all-reduce (sum) of 8 x f32", "all-gather of 8 x f32"),
    ],
    4,
)
def test_different_collectives_raise_on_all_with_both_descriptions(
    case: str, ours: str, theirs: str
) -> None:
    for text in errors(case, n=2, d=2, timeout="30").values():
        assert "these must be the same" in text, text
        assert re.search(rf"process 0 \(pid \d+ on \S+\) called {re.escape(ours)}", text), text
        assert re.search(rf"process 1 \(pid \d+ on \S+\) called {re.escape(theirs)}", text), text


@pytest.mark.full
def test_a_permute_of_different_lengths_raises_on_all() -> None:
    for text in errors("permuted length", n=2, d=1, timeout="30").values():
        assert "collective-permute" in text, text
        assert re.search(r"of 32 B to rank 1.* of 36 B to rank 0", text), text
        assert "the send does not match the receive" in text, text
