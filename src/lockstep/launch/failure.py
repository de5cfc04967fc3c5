"""Which process failed first, and how that is told. Pure.

When one process of a job fails, the others fail too: their collectives break, JAX aborts them, the
launcher stops them. What the user needs is the error that came before all of those.
"""

from __future__ import annotations

import dataclasses
import signal
import textwrap
from collections.abc import Sequence

from lockstep.launch.records import ErrorRecord

MOST_CONSEQUENCES = 8

_CAUSES: dict[int, str] = {
    signal.SIGKILL: "Somebody sent it kill -9, or the kernel ran out of memory (see dmesg, and the "
    "memory limit of the container or of the batch job).",
    signal.SIGSEGV: "Native code read or wrote memory that is not its own.",
    signal.SIGBUS: "Memory that was mapped could not be provided: is /dev/shm or the disk full?",
    signal.SIGABRT: "Native code gave up; its reason stands on stderr.",
    signal.SIGILL: "The program uses instructions that this processor does not have.",
    signal.SIGXCPU: "The limit on processor time was reached (ulimit -t).",
}


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended."""

    process_id: int
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""
    ended_at: float
    record: ErrorRecord | None = None
    last_words: tuple[str, ...] = ()
    """The last lines that it wrote to stderr."""

    @property
    def failed(self) -> bool:
        return self.record is not None or self.exit_code != 0

    @property
    def failed_at(self) -> float:
        """When the error happened: well before the end, if the process took its time to end."""
        return self.record.time if self.record else self.ended_at

    @property
    def status(self) -> int:
        """What a shell would show: the exit code, or 128 + the signal."""
        code = self.record.exit_code if self.record else self.exit_code
        return code & 0xFF if code >= 0 else 128 - code


def first_failure(endings: Sequence[Ending]) -> Ending | None:
    """The earliest of the failures, None when there is none."""
    return min((e for e in endings if e.failed), key=lambda e: e.failed_at, default=None)


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def manner(ending: Ending) -> str:
    """In a few words, how a process that failed ended."""
    if ending.record is not None:
        return f"{ending.record.summary} (exit code {ending.status})"
    if ending.exit_code < 0:
        return f"killed by {signal_name(-ending.exit_code)} (signal {-ending.exit_code})"
    return f"exit code {ending.exit_code}"


def _indented(text: str) -> str:
    return textwrap.indent(text.rstrip("\n"), "    ", lambda _: True)


def headline(
    first: Ending, endings: Sequence[Ending], stopping_at: float, logs: str | None
) -> list[str]:
    """The report of a job that failed: paragraphs, the first failure on top.

    ``stopping_at`` is when the launcher began to stop the others: a signal that ended a process
    later is the launcher's own.
    """
    report = [f"process {first.process_id} of {len(endings)} failed first: {manner(first)}"]
    if first.record is None and (cause := _CAUSES.get(-first.exit_code)):
        report[0] += f". {cause}"
    if first.record is not None and first.record.traceback:
        report[0] += "\n" + _indented(first.record.traceback)
    elif first.record is None and first.last_words:
        report[0] += "\nIts last lines on stderr:\n" + _indented("\n".join(first.last_words))
    later = [
        e
        for e in sorted(endings, key=lambda e: e.failed_at)
        if e is not first and e.failed and (e.record is not None or e.ended_at < stopping_at)
    ]
    report += [
        f"process {e.process_id} failed {e.failed_at - first.failed_at:.1f} s later: {manner(e)}"
        for e in later[:MOST_CONSEQUENCES]
    ]
    if len(later) > MOST_CONSEQUENCES:
        report.append(f"{len(later) - MOST_CONSEQUENCES} more failed later")
    if logs:
        report.append(f"whole logs: {logs}")
    return report
