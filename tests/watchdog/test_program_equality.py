"""Comparing the programs behind two numbers: what is not known in time stays unknown."""

from __future__ import annotations

from lockstep.watchdog.program_equality import poll


def test_what_is_not_known_in_time_is_neither_yes_nor_no() -> None:
    refreshed: list[None] = []
    assert poll(lambda: None, lambda: refreshed.append(None), 0.1) is None
    assert refreshed


def test_the_answer_is_looked_for_until_it_is_there() -> None:
    for answer in (True, False):
        answers = [None, None, answer]
        assert poll(lambda: answers.pop(0), lambda: None, 10) is answer  # noqa: B023


def test_without_time_it_is_looked_for_once() -> None:
    assert poll(lambda: True, lambda: None, 0) is True
    assert poll(lambda: None, lambda: None, 0) is None
