"""The lease of an agent is over before the launcher takes its host for lost, whatever is late."""

from __future__ import annotations

import random

import pytest

from lockstep.hosts.lease import LEASE_SECONDS, PING_SECONDS, SILENCE_SECONDS, Lease

RUNS = 300
TURN = 0.1


class Link:
    """One direction of a connection: late from some time on, in order, or silent for good."""

    def __init__(self, choose: random.Random) -> None:
        self._at = choose.uniform(0.0, 10.0)
        self._late = choose.choice([0.0, 0.5, 3.0, 8.0, float("inf")])
        self._last = 0.0

    def arrival(self, now: float) -> float:
        self._last = max(self._last, now + 0.01 + (self._late if now > self._at else 0.0))
        return self._last


def times_of_ends(choose: random.Random) -> tuple[float, float]:
    """When the agent ends, and when the launcher takes its host for lost, by one clock.

    The agent's clock has another zero, and both sides look at their messages once per turn.
    """
    ahead = choose.uniform(-1e6, 1e6)
    lease = Lease(ahead)
    there, back = Link(choose), Link(choose)
    pings: list[tuple[float, int, int | None]] = []
    pongs: list[tuple[float, int]] = []
    number, heard, pinged, asked = 0, None, -9.0, None
    now, ended, lost = 0.0, float("inf"), float("inf")
    while now < 60.0 and lost == float("inf"):
        now += TURN
        for each in [each for each in pongs if each[0] <= now]:
            pongs.remove(each)
            heard, asked = each[1], None
        if now - pinged >= PING_SECONDS:
            number, pinged, asked = number + 1, now, asked or now
            pings.append((there.arrival(now), number, heard))
        if asked is not None and now - asked > SILENCE_SECONDS:
            lost = now
        if ended < float("inf"):
            continue
        for each in [each for each in pings if each[0] <= now]:
            pings.remove(each)
            if each[2] is not None:
                lease.confirmed(each[2])
            lease.answered(each[1], now + ahead)
            pongs.append((back.arrival(now), each[1]))
        if lease.left(True, now + ahead) <= 0:
            ended = now
    return ended, lost


@pytest.mark.parametrize("seed", range(4))
def test_an_agent_ends_before_its_host_is_taken_for_lost(seed: int) -> None:
    choose = random.Random(seed)
    found = [times_of_ends(choose) for _ in range(RUNS)]
    assert any(lost < float("inf") for _, lost in found)
    assert any(lost == ended == float("inf") for ended, lost in found)
    for ended, lost in found:
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
