"""Where programs were first used: noted once, and never guessed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.callsites.first_use import Uses
from lockstep.flight_recorder.run_records import Caller

LINES = [Caller("train.py", number, "main") for number in range(3)]


def noted(*lines: Caller | None) -> Uses:
    uses = Uses()
    for line in lines:
        uses.note(b"program", line)
    return uses


def test_a_line_that_came_later_is_reported_once() -> None:
    uses = noted(LINES[0])
    assert uses.fresh() == set()
    uses.note(b"program", LINES[1])
    assert uses.fresh() == {b"program"}
    uses.note(b"program", LINES[1])
    assert uses.fresh() == set()


@given(st.lists(st.sampled_from([None, *LINES])))
def test_lines_are_those_noted_in_their_order(lines: list[Caller | None]) -> None:
    uses = noted(*lines)
    known = [line for line in dict.fromkeys(lines) if line]
    assert list(uses.of(b"program")) == (known if lines and lines[0] else [])
    assert uses.of(b"another") == ()


def test_the_thread_is_that_of_all_uses_or_not_known() -> None:
    uses = Uses()
    assert uses.thread(b"program") == ""
    uses.note(b"program", LINES[0], "prefetch")
    uses.note(b"program", LINES[1], "prefetch")
    uses.note(b"other", LINES[1], "MainThread")
    assert (uses.thread(b"program"), uses.thread(b"other")) == ("prefetch", "MainThread")
    uses.note(b"program", LINES[0], "MainThread")
    assert uses.thread(b"program") == ""
