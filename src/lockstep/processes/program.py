"""The program as the agent's child: its start, the signals that are forwarded, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep.processes import program_guard
from lockstep.processes.console import complain
from lockstep.processes.first_failure import not_started
from lockstep.processes.stop_plan import FAILURE, StopPlan
from lockstep.system import process_tree

_NOT_PASSED_ON = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    # Job control of the terminal, which concerns each process separately.
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGWINCH,
    # Errors of the agent itself.
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
}
GRACE = 5.0
"""Seconds in which the other programs may end after a failure, without --grace."""
GRACE_AFTER_SIGTERM = 25.0
"""The same after SIGTERM. Slurm, and others, kill 30 s after SIGTERM."""
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_LINE_SECONDS = 0.2
"""How often the agent reads what its supervisor says, in a job that may start again."""
_SENT_BY_TERMINAL = 0x80
"""SI_KERNEL."""


def block_signals() -> tuple[set[signal.Signals], set[signal.Signals | int]]:
    """Blocks the signals that the agent waits for; returns them, and what was blocked before."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the exit status is lost
    # A signal that is ignored at the start (nohup, a shell's &) stays ignored.
    handled = set(signal.Signals) - _NOT_PASSED_ON
    handled = {each for each in handled if signal.getsignal(each) != signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, handled | {signal.SIGCHLD})
    return handled, blocked


def has_terminal() -> bool:
    """Whether standard input is the terminal of this session."""
    try:
        return os.tcgetpgrp(0) > 0
    except OSError:
        return False


def start(
    arguments: Sequence[str],
    environ: Callable[[], Mapping[str, str]],
    shares_group: bool,
    blocked: set[signal.Signals | int],
    guard: program_guard.Guard | None,
) -> int:
    """The pid of the program. Raises `LaunchError`."""
    own = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"the program cannot be started: {not_started(error)}") from error
    if pid == 0:
        if guard is None:
            process_tree.end_with_parent()
        _become(arguments, environ(), own, shares_group, blocked)
    if not shares_group:
        with contextlib.suppress(OSError):  # the child did it already, and runs
            os.setpgid(pid, pid)  # the group must exist before a signal is forwarded to it
    return pid


def _become(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    agent: int,
    shares_group: bool,
    blocked: set[signal.Signals | int],
) -> NoReturn:
    """Becomes the program; runs in the child process."""
    try:
        if os.getppid() != agent:  # the agent died before its guard knew of this process
            os._exit(1)
        if not shares_group:
            os.setpgid(0, 0)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a pending one must not raise here
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execve(arguments[0], list(arguments), dict(environ))
    except BaseException as error:
        print(f"lockstep: the program cannot be started: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


class SignalSource(Protocol):
    """The connection to the supervisor of a job that may start again."""

    @property
    def is_lost(self) -> bool: ...

    def signals(self) -> Sequence[int]:
        """The signals that the program shall get, as far as they have arrived by now."""
        ...

    def left(self, runs: bool) -> float:
        """Seconds for which the program may run on (`lockstep.hosts.lease`)."""
        ...


class Program:
    """The program as a child process: forwards signals, waits for its end."""

    def __init__(
        self,
        pid: int,
        shares_group: bool,
        run_dir: Path,
        supervisor: SignalSource | None,
        grace: float,
    ) -> None:
        """``grace``: how long the program may take to end when ``supervisor`` is lost."""
        self._pid = pid
        self._shares_group = shares_group
        self._run_dir = run_dir
        self._supervisor = supervisor
        self._grace = grace
        self._plan = StopPlan()
        self.was_stopped = False
        """Whether SIGTERM has begun its grace period."""
        self.asked_to_end = False
        """Whether a signal has asked for its end."""
        self._ends = False
        """Whether a grace period has begun."""
        self.was_killed = False
        """Whether it had not ended when the grace period was over."""
        self.lease_is_over = False
        """Whether it was killed since it may run elsewhere by now."""

    def wait(self, handled: set[signal.Signals], grace: float) -> int:
        """Forwards signals until the program has ended; its exit code, negative for a signal."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            received = self._next_signal(handled | {signal.SIGCHLD})
            self._obey()
            if (number := self._plan.take(time.monotonic())) is not None:
                self._stop(number)
            if received is not None and received.si_signo != signal.SIGCHLD:
                self._pass_on(received, grace)

    def _next_signal(self, handled: set[signal.Signals]) -> signal.struct_siginfo | None:
        """Waits for a signal; None when the next signal of the plan is due."""
        longest = float("inf")
        if self._supervisor and not self.lease_is_over:
            longest = min(_LINE_SECONDS, self._supervisor.left(runs=True))
        longest = min(longest, max(0.0, self._plan.next_at - time.monotonic()))
        if longest == float("inf"):
            return signal.sigwaitinfo(handled)
        return signal.sigtimedwait(handled, longest)

    def _obey(self) -> None:
        """Sends what the supervisor says; without it, acts alone as after a failure."""
        if self._supervisor is None:
            return
        for number in self._supervisor.signals():
            # After SIGTERM the program has the whole grace period, to save what it has.
            if not self.was_stopped:
                self._stop(signal.Signals(number))
        if self._supervisor.is_lost and not self._ends:
            complain("the agent of process 0 has ended, so the program is asked to end")
            self._plan_end(FAILURE, self._grace)
        if not self.lease_is_over and self._supervisor.left(runs=True) <= 0:
            self.lease_is_over = True
            self._plan.drop()
            self._send(signal.SIGKILL)

    def _stop(self, number: signal.Signals) -> None:
        if number != signal.SIGTERM:  # so that the program prints where it stopped
            with contextlib.suppress(OSError):
                (self._run_dir / _run_files.STOPPING).touch()
        self._send(number)

    def _pass_on(self, received: signal.struct_siginfo, grace: float) -> None:
        self.asked_to_end |= received.si_signo in STOPS
        if received.si_signo == signal.SIGTERM and not self.was_stopped:
            self.was_stopped = True
            self._plan_end(signal.SIGTERM, grace)  # which passes it on first
        elif not (self._shares_group and received.si_code == _SENT_BY_TERMINAL):
            self._send(signal.Signals(received.si_signo))
        if received.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _plan_end(self, cause: int, grace: float) -> None:
        self._ends = True
        self._plan.begin(cause, grace, time.monotonic())

    def _send(self, number: signal.Signals) -> None:
        self.was_killed |= number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            (os.kill if self._shares_group else os.killpg)(self._pid, number)
