"""What a library of collectives says of how far each process is, beside Lockstep's records. Pure.

A process may stay behind inside of a program that all have launched: then the launches are equal,
and a library that counts the collectives of each process (NCCL) still knows which one lags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lockstep._words import processes
from lockstep.flight_recorder import diagnose
from lockstep.watchdog import store_state as state
from lockstep.watchdog.store_state import Missing, ProcessState

_MOST_LATER = 10.0
"""How much later than its limit a wait is reported, while the library is asked."""


@dataclasses.dataclass(frozen=True)
class Place:
    """The host and pid of a process of the job."""

    pid: int
    addresses: tuple[str, ...] = ()
    """The addresses of its host."""

    @classmethod
    def from_json(cls, found: Mapping[str, object]) -> Place:
        addresses = found.get("addresses")
        own = tuple(map(str, addresses)) if isinstance(addresses, list) else ()
        pid = found.get("pid")
        return cls(pid if isinstance(pid, int) else -1, own)


@dataclasses.dataclass(frozen=True)
class Lag:
    """Processes that have started fewer collectives than others, for some time."""

    behind: tuple[int, ...]
    waiting: tuple[int, ...]
    text: str
    """What the library says: a sentence without a full stop."""


class LibraryCounts(Protocol):
    """Asks the library, on a thread of its own, from `begin` to `end`."""

    def begin(self) -> None:
        """Something stands still."""

    def end(self) -> None:
        """What stood still goes on."""

    @property
    def is_settled(self) -> bool:
        """Whether the library has answered often enough, or does not answer."""
        ...

    def lag(self, places: Mapping[int, Place]) -> Lag | None:
        """What the latest answers prove."""
        ...


def ask(
    counts: LibraryCounts,
    waited: float,
    limit: float,
    has_told: bool,
    places: Callable[[], Mapping[int, Place]],
) -> tuple[Lag | None, bool]:
    """What the library says, and whether no more is to be waited for.

    It is asked from the half of ``limit`` on, after which a wait is reported; ``has_told``: it has
    been.
    """
    if waited < limit / 2:
        return None, True
    counts.begin()
    is_early, is_late = waited < limit, waited >= limit + _MOST_LATER
    return counts.lag(places()), counts.is_settled or has_told or is_early or is_late


def report(
    found: diagnose.Diagnosis,
    lag: Lag | None,
    states: Sequence[ProcessState | None],
    missing: Mapping[int, Missing],
) -> str:
    """The whole report; what the records do not show comes first, as a headline."""
    whole = state.report(found, states, missing, lag.behind if lag else ())
    counted = joined(lag, states) if lag else ""
    return "\n".join(filter(None, (whole, counted) if found.culprits else (counted, whole)))


def joined(lag: Lag, states: Sequence[ProcessState | None]) -> str:
    """A lag with what the processes have launched, and the lines where they are."""
    ways = ((lag.behind, "launched last"), (lag.waiting, "waits in"))
    parts = [part for some, verb in ways for part in _programs(some, verb, states)]
    verb = "lag" if len(lag.behind) > 1 else "lags"
    lead = f"{processes(lag.behind)} {verb}: " if lag.behind else ""
    return "; ".join([f"{lead}{lag.text}", *parts])


def _programs(
    some: Sequence[int], verb: str, states: Sequence[ProcessState | None], most: int = 2
) -> list[str]:
    found = []
    for process in some:
        own = states[process] if process < len(states) else None
        if own is None:
            continue
        at = f"is at {own.at}" if own.at and verb != "waits in" else ""
        program = f"{verb} {own.launched_last.title}" if own.launched_last else ""
        if words := " and ".join(filter(None, (program, at))):
            found.append(f"process {process} {words}")
    left = len(found) - most
    return [*found[:most], *([f"{left} more processes alike"] if left > 0 else [])]
