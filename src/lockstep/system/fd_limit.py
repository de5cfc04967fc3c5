"""Room for the engine and the watcher among the files that a process may have open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.job.topology import Peer

_SPARE = 256
"""For what the program opens later; the usual limit of 1024 leaves it some."""

_OWN = 24
"""Whatever the number of processes: what is listened on, watched with and woken by."""
_ELSEWHERE = 2
"""For each process of other hosts, and for each one's agent: a connection either way."""
_HERE = 3
"""For each of this host: its record, and its end, for the engine and for the watcher."""
_LINES = 4
"""For each of this host, where they are in memory: see `lockstep.watchdog.artifacts`."""


def make_room_for(peers: Sequence[Peer], process: int) -> None:
    """Sees to it that the engine can be started; raises `InitializationError` if it cannot."""
    here = sum(peer.host_id == peers[process].host_id for peer in peers)
    each = _HERE + (_LINES if _config.current().run_dir is None else 0)
    hosts = len({peer.host_id for peer in peers})
    make_room(_OWN + each * here + _ELSEWHERE * (len(peers) - here + hosts - 1))


def make_room_in_agent(members: int) -> None:
    """For an agent, with the records of its host."""
    make_room(_OWN + max(_HERE, _ELSEWHERE) * members)


def make_room(needed: int) -> None:
    """Raises the soft limit for ``needed`` more descriptors, where it is too low.

    Raises `InitializationError` where the hard limit is.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd"))
    if _has(soft, needed + taken + _SPARE):
        return
    if not _has(hard, needed + taken):
        raise InitializationError(
            f"the engine needs {needed} file descriptors for the processes of this job, "
            f"{taken} are open, and this process may have {hard}. Raise the limit before the job "
            f"starts (ulimit -n {needed + taken + _SPARE}, as far as the system's hard limit "
            "permits), or use --collectives gloo."
        )
    wanted = needed + taken + _SPARE
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if _has(hard, wanted) else hard, hard))


def close_all_but(kept: set[int]) -> None:
    """Closes the descriptors that this process has inherited, except ``kept`` and 0 to 2.

    Others wait for the end of files behind them: of pipes, say.
    """
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def _has(limit: int, count: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= count
