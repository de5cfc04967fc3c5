"""Faults whose diagnosis is easily mistaken: what the launcher's report says of them."""

from __future__ import annotations

from faults.harness import PROGRAMS, TIMEOUT, line
from of_this_jax import needs_numbers
from support import Result, start_lockstep

PROGRAM = PROGRAMS / "misleading.py"


def report_of(fault: str, *options: str) -> Result:
    """Runs a fault that is not caught."""
    args = ["-n", "2", "--grace", "5", "--collective-timeout", "60", *options]
    with start_lockstep(args, PROGRAM, [fault]) as run:
        result = run.finish(TIMEOUT)
        run.assert_nothing_left()
    assert result.status != 0, result
    return result


def at(marked: str) -> str:
    return line(marked, PROGRAM)


@needs_numbers
def test_a_last_batch_with_fewer_rows_is_told_by_its_shapes() -> None:
    said = report_of("last_batch").said_by_launcher
    assert f"{at('loss')} in loss, given x: f32[100,8]" in said, said
    assert f"{at('loss')} in loss, given x: f32[96,8]" in said, said
    assert "Likely: different shapes: x of loss is f32[" in said, said
    assert "process_index" not in said, said


@needs_numbers
def test_the_line_is_the_users_and_then_the_librarys() -> None:
    said = report_of("library").said_by_launcher
    library = line("statistics", PROGRAMS / "site-packages" / "mc_stats.py")
    assert f"{at('average')} in average, through {library} in statistics" in said, said
