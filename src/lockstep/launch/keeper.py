"""The keeper: what ``lockstep worker`` becomes, the parent of the program.

It holds nothing of JAX, so it is there when the program is dead, stopped or stuck, and knows what
only a parent is told: how the program ended. It writes that down for the others of its host, and
where the job has several hosts, one keeper of each answers those of the others
(`lockstep.runtime.keeping`). To the cluster's launcher it is the program: signals are passed on,
and it ends as the program did; when that has failed, not before the others have, for a while.

The program is in a process group of its own, so that a signal to the launcher's group comes once:
it is passed on to the program's group. A guard kills that group when we are killed, for a launcher
that kills a group is not to leave behind what the program has started. Slurm with proctrack/cgroup
signals its own children only, so it has to be passed on; one that signals all descendants
(proctrack/linuxproc) reaches the program twice, which nobody can tell. With our terminal for its
input it stays in our group, or it could not read; then the terminal's signals reach both, and are
not passed on.

Rejected: a child of the program instead of its parent, which would have nothing to pass on (how
its parent ended only kernels from 6.15 on would tell it), and one keeper for each host (who starts
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

from lockstep import _records
from lockstep._errors import LaunchError, RecordError
from lockstep.launch import kept, process_tree
from lockstep.launch.failure import not_started
from lockstep.launch.host_dir import HostDir
from lockstep.launch.memory import OomKills
from lockstep.launch.process import OUT_OF_MEMORY
from lockstep.record import format, run

if TYPE_CHECKING:
    from lockstep.runtime.keeping import Keeping

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
    grace: float,
) -> NoReturn:
    """Starts the program, and ends as it does, at most ``grace`` seconds later.

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
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"the program cannot be started: {not_started(error)}") from error
    if pid == 0:
        _become(arguments, environ_with(theirs.fileno()), own, shares_group, blocked)
    theirs.detach()
    if not shares_group:
        with contextlib.suppress(OSError):  # it has been faster, and runs
            os.setpgid(pid, pid)  # or a signal that comes now would find no such group
    lifeline = None if shares_group else _guard(pid)
    _close_all_but({ours.fileno(), host_dir.held, lifeline})
    # Late import: the program has started before.
    from lockstep.runtime.keeping import Keeping

    keeping = Keeping(ours, host_dir.path)
    exit_code = _wait(pid, heard, shares_group)
    if lifeline is not None:
        with contextlib.suppress(OSError):
            os.write(lifeline, b"!")
    _see_it_out(host_dir, process, pid, exit_code, ooms, keeping, heard, grace)
    _leave(host_dir, log_dir, exit_code)
    _end_as(exit_code)


def _see_it_out(
    host_dir: HostDir,
    process: int,
    pid: int,
    exit_code: int,
    ooms: OomKills,
    keeping: Keeping,
    heard: set[signal.Signals],
    grace: float,
) -> None:
    """The program has ended: who asks is told how, and others that it makes fail have time."""
    # With exit code 0 no launcher ends a job, but other hosts may not know that it has ended.
    unsaid = keeping.knows_others and not _has_left(host_dir.folder)
    fails = exit_code != 0 or unsaid
    stays = host_dir.folder / _records.STAYS
    with contextlib.suppress(OSError):
        if fails and keeping.knows_others:
            stays.touch()
    _write_down(host_dir.folder, process, pid, exit_code, ooms)
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
    keeper: int,
    shares_group: bool,
    blocked: set[signal.Signals | int],
) -> NoReturn:
    """In the child."""
    try:
        process_tree.end_with_parent()
        if os.getppid() != keeper:  # it died before
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


def _guard(program: int) -> int | None:
    """Kills the program's group if this process ends without a word on the descriptor returned.

    None where there can be no guard.
    """
    try:
        heard, lifeline = os.pipe()
        guard = os.fork()
    except OSError:
        return None
    if guard != 0:
        os.close(heard)
        return lifeline
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        _close_all_but({heard})
        if not os.read(heard, 1):
            os.killpg(program, signal.SIGKILL)
    finally:
        os._exit(0)


def _close_all_but(kept_open: set[int | None]) -> None:
    """Who waits for the end of what the program has inherited is not to wait for us."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept_open:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def _wait(pid: int, heard: set[signal.Signals], shares_group: bool) -> int:
    """Passes signals on until the program has ended; its exit code, negative for a signal."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        told = signal.sigwaitinfo(heard | {signal.SIGCHLD})
        if told.si_signo == signal.SIGCHLD:
            continue
        with contextlib.suppress(ProcessLookupError):
            if not shares_group:
                os.killpg(pid, told.si_signo)
            elif told.si_code != _SENT_BY_TERMINAL:
                os.kill(pid, told.si_signo)
        if told.si_signo == signal.SIGTSTP:
            os.kill(os.getpid(), signal.SIGSTOP)


def _write_down(folder: Path, process: int, pid: int, exit_code: int, ooms: OomKills) -> None:
    out_of_memory = exit_code == -signal.SIGKILL and ooms.new()
    reason = OUT_OF_MEMORY if out_of_memory else None
    with contextlib.suppress(OSError):  # a full disk
        _records.ExitRecord.of(process, pid, exit_code, reason).write(folder)


def _has_left(folder: Path) -> bool:
    """Whether the program came to its end in JAX, or never got there."""
    try:
        return run.read_record(folder / _records.RECORDER).state == format.ProcessState.ENDED
    except (OSError, RecordError):
        return True


def _let_others_end(
    host_dir: HostDir, keeping: Keeping, heard: set[signal.Signals], grace: float
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
    """Whether the other programs of this host have, and as its keepers know, those elsewhere."""
    others = set(host_dir.path.glob("attempt_*/process_*")) - {host_dir.folder}
    ended = all((folder / _records.EXIT).exists() for folder in others)
    return ended and not any((folder / _records.STAYS).exists() for folder in others)


def _leave(host_dir: HostDir, log_dir: Path | None, exit_code: int) -> None:
    """The last of the host sees to what is left."""
    if not host_dir.is_last():
        # Until then no launcher is to hear of a failure, and kill it.
        end = time.monotonic() + _LAST_SECONDS
        while exit_code != 0 and host_dir.path.exists() and time.monotonic() < end:
            time.sleep(_TURN_SECONDS)
        return
    endings = [_records.ExitRecord.read(path) for path in host_dir.path.glob("attempt_*/process_*")]
    if any(ending is None or ending.exit_code != 0 for ending in endings):
        if folder := kept.keep(host_dir.path, log_dir):
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
