"""The model of docs/design/lost-time.md: its page, its limits, and a simulation of it."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

import lost_time_model as model
from lost_time_model import HOSTS, HOUR, Assumptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "lost-time.md"
USUAL = Assumptions()


def test_the_page_has_the_tables_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model.main()
    shown = PAGE.read_text().partition("<!-- model -->\n")[2].partition("<!-- end of model -->")[0]
    assert shown.strip() == capsys.readouterr().out.strip()


def simulated(hosts: int, own: Assumptions, cost: float, draw: random.Random) -> float:
    """The share of time that is lost: intervals are computed and saved until a failure comes."""
    every, rate = model.interval(hosts, own), hosts / own.mtbf
    spent = done = 0.0
    for _ in range(20_000):
        fails_after = draw.expovariate(rate)
        whole = int(fails_after // (every + own.save))
        done += whole * every
        spent += fails_after + cost
    return 1 - done / spent


@pytest.mark.parametrize("hosts", HOSTS)
def test_waiting_loses_what_a_simulation_loses(hosts: int) -> None:
    cost = USUAL.detect + USUAL.end + USUAL.repair + USUAL.start
    found = simulated(hosts, USUAL, cost, random.Random(hosts))
    assert model.waits(hosts, USUAL) == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("hosts", HOSTS)
def test_spares_suffice_as_often_as_they_are_meant_to(hosts: int) -> None:
    """Hosts fail at a constant rate and each is repaired by itself, for 200,000 events."""
    own = dataclasses.replace(USUAL, mtbf=1000 * HOUR)
    draw, spares = random.Random(hosts), model.spares_needed(hosts, own)
    in_repair, none_left, total = 0, 0.0, 0.0
    for _ in range(200_000):
        fails, returns = hosts / own.mtbf, in_repair / own.repair
        passed = draw.expovariate(fails + returns)
        total += passed
        none_left += passed * (in_repair >= spares)
        in_repair += 1 if draw.random() < fails / (fails + returns) else -1
    assert none_left / total <= 0.012
    assert spares == 1 or model._more_in_repair(spares - 2, hosts, own) > 0.01


def test_without_failures_only_spares_are_lost() -> None:
    never = dataclasses.replace(USUAL, mtbf=1e15)
    for way in (model.waits, model.shrinks, model.grows):
        assert way(8, never) == pytest.approx(0, abs=1e-4)
    assert model.with_spares(8, 2, never) == pytest.approx(0.2, abs=1e-4)


@pytest.mark.parametrize("hosts", HOSTS)
def test_what_takes_longer_loses_more(hosts: int) -> None:
    for name in ("detect", "end", "start", "save", "repair"):
        slower = dataclasses.replace(USUAL, **{name: 2 * getattr(USUAL, name)})
        assert model.waits(hosts, slower) > model.waits(hosts, USUAL)
        assert model.grows(hosts, slower) > model.grows(hosts, USUAL)
