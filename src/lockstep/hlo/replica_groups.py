"""Which cliques compiled programs communicate in, and which of them an ask is for. Pure.

An ask is what XLA passes to the engine: a clique's first device (color) and the caller's position
in the clique (key). What is not understood is an error: `membership` must never guess.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

Clique = tuple[int, ...]
"""The ids of its devices, in order."""

_MAX_LISTS, _MAX_IDS = 4, 12

COLLECTIVE = re.compile(
    r"\b(?:channel_id|replica_groups|source_target_pairs)=|"
    r" (?:ragged-)?(?:all-(?:reduce|gather|to-all)|reduce-scatter|collective-[\w-]+?)(?:-start)?\("
)
"""Every instruction of a compiled program that may communicate: by its attributes, or its name."""
_END = r"(?=,|\s|$)"
_LISTS = re.compile(r"replica_groups=\{(\{\d+(?:,\d+)*\}(?:,\{\d+(?:,\d+)*\})*)\}" + _END)
_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?" + _END)
_MESH = re.compile(r"replica_groups=mesh\[((?:,?'\w+'=\d+)+)\] \{((?:,?'\w+')+)\}" + _END)
_PAIRS = re.compile(r"source_target_pairs=\{(\{\d+,\d+\}(?:,\{\d+,\d+\})*)\}" + _END)
_SIZES = re.compile(r", (?:replica_count|num_partitions)=(\d+)")


class UnknownError(Exception):
    """Why the members of a clique cannot be known: half a sentence."""


def named(text: str, devices: Sequence[int] | None) -> set[Clique]:
    """The cliques that a compiled program's text names.

    ``devices``: those that the program was compiled for, in the order of its own numbers for them;
    None when that is not known. Raises `UnknownError` for what is not understood.
    """
    header, *lines = text.splitlines()
    lines = [line for line in lines if COLLECTIVE.search(line)]
    if not lines:
        return set()
    if devices is None or math.prod(map(int, _SIZES.findall(header))) != len(devices):
        raise UnknownError(
            "it is not known for which devices one of the programs was compiled (it may come from "
            "a compilation cache)"
        )
    groups = {group for line in lines for group in _groups(line, len(devices))}
    if any(number >= len(devices) for group in groups for number in group):
        raise UnknownError("a program names more devices than it was compiled for")
    return {tuple(devices[number] for number in group) for group in groups}


def _groups(line: str, count: int) -> Iterator[Clique]:
    # What follows holds names of the user's choice.
    line = line.partition(", metadata=")[0].partition(", frontend_attributes=")[0].strip()
    if found := _LISTS.search(line):
        yield from _lists(found[1])
    elif found := _IOTA.search(line):
        dims = _numbers(found[2])
        yield from _cut(dims, _numbers(found[3] or "") or range(len(dims)), int(found[1]))
    elif found := _MESH.search(line):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", found[1])}
        inner = re.findall(r"\w+", found[2])
        axes = [*(name for name in sizes if name not in inner), *inner]
        order = [[*sizes].index(name) for name in axes]
        yield from _cut([*sizes.values()], order, math.prod(sizes[name] for name in inner))
    elif (found := _PAIRS.search(line)) and _connect(_lists(found[1]), count):
        # Devices without a partner take part as well; nobody promises that they always will.
        yield tuple(range(count))
    else:
        raise UnknownError(f"this is not understood: {line[:200]}")


def _numbers(text: str) -> Clique:
    return tuple(map(int, re.findall(r"\d+", text)))


def _lists(text: str) -> list[Clique]:
    return [_numbers(one) for one in text.split("},{")]


def _cut(dims: Sequence[int], order: Sequence[int], size: int) -> Iterator[Clique]:
    """0, 1, 2, ... in an array of these dimensions, transposed and cut into groups."""
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    places = itertools.product(*(range(dims[axis]) for axis in order))
    ids = [sum(i * strides[axis] for i, axis in zip(at, order, strict=True)) for at in places]
    return (tuple(ids[i : i + size]) for i in range(0, len(ids), size))


def _connect(pairs: Sequence[Clique], count: int) -> bool:
    """Whether there is a way from each device to each other one, over devices that exchange."""
    both = {(a, b) for a, b in pairs} | {(b, a) for a, b in pairs}
    joined = {0}
    while more := {b for a, b in both if a in joined} - joined:
        joined |= more
    return joined == set(range(count))


def the_only_one(
    cliques: set[Clique], process_of: Mapping[int, int], process: int, color: int, key: int
) -> Clique:
    """The clique of an ask by ``process``, whose programs name ``cliques``.

    ``process_of`` has all devices of the job. Raises `UnknownError` unless there is one clique
    only, of all devices, that fits the ask.
    """
    if len(cliques) != 1:
        raise UnknownError(
            f"the programs of this process communicate in {len(cliques)} groups: {text_of(cliques)}"
        )
    [clique] = cliques
    if len(clique) != len(process_of) or set(clique) != process_of.keys():
        raise UnknownError(f"the programs' only group, {text_of(cliques)}, is of some devices only")
    if color != clique[0] or not 0 <= key < len(clique) or process_of[clique[key]] != process:
        raise UnknownError(f"the programs' only group, {text_of(cliques)}, is another one")
    return clique


def claim(clique: Clique, key: int, process_of: Mapping[int, int]) -> str:
    """What the process that has this position publishes, and all others expect of it."""
    return json.dumps([process_of[clique[key]], clique[0], clique])


def text_of(cliques: set[Clique]) -> str:
    """``{0,1}, {2,3}``; not all of many."""

    def one(clique: Clique) -> str:
        more = ["..."] if len(clique) > _MAX_IDS else []
        return "{" + ",".join([*map(str, clique[:_MAX_IDS]), *more]) + "}"

    more = [f"and {len(cliques) - _MAX_LISTS} more"] if len(cliques) > _MAX_LISTS else []
    return ", ".join([*map(one, sorted(cliques)[:_MAX_LISTS]), *more]) or "none"
