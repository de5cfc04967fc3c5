"""One process of a job: its start, its signals, its output, and how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from lockstep import _run_files
from lockstep._run_files import OUT_OF_MEMORY, STOPPED, Exit
from lockstep.launch.console import Console, Stream, open_log
from lockstep.launch.first_failure import EndedProcess, last_words
from lockstep.launch.job_spec import LaunchSpec, command
from lockstep.system import process_tree


class ChildProcess:
    """A process that has been started. Its exit status is passed to `reaped`."""

    def __init__(
        self,
        job: LaunchSpec,
        process_id: int,
        console: Console,
        prefixes: tuple[bytes, bytes],
        environ: Mapping[str, str],
        inherited: Sequence[int] = (),
    ) -> None:
        """Starts process ``process_id``; ``environ`` overrides the job's variables.

        ``prefixes`` are those of its lines on stdout and stderr; ``inherited`` are descriptors that
        it gets besides the standard ones. Raises OSError or subprocess.SubprocessError.
        """
        self.process_id = process_id
        self.exit: Exit | None = None
        self.ended_at = float("inf")
        self.was_killed = False
        attempt = job.config.attempt
        self._folder = _run_files.process_dir(job.run_dir, attempt, process_id)
        self._folder.mkdir(parents=True)
        self._logs = (
            _run_files.process_dir(job.log_dir, attempt, process_id) if job.log_dir else None
        )
        logs = [open_log(self._logs, name) for name in ("stdout.log", "stderr.log")]
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        try:
            started = subprocess.Popen(
                command(job.program),
                stdin=None if process_id == 0 else subprocess.DEVNULL,
                stdout=out_end,
                stderr=err_end,
                env={**job.environ_of(process_id), **environ},
                pass_fds=inherited,
                start_new_session=True,
                preexec_fn=lambda: _prepare(job.cores[process_id] if job.cores else None),
            )
        finally:
            os.close(out_end)
            os.close(err_end)
        started.returncode = 0  # the supervisor reaps it; Popen's own finalizer must not
        self.pid = started.pid
        self.stdout = Stream(out, console.stdout, console, prefixes[0], logs[0])
        self.stderr = Stream(err, console.stderr, console, prefixes[1], logs[1])

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
        if self._was_stopped:
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
        if self.lives and (number == signal.SIGKILL or self._record() is None):
            self.was_killed |= number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def ended(self) -> EndedProcess:
        """How it ended. Writes its error next to its logs, if there are logs."""
        record = self._record()
        if record and self._logs:
            with contextlib.suppress(OSError):
                record.write(self._logs)
        exit = self.exit or Exit(exit_code=0)
        words = last_words(self.stderr.tail, exit.status)
        return EndedProcess(self.process_id, exit, self.ended_at, record, words)

    @property
    def _was_stopped(self) -> bool:
        """Whether it was stopped by the launcher's signal."""
        return self.was_killed or (self._folder / _run_files.INTERRUPTED).exists()

    def _record(self) -> _run_files.ErrorRecord | None:
        return _run_files.ErrorRecord.read(self._folder)


def _prepare(cores: frozenset[int] | None) -> None:
    # Runs between fork and exec. `child_main` handles SIGINT once it is ready. Until then SIGINT is
    # ignored: a process that is stopped while Python starts would print a traceback of Python's.
    process_tree.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores is not None:
        os.sched_setaffinity(0, cores)
