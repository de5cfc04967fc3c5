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
from collections.abc import Collection
from pathlib import Path

from lockstep._words import grouped

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

REAP_SECONDS = 10.0


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "prctl")


def adopt_orphans(wanted: bool = True) -> None:
    """From now on descendants whose parent ends become children of this process, or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(wanted))


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
                fields = stat(int(name))
                if not _has_ended(fields):
                    found[int(name)] = int(fields[1])
    return found


def _has_ended(fields: list[str]) -> bool:
    """Whether all threads have ended: the state is the main thread's, the other number their count.

    A process that is killed may lose its main thread first, and its children stay its own until its
    last thread has ended.
    """
    return fields[0] in "ZX" and int(fields[17]) <= 1


def started(pid: int) -> float:
    """When a process was started, as ``time.time()``; raises OSError."""
    ticks = int(stat(pid)[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def command(pid: int) -> str:
    """The words of a process's command line; "" where it has none, or has ended."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return " ".join(word.decode("utf-8", "replace") for word in words)
    return ""


def open_files(pid: int) -> list[str]:
    """What a process has open, by its names in /proc; none where this user may not know."""
    found = []
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found


def below(ancestor: int, parent_of: dict[int, int], spared: Collection[int] = ()) -> set[int]:
    """Every process that descends from ``ancestor``, without ``spared`` and what is below them."""
    children = grouped((parent, pid) for pid, parent in parent_of.items())
    found: set[int] = set()
    waiting = [ancestor]
    while waiting:
        of_one = children.get(waiting.pop(), [])
        fresh = [pid for pid in of_one if pid not in found and pid not in spared]
        found.update(fresh)
        waiting += fresh
    return found


def descendants(spared: Collection[int] = ()) -> set[int]:
    """The living processes that descend from this one, which has adopted its orphans.

    Those ``spared`` are left out, with what descends from them.
    """
    if not _has_children():
        return set()  # saves reading /proc, which may have thousands of processes
    return below(os.getpid(), parents(), spared)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


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


def end_all(spared: Collection[int] = ()) -> None:
    """Kills and reaps every descendant, except those ``spared``, and those that it may not kill
    (another user's).

    It ends when this process has no child left, not when it sees no descendant: a process that ends
    while /proc is read hides its own children, which become this one's a moment later. Beside
    children that are spared, it ends when it has seen no other twice.
    """
    deadline = time.monotonic() + REAP_SECONDS
    unseen = 0
    while _has_children() and unseen < 2 and time.monotonic() < deadline:
        left = descendants(spared)
        unseen = 0 if left or not spared else unseen + 1
        kill(left)
        reap()
        time.sleep(0.005)
