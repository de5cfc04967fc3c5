"""The program of ``lockstep worker`` as its agent's child: its start, signals and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep.processes import program_guard
from lockstep.processes.first_failure import not_started
from lockstep.processes.process_start import popen
from lockstep.processes.stop_plan import StopPlan
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
_SENT_BY_TERMINAL = 0x80
"""SI_KERNEL."""
STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}


def block_signals() -> tuple[set[signal.Signals], set[signal.Signals | int]]:
    """Blocks the signals that the agent waits for; returns them, and what was blocked before."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the exit status is lost
    # A signal that is ignored at the start (nohup, a shell's &) stays ignored.
    handled = set(signal.Signals) - _NOT_PASSED_ON
    handled = {each for each in handled if signal.getsignal(each) != signal.SIG_IGN}
    handled.add(signal.SIGCHLD)
    return handled, signal.pthread_sigmask(signal.SIG_BLOCK, handled)


def _has_terminal() -> bool:
    """Whether standard input is the terminal of this session."""
    try:
        return os.tcgetpgrp(0) > 0
    except OSError:
        return False


class Program:
    """The program: the signals that it gets, and how it ends. The agent's loop calls all of it."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        blocked: set[signal.Signals | int],
        run_dir: Path,
        held: int,
        ends_with_agent: bool,
    ) -> None:
        """Starts it, with the signals of ``blocked`` blocked; raises `LaunchError`.

        ``held``, ``ends_with_agent``: see `program_guard.start`. At a terminal it has no guard,
        stays in the agent's process group, and ends with the agent.
        """
        shares_group = self._shares_group = _has_terminal()
        self._guard = guard = None if shares_group else program_guard.start(held, ends_with_agent)
        self._run_dir = run_dir
        self._plan = StopPlan()
        self.exit_code: int | None = None
        """Negative for a signal; None: it runs."""
        self.was_stopped = False
        """Whether SIGTERM has begun its grace period."""
        self.asked_to_end = False
        """Whether a signal has asked for its end."""
        self.was_killed = False
        """Whether it had not ended when the grace period was over."""
        self.lease_is_over = False
        """Whether it was killed since it may run elsewhere by now."""
        agent = os.getpid()

        def prepare() -> None:
            if guard:
                guard.watch(os.getpid())
            else:
                process_tree.end_with_parent()
            if os.getppid() != agent:  # the agent died before this process was watched
                os._exit(1)
            if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
                signal.signal(signal.SIGINT, signal.SIG_DFL)  # a pending one must not raise here
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

        group = None if shares_group else 0
        try:
            self.pid = popen(command, prepare, env=environ, close_fds=False, process_group=group)
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"the program cannot be started: {not_started(error)}") from error

    @property
    def lifeline(self) -> int:
        """The descriptor by which its guard learns of the agent's end; -1: it has none."""
        return self._guard.lifeline if self._guard else -1

    def has_ended(self) -> bool:
        if self.exit_code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.exit_code = os.waitstatus_to_exitcode(status)
                if self._guard:
                    self._guard.dismiss()
        return self.exit_code is not None

    def send_due(self) -> float:
        """Sends the next signal of the plan, if it is due; the seconds until the one after it."""
        if (number := self._plan.take(time.monotonic())) is not None:
            self.stop(number)
        return self._plan.next_at - time.monotonic()

    def end(self, cause: int, grace: float) -> None:
        """Has it end within ``grace`` seconds; ``cause``: see `StopPlan`."""
        self._plan.begin(cause, grace, time.monotonic())

    def end_lease(self) -> None:
        """Kills it, because it may run elsewhere by now."""
        self.lease_is_over = True
        self._plan.drop()
        self._send(signal.SIGKILL)

    def pass_on(self, received: signal.struct_siginfo, grace: float) -> None:
        """Forwards a signal to the agent; ``grace``: how long it may run on after SIGTERM."""
        number = received.si_signo
        self.asked_to_end |= number in STOPS
        if number == signal.SIGTERM and not self.was_stopped:
            self.was_stopped = True
            self.end(signal.SIGTERM, grace)  # which passes it on first
        elif not (self._shares_group and received.si_code == _SENT_BY_TERMINAL):
            self._send(number)
        if number == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def stop(self, number: int) -> None:
        """Sends a signal of a plan to stop."""
        if number != signal.SIGTERM:  # so that the program prints where it stopped
            with contextlib.suppress(OSError):
                (self._run_dir / _run_files.STOPPING).touch()
        self._send(number)

    def _send(self, number: int) -> None:
        self.was_killed |= number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            (os.kill if self._shares_group else os.killpg)(self.pid, number)
