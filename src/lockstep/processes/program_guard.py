"""The guard: a process that decides whether a program goes on when its agent has been killed.

The sender of SIGKILL cannot be found out, and launchers know only the agent. So the program may run
on without its agent, but not without its launcher:

- Only the agent is killed: the program runs on until it ends or one of the following happens.
- The launcher kills the agent's process group: a *sentinel*, an idle process in that group, is
  killed with it. The guard then kills the program's group.
- In a job that may start again (``--max-restarts``) the program is killed with its agent: another
  agent may take its place.
- The launcher kills the agent by its pid, with the rest of the job, and ends: the guard watches the
  parent process of the agent, and kills the program's group when that parent has ended.

A launcher that kills every descendant or a whole control group kills the program itself. The guard
has a session of its own, so that a kill of the agent's group or session does not reach it.

Rejected: the parent-death signal of the program (it cannot distinguish these cases), and a thread
of the program (it may not run when the program is stuck in native code).
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
"""Wait before deciding: a kill of a process group reaches its members one after another."""
_ENDED = b"!"


class Guard:
    """The agent's end of the line to its guard."""

    def __init__(self, lifeline: int) -> None:
        self.lifeline = lifeline

    def watch(self, program: int) -> None:
        """Gives the process group ``program`` to the guard."""
        self._write(b"%d\n" % program)

    def dismiss(self) -> None:
        """Ends the guard, because the program has ended."""
        self._write(_ENDED)

    def _write(self, text: bytes) -> None:
        with contextlib.suppress(OSError):
            os.write(self.lifeline, text)


def start(held: int, ends: bool) -> Guard | None:
    """Starts a guard, which keeps the descriptor ``held`` open; None: it cannot be started.

    ``ends``: the program ends with its agent.
    """
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
        _look_after(line, launcher, sentinel, ends)
    finally:
        os._exit(0)


def _start_sentinel() -> socket.socket:
    """Starts a process in the agent's group that ends with this one; the socket to it."""
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


def _look_after(line: int, launcher: int, sentinel: socket.socket, ends: bool) -> None:
    launcher_fd = _pidfd(launcher)  # opened now, before the pid can be reused
    received = b""
    while data := os.read(line, 64):
        received += data
        if received.endswith(_ENDED):
            return
    program = int(received or b"0")
    if not program:
        return
    program_fd = _pidfd(program)
    if program_fd is not None and launcher_fd is not None and not ends:
        any_end = select.poll()
        for fd in (program_fd, launcher_fd, sentinel.fileno()):
            any_end.register(fd, select.POLLIN)
        time.sleep(_DECIDES_SECONDS)
        any_end.poll()
    # The whole group: also the children of the program.
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
