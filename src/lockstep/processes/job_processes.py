"""The processes of a job as the supervisor sees them, on this host or on others."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from lockstep import _run_files
from lockstep._run_files import ErrorRecord, Exit
from lockstep.processes.alike_lines import StreamLines
from lockstep.processes.console import Console, Stream, has_stdin, open_log
from lockstep.processes.first_failure import EndedProcess, last_words
from lockstep.processes.job_spec import LaunchSpec


class Loop(Protocol):
    """What the processes use of the supervisor's loop."""

    @property
    def selector(self) -> selectors.BaseSelector:
        """Its keys have the function to call as their data."""
        ...

    @property
    def console(self) -> Console: ...

    @property
    def is_stopping(self) -> bool: ...

    @property
    def stopping_at(self) -> float:
        """When the stop of the job began; infinity: it has not."""
        ...

    def turn(self, longest: float = 1.0) -> None:
        """Waits for events, at most ``longest`` seconds, and handles them."""
        ...

    def asked_to_stop(self) -> None:
        """No attempt follows: a signal to agents of the processes ends the job."""
        ...

    def failed(self) -> None:
        """Stops the job because a process has failed."""
        ...

    def grow(self) -> bool:
        """Has the processes end, so that the job starts again on more hosts; False: it ends
        already."""
        ...

    def could_not_start(self, process_id: int, why: str) -> None:
        """Ends the job because a process could not be started."""
        ...


class Process(Protocol):
    """One process, which has been started."""

    process_id: int
    was_killed: bool
    stdout: Stream
    stderr: Stream

    @property
    def lives(self) -> bool: ...

    def ended(self) -> EndedProcess:
        """How it ended. Writes its error next to its logs, if there are logs."""
        ...


class Processes(Protocol):
    """All processes of one attempt."""

    not_stored: str
    """Why records of other hosts are not in the run's directory; "" where all are."""

    @property
    def members(self) -> Sequence[Process]:
        """Those that have been started."""
        ...

    def listen(self) -> None:
        """Prepares for the start. Raises OSError."""
        ...

    def start(self) -> None:
        """Starts all, unless the job has to stop meanwhile."""
        ...

    def reaped(self, ended: Sequence[tuple[int, int]]) -> None:
        """Takes note of children of this process that have ended: pairs of pid and exit code."""
        ...

    def tick(self, now: float) -> None:
        """Does what is due at ``now``; called in each turn of the loop."""
        ...

    def hold_output(self, held: bool) -> None:
        """Stops reading their output, or goes on."""
        ...

    def signal(self, number: int) -> None:
        """Sends a signal to all that live."""
        ...

    def sweep(self) -> int:
        """Ends what they have started and left running; how many processes were killed."""
        ...

    def collect(self) -> None:
        """Brings the records of the processes into the run's directory."""
        ...

    def close(self) -> None:
        """Releases what the next attempt needs."""
        ...


class Output:
    """The two streams of a process, and the folder of its logs."""

    def __init__(self, job: LaunchSpec, process_id: int) -> None:
        """Opens the logs. Raises OSError."""
        attempt = job.config.attempt
        self._process_id = process_id
        self._may_prompt = process_id == 0 and has_stdin()
        self._logs: Path | None = (
            _run_files.process_dir(job.log_dir, attempt, process_id) if job.log_dir else None
        )
        self._files = [open_log(self._logs, name) for name in ("stdout.log", "stderr.log")]

    def streams(
        self, fds: tuple[int, int], console: Console, prefixes: tuple[bytes, bytes]
    ) -> tuple[Stream, Stream]:
        """Stdout and stderr; ``fds`` are -1 where their bytes are fed."""
        lines = StreamLines(console.alike, self._process_id) if console.alike else None
        out, err = (
            Stream(fd, outlet, console, prefix, file, self._may_prompt, own)
            for fd, outlet, prefix, file, own in zip(
                fds,
                (console.stdout, console.stderr),
                prefixes,
                self._files,
                (None, lines),
                strict=True,
            )
        )
        self._stderr = err
        return out, err

    def ended(
        self, exit: Exit | None, ended_at: float, record: ErrorRecord | None, host: str = ""
    ) -> EndedProcess:
        """How the process ended. Writes its error next to its logs, if there are logs."""
        if record and self._logs:
            with contextlib.suppress(OSError):
                record.write(self._logs)
        exit = exit or Exit(exit_code=0)
        words = last_words(self._stderr.tail, exit.status)
        on_screen = tuple(self._stderr.on_screen) if record else ()
        return EndedProcess(self._process_id, exit, ended_at, record, words, host, on_screen)
