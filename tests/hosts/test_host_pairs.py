"""Which hosts try to reach which others: all of them, or a sample that covers every host."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.hosts.checks.host_pairs import ALL_PAIRS, rounds, sample


@pytest.mark.parametrize("count", [0, 1, 2, 3, ALL_PAIRS])
def test_few_hosts_try_all_others(count: int) -> None:
    names = [str(i) for i in range(count)]
    tried = sample(names, random.Random(0))
    assert tried == {a: [b for b in names if b != a] for a in names}


@settings(deadline=None)
@given(st.integers(ALL_PAIRS + 1, 400), st.integers(0, 1 << 30))
def test_a_sample_of_many_hosts_covers_every_host(count: int, seed: int) -> None:
    names = [str(i) for i in range(count)]
    tried = sample(names, random.Random(seed))
    assert list(tried) == names
    for i, name in enumerate(names):
        own = tried[name]
        assert name not in own
        assert len(own) == len(set(own))
        # Its neighbors, and log2 n others at most: what a host costs hardly grows.
        assert {names[i - 1], names[(i + 1) % count]} <= set(own)
        assert len(own) <= 3 + math.log2(count) + 1
        # In both directions, so that one finding can say which of them fails.
        assert all(name in tried[other] for other in own)


def test_samples_differ_from_start_to_start() -> None:
    names = [str(i) for i in range(100)]
    assert sample(names, random.Random(1)) != sample(names, random.Random(2))


def test_a_sample_has_random_pairs_of_far_hosts() -> None:
    names = [str(i) for i in range(128)]
    tried = sample(names, random.Random(3))
    assert sum(map(len, tried.values())) > 128 * (2 + 5)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8])
def test_each_ordered_pair_has_its_round(count: int) -> None:
    names = [str(i) for i in range(count)]
    found = [pair for pairs in rounds(names) for pair in pairs]
    assert sorted(found) == sorted((a, b) for a in names for b in names if a != b)
    for pairs in rounds(names):
        busy = [name for pair in pairs for name in pair]
        assert len(busy) == len(set(busy))
