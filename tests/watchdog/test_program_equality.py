"""Comparing the programs behind two numbers: what is not known in time stays unknown."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lockstep.watchdog.program_equality import Comparison, poll


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


class Shared:
    """The key-value store of a job."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def put(self, key: str, value: Any, overwrite: bool = False) -> None:
        self.held[key] = value

    def values(self, prefix: str) -> dict[str, Any]:
        begin = f"{prefix}/"
        return {k.removeprefix(begin): v for k, v in self.held.items() if k.startswith(begin)}


@dataclasses.dataclass
class OneCore:
    cpus: tuple[int, ...] = (0,)


NOTHING: dict[str, list[str]] = {"whole": [], "collectives": [], "exact": []}
LOADED: dict[str, list[str]] = {"whole": ["a"], "collectives": ["b"], "exact": ["a"]}


@pytest.mark.parametrize("there", [NOTHING, LOADED])
def test_a_program_that_was_not_found_is_neither_the_same_nor_another(
    there: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.programs.modules.publish", lambda store: None)
    store: Any = Shared()
    peers: Any = [OneCore(), OneCore()]
    one, other = (Comparison(store, peers, process) for process in (0, 1))
    one.publish({100: NOTHING}, {100: []})
    other.publish({900: there}, {900: []})
    assert one.same(100, 1, 900) is None
    assert other.same(900, 0, 100) is None
    one.publish({100: LOADED}, {100: []})
    assert other.same(900, 0, 100) is (None if there is NOTHING else True)
