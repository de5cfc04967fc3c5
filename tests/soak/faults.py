"""Which faults are planted, where and when, drawn from a seed; and what may be said of each. Pure.

A job of `chaos` meets several strikes, one after the other. A strike is a fault, or two at once.
"""

from __future__ import annotations

import random
from typing import NamedTuple

STRIKES = 10
"""In a job, unless it ends before."""
LATEST = 4.0
"""Seconds from the start of an attempt to a strike: it starts, joins, compiles, or makes steps."""
_TWO = 0.2
"""The share of strikes with two faults."""

_ENDED = r"on {host} failed first: its host was lost: the agent on {host} has ended"
_SILENT = r"on {host} failed first: its host was lost: no answer from {host} for 10 s"
_LEASE = r"on {host} has ended: the launcher has confirmed no answer of this host for 9 s"
_KILLED = r"process {process} of \d on {host} failed first: killed by SIGKILL"
_STOPPED = r"process {process} \(pid \d+ on {host}\) is stopped"
_LATE = r"(Nothing has come from|Not arrived:) process {process} \("
_UNREACHABLE = r"cannot reach host \w"
_FILES = r"Too many open files|EMFILE"
_FULL = r"No space left on device"
_PORTS = r"Cannot assign requested address|Address already in use|no free port"
_MEMORY = (
    r"(on {host} failed first: |process {process} \(pid \d+ on {host}\)).*"
    r"(out of memory|Out of memory|bad_alloc|MemoryError|memory)"
)
_ABORTED = (
    r"process {process} (of \d on {host} failed first:|\(pid \d+ on {host}\) was) killed by SIGABRT"
)
"""XLA's answer where it gets no thread or no memory."""


class Kind(NamedTuple):
    """A kind of fault."""

    causes: tuple[str, ...]
    """Patterns of headlines that name it; none: nothing but survival is right."""
    lasts: tuple[float, ...] = ()
    """Seconds until it is lifted, of which one is drawn; none: it is over at once."""
    may_survive: bool = True
    """Whether the job may go on without a restart."""


KINDS = {
    "process killed": Kind((_KILLED,), may_survive=False),
    "agent killed": Kind((_ENDED,), may_survive=False),
    "guard killed": Kind((_ENDED,), may_survive=False),
    "host killed": Kind((_ENDED,), may_survive=False),
    "process 0's host killed": Kind((_ENDED,), may_survive=False),
    "process stopped": Kind((_STOPPED, _LATE), (3.0, 16.0)),
    "agent stopped": Kind((_SILENT, _LEASE), (3.0, 14.0)),
    "launcher stopped": Kind((r"launcher", r"no answer from \w"), (3.0, 14.0)),
    "link cut": Kind((_SILENT, _LEASE), (3.0, 15.0)),
    "link cut one way": Kind((_SILENT, _LEASE), (3.0, 15.0)),
    "link to a host cut one way": Kind((_UNREACHABLE, _LATE), (3.0, 15.0)),
    "packets delayed": Kind((), (4.0, 8.0)),
    "packets dropped": Kind((_SILENT, _LEASE), (4.0, 8.0)),
    "packets reordered": Kind((), (4.0, 8.0)),
    "disk full": Kind((_FULL,), (4.0,)),
    "checkpoints' disk full": Kind((_FULL,), (4.0,)),
    "memory taken": Kind((_MEMORY, _KILLED), (4.0,)),
    "address space taken": Kind((_MEMORY, _ABORTED), (4.0,)),
    "clock changed": Kind((), (4.0,)),
    "no descriptors": Kind((_FILES,), (4.0,)),
    "agent without descriptors": Kind((_FILES,), (4.0,)),
    "no ports": Kind((_PORTS,), (4.0,)),
}


class Fault(NamedTuple):
    """A fault that is to be planted."""

    kind: str
    place: float
    """Which host of those that can be hit, from 0 to 1: they are known when it is planted."""
    lasts: float

    def host(self, names: list[str]) -> str:
        """The host that is hit."""
        return sorted(names)[int(self.place * len(names))]


class Strike(NamedTuple):
    """What happens at one moment."""

    wait: float
    """Seconds after the start of an attempt."""
    faults: tuple[Fault, ...]


class Plan(NamedTuple):
    """A job and what happens to it."""

    processes: int
    devices: int
    options: tuple[str, ...]
    strikes: tuple[Strike, ...]


_LAYOUTS = ((4, ()), (3, ("--spares", "1")), (4, ("--min-hosts", "3")))
"""How many of the four hosts have a process at the start, and the options."""


def draw(seed: int, number: int, kinds: list[str]) -> Plan:
    """The job of that number: one seed's jobs meet all kinds equally often."""
    shuffled = random.Random(seed).sample(kinds, len(kinds))
    rng = random.Random(f"{seed}/{number}")
    processes, options = rng.choice(_LAYOUTS)
    strikes = []
    for i in range(STRIKES):
        first = shuffled[(number * STRIKES + i) % len(kinds)]
        named = [first]
        if rng.random() < _TWO:
            named.append(rng.choice(kinds))
        faults = [Fault(k, rng.random(), rng.choice(KINDS[k].lasts or (0.0,))) for k in named]
        strikes.append(Strike(rng.uniform(0.0, LATEST), tuple(faults)))
    return Plan(processes, rng.choice((1, 2)), options, tuple(strikes))
