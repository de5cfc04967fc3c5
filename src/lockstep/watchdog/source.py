"""What the store watch reads in its process: NCCL's collectives, or the launches of programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from lockstep.flight_recorder.format import ProcessRecord
from lockstep.programs.compilations import Program
from lockstep.watchdog.library_counts import LibraryCounts


@dataclasses.dataclass(frozen=True)
class Source:
    """What is recorded in this process."""

    library: str
    """``NCCL``, ``gloo``: what moves the data."""
    read: Callable[[int | None], ProcessRecord]
    """The record now, with so many entries of each device."""
    programs: Callable[[], Mapping[int, Program]] = dict
    """The programs that were launched, by the run ids in the record."""
    owner: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """The process of each device, where the record is of launches: these are compared."""
    has_collectives: Callable[[bytes], bool | None] = lambda _: None
    """Whether the program of this fingerprint has collectives; None: it was not looked at."""
    counts: LibraryCounts | None = None
    """What the library says itself. It is one of GPUs then, for which XLA compiles on all processes
    together."""

    @property
    def is_of_launches(self) -> bool:
        return bool(self.owner)
