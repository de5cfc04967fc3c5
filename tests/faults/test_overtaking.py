"""What JAX itself brings out of order never ends in a wrong number."""

from __future__ import annotations

import json

from faults.harness import PROGRAMS, TIMEOUT
from support import run_lockstep

RIGHT = [[2.0, 2.0], [20.0]]


def test_a_program_that_overtakes_another_raises_or_gives_the_right_numbers() -> None:
    program = PROGRAMS / "overtaking.py"
    result = run_lockstep([], program, d=2, timeout=TIMEOUT, expect_status=None)
    said = [json.loads(line) for lines in result.by_process.values() for line in lines]
    assert {*result.by_process} == {0, 1}, result
    for outcome in said:
        if isinstance(outcome, str):
            assert "in at_once" in outcome, result
            assert "in after_work" in outcome, result
        else:
            assert outcome == RIGHT, result
