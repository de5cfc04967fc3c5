"""A process of a job on this host: its start, its signals, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from lockstep import _run_files
from lockstep._run_files import OUT_OF_MEMORY, STOPPED, Exit
from lockstep.processes.job_spec import LaunchSpec, command
from lockstep.processes.process_start import Start, spawn


class ChildProcess:
    """A process that has been started. Its exit status is passed to `reaped`."""

    def __init__(
        self,
        job: LaunchSpec,
        process_id: int,
        environ: Mapping[str, str],
        inherited: Sequence[int] = (),
        stdin: int = 0,
        start: Callable[[Start], int] = spawn,
    ) -> None:
        """Starts process ``process_id``; ``environ`` overrides the job's variables.

        ``inherited`` are descriptors that it gets besides the standard ones. ``stdin`` is what
        process 0 reads, by default what this process reads. Raises what ``start`` raises.
        """
        self.process_id = process_id
        self.exit: Exit | None = None
        self.ended_at = float("inf")
        self.was_killed = False
        self._folder = job.process_dir(process_id)
        _run_files.make_folder(self._folder)
        self.stdout_fd, out_end = os.pipe()
        self.stderr_fd, err_end = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            self.pid = start(
                Start(
                    command=command(job.program),
                    environ={**job.environ_of(process_id), **environ},
                    streams=(stdin if process_id == 0 else null, out_end, err_end),
                    inherited=inherited,
                    cores=job.cores_of(process_id),
                )
            )
        except BaseException:
            os.close(self.stdout_fd)
            os.close(self.stderr_fd)
            raise
        finally:
            for fd in (null, out_end, err_end):
                os.close(fd)

    @property
    def lives(self) -> bool:
        return self.exit is None

    def reaped(self, exit_code: int, out_of_memory: bool) -> None:
        """Records its end; an ``exit_code`` below 0 is a signal.

        The record is written at once, because a process that has lost this one names the cause in
        its error.
        """
        self.ended_at = time.monotonic()
        reason = None
        if self.was_killed or (self._folder / _run_files.INTERRUPTED).exists():
            reason = STOPPED
        elif out_of_memory and exit_code == -signal.SIGKILL:
            reason = OUT_OF_MEMORY
        self.exit = Exit.of(exit_code, self.pid, reason)
        with contextlib.suppress(OSError):  # a full disk must not stop the launcher
            self.exit.write(self._folder)

    def send(self, number: int) -> None:
        """Signals the process and all others of its session, as a terminal would.

        A process that has recorded its error is already ending and gets only SIGKILL.
        """
        if self.lives and (number == signal.SIGKILL or self.record() is None):
            self.was_killed |= number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def record(self) -> _run_files.ErrorRecord | None:
        """The error that it has recorded."""
        return _run_files.ErrorRecord.read(self._folder)
