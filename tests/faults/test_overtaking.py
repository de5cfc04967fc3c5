"""What JAX itself brings out of order never ends in a wrong number."""

from __future__ import annotations

import json

import pytest

from faults.harness import PROGRAMS, TIMEOUT
from support import run_lockstep

RIGHT = [[2.0, 2.0], [20.0]]
ROUNDS = 10
"""Of the program. JAX 0.10 overtakes in the second one."""


@pytest.mark.full
def test_a_program_that_overtakes_another_raises_or_gives_the_right_numbers() -> None:
    program = PROGRAMS / "overtaking.py"
    result = run_lockstep([], program, d=2, timeout=TIMEOUT, forked=True, expect_status=None)
    outcomes = [[json.loads(line) for line in result.by_process[process]] for process in (0, 1)]
    for *numbers, last in outcomes:
        assert numbers == [RIGHT] * len(numbers), result
        if isinstance(last, str):
            assert "in at_once" in last, result
            assert "in after_work" in last, result
        else:  # in none of the rounds did JAX bring them out of order
            assert (last, len(numbers)) == (RIGHT, ROUNDS - 1), result
    # A process that raises does not leave the other one waiting, or with numbers of its own.
    [raised] = {isinstance(last, str) for *_, last in outcomes}
    # The program ends well, unless it does not read another result, which has failed too.
    assert result.status in ((0, 1) if raised else (0,)), result
