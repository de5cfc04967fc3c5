"""The lease of an agent is over before the launcher takes its host for lost, whatever is late."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lockstep.hosts.lease import LEASE_SECONDS, SILENCE_SECONDS, Answers, Lease

RUNS = 300
TURN = 0.1
HELLO = -1


class Link:
    """One direction of a connection: late from some time on, in order, or silent for good."""

    def __init__(self, choose: random.Random) -> None:
        self._at = choose.uniform(0.0, 10.0)
        self._late = choose.choice([0.0, 0.5, 3.0, 8.0, float("inf")])
        self._last = 0.0

    def arrival(self, now: float) -> float:
        self._last = max(self._last, now + 0.01 + (self._late if now > self._at else 0.0))
        return self._last


def times_of_ends(choose: random.Random, breaks: float) -> tuple[float, float]:
    """When the agent ends, and when others may have its processes, by one clock.

    The agent starts later than the connection to it, its clock has another zero, and both sides
    look at their messages once per turn. The supervisor sees the end of the connection at
    ``breaks``, and the agent does not.
    """
    ahead = choose.uniform(-1e6, 1e6)
    began = choose.uniform(0.0, 20.0)
    lease, answers = Lease(began + ahead), Answers(0.0)
    there, back = Link(choose), Link(choose)
    there_at: list[tuple[float, dict[str, Any]]] = []
    back_at: list[tuple[float, int]] = [(back.arrival(began), HELLO)]
    greeted, now, ended, lost = False, 0.0, float("inf"), float("inf")
    while now < min(60.0, lost):
        now += TURN
        for each in [each for each in back_at if each[0] <= now < breaks]:
            back_at.remove(each)
            answers.heard(now)
            if each[1] == HELLO:
                answers.begun(now)
                greeted = True
            else:
                answers.answered(each[1], now)
        if greeted and now < breaks and (ping := answers.ping(now, round(now / TURN))):
            there_at.append((there.arrival(now), ping))
        if answers.is_silent(now):
            lost = min(lost, now)
        elif greeted and now >= breaks:
            lost = min(lost, max(now, answers.may_run_until))
        if ended < float("inf"):
            continue
        for each in [each for each in there_at if each[0] <= now]:
            there_at.remove(each)
            answer = lease.answer(each[1], now + ahead)
            back_at.append((back.arrival(now), answer["t"]))
        if lease.left(True, now + ahead) <= 0:
            ended = now
    return ended, lost


@pytest.mark.parametrize("seed", range(4))
def test_an_agent_ends_before_its_host_is_taken_for_lost(seed: int) -> None:
    choose = random.Random(seed)
    found = [times_of_ends(choose, float("inf")) for _ in range(RUNS)]
    assert any(lost < float("inf") for _, lost in found)
    assert any(lost == ended == float("inf") for ended, lost in found)
    for ended, lost in found:
        assert ended <= lost - (SILENCE_SECONDS - LEASE_SECONDS) + 2 * TURN or lost == float("inf")


@pytest.mark.parametrize("seed", range(2))
def test_a_connection_that_breaks_does_not_shorten_the_wait(seed: int) -> None:
    """Also one that breaks right after a start that took long."""
    choose = random.Random(seed)
    for _ in range(RUNS):
        ended, lost = times_of_ends(choose, choose.uniform(0.0, 40.0))
        assert ended <= lost - (SILENCE_SECONDS - LEASE_SECONDS) + 2 * TURN or lost == float("inf")


def test_only_answers_that_were_confirmed_count() -> None:
    lease = Lease(100.0)
    for question in range(200):
        lease.answered(question, 100.0 + question)
    assert lease.left(True, 100.0) == LEASE_SECONDS
    lease.confirmed(198)
    assert lease.left(True, 298.0) == LEASE_SECONDS
    lease.confirmed(197)
    lease.confirmed(5)
    assert lease.left(True, 298.0) == LEASE_SECONDS
    assert lease.is_good(300.0)
    assert not lease.is_good(306.0)
