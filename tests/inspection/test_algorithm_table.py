"""Costs from measured times, and the engine's table of algorithms for a network with such costs."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.bench.cases import parse_size
from lockstep.inspection import algorithm_table, algorithms
from lockstep.inspection.algorithm_table import Row
from lockstep.inspection.algorithms import Link
from support import assert_unsaid

KIB, MIB = 1 << 10, 1 << 20
ETHERNET = Link(latency=30e-6, per_byte=1e-9, overhead=8e-6, per_byte_added=0.1e-9)
FAR = Link(latency=5e-3, per_byte=1e-9, overhead=5e-3)
"""Milliseconds of a message, as between cities: what counts is how many there are."""
NARROW = Link(latency=1e-6, per_byte=1e-6, overhead=1e-6)
"""8 Mbit/s: what counts are the bytes."""

LINKS = st.builds(
    Link,
    latency=st.floats(1e-6, 1e-2),
    per_byte=st.floats(1e-11, 1e-7),
    overhead=st.floats(0, 1e-2),
    per_byte_added=st.floats(0, 1e-9),
)


def measured(link: Link, hosts: int, noise: float = 0.0) -> list[tuple[algorithms.Counts, float]]:
    """What the engine does by its own choice, and how long it takes."""
    draw = random.Random(7)
    found = []
    for op in (*algorithm_table.OPS, "collective-permute"):
        for size in algorithm_table.SIZES[:15:2]:
            counts = algorithms.counts(op, hosts, size)
            factor = 1 + draw.uniform(-noise, noise)
            found.append((counts, link.seconds(counts) * factor))
    return found


@pytest.mark.parametrize("hosts", [4, 6, 8])
def test_the_costs_of_a_link_are_found_in_its_times(hosts: int) -> None:
    found = algorithms.fit(measured(ETHERNET, hosts))
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(ETHERNET), rel=1e-6)


def test_noise_moves_the_costs_by_no_more() -> None:
    points = measured(ETHERNET, 8, noise=0.1)
    found = algorithms.fit(points)
    assert found.latency == pytest.approx(ETHERNET.latency, rel=0.1)
    assert found.per_byte == pytest.approx(ETHERNET.per_byte, rel=0.1)
    errors = [algorithms.error(found, *point) for point in points]
    assert 1.0 < max(errors) < 1.25


def test_an_error_is_a_factor_in_either_direction() -> None:
    counts = algorithms.counts("all-reduce", 4, KIB)
    seconds = ETHERNET.seconds(counts)
    for measured_seconds in (2 * seconds, seconds / 2):
        assert algorithms.error(ETHERNET, counts, measured_seconds) == pytest.approx(2)


def test_where_a_message_takes_long_doubling_goes_to_larger_sums() -> None:
    rows = algorithm_table.table(8, 1, FAR)
    first, second = (row for row in rows if row.op == "all-reduce")
    assert first.algorithm == "recursive-doubling"
    assert first.up_to is not None
    assert first.up_to > algorithms.SMALL_BYTES
    assert second == Row("all-reduce", "halving-doubling", None, 1.0)
    # Three rounds against six.
    assert 1.25 < first.gain <= 2
    size = f"{first.up_to // MIB}MiB"
    assert algorithm_table.text(rows) == f"all-reduce=recursive-doubling:{size}"


def test_where_bytes_take_long_slices_begin_at_smaller_sums() -> None:
    rows = algorithm_table.table(8, 1, NARROW)
    text = algorithm_table.text(rows)
    # Doubling sends 3 N, and halving 7/4 N, at every size.
    assert "all-reduce=halving-doubling" in text.split(",")
    assert "reduce-scatter=pairwise" in text.split(",")
    # A gather has the same bytes by both algorithms.
    assert_unsaid("all-gather", text)


def test_on_the_network_of_its_limits_the_engine_keeps_its_choice() -> None:
    link = Link(latency=60e-6, per_byte=1.5e-9, overhead=60e-6)
    rows = algorithm_table.table(4, 1, link)
    assert [row for row in rows if row.op != "reduce-scatter" and row.gain > 1] == []
    assert_unsaid("all-reduce", algorithm_table.text(rows))


@pytest.mark.parametrize(
    ("gain", "text"),
    [(1.26, "all-reduce=recursive-doubling:16KiB,all-reduce=direct:32KiB"), (1.24, "")],
)
def test_a_small_gain_changes_nothing(gain: float, text: str) -> None:
    # On four hosts 32 KiB take 2 latencies and 2 N bytes by doubling, 2 and 1.5 N by slices.
    moving = 32 * KIB * 1e-9
    link = Link(latency=moving * (2 - 1.5 * gain) / (2 * gain - 2), per_byte=1e-9)
    rows = [row for row in algorithm_table.table(4, 1, link) if row.op == "all-reduce"]
    assert algorithm_table.text(rows) == text


@pytest.mark.parametrize("ranks", [2, 4])
def test_sizes_are_those_of_a_device(ranks: int) -> None:
    """A gather of 4 KiB of a host is one of 1 KiB of each of its four devices; a sum is not."""
    alone = algorithm_table.table(4, 1, FAR)
    shared = algorithm_table.table(4, ranks, FAR)
    assert {row.op for row in alone if row.up_to} == set(algorithm_table.OPS)
    assert len(alone) == len(shared)
    for one, each in zip(alone, shared, strict=True):
        parts = ranks if one.op in ("all-gather", "all-to-all") else 1
        assert each.up_to == (one.up_to and one.up_to // parts)
        assert each.algorithm == one.algorithm


def test_an_algorithm_without_room_is_not_advised() -> None:
    # By its counts alone, Bruck's would be the best to 256 MiB: a message costs a second.
    slow = Link(latency=1.0, per_byte=1e-12, overhead=1.0)
    limits = {"all-gather": algorithms.SMALL_BYTES // 8}
    for op, name in algorithms.SMALL_ONLY:
        rows = [row for row in algorithm_table.table(8, 1, slow) if row.op == op]
        [limit] = [row.up_to for row in rows if row.algorithm == name]
        assert limit is not None
        assert limit == limits.get(op, algorithms.SMALL_BYTES)
        assert name not in algorithms.possible(op, 8, limit + 1)


def prescribed(text: str, op: str, hosts: int, ranks: int, size: int) -> str:
    """What the engine takes for ``size`` bytes of a device: the first entry that fits."""
    whole = algorithm_table.host_bytes(op, size, ranks)
    for entry in text.split(",") if text else ():
        match = re.fullmatch(r"([\w-]+)=([\w-]+)(?::(\d+(?:[KMG]iB)?))?", entry)
        assert match, entry
        fits = match[3] is None or size <= parse_size(match[3])
        if match[1] == op and fits and match[2] in algorithms.possible(op, hosts, whole):
            return match[2]
    return algorithms.choose(op, hosts, whole)


@given(link=LINKS, hosts=st.integers(2, 40), ranks=st.sampled_from([1, 2, 3, 8]))
def test_the_engine_takes_the_rows_when_it_reads_their_text(
    link: Link, hosts: int, ranks: int
) -> None:
    rows = algorithm_table.table(hosts, ranks, link)
    text = algorithm_table.text(rows)
    for op in algorithm_table.OPS:
        mine = [row for row in rows if row.op == op]
        assert [row.up_to is None for row in mine] == [False] * (len(mine) - 1) + [True]
        for size in algorithm_table.SIZES:
            each = size // algorithm_table.host_bytes(op, 1, ranks)
            row = next(row for row in mine if row.up_to is None or each <= row.up_to)
            assert prescribed(text, op, hosts, ranks, each) == row.algorithm


@given(link=LINKS, hosts=st.integers(2, 40))
def test_another_algorithm_is_faster_and_none_is_much_faster_than_the_row(
    link: Link, hosts: int
) -> None:
    for op in algorithm_table.OPS:
        rows = [row for row in algorithm_table.table(hosts, 1, link) if row.op == op]
        for size in algorithm_table.SIZES:
            row = next(row for row in rows if row.up_to is None or size <= row.up_to)
            own = algorithms.choose(op, hosts, size)
            times = {
                name: link.seconds(algorithms.counts(op, hosts, size, name))
                for name in (row.algorithm, own)
            }
            least = algorithms.best(op, hosts, size, link)[1]
            if row.algorithm != own:
                assert times[own] >= algorithm_table.MIN_GAIN * times[row.algorithm]
                assert row.gain >= times[own] / times[row.algorithm] * (1 - 1e-9)
            assert times[row.algorithm] < algorithm_table.MIN_GAIN * least


def test_sizes_are_written_without_fractions() -> None:
    sizes = (KIB, 1536, 1000, 3 * MIB, 1 << 30)
    rows = [Row("all-reduce", "ring", size, 2.0) for size in sizes]
    written = [entry.partition(":")[2] for entry in algorithm_table.text(rows).split(",")]
    assert written == ["1KiB", "1536", "1000", "3MiB", "1GiB"]
    assert tuple(map(parse_size, written)) == sizes
