"""Whether a collective of a compiled program takes part of several processes. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lockstep.hlo import replica_groups

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
    lines = [_line(text, found) for found in _OP.finditer(text)]
    return not lines or not all(_is_local(line, processes) for line in lines)


def _line(text: str, found: re.Match[str]) -> str:
    end = text.find("\n", found.end())
    return text[text.rfind("\n", 0, found.start()) + 1 : end if end >= 0 else None]


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
