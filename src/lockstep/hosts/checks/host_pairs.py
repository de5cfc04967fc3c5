"""Which hosts of a job try to reach which others. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

ALL_PAIRS = 32
"""Up to so many hosts each host tries all others. All pairs of 128 hosts are 16,256 connections."""


def sample(names: Sequence[str], draw: random.Random) -> dict[str, list[str]]:
    """Whom each host tries to reach before a start: each pair of the result in both directions.

    Up to `ALL_PAIRS` hosts these are all others. With more they are its neighbors in several
    rings: one in the order of ``names``, the others in random orders, so that each host has two
    neighbors and about log2 n random peers. A host that cannot be reached is found by all of them.
    A connection that fails between two hosts alone is found with the probability that this pair is
    drawn; the engine names it when the two connect.
    """
    if len(names) <= ALL_PAIRS:
        return {name: [other for other in names if other != name] for name in names}
    count = math.ceil(math.log2(len(names)) / 2)
    rings = [list(names), *(draw.sample(names, len(names)) for _ in range(count))]
    peers: dict[str, dict[str, None]] = {name: {} for name in names}
    for ring in rings:
        for one, other in zip(ring, [*ring[1:], ring[0]], strict=True):
            peers[one][other] = peers[other][one] = None
    return {name: list(own) for name, own in peers.items()}


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """All ordered pairs, in rounds in which each name occurs once at most (the circle method)."""
    turning: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found: list[list[tuple[str, str]]] = []
    for _ in range(len(turning) - 1):
        half = len(turning) // 2
        pairs = zip(turning[:half], reversed(turning[half:]), strict=True)
        whole = [(one, other) for one, other in pairs if one and other]
        found += [whole, [(other, one) for one, other in whole]]
        turning = [turning[0], turning[-1], *turning[1:-1]]
    return found
