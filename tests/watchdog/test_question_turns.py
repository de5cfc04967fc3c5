"""Who asks where 1,024 processes wait: simulated, each with its own phase of a second."""

from __future__ import annotations

import random

from lanes import sample
from lockstep.watchdog.question_turns import AT_ONCE, Turns

COUNT = 1024
PAUSES = [3.0, 6.0, 12.0, 24.0, 48.0, 96.0, 156.0, 216.0, 276.0, 336.0, 396.0, 456.0, 516.0, 576.0]
"""When a process that waits may ask (`store_watch`)."""


def simulate(killed: frozenset[int], seed: int) -> dict[float, list[int]]:
    """The processes that ask in each round. Those ``killed`` have noted that they wait before."""
    draw = random.Random(seed)
    waiting, asked = set(killed), dict[int, int]()
    phases = {process: draw.random() for process in range(COUNT) if process not in killed}
    turns = {process: Turns(process) for process in phases}
    found: dict[float, list[int]] = {}
    for at in PAUSES:
        for process in sorted(phases, key=lambda each: phases[each]):
            waiting.add(process)
            if turns[process].is_mine(waiting, asked):
                asked[process] = asked.get(process, 0) + 1
                found.setdefault(at, []).append(process)
    return found


@sample("seed", range(5), 0)
def test_few_ask_where_all_wait(seed: int) -> None:
    found = simulate(frozenset(), seed)
    assert 0 in found[PAUSES[0]]
    # By chance a high one may be among the first that look; they see the notes of all later.
    assert len(found[PAUSES[0]]) < 10 * AT_ONCE
    assert all(found[at] == sorted(found[at], key=found[at].index) for at in found)
    assert all(set(found[at]) == set(range(AT_ONCE)) for at in PAUSES[1:])


def test_a_host_of_killed_processes_silences_no_one() -> None:
    found = simulate(frozenset(range(64)), 1)
    first = next(at for at in PAUSES[1:] if found.get(at))
    assert first <= 48.0
    assert all(len(processes) <= 64 for processes in found.values())
    later = [processes for at, processes in found.items() if at > first]
    assert later
    assert all(min(processes) == 64 for processes in later)


def test_a_process_asks_once_the_lower_one_goes_on() -> None:
    turns = Turns(100)
    lower = set(range(50))
    assert not turns.is_mine(lower, {3: 1})
    assert turns.is_mine(set(), {3: 1})


def test_a_wait_begins_anew() -> None:
    turns = Turns(100)
    assert not turns.is_mine(range(20), {})
    turns.restart({3: 7})
    assert not turns.is_mine(range(20), {3: 7})
    assert turns.is_mine(range(15), {3: 7})
