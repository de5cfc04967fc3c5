"""A process of another host, as far as messages have told."""

from __future__ import annotations

import signal
import time
from typing import Protocol

from lockstep import _run_files
from lockstep._run_files import ErrorRecord, Exit
from lockstep.processes.console import Console
from lockstep.processes.first_failure import EndedProcess
from lockstep.processes.job_processes import Output
from lockstep.processes.job_spec import LaunchSpec


class Reached(Protocol):
    """The connection to what has started a process."""

    label: str
    """The name of its host, in errors."""
    lost: str
    """Why it is lost; "": it is not."""


class RemoteProcess:
    """A process of another host, as far as messages have told."""

    def __init__(
        self,
        job: LaunchSpec,
        process_id: int,
        connection: Reached,
        console: Console,
        prefixes: tuple[bytes, bytes],
    ) -> None:
        """Raises OSError where its logs cannot be written."""
        self.process_id = process_id
        self.connection = connection
        self.exit: Exit | None = None
        self.ended_at = float("inf")
        self.was_killed = False
        self._record: ErrorRecord | None = None
        self._output = Output(job, process_id)
        self.stdout, self.stderr = self._output.streams((-1, -1), console, prefixes)

    @property
    def lives(self) -> bool:
        return self.exit is None

    def ended(self) -> EndedProcess:
        host = self.connection.label
        return self._output.ended(self.exit, self.ended_at, self._record, host)

    def on_error(self, record: ErrorRecord) -> None:
        """Takes its recorded error, with a time of this host's clock."""
        self._record = record

    def on_exit(self, ending: Exit, was_killed: bool, at: float) -> None:
        """Takes how it ended, and when."""
        self.exit, self.was_killed, self.ended_at = ending, was_killed, at

    def not_started(self, is_error: bool) -> None:
        """Notes that it never ran, because of an error or because the job was stopped before."""
        stopped = Exit(signal=signal.SIGINT, reason=_run_files.STOPPED)
        self.exit = Exit(exit_code=0) if is_error else stopped
        self.ended_at = time.monotonic()
        self.close_output()

    def lost(self, why: str, at: float) -> None:
        """Its host is lost, so its end was not seen."""
        if self.exit is None:
            self.exit = Exit(reason=why)
            self.ended_at = at
        self.close_output()

    def close_output(self) -> None:
        """No more of its output comes."""
        self.stdout.close()
        self.stderr.close()
