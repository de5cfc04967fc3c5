"""The schedules of the collectives between hosts: right results, and the counts of the model."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedules
from lockstep.inspection import algorithms
from lockstep.inspection.algorithms import Counts, Link

HOSTS = st.integers(2, 40)
EVERY = sorted(schedules.SCHEDULES)


def test_every_algorithm_of_the_model_has_a_schedule() -> None:
    assert schedules.SCHEDULES.keys() == algorithms.ALGORITHMS.keys()


@pytest.mark.parametrize(("op", "name"), EVERY)
@settings(deadline=None, max_examples=25)
@given(hosts=HOSTS)
def test_a_schedule_delivers_what_the_collective_promises_and_has_the_counts_of_the_model(
    op: str, name: str, hosts: int
) -> None:
    if name not in algorithms.possible(op, hosts):
        hosts = 1 << hosts.bit_length() - 1
    found = schedules.tally(schedules.carried_out(op, name, hosts))
    slices = op in ("all-reduce", "reduce-scatter") and name != "recursive-doubling"
    block = 64.0
    whole = {"all-to-all": block * hosts}.get(op, block * hosts if slices else block)
    assert algorithms.counts(op, hosts, whole, name) == Counts(
        found.rounds, found.messages, found.blocks * block, found.added * block
    )


@settings(deadline=None, max_examples=60)
@given(hosts=st.integers(2, 1024))
def test_a_small_all_reduce_takes_at_most_2_log2_messages_of_a_host(hosts: int) -> None:
    schedule = schedules.carried_out("all-reduce", "recursive-doubling", hosts)
    assert schedules.tally(schedule).most_messages <= 2 * math.log2(hosts)
    assert algorithms.choose("all-reduce", hosts, 1024) == "recursive-doubling"


@pytest.mark.full
@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("all-reduce", "recursive-doubling"),
        ("all-reduce", "halving-doubling"),
        ("all-gather", "bruck"),
    ],
)
def test_the_algorithms_of_log_rounds_are_right_on_1024_hosts(op: str, name: str) -> None:
    found = schedules.tally(schedules.carried_out(op, name, 1024))
    assert found.rounds in (10, 20)
    assert found.most_messages == found.rounds
    assert found.most_peers <= 20


def test_a_schedule_that_adds_twice_is_seen() -> None:
    wrong = [*schedules.recursive_doubling(4), [schedules.Message(0, 1, [0], True)]]
    with pytest.raises(AssertionError, match="added twice"):
        schedules.carry_out(wrong, schedules.start("all-reduce", 4, 1))


def test_a_schedule_that_lacks_a_message_is_seen() -> None:
    short = schedules.recursive_doubling(4)[:-1]
    memory = schedules.start("all-reduce", 4, 1)
    schedules.carry_out(short, memory)
    with pytest.raises(AssertionError):
        schedules.check("all-reduce", 4, 1, memory)


def test_large_vectors_leave_doubling_for_slices() -> None:
    assert algorithms.choose("all-reduce", 8, 1 << 20) == "halving-doubling"
    assert algorithms.choose("all-reduce", 6, 1 << 20) == "direct"
    assert algorithms.choose("all-reduce", 24, 1 << 20) == "ring"
    assert algorithms.choose("all-reduce", 24, 64 << 10) == "recursive-doubling"
    link = Link(latency=30e-6, per_byte=1e-9, overhead=3e-6)
    assert algorithms.best("all-reduce", 8, 1024, link)[0] in ("recursive-doubling", "direct")
    assert algorithms.best("all-reduce", 8, 1 << 24, link)[0] != "recursive-doubling"


def test_processes_of_a_host_add_their_shared_memory() -> None:
    assert algorithms.Host().seconds(1 << 20) == 0
    assert algorithms.Host(4, 5e-6, 1e-10).seconds(1e6) == pytest.approx(2.1e-4)


def test_the_engine_chooses_by_the_same_table() -> None:
    folder = Path(__file__).parents[2] / "native" / "collectives"
    source = (folder / "collectives.cc").read_text() + (folder / "collectives.h").read_text()
    for name, value in (
        ("kSmallBetweenHosts", algorithms.SMALL_BYTES),
        ("kMaxDirectHosts", algorithms.MAX_DIRECT_HOSTS),
        ("kMinRingSlice", algorithms.MIN_RING_SLICE),
    ):
        [number, shift] = re.findall(rf"{name} = (\d+)(?: << (\d+))?;", source)[0]
        assert int(number) << int(shift or 0) == value, name

    def named(condition: str) -> set[tuple[str, str]]:
        rows = re.findall(rf'\{{Op::k(\w+), "([\w-]+)"{condition}', source)
        return {(re.sub(r"(?<!^)(?=[A-Z])", "-", op).lower(), name) for op, name in rows}

    known = {key for key in algorithms.ALGORITHMS if key[0] != "collective-permute"}
    assert named("") == known
    assert named(", (?:parts|blocks)_are_small") == set(algorithms.SMALL_ONLY)
