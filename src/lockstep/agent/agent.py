"""The agent: the parent process of the program under ``lockstep worker``.

It does not run JAX, so it works when the program is dead, stopped or stuck, and as the parent it
receives the program's exit status. It writes this status for the other processes of its host. In a
job of several hosts, one agent of each host answers requests of the others
(`lockstep.watchdog.agent_network`). The cluster's launcher sees the agent as the program: the agent
forwards signals, and ends with the program's status. After a failure it first gives the other
processes time to end.

The program has a process group of its own, so that a signal to the launcher's group reaches it
once, by way of the agent. If the agent is killed, its guard decides whether the program goes on
(`program_guard`). Slurm with proctrack/cgroup signals its own children only, so the agent has to
forward signals; with proctrack/linuxproc all descendants get the signal, and the program gets it
twice, which cannot be detected. If the input is a terminal, the program stays in the agent's group,
because otherwise it could not read; then the terminal's signals reach both and are not forwarded,
and the program ends with the agent.

Launchers announce the end with SIGTERM: a time limit, a preemption, scancel. In the program, JAX's
preemption notifier catches SIGTERM and does not end it. So SIGINT follows after half of the grace
period, which raises KeyboardInterrupt in the program, and SIGKILL at its end, as under
``lockstep run``.

Rejected: a child of the program instead of its parent, which could not forward signals (and would
learn how its parent ended only on kernels from 6.15 on), and one agent for each host (launchers
start no such process, and it would be the parent of no program).
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
from lockstep._jax_compat import texts
from lockstep.agent import program_guard
from lockstep.agent.host_dir import HostDir
from lockstep.flight_recorder import format, model
from lockstep.launch import failed_runs
from lockstep.launch.first_failure import FAILURE_SHARES, not_started
from lockstep.system import fd_limit, process_tree
from lockstep.system.oom import OomKills

if TYPE_CHECKING:
    from lockstep.agent.restart_line import RestartLine
    from lockstep.watchdog.agent_network import AgentNetwork

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
_STOPS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
GRACE = 5.0
"""Seconds in which the other programs may end after a failure, without --grace."""
_GRACE_AFTER_SIGTERM = 25.0
"""Seconds. Slurm, and others, kill 30 s after SIGTERM."""
_TURN_SECONDS = 0.02
_LAST_SECONDS = 0.5
_LINE_SECONDS = 0.2
"""How often the agent looks whether another process has failed, in a job that may start again."""
_SENT_BY_TERMINAL = 0x80
"""SI_KERNEL."""


def run(
    arguments: Sequence[str],
    environ_with: Callable[[int], Mapping[str, str]],
    host_dir: HostDir,
    process: int,
    log_dir: Path | None,
    grace: float | None,
    line: RestartLine | None = None,
) -> bool:
    """Starts the program, and ends with its status, at most ``grace`` seconds later.

    Returns where ``line`` says that the job starts again; else it ends this process.

    ``grace`` is the value of ``--grace``. Without it the program gets 25 s after SIGTERM, since it
    may have to save something large, and the other processes get 5 s after a failure.

    ``environ_with`` makes the program's environment from its descriptor of the socket to the agent.
    Raises `LaunchError` when the program cannot be started.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, the exit status is lost
    # A signal that is ignored at the start (nohup, a shell's &) stays ignored.
    handled = set(signal.Signals) - _NOT_PASSED_ON
    handled = {each for each in handled if signal.getsignal(each) != signal.SIG_IGN}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, handled | {signal.SIGCHLD})
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
        with contextlib.suppress(OSError):  # the child did it already, and runs
            os.setpgid(pid, pid)  # the group must exist before a signal is forwarded to it
    kept_open = {ours.fileno(), host_dir.held, line.fd if line else -1}
    if guard is not None:
        guard.watch(pid)
        kept_open.add(guard.lifeline)
    fd_limit.close_all_but(kept_open)
    # A late import, so that the program starts earlier.
    from lockstep.watchdog.agent_network import AgentNetwork

    network = AgentNetwork(ours, host_dir.path)
    after_failure = GRACE if grace is None else grace
    program = _Child(pid, shares_group, host_dir.path, line, after_failure)
    after_sigterm = _GRACE_AFTER_SIGTERM if grace is None else grace
    exit_code = program.wait(handled, after_sigterm)
    if guard is not None:
        guard.dismiss()
    reason = _reason(program, exit_code, ooms)
    ending = _run_files.Exit.of(exit_code, pid, reason)
    if program.was_killed:
        why = f"it had not ended {after_sigterm:g} s after SIGTERM (--grace)"
        if not program.was_stopped:
            why = f"{program.failure}, and it had not ended {after_failure:g} s later (--grace)"
        print(f"lockstep: process {process} was killed: {why}", file=sys.stderr, flush=True)
    if line is None:
        _publish_exit(host_dir, ending, network, handled, after_failure)
    else:
        with contextlib.suppress(OSError):  # a full disk
            ending.write(host_dir.folder)
        consequence = _is_consequence(host_dir.folder, program, exit_code)
        line.ended(exit_code, program.asked_to_end, consequence)
        # An agent that was asked to end leaves; another may come in its place.
        starts_again = not program.asked_to_end and _starts_again(line, handled)
        network.leave()
        if starts_again:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return True
    _leave(host_dir, log_dir, exit_code)
    _end_as(exit_code)


def _starts_again(line: RestartLine, handled: set[signal.Signals]) -> bool:
    """Waits until all programs have ended; a signal that stops the job ends the wait."""
    while (decision := line.decision(_TURN_SECONDS)) is None:
        received = signal.sigtimedwait(handled, _TURN_SECONDS)
        if received and received.si_signo in _STOPS:
            return False
    return decision


def _publish_exit(
    host_dir: HostDir,
    ending: _run_files.Exit,
    network: AgentNetwork,
    handled: set[signal.Signals],
    grace: float,
) -> None:
    """Publishes how the program ended; if others fail because of it, gives them time to end."""
    # With exit code 0 a launcher does not end the job, but other hosts may not know of the exit.
    unpublished = network.knows_others and not _has_left(host_dir.folder)
    fails = ending.exit_code != 0 or unpublished
    stays = host_dir.folder / _run_files.STAYS
    with contextlib.suppress(OSError):
        if fails and network.knows_others:
            stays.touch()
    with contextlib.suppress(OSError):  # a full disk
        ending.write(host_dir.folder)
    if fails:
        _let_others_end(host_dir, network, handled, grace)
    with contextlib.suppress(OSError):
        stays.unlink()
    network.leave()


def _has_terminal() -> bool:
    """Whether standard input is the terminal of this session."""
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


class _Child:
    """The program as a child process: forwards signals, waits for its end."""

    def __init__(
        self, pid: int, shares_group: bool, run_dir: Path, line: RestartLine | None, grace: float
    ) -> None:
        """``grace``: how long it may take to end when ``line`` tells of a failure."""
        self._pid = pid
        self._shares_group = shares_group
        self._run_dir = run_dir
        self._line = line
        self._grace = grace
        self._plan: list[tuple[float, signal.Signals]] = []
        self.was_stopped = False
        """Whether SIGTERM has begun its grace period."""
        self.asked_to_end = False
        """Whether a signal has asked for its end."""
        self._ends = False
        """Whether a grace period has begun."""
        self.failure = ""
        """That of another process or agent, for which this program has to end."""
        self.failed_at = float("inf")
        """When it became known, on ``time.monotonic()``."""
        self.was_killed = False
        """Whether it had not ended when the grace period was over."""

    def wait(self, handled: set[signal.Signals], grace: float) -> int:
        """Forwards signals until the program has ended; its exit code, negative for a signal."""
        while True:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            received = self._next_signal(handled | {signal.SIGCHLD})
            self._check_line()
            if received is None:
                if not self._plan or self._plan[0][0] > time.monotonic():
                    continue
                with contextlib.suppress(OSError):  # so that the program prints where it stopped
                    (self._run_dir / _run_files.STOPPING).touch()
                self._send(self._plan.pop(0)[1])
            elif received.si_signo != signal.SIGCHLD:
                self._pass_on(received, grace)

    def _next_signal(self, handled: set[signal.Signals]) -> signal.struct_siginfo | None:
        """Waits for a signal; None when the next signal of the plan is due."""
        longest = _LINE_SECONDS if self._line else float("inf")
        if self._plan:
            longest = min(longest, max(0.0, self._plan[0][0] - time.monotonic()))
        if longest == float("inf"):
            return signal.sigwaitinfo(handled)
        return signal.sigtimedwait(handled, longest)

    def _check_line(self) -> None:
        """Gives the program time to end when another one has failed."""
        if not self._line or self._ends:
            return
        if failure := self._line.failure():
            self.failure, self.failed_at = failure, time.monotonic()
            self._plan_end([share * self._grace for share in FAILURE_SHARES])

    def _pass_on(self, received: signal.struct_siginfo, grace: float) -> None:
        self.asked_to_end |= received.si_signo in _STOPS
        if received.si_signo == signal.SIGTERM and not self.was_stopped:
            self.was_stopped = True
            self._plan_end([grace / 2, grace])
        if not (self._shares_group and received.si_code == _SENT_BY_TERMINAL):
            self._send(signal.Signals(received.si_signo))
        if received.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _plan_end(self, after: Sequence[float]) -> None:
        """SIGINT and SIGKILL follow in so many seconds."""
        self._ends = True
        now = time.monotonic()
        numbers = (signal.SIGINT, signal.SIGKILL)
        self._plan = [(now + s, number) for s, number in zip(after, numbers, strict=True)]

    def _send(self, number: signal.Signals) -> None:
        self.was_killed |= number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            (os.kill if self._shares_group else os.killpg)(self._pid, number)


def _reason(program: _Child, exit_code: int, ooms: OomKills) -> str | None:
    if program.was_stopped and exit_code != 0:
        return _run_files.STOPPED
    return _run_files.OUT_OF_MEMORY if exit_code == -signal.SIGKILL and ooms.new() else None


def _is_consequence(folder: Path, program: _Child, exit_code: int) -> bool:
    """Whether another program's failure has ended this one: by the engine's error, or by what its
    agent did when it learnt of it."""
    record = _run_files.ErrorRecord.read(folder)
    if record is None:  # JAX aborts a process that has lost the others
        return bool(program.failure) or exit_code == -signal.SIGABRT
    # The program may have wrapped the engine's error.
    return record.time > program.failed_at or texts.OF_THE_ENGINE in record.traceback


def _has_left(folder: Path) -> bool:
    """Whether the program has published its end through the engine, or never started it."""
    try:
        return model.read_record(folder / _run_files.RECORDER).state == format.ProcessState.ENDED
    except (OSError, RecordError):
        return True


def _let_others_end(
    host_dir: HostDir, network: AgentNetwork, handled: set[signal.Signals], grace: float
) -> None:
    """Waits until the other processes have ended, at most ``grace`` seconds.

    Many launchers kill a job as soon as one of its processes has ended with a failure. Before that
    the others should raise their errors, which need this agent's information, save their state, and
    end with their own status.
    """
    end = time.monotonic() + grace
    while (left := end - time.monotonic()) > 0:
        if network.others_have_ended() and _all_ended(host_dir):
            return
        received = signal.sigtimedwait(handled, min(_TURN_SECONDS, left))
        if received and received.si_signo in _STOPS:
            return


def _all_ended(host_dir: HostDir) -> bool:
    """Whether the other programs have ended: those of this host, and the remote ones known here."""
    others = set(host_dir.path.glob("attempt_*/process_*")) - {host_dir.folder}
    ended = all((folder / _run_files.EXIT).exists() for folder in others)
    return ended and not any((folder / _run_files.STAYS).exists() for folder in others)


def _leave(host_dir: HostDir, log_dir: Path | None, exit_code: int) -> None:
    """Gives up the host's directory; the last agent keeps the records and removes it."""
    if not host_dir.is_last():
        # The launcher may kill the job when it sees a failure, so give the last agent time first.
        end = time.monotonic() + _LAST_SECONDS
        while exit_code != 0 and host_dir.path.exists() and time.monotonic() < end:
            time.sleep(_TURN_SECONDS)
        return
    # Earlier attempts have failed, and are kept only where the last one has too.
    last = host_dir.folder.parent.glob("process_*")
    endings = [_run_files.Exit.read(path) for path in last]
    if any(ending is None or ending.exit_code != 0 for ending in endings):
        if folder := failed_runs.keep(host_dir.path, log_dir):
            where = "" if log_dir else f" (on {platform.node()}, for the processes of that host)"
            hint = f"lockstep: for details: lockstep report {shlex.quote(str(folder))}{where}"
            with contextlib.suppress(OSError):
                print(hint, file=sys.stderr, flush=True)
    shutil.rmtree(host_dir.path, ignore_errors=True)


def _end_as(exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if exit_code < 0:
        # The program has left its core file, if one is wanted.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to set
            signal.signal(-exit_code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.kill(os.getpid(), -exit_code)
        os._exit(128 - exit_code)
    os._exit(exit_code)
