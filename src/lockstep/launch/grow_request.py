"""The request to a job to end, so that it starts again on more hosts (``--grow``). Pure.

The processes get SIGTERM, later SIGINT and SIGKILL (`stop_plan.GROW`). One of them may fail on its
own meanwhile, for instance while it saves. That is a failure of the job, and no answer to the
request.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from lockstep import _run_files
from lockstep._jax_compat.texts import is_of_collective
from lockstep.processes.first_failure import EndedProcess, is_engines

_STOPPED = {128 + number for number in _run_files.STOP_SIGNALS}
"""The statuses of programs that a signal of the request has ended."""


class GrowRequest:
    """The request to one attempt."""

    def __init__(self) -> None:
        self.at = float("inf")
        """When it was made; infinity: it was not."""

    def unasked(self, endings: Sequence[EndedProcess]) -> list[EndedProcess]:
        """``endings`` without those that the request asks for."""
        return [each for each in endings if not self._is_asked(each)]

    def has_failed(self, endings: Sequence[EndedProcess], all_ended: bool) -> bool:
        """Whether a process has failed on its own.

        A collective breaks when a process ends as it was asked to. So errors of collectives count
        only where all processes end by one, which is known when they have ``all_ended``.
        """
        failed = [each for each in self.unasked(endings) if each.failed]
        if all_ended and endings and len(failed) == len(endings):
            return True
        return any(each.failed_at < self.at or not _may_be_consequence(each) for each in failed)

    def _is_asked(self, ending: EndedProcess) -> bool:
        if ending.failed_at < self.at:
            return False
        was_stopped = ending.record is None and ending.exit.reason == _run_files.STOPPED
        return was_stopped or ending.status in _STOPPED


def has_finished(attempt: Path) -> bool:
    """Whether a program has ended well without having been told to stop, as far as it asks
    (`lockstep.should_stop`); ``attempt`` is the directory of its records."""
    asks, stops = (
        any(attempt.glob(f"process_*/{name}")) for name in (_run_files.ASKS, _run_files.STOPS)
    )
    return asks and not stops


def _may_be_consequence(ending: EndedProcess) -> bool:
    """Whether the end of another process may have caused this one: JAX aborts then."""
    if ending.record is None:
        return ending.exit.signal == signal.SIGABRT
    message = ending.record.summary.partition(": ")[2]
    return is_engines(ending.record) or is_of_collective(message)
