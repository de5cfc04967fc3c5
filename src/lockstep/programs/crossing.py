"""Whether a collective of a compiled program takes part of several processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lockstep.hlo import replica_groups

_NAMES = (" all-", " reduce-scatter", " ragged-all-to-all", " collective-")
"""How `_OP` begins. To look for these first takes a tenth of the time."""
_OP = re.compile(
    r" (?:all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-[a-z]+)"
    r"(?:-start)?\("
)
_GROUPS = re.compile(
    r"replica_groups=(\{\{[\d,{} ]*\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|"
    r"mesh\[[^\]]*\](?:, ?device_ids=\((?:[^()]|\([^()]*\))*\))? ?\{[^}]*\})"
)
"""The forms that `replica_groups` reads."""
_PAIRS = re.compile(r"source_target_pairs=(\{\{[\d,{} ]*\}\})")


def crosses_processes(text: str, processes: Sequence[int]) -> bool:
    """Whether it does, or may: programs that cross none may be launched in any order.

    ``text``: the compiled program; ``processes``: that of each device, in the program's order.
    """
    has_any = False
    for line in _lines(text):
        if not _is_local(line, processes):
            return True
        has_any = True
    return not has_any


def _lines(text: str) -> Iterator[str]:
    """The lines of a text with a collective."""
    for name in _NAMES:
        at = text.find(name)
        while at >= 0:
            end = text.find("\n", at)
            end = end if end >= 0 else len(text)
            line = text[text.rfind("\n", 0, at) + 1 : end]
            if _OP.search(line):
                yield line
            at = text.find(name, end)


def _is_local(line: str, processes: Sequence[int]) -> bool:
    if found := _PAIRS.search(line):
        groups = replica_groups.parse_pairs(found[1])
    elif found := _GROUPS.search(line):
        groups = replica_groups.parse(found[1], len(processes))
        # Groups of replicas, say, where each has several partitions, name no devices.
        if sorted(n for group in groups for n in group) != list(range(len(processes))):
            return False
    else:
        return False
    known = range(len(processes))
    return all(
        set(group) <= set(known) and len({processes[n] for n in group}) == 1 for group in groups
    )
