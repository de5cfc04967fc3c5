"""One process of a job: how it is started, signalled, read, and judged at its end."""

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
    """A process that has been started. Whoever buries it tells it so (`buried`)."""

    def __init__(
        self,
        job: LaunchSpec,
        process_id: int,
        console: Console,
        prefixes: tuple[bytes, bytes],
        environ: Mapping[str, str],
        inherited: Sequence[int] = (),
    ) -> None:
        """Starts process ``process_id``, with ``environ`` over the job's.

        ``prefixes`` are those of its lines on stdout and stderr; ``inherited`` are descriptors that
        it gets beside the standard ones. Raises OSError or subprocess.SubprocessError.
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
        started.returncode = 0  # the supervisor buries it; Popen's own finalizer must not
        self.pid = started.pid
        self.stdout = Stream(out, console.stdout, console, prefixes[0], logs[0])
        self.stderr = Stream(err, console.stderr, console, prefixes[1], logs[1])

    @property
    def lives(self) -> bool:
        return self.exit is None

    def buried(self, exit_code: int, out_of_memory: bool) -> None:
        """Takes note of its end; an ``exit_code`` below 0 is a signal.

        The other processes want to know too, right now: one that has lost this one names the cause
        in its error.
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
        """Signals the process and what runs in its session, as a terminal would.

        One that has recorded its error is on its way out and is disturbed by SIGKILL only.
        """
        if self.lives and (number == signal.SIGKILL or self._record() is None):
            self.was_killed |= number == signal.SIGKILL
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def ended(self) -> EndedProcess:
        """How it ended. Keeps its error beside its logs, if those are kept."""
        record = self._record()
        if record and self._logs:
            with contextlib.suppress(OSError):
                record.write(self._logs)
        exit = self.exit or Exit(exit_code=0)
        words = last_words(self.stderr.tail, exit.status)
        return EndedProcess(self.process_id, exit, self.ended_at, record, words)

    @property
    def _was_stopped(self) -> bool:
        """Whether the launcher's signal has reached it."""
        return self.was_killed or (self._folder / _run_files.INTERRUPTED).exists()

    def _record(self) -> _run_files.ErrorRecord | None:
        return _run_files.ErrorRecord.read(self._folder)


def _prepare(cores: frozenset[int] | None) -> None:
    # Runs between fork and exec. SIGINT is ignored until the bootstrap is ready for it, so that a
    # process that is stopped while Python starts prints no traceback from inside Python.
    process_tree.end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores is not None:
        os.sched_setaffinity(0, cores)
