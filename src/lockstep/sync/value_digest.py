"""What `lockstep.assert_same` compares, and the text of a difference. Pure.

Each process sends a fingerprint and a few words for every leaf of its value, never the value: a
model's parameters may be large.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._words import grouped, processes

MAX_LEAVES = 5
MAX_ELEMENTS = 8
MAX_LETTERS = 200


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a process's value."""

    digest: str
    """Equal when dtype, shape and bits are; of anything but an array, its ``repr``."""
    text: str
    """For people."""


NOTHING = Leaf("", "nothing")


def of_array(array: Any) -> Leaf:
    """The leaf for a numpy array."""
    import numpy as np

    head = f"{array.dtype}{list(array.shape)}"
    digest = hashlib.sha256(head.encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    shown = [str(x) for x in array.ravel()[:MAX_ELEMENTS]]
    if array.size > MAX_ELEMENTS:
        shown.append("...")
    values = shown[0] if array.ndim == 0 else f"[{', '.join(shown)}]"
    return Leaf(digest.hexdigest(), f"{values} ({head})")


def of_object(value: Any) -> Leaf:
    """The leaf for anything that is no array. Sets are in no order, so they are put in one."""
    if isinstance(value, set | frozenset):
        text = "{" + ", ".join(sorted(map(repr, value))) + "}"
    else:
        text = repr(value)
    short = text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}..."
    return Leaf(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), short)


def differences(values: Sequence[Mapping[str, Leaf]], labels: Sequence[str]) -> str | None:
    """The places in which the processes differ, with the values of each process; None when all
    agree.

    ``values[i]`` maps the place of each leaf in process i's value (empty for a value that is one
    leaf) to the leaf.
    """
    places = list(dict.fromkeys(place for own in values for place in own))
    paragraphs = []
    for place in places:
        leaves = [own.get(place, NOTHING) for own in values]
        if len({leaf.digest for leaf in leaves}) > 1:
            paragraphs.append(_paragraph(place, leaves, labels))
    if not paragraphs:
        return None
    more = len(paragraphs) - MAX_LEAVES
    rest = [f"and {more} more place{'s' if more > 1 else ''}"] if more > 0 else []
    return "\n".join(paragraphs[:MAX_LEAVES] + rest)


def _paragraph(place: str, leaves: Sequence[Leaf], labels: Sequence[str]) -> str:
    groups = grouped((leaf.digest, process) for process, leaf in enumerate(leaves))
    largest = max(map(len, groups.values()))
    several = sum(len(members) == largest for members in groups.values()) > 1
    lines = [f"at {place}:"] if place else []
    for members in sorted(groups.values(), key=lambda members: (-len(members), members)):
        odd = " <- differs" if len(members) < largest and not several else ""
        label = processes(members) if len(members) > 1 else labels[members[0]]
        lines.append(f"  {label}: {leaves[members[0]].text}{odd}")
    return "\n".join(lines)
