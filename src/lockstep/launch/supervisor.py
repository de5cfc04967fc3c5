"""Starting the processes of a job, watching them, and stopping them.

The processes are those of this host (`local_processes`), of several hosts, whose agents this
launcher has started (`remote_processes`), or those of agents that a cluster's launcher has started
(`agent_processes`). All do what `job_processes.Processes` says.

One thread runs one loop over one selector. Every event is a readable descriptor: output, a signal
(by the wake-up descriptor), the end of a process (SIGCHLD), a recorded error (the wake-up FIFO), a
message of a host's agent, the end of the guard (the lifeline). Each descriptor is registered with
the function to call; none of these functions waits. Timers are the timeout of the selector. No
state is shared with other threads, so there are no locks.

Rejected: a thread for each pipe (2n threads for n processes, and signals reach only one of them),
asyncio (slow to import, and its child watchdog does not see adopted orphans), polling (it notices
events late, and is never idle).

How the processes are stopped is in `stop_plan`, and what is printed at the end in `end_report`.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep._words import signal_name
from lockstep.launch.end_report import EndReport
from lockstep.launch.grow_request import GrowRequest, has_finished
from lockstep.processes import failed_runs
from lockstep.processes.alike_lines import FEW, AlikeLines
from lockstep.processes.console import Console, Stream
from lockstep.processes.first_failure import (
    EndedProcess,
    by_culprit,
    first_failure,
    is_engines,
    not_started,
)
from lockstep.processes.guard import PASSED_ON
from lockstep.processes.job_processes import Loop, Processes
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.restart_decision import Restarts
from lockstep.processes.stop_plan import FAILURE, GROW, StopPlan
from lockstep.system import process_tree, signal_pipe

REPEATED_SIGNAL = 0.3
"""Seconds within which a repeated signal counts once: GNU timeout sends SIGTERM twice."""

# Causes of a stop besides those of `stop_plan`: the reader of the output or the guard has gone.
_NO_OUTPUT_LEFT = signal.SIGPIPE
_GUARD_GONE = signal.SIGKILL


class Supervisor:
    """Runs a job from start to end: `run`."""

    def __init__(
        self,
        job: LaunchSpec,
        lifeline: int,
        restarts: Restarts,
        processes: Callable[[LaunchSpec, Loop], Processes],
        before_keeping: Callable[[], str],
    ) -> None:
        """``before_keeping``: as in `EndReport`."""
        self._job = job
        self._lifeline = lifeline
        self._restarts = restarts
        self.selector = selectors.PollSelector()
        many = job.job_processes > FEW
        self.console = Console(self.selector, AlikeLines() if many else None)
        self._processes = processes(job, self)
        self.report = EndReport(job, self._processes, self.console, before_keeping)
        self._reading = True
        self._output_lost = False
        self._cannot_start = False
        self._cause: int | None = None
        self._asked_to_stop = False
        self.first: EndedProcess | None = None
        """The first process to fail, once the job has ended."""
        self._grow_request = GrowRequest()
        self._may_have_failed = False
        """Whether processes have ended since the request in a way that has to be judged."""
        self.grows = False
        """Whether it has ended to start again on more hosts, which is no failure."""
        self._waits = ""
        """Which process had the others wait when a signal stopped the job."""
        self.stopping_at = float("inf")
        """When the stop of the job began."""
        self._plan = StopPlan()
        self._own_fds: tuple[int, ...] = ()
        self._handled: set[signal.Signals] = set()

    def run(self) -> int:
        """Runs the job until no process of it is left; returns its exit status.

        Raises `LaunchError` when nothing can be started.
        """
        try:
            self._listen()
        except OSError as error:
            raise LaunchError(f"nothing can be started: {not_started(error)}") from error
        self._processes.start()
        while any(process.lives for process in self._processes.members):
            self.turn()
        if (killed := self._processes.sweep()) and self._cause is None:
            self.console.report(f"killed {killed} processes that the program left running")
        while any(not stream.closed for stream in self._streams()):
            self.turn()
        self.console.end_lines()
        if self._cause == GROW and self._grow_request.has_failed(self._endings(), all_ended=True):
            self._cause = FAILURE
        if self._cause not in (None, GROW):
            self._processes.collect()
        status = self._report()
        self.report.none_joined()
        while self.console.backlog:
            self.turn()
        if self.grows and self._cause not in (None, GROW):  # a signal has come since, say
            self.grows, status = False, 128 + self._cause
        return status or int(self._output_lost)

    @property
    def is_stopping(self) -> bool:
        return self._cause is not None

    @property
    def may_restart(self) -> bool:
        """Whether another attempt follows."""
        return self.grows or self._restarts.follow(self._cause == FAILURE, self._asked_to_stop)

    def close(self) -> None:
        """Releases what the next attempt needs. Signals in between stay pending for it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self._handled)
        signal.set_wakeup_fd(-1)
        self._processes.close()
        self.selector.close()
        for fd in self._own_fds:
            os.close(fd)

    def _streams(self) -> Iterator[Stream]:
        for process in self._processes.members:
            yield process.stdout
            yield process.stderr

    # Listening

    def _listen(self) -> None:
        handled = {s for s in PASSED_ON if signal.getsignal(s) != signal.SIG_IGN} | {signal.SIGCHLD}
        self._handled = handled
        self._own_fds = signal_pipe.register(self.selector, handled, self._on_signal)
        self.selector.register(self._lifeline, selectors.EVENT_READ, self._on_lifeline)
        self._processes.listen()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)

    def turn(self, longest: float = 1.0) -> None:
        """Waits for events, at most ``longest`` seconds, and handles them."""
        now = time.monotonic()
        times = [self._plan.next_at, *(s.show_at for s in self.console.unfinished)]
        for key, _ in self.selector.select(max(0.0, min([now + longest, *times]) - now)):
            key.data()
        now = time.monotonic()
        for stream in list(self.console.unfinished):
            if stream.show_at <= now:
                stream.show_unfinished()
        while (number := self._plan.take(now)) is not None:
            self._processes.signal(number)
        self._processes.tick(now)
        if self._may_have_failed and self._cause == GROW:
            self._may_have_failed = False
            if self._grow_request.has_failed(self._endings(), all_ended=False):
                self._stop(FAILURE)
        if self.console.gone:
            self._on_output_gone()
        if self._reading == self.console.congested:
            self._reading = not self.console.congested
            self._processes.hold_output(not self._reading)

    # What can happen

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._processes.reaped(process_tree.reap())
            return
        self._asked_to_stop = True
        if self._cause in (None, GROW):
            self._waits = failed_runs.waits(self._job.run_dir, self._job.config.attempt)
            self._stop(number)
        elif number != self._cause or time.monotonic() > self.stopping_at + REPEATED_SIGNAL:
            self._stop_now()
            self.console.abandon()

    def _on_lifeline(self) -> None:
        self.selector.unregister(self._lifeline)
        self._cause = _GUARD_GONE
        self._stop_now()
        self.console.abandon()

    def _on_output_gone(self) -> None:
        if self.console.lost and not self._output_lost:
            self._output_lost = True
            self.console.report(f"standard output cannot be written: {self.console.lost}", True)
        if self._cause in (None, GROW):
            self._stop(_NO_OUTPUT_LEFT)

    def asked_to_stop(self) -> None:
        """No attempt follows: a signal to agents of the processes ends the job."""
        self._asked_to_stop = True

    def failed(self) -> None:
        """Stops the job because a process has failed, unless it is being stopped already."""
        self._may_have_failed = self._cause == GROW
        if self._cause is None:
            self._stop(FAILURE)

    def grow(self) -> bool:
        """Has the processes end, so that the job starts again on more hosts; False: it ends
        already."""
        if self._cause is not None or not all(p.lives for p in self._processes.members):
            return False
        self._stop(GROW)
        self._grow_request.at = self.stopping_at
        return True

    def could_not_start(self, process_id: int, why: str) -> None:
        """Ends the job because a process could not be started."""
        if not self._cannot_start:
            self.console.report(
                f"process {process_id} of {self._job.job_processes} could not be started: {why}",
                highlight=True,
            )
        self._cannot_start = True
        self._stop_now()

    # Stopping

    def _stop(self, cause: int) -> None:
        self._cause = cause
        self.stopping_at = time.monotonic()
        asked = self._job.grow or 0.0
        self._plan.begin(cause, self._job.grace, self.stopping_at, asked)

    def _stop_now(self) -> None:
        self.stopping_at = min(self.stopping_at, time.monotonic())
        self._plan.drop()
        self._processes.signal(signal.SIGKILL)

    # The end

    def _report(self) -> int:
        if self._cannot_start:
            return 1
        all_endings = self._endings()
        is_complete = len(all_endings) == self._job.job_processes
        all_ended_well = is_complete and not any(each.failed for each in all_endings)
        if self._cause == GROW and not (all_ended_well and has_finished(self._job.attempt_dir)):
            self.grows = True
            return 1
        if self._cause is None or all_ended_well:
            return 0
        endings = self._grow_request.unasked(all_endings)
        first = first_failure(endings, self.stopping_at)
        if first and self._was_stopped_by(first):
            self.console.report(f"stopped by a signal to the agent of process {first.process_id}")
            return first.status
        if first and (first.failed_at < self.stopping_at or self._cause == FAILURE):
            if is_engines(first.record):
                first = by_culprit(first, endings, self.report.culprits())
            self.first = first
            restart = self._restarts.words(self._job.config.attempt) if self.may_restart else ""
            self.report.failure(first, endings, self.stopping_at, restart)
            return first.status
        if self._cause in PASSED_ON:
            before = f"; until then, {self._waits}" if self._waits else ""
            self.console.report(f"stopped by {signal_name(self._cause)}{before}")
            if killed := self.report.killed():
                self.console.report(killed)
            self.report.folders()
        return 1 if self._output_lost else 128 + self._cause

    def _endings(self) -> list[EndedProcess]:
        return [process.ended() for process in self._processes.members]

    def _was_stopped_by(self, first: EndedProcess) -> bool:
        """Whether a signal to the agent of ``first`` has ended the job, and not a failure."""
        asked = self._asked_to_stop and self._cause == FAILURE
        return asked and first.exit.reason == _run_files.STOPPED
