"""Raises the limit on open files to what the engine and the watchdog need."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Sequence

from lockstep import _config
from lockstep._errors import InitializationError
from lockstep.job.topology import Peer

_SPARE = 256
"""For files that the program opens later."""

_OWN = 24
"""Independent of the number of processes: listening sockets, epoll, event and timer descriptors."""
_REMOTE = 2
"""For each connection to a process of other hosts, and to each host's agent: both directions."""
_READER = 2
"""For each connection to a process but the first: an epoll and an event descriptor."""
_LOCAL = 3
"""For each process of this host: its record, and a pidfd each for the engine and the watchdog."""
_IN_MEMORY = 4
"""For each process of this host without a run directory: see `lockstep.watchdog.artifacts`."""

_PIPES_OF_HOST = 3
"""For each host, in the launcher: to and from the agent, and what ssh writes to stderr."""
_PIPES_OF_PROCESS = 4
"""For each process of this host, in the launcher: its output, and with --log-dir two files."""

LAUNCHER_NEEDS = (
    "The launcher needs 2 open files for each process (with --log-dir 4), or 3 for each host of "
    "--hosts, and about 20 more: raise the limit (ulimit -n)"
)


def make_room_for(peers: Sequence[Peer], process: int) -> None:
    """Makes room for the engine of a job; raises `InitializationError` if that is not possible."""
    here = sum(peer.host_id == peers[process].host_id for peer in peers)
    each = _LOCAL + (_IN_MEMORY if _config.current().run_dir is None else 0)
    hosts = len({peer.host_id for peer in peers})
    connections = _config.current().connections
    readers = _READER * (connections - 1)
    remote = _REMOTE * (connections * (len(peers) - here) + hosts - 1)
    make_room(_OWN + readers + each * here + remote)


def make_room_in_agent(members: int) -> None:
    """Makes room in an agent, which reads the records of its host."""
    make_room(_OWN + max(_LOCAL, _REMOTE) * members)


def make_room_in_launcher(processes: int, hosts: int) -> None:
    """Makes room in a launcher of ``processes`` on this host, and of agents on ``hosts``.

    Where the hard limit is too low, the start fails with an error that says what is needed. With
    no descriptor left, the open ones cannot even be listed.
    """
    with contextlib.suppress(InitializationError, OSError):
        make_room(_OWN + _PIPES_OF_PROCESS * processes + _PIPES_OF_HOST * hosts)


def make_room_for_agents(agents: int) -> None:
    """Makes room in the supervisor of ``lockstep worker --max-restarts``, to which so many connect.

    Raises `InitializationError` if that is not possible.
    """
    make_room(_OWN + agents, "the supervisor of --max-restarts", "")


def make_room(
    needed: int, owner: str = "the engine", other: str = ", or use --collectives gloo"
) -> None:
    """Raises the soft limit if it is too low for ``needed`` more descriptors of ``owner``.

    ``other``: what the user may do instead of raising the hard limit.
    Raises `InitializationError` if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = len(os.listdir("/proc/self/fd"))
    if _has(soft, needed + taken + _SPARE):
        return
    if not _has(hard, needed + taken):
        raise InitializationError(
            f"{owner} needs {needed} file descriptors for the processes of this job, "
            f"{taken} are open, and the limit of this process is {hard}. Raise the limit before "
            f"the job starts (ulimit -n {needed + taken + _SPARE}, up to the system's hard limit)"
            f"{other}."
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
