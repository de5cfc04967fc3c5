"""Reports each wait that takes long once: the missing processes, and what they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lockstep import _config
from lockstep._stderr import complain
from lockstep._words import counted
from lockstep.flight_recorder import diagnose, format, text_report
from lockstep.job.topology import Peer
from lockstep.system import stack_dump
from lockstep.watchdog.record_reader import Records
from lockstep.watchdog.remote import RemoteHosts

_MAX_STACKS = 4
"""Each may take a second, in which the watchdog does nothing else."""
_MAX_ASKED = 2
"""At a deadline, for which the engine waits a second."""


class Stalls:
    """The waits of one process, and which of them were reported."""

    def __init__(self, peers: Sequence[Peer], records: Records, remote: RemoteHosts | None) -> None:
        self._peers = peers
        self._process = records.own
        self._records = records
        self._remote = remote
        self._reported: set[int] = set()

    def scan(self, found: diagnose.Diagnosis, full_scan: Callable[[], diagnose.Diagnosis]) -> None:
        """Tells of the oldest wait when it has lasted too long.

        ``found`` may be the result of a quick scan; ``full_scan`` reads all records.
        """
        limit = _config.current().stall_warning
        if not limit or not self._waits_first(found):
            return
        began = self.oldest_wait()
        if began is None or began in self._reported:
            return
        waited = (time.monotonic_ns() - began) / 1e9
        if waited < limit:
            return
        found = full_scan()
        if not self._waits_first(found):
            return
        self._reported.add(began)
        missing = [row.process.index for row in found.rows if row.culprit]
        stacks = [self._stacks_of(process) for process in missing[:_MAX_STACKS]]
        if len(missing) > _MAX_STACKS:
            stacks.append(f"and {counted(len(missing) - _MAX_STACKS, 'process')} more")
        lines = [f"waiting for {waited:.0f} s. {text_report.table(found)}", *stacks]
        complain("\nlockstep: ".join(lines))

    def stopped(self, found: diagnose.Diagnosis) -> str:
        """Which process that others wait for is stopped; "" where none is known to be."""
        waited_for = [row.index for row in found.rows if row.culprit]
        for process in waited_for[:_MAX_ASKED]:
            if stack_dump.STOPPED in self._text_of(process):
                return f"{self._peers[process].label} is {stack_dump.STOPPED}"
        return ""

    def _waits_first(self, found: diagnose.Diagnosis) -> bool:
        """Whether no process before this one waits: one report is enough."""
        waiting = (
            row.process.index for row in found.rows if row.activity is diagnose.Activity.WAITS
        )
        return next(waiting, None) == self._process

    def oldest_wait(self) -> int | None:
        """When the oldest collective of this process that has not ended began (monotonic, ns)."""
        rings = self._records.record(self._process).rings
        open_since = [
            entry.entered_ns
            for ring in rings
            for entry in ring.entries
            if entry.state == format.State.ENTERED
        ]
        return min(open_since, default=None)

    def _stacks_of(self, process: int) -> str:
        indented = "\n".join(f"    {line}" for line in self._text_of(process).splitlines())
        return f"{self._peers[process].label} does meanwhile:\n{indented}"

    def _text_of(self, process: int) -> str:
        peer = self._peers[process]
        if self._remote and peer.host_id != self._peers[self._process].host_id:
            return self._remote.stacks(peer)
        return self._records.stacks(process)
