"""Finds, ends and reaps the descendants of this process. Linux only.

Two calls of ``prctl`` guarantee that no process outlives a job. A *subreaper* becomes the parent of
every descendant whose own parent has ended, so it finds all of them, also those in a session of
their own. A *parent-death signal* kills a process when the process that started it ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

REAP_SECONDS = 10.0


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def adopt_orphans() -> None:
    """From now on descendants whose parent ends become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent() -> None:
    """From now on this process is killed when the one that started it ends (exec keeps that)."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stat(pid: int, proc: Path = Path("/proc")) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, ...; raises OSError."""
    with open(proc / str(pid) / "stat", "rb", 0) as file:
        # The name in parentheses may hold anything; the fields begin after the last ")".
        return file.read().rpartition(b")")[2].decode().split()


def parents() -> dict[int, int]:
    """Process id -> its parent's, of every process on this machine that has not ended."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = stat(int(name))[:2]
                if state not in "ZX":
                    found[int(name)] = int(parent)
    return found


def below(ancestor: int, parent_of: dict[int, int]) -> set[int]:
    """Every process that descends from ``ancestor``."""
    children: dict[int, list[int]] = {}
    for pid, parent in parent_of.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), []) if pid not in found]
        found.update(fresh)
        waiting += fresh
    return found


def descendants() -> set[int]:
    """The living processes that descend from this one, which has adopted its orphans."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()  # saves reading /proc, which may have thousands of processes
    return below(os.getpid(), parents())


def kill(pids: set[int], number: int = signal.SIGKILL) -> None:
    """Sends a signal to those of ``pids`` that exist and that this user may signal."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap() -> list[tuple[int, int]]:
    """Reaps the children that have ended, also adopted ones: pairs of pid and exit code.

    The exit code is negative for a signal, as in ``subprocess``.
    """
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def end_all() -> None:
    """Kills and reaps every descendant, except those that it may not kill (another user's)."""
    deadline = time.monotonic() + REAP_SECONDS
    while (left := descendants()) and time.monotonic() < deadline:
        kill(left)
        reap()
        time.sleep(0.005)
    reap()
