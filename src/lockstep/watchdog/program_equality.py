"""Whether two numbers of executions belong to one program.

JAX numbers the executions of a program from a hash that covers where in the user's program it was
traced. So one program carries two numbers when one process calls it first from another line, traces
it again, or takes it from a compilation cache. The engine then asks, once for each pair of numbers;
what decides is the compiled text without all that says where it comes from.

Each process publishes digests of its programs, by their first number, in the key-value store of
JAX's coordination service: that is there with and without a launcher.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from lockstep import _config
from lockstep.callsites.hlo_metadata import Digests
from lockstep.job.kv_store import Store
from lockstep.job.topology import Peer

TIMEOUT_SECONDS = 5.0
"""How long the other process may take to publish; its watchdog publishes every second."""
_POLL_SECONDS = 0.02
_FIRST_EXECUTIONS = 1 << 12
"""Programs meet at their first executions; the next program's first number is far away."""
_PREFIX = "lockstep/program"
_VARY = "lockstep/programs-vary"


class Comparison:
    """What this process knows of the programs of all."""

    def __init__(self, store: Store, peers: Sequence[Peer], process: int) -> None:
        self._store = store
        self._peers = peers
        self._process = process
        self._published: dict[int, Digests] = {}
        self._varies = not _config.current().check_programs

    def publish(self, found: dict[int, Digests]) -> None:
        """Tells the others the programs of this process: digests by first number."""
        for execution, digests in found.items():
            if self._published.get(execution) != digests:
                key = f"{_PREFIX}/{self._process}/{execution}"
                self._store.put(key, digests, overwrite=True)
                self._published[execution] = digests

    def same(self, execution: int, peer: int, theirs: int) -> bool | None:
        """Whether these executions are of one program; None when it cannot be known yet."""
        own = _near(self._published, execution)
        other = _near(self._of(peer), theirs)
        if own is None or other is None:
            return None
        # The compiler cuts loops by the number of cores: then only the collectives are compared.
        cores = {len(self._peers[p].cpus) for p in (self._process, peer)}
        which = "whole" if len(cores) == 1 else "collectives"
        return bool({*own[which]} & {*other[which]})

    def _of(self, peer: int) -> dict[int, Digests]:
        there = self._store.values(f"{_PREFIX}/{peer}")
        return {int(execution): digests for execution, digests in there.items()}

    def note_that_programs_vary(self) -> None:
        if not self._varies:
            self._varies = True
            self._store.put(f"{_VARY}/{self._process}", True, overwrite=True)

    def programs_vary(self) -> bool:
        """Whether some process has found two numbers for one program."""
        if not self._varies:
            # When the service is gone, so is process 0 or the launcher: the job ends anyway.
            with contextlib.suppress(Exception):
                self._varies = any(self._store.values(_VARY).values())
        return self._varies


def _near(digests: dict[int, Digests], execution: int) -> Digests | None:
    """Those of the program that has this execution, one of its first."""
    after = {(execution - first) % (1 << 32): found for first, found in digests.items()}
    nearest = min(after, default=None)
    return after[nearest] if nearest is not None and nearest < _FIRST_EXECUTIONS else None


def poll(
    compare: Callable[[], bool | None], refresh: Callable[[], None], seconds: float
) -> bool | None:
    """The answer of `compare`, asked again until it is known; None when it is not in time."""
    end = time.monotonic() + seconds
    while (answer := compare()) is None and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        refresh()
    return answer
