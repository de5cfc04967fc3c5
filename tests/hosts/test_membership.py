"""Which hosts run which processes, when hosts are lost and come back."""

from __future__ import annotations

import random

import pytest

from lockstep.hosts import host_changes
from lockstep.hosts.host_list import Host, Placed, parse_hosts, place
from lockstep.hosts.membership import MAX_LOSSES, Change, Membership


def membership(text: str, spares: str = "", max_losses: int = MAX_LOSSES) -> Membership:
    waiting = parse_hosts(spares) if spares else []
    return Membership(place(parse_hosts(text)), waiting, max_losses)


def ranks(own: Membership) -> dict[str, list[int]]:
    return {each.host.name: [*each.processes] for each in own.places}


def host(own: Membership, name: str) -> Host:
    return next(each for each in own.hosts if each.name == name)


def lose(own: Membership, *names: str) -> None:
    for name in names:
        own.lose(host(own, name))


def test_a_spare_takes_the_processes_of_a_lost_host() -> None:
    own = membership("a:2,b,c", "d:2")
    assert ranks(own) == {"a": [0, 1], "b": [2], "c": [3]}
    lose(own, "b")
    assert own.can_grow()
    assert own.plan() == [Change(host(own, "d"), host(own, "b"))]
    assert ranks(own) == {"a": [0, 1], "d": [2], "c": [3]}
    assert (own.spares, own.lost) == ([], [host(own, "b")])


def test_without_a_spare_the_processes_are_numbered_anew() -> None:
    own = membership("a:2,b,c")
    lose(own, "a")
    assert own.plan() == []
    assert ranks(own) == {"b": [0], "c": [1]}
    assert not own.can_grow()


def test_a_host_that_returns_gets_its_processes_back() -> None:
    own = membership("a:2,b,c")
    lose(own, "a")
    own.plan()
    own.returned(host(own, "a"))
    assert own.can_grow()
    assert own.plan() == [Change(host(own, "a"), host(own, "a"))]
    assert ranks(own) == {"a": [0, 1], "b": [2], "c": [3]}


def test_a_host_whose_processes_another_runs_by_now_becomes_a_spare() -> None:
    own = membership("a,b", "c")
    lose(own, "a")
    own.plan()
    own.returned(host(own, "a"))
    assert not own.can_grow()
    assert own.plan() == []
    assert own.spares == [host(own, "a")]
    lose(own, "b")
    assert own.plan() == [Change(host(own, "a"), host(own, "b"))]
    assert ranks(own) == {"c": [0], "a": [1]}


def test_hosts_that_return_take_their_own_places_first() -> None:
    own = membership("a,b,c,d")
    lose(own, "b", "c")
    own.plan()
    own.returned(host(own, "c"))
    own.plan()
    assert ranks(own) == {"a": [0], "c": [1], "d": [2]}
    own.returned(host(own, "b"))
    own.plan()
    assert ranks(own) == {"a": [0], "b": [1], "c": [2], "d": [3]}


def test_of_two_lost_hosts_one_is_replaced_and_the_other_is_said_to_be_missing() -> None:
    own = membership("a,b,c", "d")
    lose(own, "a", "b")
    assert host_changes.described(own.plan(), own) == [
        "d takes the place of a, which was lost, with process 0",
        "going on with 2 hosts, 2 processes, without b",
    ]


def test_a_spare_with_too_few_slots_waits_on() -> None:
    own = membership("a:4,b", "c")
    lose(own, "a")
    assert not own.can_grow()
    assert own.plan() == []
    lose(own, "b")
    assert own.plan() == [Change(host(own, "c"), host(own, "b"))]


def test_a_loss_counts_once_and_a_spare_may_be_lost_too() -> None:
    own = membership("a,b", "c")
    lose(own, "c", "c")
    assert own.losses(host(own, "c")) == 1
    assert own.spares == []
    own.returned(host(own, "a"))  # it was never lost
    assert own.spares == []


def test_a_host_that_flaps_is_left_out() -> None:
    own = membership("a,b")
    for _ in range(MAX_LOSSES):
        assert not own.is_left_out(host(own, "b"))
        lose(own, "b")
        own.returned(host(own, "b"))
        own.plan()
    assert own.is_left_out(host(own, "b"))
    assert own.lost == own.spares == []
    assert ranks(own) == {"a": [0]}


def test_losses_that_are_forgiven_do_not_count() -> None:
    own = membership("a,b")
    for _ in range(2 * MAX_LOSSES):
        lose(own, "a", "b")
        assert own.absent == own.hosts
        own.forgive()
        for each in own.hosts:
            own.returned(each)
        own.plan()
    assert ranks(own) == {"a": [0], "b": [1]}


def test_a_job_that_needs_all_hosts_leaves_none_out() -> None:
    own = membership("a,b", max_losses=0)
    for _ in range(MAX_LOSSES + 2):
        lose(own, "b")
        own.returned(host(own, "b"))
        own.plan()
    assert ranks(own) == {"a": [0], "b": [1]}


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_ranks_have_no_gaps_and_no_host_is_there_twice(seed: int) -> None:
    draw = random.Random(seed)
    hosts = [Host(f"h{i}", draw.randint(1, 3)) for i in range(draw.randint(1, 6))]
    spares = [Host(f"s{i}", draw.randint(1, 3)) for i in range(draw.randint(0, 3))]
    own = Membership(place(hosts), spares, draw.choice([0, 3]))
    first = own.places
    for _ in range(40):
        each = draw.choice(own.hosts)
        draw.choice([own.lose, own.returned])(each)
        if draw.random() < 0.5:
            own.plan()
            assert not own.can_grow()
        numbers = [n for placed in own.places for n in placed.processes]
        assert numbers == [*range(len(numbers))]
        assert all(placed.count <= placed.host.slots for placed in own.places)
        left_out = [each for each in own.hosts if own.is_left_out(each)]
        everywhere = [*own.in_use, *own.spares, *own.lost, *left_out]
        assert sorted(h.name for h in everywhere) == sorted(h.name for h in own.hosts)
        if len(own.in_use) == own.seats:
            assert [(p.first, p.count) for p in own.places] == [(p.first, p.count) for p in first]


def test_a_host_with_fewer_processes_than_slots_keeps_its_count() -> None:
    own = Membership([Placed(Host("a", 4), 0, 4), Placed(Host("b", 4), 4, 1)], [Host("c", 1)])
    lose(own, "b")
    own.plan()
    assert ranks(own) == {"a": [0, 1, 2, 3], "c": [4]}
