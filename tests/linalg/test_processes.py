"""The same calls on several processes, over the engine and over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanes import is_make_test, sample
from support import Result, run_lockstep

PROGRAMS = Path(__file__).parent / "programs"


def run(name: str, d: int, request: pytest.FixtureRequest, *options: str) -> Result:
    """A program on two processes of ``d`` devices."""
    quick = ["quick"] if is_make_test(request.config) else []
    program = PROGRAMS / f"{name}.py"
    return run_lockstep(options, program, d=d, timeout=200, forked=True, program_args=quick)


@sample(
    ("program", "collectives", "d"),
    [
        ("solve", "lockstep", 1),
        ("solve", "lockstep", 2),
        ("solve", "gloo", 1),
        ("decompose", "lockstep", 1),
        ("decompose", "lockstep", 2),
        ("decompose", "gloo", 1),
        ("lineax_solve", "lockstep", 1),
    ],
    *(1,),
)
def test_two_processes(
    program: str, collectives: str, d: int, request: pytest.FixtureRequest
) -> None:
    result = run(program, d, request, "--collectives", collectives)
    for process in range(2):  # gloo speaks on stdout too
        assert result.by_process[process].count("right") == 1, result


@pytest.mark.full
@pytest.mark.parametrize("d", [1, 2])
def test_every_process_gives_the_same_verdict(d: int, request: pytest.FixtureRequest) -> None:
    """On matrices that are not Hermitian."""
    result = run("not_hermitian", d, request)
    assert result.by_process[0] == result.by_process[1], result
    refused = "a is not symmetric: a[40, 3] is"
    kinds = [refused if refused in line else line for line in result.by_process[0]]
    half = ["solved", refused, refused]
    assert kinds == [*half, *half, "solved", refused, "still there"], result
