"""The main module of the launcher of a warm job: ``lockstep run`` for a program that drives it.

``python -m lockstep.pool.launcher SETTINGS``: the caller's process starts this one, and talks to
the processes itself, over sockets of its machine: on other hosts, sockets in the private
directories lead there (`lockstep.hosts.relay`). Their output comes to the caller through the
launcher, by lines with the process's number in front.

The launcher is a process of its own because a supervisor handles signals and reaps every child,
which the caller's program may do itself. It sees the caller's end, also by kill -9, by a pidfd; the
death of the launcher ends the processes (see `lockstep.processes.guard`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep._errors import LockstepError
from lockstep.hosts.relay import Connect
from lockstep.launch import before_start, options, run_command
from lockstep.launch.before_start import Caller
from lockstep.system import unix_socket


@dataclasses.dataclass(frozen=True)
class Settings:
    """A warm job, as its caller describes it."""

    program: Sequence[str]
    words: Sequence[str]
    """Options of ``lockstep run``."""
    run_dir: str
    """The private directory of the run. The caller removes it; the launcher, if the caller has
    ended first."""
    on_hosts: bool = False
    """Whether ``words`` name hosts."""
    auto_init: bool = False
    """Whether the processes join the job by themselves."""
    sockets: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Names of sockets on the hosts, and the TCP ports of this machine to which they lead; 0: the
    socket of that name in ``run_dir``."""
    caller: int = dataclasses.field(default_factory=os.getpid)
    """The parent of the launcher, with which the job ends."""

    def command(self) -> list[str]:
        """The command line of the launcher."""
        return [sys.executable, "-P", "-m", __name__, json.dumps(dataclasses.asdict(self))]

    def connect(self) -> Connect:
        """For each of the ``sockets``, what connects to that to which it leads."""
        return {
            name: functools.partial(socket.create_connection, ("127.0.0.1", port))
            if port
            else functools.partial(unix_socket.connect, Path(self.run_dir), name)
            for name, port in self.sockets.items()
        }


def main() -> int:
    """Runs the job; the exit status. Raises `LockstepError`."""
    # VS Code interrupts a notebook by SIGINT to all processes below its kernel. The caller passes
    # it to those that run a function. SIGHUP is the caller's second signal, also under nohup.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    settings = Settings(**json.loads(sys.argv[1]))
    lifeline = os.pidfd_open(settings.caller)
    if os.getppid() != settings.caller:  # it has ended, and its id may be that of another process
        return 1
    args = options.run_parser().parse_args(settings.words)
    environ = dict(os.environ)
    config = before_start.configure(args, environ)
    config = dataclasses.replace(config, attempt=0, auto_init=settings.auto_init)
    caller = Caller(settings.connect(), Path(settings.run_dir), lifeline)
    if not settings.on_hosts:
        return run_command.run(args, settings.program, config, environ, caller)
    # Late import: it is needed only there.
    from lockstep.launch import hosts_command

    return hosts_command.run(args, settings.program, config, environ, caller)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LockstepError as error:
        sys.exit(f"lockstep: {error}")
