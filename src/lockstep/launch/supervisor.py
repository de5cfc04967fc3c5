"""Starting the processes of a job, watching them, and stopping them.

One thread runs one loop over one selector. Every event is a readable descriptor: output, a signal
(by the wake-up descriptor), the end of a process (SIGCHLD), a recorded error (the wake-up FIFO),
the end of the guard (the lifeline). Each descriptor is registered with the function to call; none
of these functions waits. Timers are the timeout of the selector. No state is shared with other
threads, so there are no locks.

Rejected: a thread for each pipe (2n threads for n processes, and signals reach only one of them),
asyncio (slow to import, and its child watchdog does not see adopted orphans), polling (it notices
events late, and is never idle).

**Stopping.** After a failure the other processes first get time: each raises the error in its next
collective, and may catch it, save, and end with its own status. Then, and after Ctrl-C at once,
every process gets SIGINT, and SIGKILL at the end of the grace period. SIGINT raises
KeyboardInterrupt in Python, so ``finally`` blocks run. SIGTERM would not end the processes, because
JAX's preemption notifier catches it once ``jax.distributed`` is initialized. Processes get SIGTERM
first only when the launcher itself gets it: programs that call
``multihost_utils.reached_preemption_sync_point`` then save their state. Native code that runs for
long delays SIGINT and SIGTERM; SIGKILL ends it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep._words import signal_name
from lockstep.launch import console as consoles
from lockstep.launch import failed_runs, tracebacks
from lockstep.launch.child_process import ChildProcess
from lockstep.launch.console import Console, Stream
from lockstep.launch.first_failure import (
    EndedProcess,
    by_culprit,
    first_failure,
    headline,
    is_engines,
    not_started,
    told_already,
)
from lockstep.launch.guard import PASSED_ON
from lockstep.launch.job_spec import LaunchSpec
from lockstep.launch.pmi import PmiServer
from lockstep.system import process_tree
from lockstep.system.oom import OomKills

FAILURE_SHARES = (0.5, 0.9)
"""The shares of the grace period after which the processes of a failed job get SIGINT and SIGKILL.
Until then they can raise their errors, save their state, and end. The whole job ends within the
grace period."""
LEFTOVER_GRACE = 0.5
"""Seconds in which children of the processes may notice that their parents have ended, and clean
up. Python's tracker of shared memory does this."""
REPEATED_SIGNAL = 0.3
"""Seconds within which a repeated signal counts once: GNU timeout sends SIGTERM twice."""

FAILURE = 0
"""The cause of a stop that is no signal. Other causes: a signal, SIGKILL when the guard has gone,
SIGPIPE when the reader of the output has gone."""

STARTING_TURN = 0.05
"""Seconds between two turns of the loop while processes are being started."""

_NO_OUTPUT_LEFT = signal.SIGPIPE
_GUARD_GONE = signal.SIGKILL


class Supervisor:
    """Runs a job from start to end: `run`."""

    def __init__(self, job: LaunchSpec, lifeline: int, restarts_left: int = 0) -> None:
        self._job = job
        self._lifeline = lifeline
        self._restarts_left = restarts_left
        self._selector = selectors.PollSelector()
        self._console = Console(self._selector)
        self._processes: list[ChildProcess] = []
        self._streams: list[Stream] = []
        self._oom_kills = OomKills()
        self._pmi = PmiServer(job.processes) if job.config.collectives == "mpi" else None
        self._reading = True
        self._output_lost = False
        self._cannot_start = False
        self._cause: int | None = None
        self._asked_to_stop = False
        self._stopping_at = float("inf")
        self._plan: list[tuple[float, int]] = []
        self._own_fds: list[int] = []
        self._handled: set[signal.Signals] = set()

    def run(self) -> int:
        """Runs the job until no process of it is left; returns its exit status.

        Raises `LaunchError` when nothing can be started.
        """
        try:
            self._listen()
        except OSError as error:
            raise LaunchError(f"nothing can be started: {not_started(error)}") from error
        self._start_all()
        while any(process.lives for process in self._processes):
            self._turn()
        self._sweep()
        while any(not stream.closed for stream in self._streams):
            self._turn()
        self._console.end_lines()
        status = self._report()
        self._report_none_joined()
        while self._console.backlog:
            self._turn()
        return status or int(self._output_lost)

    @property
    def may_restart(self) -> bool:
        """Whether the job has failed by itself, and no signal has requested its end."""
        return self._cause == FAILURE and not self._asked_to_stop

    def close(self) -> None:
        """Releases what the next attempt needs. Signals in between stay pending for it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for fd in self._own_fds:
            os.close(fd)
        for name in (_run_files.WAKE_UP, _run_files.STOPPING):
            (self._job.run_dir / name).unlink(missing_ok=True)

    # Listening

    def _watch(self, fd: int, action: object) -> None:
        self._selector.register(fd, selectors.EVENT_READ, action)

    def _listen(self) -> None:
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        handled = {s for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN} | {signal.SIGCHLD}
        self._handled = handled
        for number in handled:
            signal.signal(number, lambda number, frame: None)
        self._watch(wake, lambda: [self._on_signal(n) for n in os.read(wake, 512)])
        self._watch(self._lifeline, self._on_lifeline)
        path = self._job.run_dir / _run_files.WAKE_UP
        os.mkfifo(path, 0o600)
        bell = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._watch(bell, lambda: self._on_recorded_error(bell))
        self._own_fds = [wake, woken, bell]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def _turn(self, longest: float = 1.0) -> None:
        """Waits for events, at most ``longest`` seconds, and handles them."""
        now = time.monotonic()
        times = [s.show_at for s in self._streams] + [at for at, _ in self._plan[:1]]
        for key, _ in self._selector.select(max(0.0, min([now + longest, *times]) - now)):
            key.data()
        now = time.monotonic()
        for stream in self._streams:
            if stream.show_at <= now:
                stream.show_unfinished()
        while self._plan and self._plan[0][0] <= now:
            self._signal_all(self._plan.pop(0)[1])
        if self._console.gone:
            self._on_output_gone()
        self._read_unless(self._console.congested)

    def _read_unless(self, congested: bool) -> None:
        if self._reading == congested:
            self._reading = not congested
            for stream in self._streams:
                if not stream.closed:
                    if congested:
                        self._selector.unregister(stream.fd)
                    else:
                        self._watch(stream.fd, self._reader(stream))

    def _reader(self, stream: Stream) -> object:
        def read() -> None:
            fd = stream.fd
            stream.read()
            if stream.closed:
                self._selector.unregister(fd)

        return read

    # What can happen

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._collect()
            return
        self._asked_to_stop = True
        if self._cause is None:
            self._stop(number)
        elif number != self._cause or time.monotonic() > self._stopping_at + REPEATED_SIGNAL:
            self._stop_now()
            self._console.abandon()

    def _on_lifeline(self) -> None:
        self._selector.unregister(self._lifeline)
        self._cause = _GUARD_GONE
        self._stop_now()
        self._console.abandon()

    def _on_output_gone(self) -> None:
        if self._console.lost and not self._output_lost:
            self._output_lost = True
            self._console.report(f"standard output cannot be written: {self._console.lost}", True)
        if self._cause is None:
            self._stop(_NO_OUTPUT_LEFT)

    def _on_recorded_error(self, bell: int) -> None:
        os.read(bell, 4096)
        self._collect()  # a death that caused this error has happened by now
        if self._cause is None:
            self._stop(FAILURE)

    def _collect(self) -> None:
        by_pid = {process.pid: process for process in self._processes}
        ended = [(by_pid[p], code) for p, code in process_tree.reap() if p in by_pid]
        for process, exit_code in ended:
            # The counter is read only after SIGKILL, since reading it takes a millisecond.
            process.reaped(exit_code, exit_code == -signal.SIGKILL and self._oom_kills.new())
        if self._cause is None and any(exit_code != 0 for _, exit_code in ended):
            self._stop(FAILURE)

    # Starting

    def _start_all(self) -> None:
        """Starts the processes, unless the job has to stop meanwhile."""
        out = consoles.prefixes(self._job.processes, self._console.stdout, self._job.prefixed)
        err = consoles.prefixes(self._job.processes, self._console.stderr, self._job.prefixed)
        turn_at = 0.0
        for process_id in range(self._job.processes):
            if time.monotonic() >= turn_at:
                self._turn(0.0)
                turn_at = time.monotonic() + STARTING_TURN
            if self._cause is not None:
                return
            try:
                self._start(process_id, (out[process_id], err[process_id]))
            except (OSError, subprocess.SubprocessError) as error:
                self._console.report(
                    f"process {process_id} of {self._job.processes} could not be started: "
                    f"{not_started(error)}",
                    highlight=True,
                )
                self._cannot_start = True
                self._stop_now()
                return

    def _start(self, process_id: int, prefixes: tuple[bytes, bytes]) -> None:
        pmi = self._pmi
        process = ChildProcess(
            self._job,
            process_id,
            self._console,
            prefixes,
            pmi.environ(process_id) if pmi else {},
            (pmi.inherited(process_id),) if pmi else (),
        )
        self._processes.append(process)
        for stream in (process.stdout, process.stderr):
            self._streams.append(stream)
            self._watch(stream.fd, self._reader(stream))
        if pmi:
            pmi.started(process_id)
            self._watch(pmi.fd(process_id), self._pmi_reader(pmi, process_id))

    def _pmi_reader(self, pmi: PmiServer, process_id: int) -> object:
        def read() -> None:
            if not pmi.serve(process_id):
                self._selector.unregister(pmi.fd(process_id))

        return read

    # Stopping

    def _stop(self, cause: int) -> None:
        grace = self._job.grace
        plan = [(0.0, signal.SIGINT), (grace, signal.SIGKILL)]
        if cause == FAILURE:
            interrupt, kill = (share * grace for share in FAILURE_SHARES)
            plan = [(interrupt, signal.SIGINT), (kill, signal.SIGKILL)]
        elif cause in (signal.SIGTERM, signal.SIGHUP):
            plan = [(0.0, signal.SIGTERM), (grace / 2, signal.SIGINT), (grace, signal.SIGKILL)]
        self._cause = cause
        self._stopping_at = time.monotonic()
        self._plan = [(self._stopping_at + after, number) for after, number in plan]

    def _stop_now(self) -> None:
        self._stopping_at = min(self._stopping_at, time.monotonic())
        self._plan = []
        self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        with contextlib.suppress(OSError):
            (self._job.run_dir / _run_files.STOPPING).touch()
        for process in self._processes:
            process.send(number)

    def _sweep(self) -> None:
        """Ends what the processes have started and left running."""
        self._end_coordination()
        deadline = time.monotonic() + LEFTOVER_GRACE
        while left := process_tree.descendants():
            if time.monotonic() > deadline:
                process_tree.end_all()
                if self._cause is None:
                    self._console.report(
                        f"killed {len(left)} processes that the program left running"
                    )
                break
            self._turn(0.02)

    def _end_coordination(self) -> None:
        """Ends JAX's coordination service, which process 0 has left running."""
        with contextlib.suppress(OSError, ValueError):
            folder = _run_files.attempt_dir(self._job.run_dir, self._job.config.attempt)
            pid = int((folder / _run_files.COORDINATION_PID).read_text())
            # The file may name any process: kill it only if it is a descendant of this one.
            process_tree.kill({pid} & process_tree.descendants())

    # The end

    def _report(self) -> int:
        if self._cannot_start:
            return 1
        endings = [process.ended() for process in self._processes]
        first = first_failure(endings, self._stopping_at)
        all_ended_well = first is None and len(endings) == self._job.processes
        if self._cause is None or all_ended_well:
            return 0
        if first and (first.failed_at < self._stopping_at or self._cause == FAILURE):
            full = self._job.config.full_tracebacks or tracebacks.jax_shows_all(os.environ)
            if is_engines(first):
                first = by_culprit(first, endings, self._culprits())
            report = headline(first, endings, self._stopping_at, self._job.processes, full)
            for i, text in enumerate(report):
                self._console.report(text, highlight=i == 0)
            self._report_killed()
            self._report_details(first)
            return first.status
        if self._cause in PASSED_ON:
            self._console.report(f"stopped by {signal_name(self._cause)}")
            self._report_killed()
            self._report_folders()
        return 1 if self._output_lost else 128 + self._cause

    def _culprits(self) -> Sequence[int]:
        return failed_runs.culprits(self._job.run_dir, self._job.config.attempt)

    def _report_details(self, first: EndedProcess) -> None:
        """Prints the diagnosis, and the next step for the user."""
        attempt = self._job.config.attempt
        table = failed_runs.diagnosis(self._job.run_dir, attempt)
        if table and not told_already(table, first):
            self._console.report(table)
        if self._restarts_left and self.may_restart:
            self._console.report(
                f"attempt {attempt} has failed; starting again ({self._restarts_left} restart"
                f"{'s' * (self._restarts_left > 1)} left)"
            )
        else:
            self._report_folders()

    def _report_folders(self) -> None:
        if self._job.log_dir:
            self._console.report(f"complete logs: {self._job.log_dir}")
        if folder := failed_runs.keep(self._job.run_dir, self._job.log_dir):
            self._console.report(f"for details: lockstep report {shlex.quote(str(folder))}")

    def _report_none_joined(self) -> None:
        attempt = _run_files.attempt_dir(self._job.run_dir, self._job.config.attempt)
        with contextlib.suppress(OSError):
            if self._job.processes > 1 and _run_files.none_joined(attempt):
                self._console.report(
                    f"no process joined the job: each of the {self._job.processes} ran alone. Call "
                    "jax.distributed.initialize() before using JAX, or add --auto-init"
                )

    def _report_killed(self) -> None:
        killed = [str(p.process_id) for p in self._processes if p.was_killed]
        if killed:
            self._console.report(
                f"killed because they did not end within --grace: process {', '.join(killed)}"
            )
