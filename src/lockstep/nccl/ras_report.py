"""What the answers of NCCL's RAS port say. Pure.

One answer proves nothing: processes are at different places at any moment. Equal answers in a row,
in which some ranks have started fewer collectives than others, show a job that stands still, and
for whom. RAS counts all-reduces, all-gathers, reduce-scatters, broadcasts and reductions, when they
are launched; not what is sent from rank to rank, and not what a CUDA graph replays.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep._words import counted, grouped, processes, ranges
from lockstep.watchdog.library_counts import Lag, Place

_OPERATIONS = {
    "AllReduce": "all-reduce",
    "AllGather": "all-gather",
    "ReduceScatter": "reduce-scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduction",
}
_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status")')
"""NCCL 2.28.7 and 2.28.9 forget a comma in each missing rank."""
_MOST_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class Rank:
    """One rank of a communicator."""

    host: str
    pid: int
    counts: tuple[int, ...] = ()
    """How many collectives it has started, in the order of `_OPERATIONS`; empty: no answer."""
    is_dead: bool = False
    is_silent: bool = False


@dataclasses.dataclass(frozen=True)
class Communicator:
    """What all its ranks have said."""

    name: str
    ranks: Mapping[int, Rank]

    @property
    def is_uneven(self) -> bool:
        answers = {rank.counts for rank in self.ranks.values() if rank.counts}
        return len(answers) > 1 or any(r.is_dead or r.is_silent for r in self.ranks.values())


def parse(answer: bytes) -> tuple[Communicator, ...]:
    """The communicators of an answer. Raises ValueError for what is none."""
    try:
        found = json.loads(_NO_COMMA.sub(rb"\1,\2", answer))
        return tuple(_communicator(each) for each in found["communicators"])
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no answer of NCCL's RAS: {error!r}") from error


def _communicator(found: Mapping[str, Any]) -> Communicator:
    ranks = {int(each["rank"]): _rank(each) for each in found["ranks"]}
    for each in found.get("missing_ranks", ()):
        status = each["status"]
        dead, silent = status["considered_dead"] is True, status["unresponsive"] is True
        if dead or silent:  # else it has left the communicator
            own = Rank(str(each["host"]), int(each["pid"]), (), dead, silent)
            ranks.setdefault(int(each["rank"]), own)
    return Communicator(f"{found['hash']} {found['secondary_hash']}", ranks)


def _rank(found: Mapping[str, Any]) -> Rank:
    counts = found["collective_counts"]
    known = tuple(int(counts.get(name, 0)) for name in _OPERATIONS)
    return Rank(str(found["host"]), int(found["pid"]), known)


class Owners:
    """Which process of the job has a rank, by the process id and the address of its host."""

    def __init__(self, places: Mapping[int, Place]) -> None:
        self._places = places
        self._by_pid = grouped((place.pid, process) for process, place in places.items())

    def of(self, rank: Rank) -> int | None:
        """None: the rank is of another job, or it is not known whose."""
        same = self._by_pid.get(rank.pid, [])
        here = [process for process in same if rank.host in self._places[process].addresses]
        if here:
            return here[0] if len(here) == 1 else None
        # An address that holds on one link only is not among those of a host.
        unsure = [p for p in same if not self._places[p].addresses or not _is_global(rank.host)]
        return unsure[0] if len(same) == len(unsure) == 1 else None

    def of_all(self, each: Communicator) -> dict[int, int]:
        """The process of each rank that is known."""
        found = {number: self.of(rank) for number, rank in each.ranks.items()}
        return {number: process for number, process in found.items() if process is not None}


def _is_global(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False


def lag(
    answers: Sequence[Sequence[Communicator]], places: Mapping[int, Place], needed: int
) -> Lag | None:
    """What the latest ``needed`` answers that are of this job prove; None: nothing."""
    owners = Owners(places)
    own = [{each.name: each for each in answer if owners.of_all(each)} for answer in answers]
    latest = [each for each in own if each][-needed:]
    if len(latest) < needed:
        return None
    same = [
        each
        for name, each in latest[-1].items()
        if each.is_uneven and all(other.get(name) == each for other in latest)
    ]
    found = [_judged(each, owners.of_all(each), needed) for each in same]
    if not found:
        return None
    first = max(found, key=lambda one: len(one.behind) + len(one.waiting))
    more = f"; {counted(len(found) - 1, 'more communicator')} alike" if found[1:] else ""
    return dataclasses.replace(first, text=first.text + more)


def _judged(each: Communicator, owners: Mapping[int, int], needed: int) -> Lag:
    total = {number: sum(rank.counts) for number, rank in each.ranks.items() if rank.counts}
    dead = {number for number, rank in each.ranks.items() if rank.is_dead}
    silent = each.ranks.keys() - total.keys() - dead
    most = max(total.values(), default=0)
    late = {number for number, own in total.items() if own < most} | silent | dead
    waiting = sorted({owners[n] for n in each.ranks.keys() - late if n in owners})
    behind = sorted({owners[n] for n in late if n in owners} - {*waiting})
    parts = [_counted(each, owners, index) for index in range(len(_OPERATIONS))]
    if silent:
        parts.append(f"no answer from {_names(silent, owners)}")
    if dead:
        parts.append(f"{_names(dead, owners)} taken for dead")
    size = counted(len(each.ranks), "GPU")
    found = ", ".join(filter(None, parts))
    text = f"NCCL counts on {size} ({needed} equal answers of its RAS): {found}"
    return Lag(tuple(behind), tuple(waiting), text)


def _counted(each: Communicator, owners: Mapping[int, int], index: int) -> str:
    """``3 all-reduces of process 1, 4 of process 0``: the fewest first; "": all have as many."""
    by_count: dict[int, set[int]] = {}
    for number, rank in each.ranks.items():
        if rank.counts:
            by_count.setdefault(rank.counts[index], set()).add(number)
    if len(by_count) < 2:
        return ""
    name = tuple(_OPERATIONS.values())[index]
    words = [
        f"{number if position else counted(number, name)} of {_names(some, owners)}"
        for position, (number, some) in enumerate(sorted(by_count.items())[:_MOST_SHOWN])
    ]
    more = f"up to {max(by_count)} of others" if len(by_count) > _MOST_SHOWN else ""
    return ", ".join(filter(None, [*words, more]))


def _names(some: set[int], owners: Mapping[int, int]) -> str:
    if all(number in owners for number in some):
        return processes(sorted({owners[number] for number in some}))
    return f"rank{'s' if len(some) > 1 else ''} {ranges(sorted(some))}"
