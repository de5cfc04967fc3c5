"""Reads the records of all processes while a collective of this process waits, and judges them.

The thread that waits for notifications is `lockstep.watchdog.watchdog`; what follows from records
is decided in `lockstep.flight_recorder`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from lockstep.flight_recorder import diagnose
from lockstep.job import current_job
from lockstep.job.topology import Peer
from lockstep.watchdog import abort_message
from lockstep.watchdog.own_waits import OwnWaits
from lockstep.watchdog.program_equality import Comparison
from lockstep.watchdog.record_reader import Records, SiteWriter
from lockstep.watchdog.remote import RemoteHosts
from lockstep.watchdog.stall_detector import Stalls

_MAX_PAUSE = 1.0
_FIRST_PAUSE = 0.1
_QUICK_SCAN = 64
"""Entries of each device that a quick scan reads, of the hosts to which this process has
connections: nearly always they show that nothing is wrong."""
_FULL_SCAN_EVERY = 4
"""Scans of one wait; a device may have run more than a quick scan reads since another began to
wait, and what is wrong may be on another host."""
_BACKOFF = 4.0
"""Pause after a scan, as a multiple of its duration: a large job has many watchdogs."""
_EARLY_SCANS = 6
_REST = 250.0
"""The same in processor time for the later scans of one wait, which find less: so a process that
waits takes 0.4% of a core for them, with however many records there are to read."""
_MAX_REST = 5.0
_LATE_SECONDS = 1.0
"""How long a circle of waits waits for the processes that are not in it."""
_LINES_TIMEOUT = 0.5
"""Seconds the others may take to write down the lines of a call that they have just met."""


class Scanner:
    """Scans the records, at growing intervals while the same wait goes on."""

    def __init__(
        self,
        peers: Sequence[Peer],
        records: Records,
        sites: SiteWriter,
        comparison: Comparison,
        remote: RemoteHosts | None,
    ) -> None:
        self._records = records
        self._sites = sites
        self._comparison = comparison
        self._remote = remote
        self._stalls = Stalls(peers, records, remote)
        self.scan_at_once()

    def scan_at_once(self) -> None:
        """The next notification leads to a scan, however often the last ones were in vain."""
        self._next_scan = 0.0
        self._pause = _FIRST_PAUSE
        self._scans = 0
        self._waits_since: int | None = None

    def is_due(self) -> bool:
        """Whether the pause after the last scan is over."""
        return time.monotonic() >= self._next_scan

    def scan(self) -> None:
        """A rank of this process waits long: finds out whether in vain."""
        began, used = time.monotonic(), time.thread_time()
        waits_since = self._stalls.oldest_wait()
        self._scans = self._scans + 1 if waits_since == self._waits_since else 1
        self._waits_since = waits_since
        found = self.diagnose(latest=_QUICK_SCAN)
        waits = [row.process.waits for row in found.rows]
        if not found.kind.is_fault and any(w.barriers or w.callback for w in waits):
            own = next(row for row in found.rows if row.index == self._records.own)
            native = self._sites.call_native_code()
            current_job.part(OwnWaits).note_rest(own.progress, native)
            found = self.diagnose(latest=_QUICK_SCAN)
        if found.kind.is_fault or self._scans % _FULL_SCAN_EVERY == 0:
            whole = self.diagnose_with_lines()
            # The quick scan knows more of a host that has not answered this time.
            found = whole if whole.kind.is_fault or not found.kind.is_fault else found
        if found.kind.is_fault:
            found = self._with_meshes(found)
            abort_message.fail(abort_message.proof(found), found)
            return
        self._stalls.scan(found, self.diagnose)
        now = time.monotonic()
        # Pauses grow within one wait: a notification long after the last scan is that of another.
        waits_on = now < self._next_scan + 2 * _MAX_PAUSE
        self._pause = min(2 * self._pause, _MAX_PAUSE) if waits_on else _FIRST_PAUSE
        rest = rest_after(self._scans, time.thread_time() - used)
        self._next_scan = now + max(self._pause, _BACKOFF * (now - began), rest)

    def _with_meshes(self, found: diagnose.Diagnosis) -> diagnose.Diagnosis:
        """A circle of waits that comes from the meshes is told by these.

        A process that has not come yet may show which one is the odd one.
        """
        if found.kind is not diagnose.Kind.CYCLE:
            return found
        end = time.monotonic() + _LATE_SECONDS
        while not all(row.call for row in found.rows) and time.monotonic() < end:
            time.sleep(0.1)
            later = self.diagnose()
            found = later if later.kind is diagnose.Kind.CYCLE else found
        calls = {row.index: row.call.entry.run_id for row in found.rows if row.call}
        with contextlib.suppress(Exception):  # the service is gone
            if meshes := self._comparison.meshes(calls):
                self._records.note_difference(meshes)
                return self.diagnose_with_lines()
        return found

    def diagnose(
        self, by_numbers: bool = False, latest: int | None = None, asks_all: bool = True
    ) -> diagnose.Diagnosis:
        """What the records show.

        Executions with different numbers may be of one program: while the engine still waits for a
        response, its records look like a fault. ``by_numbers`` is for when it has found one.
        ``latest`` is how many entries of each device are read; ``asks_all``: other hosts too.
        """
        vary = not by_numbers or self._comparison.programs_vary()
        found = self._records.read(
            self._sites.found, vary, latest, self._remote if asks_all else None
        )
        return diagnose.diagnose(found)

    def stopped(self, found: diagnose.Diagnosis) -> str:
        """Which process that others wait for is stopped; "" where none is known to be."""
        return self._stalls.stopped(found)

    def diagnose_with_lines(self, by_numbers: bool = False) -> diagnose.Diagnosis:
        """Waits for the lines of the others, which were notified too and look for them now."""
        found = self.diagnose(by_numbers)
        if self._remote and found.kind.is_fault:
            self._remote.hurry(self._without_lines(found))
        end = time.monotonic() + _LINES_TIMEOUT
        while found.kind.is_fault and self._without_lines(found) and time.monotonic() < end:
            time.sleep(0.02)
            found = self.diagnose(by_numbers)
        return found

    def _without_lines(self, found: diagnose.Diagnosis) -> list[int]:
        """The processes that may still write to which line of the program their call belongs."""
        return [row.index for row in found.rows if row.awaits_lines]


def rest_after(scans: int, used: float) -> float:
    """Seconds of rest after so many scans of one wait; the last used this processor time."""
    return min(_REST * used, _MAX_REST) if scans > _EARLY_SCANS else 0.0
