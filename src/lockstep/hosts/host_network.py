"""The host's agent in the network between hosts: a child for each attempt.

It answers the watchdogs of other hosts (`lockstep.watchdog.agent_network`), with an engine of its
own. A process has one engine in its life, and each attempt needs a new one; hence a child. Threads
and the engine stay out of the agent that way, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import NoReturn

from lockstep.processes.job_spec import LaunchSpec
from lockstep.system import fd_limit, process_tree


class HostNetwork:
    """The child, and the socket by which the first process of the host speaks to it."""

    def __init__(self, pid: int, theirs: socket.socket) -> None:
        self._pid = pid
        self._theirs = theirs

    @property
    def fd(self) -> int:
        """The descriptor that the process inherits."""
        return self._theirs.fileno()

    def handed_over(self) -> None:
        """The process has inherited the socket, and alone keeps it open."""
        self._theirs.close()

    def end(self) -> None:
        """Ends the child, when there is no process left that could ask."""
        process_tree.kill({self._pid})


def start(job: LaunchSpec) -> HostNetwork:
    """Starts the child. Raises OSError."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        _serve(job, ours)
    ours.close()
    return HostNetwork(pid, theirs)


def _serve(job: LaunchSpec, line: socket.socket) -> NoReturn:
    try:
        process_tree.end_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the agent ends it
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # `lockstep top` takes this process for one of the run by the directory that it holds.
        held = os.open(job.run_dir, os.O_RDONLY | os.O_DIRECTORY)
        fd_limit.close_all_but({line.fileno(), held})
        # The settings of the job, which this process reads as one of its processes would.
        for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
            del os.environ[name]
        os.environ.update(job.config_of(job.first).to_environ())
        from lockstep.watchdog.agent_network import AgentNetwork

        AgentNetwork(line, job.run_dir)
        while True:
            signal.pause()
    except BaseException as error:
        with contextlib.suppress(OSError):
            print(f"lockstep: the agent's engine: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(1)
