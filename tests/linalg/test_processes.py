"""The same calls on several processes, over the engine and over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanes import is_make_test, sample
from support import run_lockstep

PROGRAMS = Path(__file__).parent / "programs"


@sample(
    ("program", "collectives", "d"),
    [
        ("solve", "lockstep", 1),
        ("solve", "lockstep", 2),
        ("solve", "gloo", 1),
        ("decompose", "lockstep", 1),
        ("decompose", "lockstep", 2),
        ("decompose", "gloo", 1),
    ],
    *(1,),
)
def test_two_processes(
    program: str, collectives: str, d: int, request: pytest.FixtureRequest
) -> None:
    result = run_lockstep(
        ["--collectives", collectives],
        PROGRAMS / f"{program}.py",
        n=2,
        d=d,
        timeout=200,
        forked=True,
        program_args=["quick"] if is_make_test(request.config) else [],
    )
    for process in range(2):  # gloo speaks on stdout too
        assert result.by_process[process].count("right") == 1, result
