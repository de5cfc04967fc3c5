"""The guard of a program whose agent is killed: decides whether the program goes on.

SIGKILL leaves no trace of its sender, and launchers know of the agent only. So the program may go
on without its agent, but not without its launcher:

- The agent alone is killed: the program goes on, until it ends, or until one of the following.
- The launcher kills the agent's process group: a *sentinel* in that group, which does nothing, is
  killed with it. The guard then kills the program's group.
- The launcher kills the agent by its pid, with the rest of the job, and ends: the guard watches the
  process that has started the agent, and kills the program's group when that has ended.

A launcher that kills every descendant or a whole control group kills the program itself. The guard
has a session of its own, so that a kill of the agent's group or session does not reach it.

Rejected: the parent-death signal of the program (it cannot tell one of these from another), and a
thread of the program (a program stuck in native code does not run it).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time

from lockstep.system import fd_limit

_DECIDES_SECONDS = 0.1
"""A kill of a process group reaches its members one after another."""
_ENDED = b"!"


class Guard:
    """The agent's end of the line to its guard."""

    def __init__(self, lifeline: int) -> None:
        self.lifeline = lifeline

    def watch(self, program: int) -> None:
        """From now on the guard looks after the process group ``program``."""
        self._write(b"%d\n" % program)

    def dismiss(self) -> None:
        """The program has ended."""
        self._write(_ENDED)

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.lifeline, text)


def start(held: int) -> Guard | None:
    """Starts a guard, which keeps the descriptor ``held`` open; None where there can be none."""
    try:
        line, lifeline = os.pipe()
        launcher = os.getppid()
        pid = os.fork()
    except OSError:
        return None
    if pid != 0:
        os.close(line)
        return Guard(lifeline)
    try:
        os.close(lifeline)
        _close_standard_streams()
        sentinel = _start_sentinel()
        os.setsid()
        fd_limit.close_all_but({line, held, sentinel.fileno()})
        _look_after(line, launcher, sentinel)
    finally:
        os._exit(0)


def _start_sentinel() -> socket.socket:
    """Starts a process in the agent's group that ends with this one; the line to it."""
    ours, theirs = socket.socketpair()
    if os.fork() != 0:
        theirs.close()
        return ours
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        fd_limit.close_all_but({theirs.fileno()})
        theirs.recv(1)
    finally:
        os._exit(0)


def _look_after(line: int, launcher: int, sentinel: socket.socket) -> None:
    launcher_fd = _pidfd(launcher)  # now, while its number is not another process's
    told = b""
    while data := os.read(line, 64):
        told += data
        if told.endswith(_ENDED):
            return
    program = int(told or b"0")
    if not program:
        return
    program_fd = _pidfd(program)
    if program_fd is not None and launcher_fd is not None:
        ends = select.poll()
        for fd in (program_fd, launcher_fd, sentinel.fileno()):
            ends.register(fd, select.POLLIN)
        time.sleep(_DECIDES_SECONDS)
        ends.poll()
    # What the program has started ends with it, too.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program, signal.SIGKILL)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _close_standard_streams() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
