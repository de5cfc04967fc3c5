"""The agent: what ``lockstep worker`` becomes, the parent of the program.

It holds nothing of JAX, so it is there when the program is dead, stopped or stuck, and knows what
only a parent is told: how the program ended. It writes that down for the others of its host, and
where the job has several hosts, one agent of each answers those of the others
(`lockstep.watchdog.agent_network`). To the cluster's launcher it is the program: signals are
passed on, and it ends as the program did; when that has failed, not before the others have, for a
while.

The program is in a process group of its own, so that a signal to the launcher's group comes once:
it is passed on to the program's group. When this process is killed, its guard decides whether the
program goes on (`program_guard`). Slurm with proctrack/cgroup
signals its own children only, so it has to be passed on; one that signals all descendants
(proctrack/linuxproc) reaches the program twice, which nobody can tell. With our terminal for its
input it stays in our group, or it could not read; then the terminal's signals reach both and are
not passed on, and the program ends with us.

SIGTERM is how launchers announce the end: a time limit, a preemption, scancel. JAX's preemption
notifier swallows it in the program. So SIGINT follows after half of the grace period, which raises
KeyboardInterrupt in the program, and SIGKILL at its end, as under ``lockstep run``.

Rejected: a child of the program instead of its parent, which would have nothing to pass on (how
its parent ended only kernels from 6.15 on would tell it), and one agent for each host (who starts
it, and whose parent is it?).
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from lockstep import _run_files
from lockstep._errors import LaunchError, RecordError
from lockstep.agent import program_guard
from lockstep.agent.host_dir import HostDir
from lockstep.flight_recorder import format, model
from lockstep.launch import failed_runs
from lockstep.launch.first_failure import not_started
from lockstep.system import fd_limit, process_tree
from lockstep.system.oom import OomKills

if TYPE_CHECKING:
    from lockstep.watchdog.agent_network import AgentNetwork

_NOT_PASSED_ON = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    # Of the terminal, whose other end nobody here has.
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGWINCH,
    # What this process does wrong itself.
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGPIPE,
}
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
_GRACE = 5.0
_GRACE_AFTER_SIGTERM = 25.0
"""Seconds. Slurm, and others, kill 30 s after SIGTERM."""
_TURN_SECONDS = 0.02
_LAST_SECONDS = 0.5
_SENT_BY_TERMINAL = 0x80
"""SI_KERNEL."""


def keep(
    arguments: Sequence[str],
    environ_with: Callable[[int], Mapping[str, str]],
    host_dir: HostDir,
    process: int,
    log_dir: Path | None,
    grace: float | None,
) -> NoReturn:
    """Starts the program, and ends as it does, at most ``grace`` seconds later.

    ``grace`` is the user's choice; by default less for the others than for the program, which may
    save something large after SIGTERM.

    ``environ_with`` makes its environment from the descriptor by which it speaks to us.
    Raises `LaunchError` when it cannot be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would not be told, nor the status
    # Who starts us with a signal ignored (nohup, a shell's &) means it.
    heard = set(signal.Signals) - _NOT_PASSED_ON
    heard = {each for each in heard if signal.getsignal(each) != signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    ooms = OomKills()
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)
    own, shares_group = os.getpid(), _has_terminal()
    guard = None if shares_group else program_guard.start(host_dir.held)
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"the program cannot be started: {not_started(error)}") from error
    if pid == 0:
        if guard is None:
            process_tree.end_with_parent()
        _become(arguments, environ_with(theirs.fileno()), own, shares_group, blocked)
    theirs.detach()
    if not shares_group:
        with contextlib.suppress(OSError):  # it has been faster, and runs
            os.setpgid(pid, pid)  # or a signal that comes now would find no such group
    kept_open = {ours.fileno(), host_dir.held}
    if guard is not None:
        guard.watch(pid)
        kept_open.add(guard.lifeline)
    fd_limit.close_all_but(kept_open)
    # Late import: the program has started before.
    from lockstep.watchdog.agent_network import AgentNetwork

    keeping = AgentNetwork(ours, host_dir.path)
    program = _Child(pid, shares_group, host_dir.path)
    after_sigterm = _GRACE_AFTER_SIGTERM if grace is None else grace
    exit_code = program.wait(heard, after_sigterm)
    if guard is not None:
        guard.dismiss()
    reason = _reason(program, exit_code, ooms)
    ending = _run_files.Exit.of(exit_code, pid, reason)
    if program.was_killed:
        said = f"had to be killed: it had not ended {after_sigterm:g} s after SIGTERM (--grace)"
        print(f"lockstep: process {process} {said}", file=sys.stderr, flush=True)
    _see_it_out(host_dir, ending, keeping, heard, _GRACE if grace is None else grace)
    _leave(host_dir, log_dir, exit_code)
    _end_as(exit_code)


def _see_it_out(
    host_dir: HostDir,
    ending: _run_files.Exit,
    keeping: AgentNetwork,
    heard: set[signal.Signals],
    grace: float,
) -> None:
    """The program has ended: who asks is told how, and others that it makes fail have time."""
    # With exit code 0 no launcher ends a job, but other hosts may not know that it has ended.
    unsaid = keeping.knows_others and not _has_left(host_dir.folder)
    fails = ending.exit_code != 0 or unsaid
    stays = host_dir.folder / _run_files.STAYS
    with contextlib.suppress(OSError):
        if fails and keeping.knows_others:
            stays.touch()
    with contextlib.suppress(OSError):  # a full disk
        ending.write(host_dir.folder)
    if fails:
        _let_others_end(host_dir, keeping, heard, grace)
    with contextlib.suppress(OSError):
        stays.unlink()
    keeping.leave()


def _has_terminal() -> bool:
    """Whether our input is the terminal of our session."""
    try:
        return os.tcgetpgrp(0) > 0
    except OSError:
        return False


def _become(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    agent: int,
    shares_group: bool,
    blocked: set[signal.Signals | int],
) -> NoReturn:
    """In the child."""
    try:
        if os.getppid() != agent:  # it died before the guard knew of this process
            os._exit(1)
        if not shares_group:
            os.setpgid(0, 0)
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # one that waits is no exception here
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execve(arguments[0], list(arguments), dict(environ))
    except BaseException as error:
        print(f"lockstep: the program cannot be started: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


class _Child:
    """The program, as its parent sees it: signals, and its end."""

    def __init__(self, pid: int, shares_group: bool, run_dir: Path) -> None:
        self._pid = pid
        self._shares_group = shares_group
        self._run_dir = run_dir
        self._plan: list[tuple[float, signal.Signals]] = []
        self.was_stopped = False
        """Whether SIGTERM has begun its grace period."""
        self.was_killed = False
        """Whether it had not ended when the grace period was over."""

    def wait(self, heard: set[signal.Signals], grace: float) -> int:
        """Passes signals on until the program has ended; its exit code, negative for a signal."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            received = self._next_signal(heard | {signal.SIGCHLD})
            if received is None:
                with contextlib.suppress(OSError):  # the bootstrap says then where it was stopped
                    (self._run_dir / _run_files.STOPPING).touch()
                self._send(self._plan.pop(0)[1])
            elif received.si_signo != signal.SIGCHLD:
                self._pass_on(received, grace)

    def _next_signal(self, heard: set[signal.Signals]) -> signal.struct_siginfo | None:
        """None when the first of the plan is due before one comes."""
        if not self._plan:
            return signal.sigwaitinfo(heard)
        return signal.sigtimedwait(heard, max(0.0, self._plan[0][0] - time.monotonic()))

    def _pass_on(self, received: signal.struct_siginfo, grace: float) -> None:
        if received.si_signo == signal.SIGTERM and not self.was_stopped:
            self.was_stopped = True
            now = time.monotonic()
            self._plan = [(now + grace / 2, signal.SIGINT), (now + grace, signal.SIGKILL)]
        if not (self._shares_group and received.si_code == _SENT_BY_TERMINAL):
            self._send(signal.Signals(received.si_signo))
        if received.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        self.was_killed |= number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            (os.kill if self._shares_group else os.killpg)(self._pid, number)


def _reason(program: _Child, exit_code: int, ooms: OomKills) -> str | None:
    if program.was_stopped and exit_code != 0:
        return _run_files.STOPPED
    return _run_files.OUT_OF_MEMORY if exit_code == -signal.SIGKILL and ooms.new() else None


def _has_left(folder: Path) -> bool:
    """Whether the program came to its end in JAX, or never got there."""
    try:
        return model.read_record(folder / _run_files.RECORDER).state == format.ProcessState.ENDED
    except (OSError, RecordError):
        return True


def _let_others_end(
    host_dir: HostDir, keeping: AgentNetwork, heard: set[signal.Signals], grace: float
) -> None:
    """Many launchers kill a job as soon as one of its processes has failed. The others are to
    raise, save what they have, and end with their own status; and they ask us what was wrong.
    """
    end = time.monotonic() + grace
    while (left := end - time.monotonic()) > 0:
        if keeping.others_have_ended() and _all_ended(host_dir):
            return
        told = signal.sigtimedwait(heard, min(_TURN_SECONDS, left))
        if told and told.si_signo in _STOPS:
            return


def _all_ended(host_dir: HostDir) -> bool:
    """Whether the other programs of this host have, and as its agents know, those elsewhere."""
    others = set(host_dir.path.glob("attempt_*/process_*")) - {host_dir.folder}
    ended = all((folder / _run_files.EXIT).exists() for folder in others)
    return ended and not any((folder / _run_files.STAYS).exists() for folder in others)


def _leave(host_dir: HostDir, log_dir: Path | None, exit_code: int) -> None:
    """The last of the host sees to what is left."""
    if not host_dir.is_last():
        # Until then no launcher is to hear of a failure, and kill it.
        end = time.monotonic() + _LAST_SECONDS
        while exit_code != 0 and host_dir.path.exists() and time.monotonic() < end:
            time.sleep(_TURN_SECONDS)
        return
    endings = [_run_files.Exit.read(path) for path in host_dir.path.glob("attempt_*/process_*")]
    if any(ending is None or ending.exit_code != 0 for ending in endings):
        if folder := failed_runs.keep(host_dir.path, log_dir):
            where = "" if log_dir else f" (on {platform.node()}, of its processes)"
            said = f"lockstep: to look closer: lockstep report {shlex.quote(str(folder))}{where}"
            with contextlib.suppress(OSError):
                print(said, file=sys.stderr, flush=True)
    shutil.rmtree(host_dir.path, ignore_errors=True)


def _end_as(exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if exit_code < 0:
        # The program has left its core file, if one is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # of SIGKILL nobody sets it
            signal.signal(-exit_code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), -exit_code)
        os._exit(128 - exit_code)
    os._exit(exit_code)
