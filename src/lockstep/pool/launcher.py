"""The main module of a pool's launcher: starts and supervises its processes, as ``lockstep run``.

``python -m lockstep.pool.launcher SETTINGS``: the caller's process starts this one, and connects to
the processes itself (`processes`). Their output comes to the caller through the launcher, by lines
with the process's number in front.

The launcher is a process of its own because a supervisor handles signals and reaps every child,
which the caller's program may do itself. It sees the caller's end, also by kill -9, by a pidfd; the
death of the launcher ends the processes (see `lockstep.launch.guard`).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from lockstep._config import Config
from lockstep._errors import LockstepError
from lockstep.launch.guard import run_guarded
from lockstep.launch.job_spec import LaunchSpec
from lockstep.launch.supervisor import Supervisor
from lockstep.nccl import gpus
from lockstep.pool import messages
from lockstep.system import port_reservation, process_tree, unix_socket

WORKER = ("-m", "lockstep.pool.worker")


def command(settings: dict[str, Any]) -> list[str]:
    """The command line of a launcher; ``settings`` are those that `main` reads."""
    return [sys.executable, "-P", "-m", __name__, json.dumps(settings)]


def main() -> int:
    # VS Code interrupts a notebook by SIGINT to all processes below its kernel. The caller passes
    # it to those that run a function. SIGHUP is the caller's second signal, also under nohup.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    settings = json.loads(sys.argv[1])
    config = dataclasses.replace(
        Config.from_environ(os.environ), attempt=0, auto_init=False, **settings["config"]
    )
    return (_on_hosts if settings["hosts"] else _here)(settings, config)


def _on_hosts(settings: dict[str, Any], config: Config) -> int:
    # Late import: it is needed only there.
    from lockstep.launch import hosts_command, options

    run_dir = Path(settings["run_dir"])
    words = list(settings["hosts"])
    for name in ("devices", "platform"):
        if settings[name] is not None:
            words += [f"--{name}", str(settings[name])]
    for name in settings["exported"]:
        words += ["--export", name]
    args = options.run_parser().parse_args(words)
    sockets = {messages.SOCKET: functools.partial(unix_socket.connect, run_dir, messages.SOCKET)}
    caller = hosts_command.Caller(sockets, run_dir, settings["caller"])
    return hosts_command.run(args, WORKER, config, dict(os.environ), caller)


def _here(settings: dict[str, Any], config: Config) -> int:
    run_dir = Path(settings["run_dir"])
    processes, devices, platform = (settings[n] for n in ("processes", "devices", "platform"))
    gpus.check(processes, devices, gpus.shown(platform, os.environ))
    with port_reservation.reserve() as port:
        job = LaunchSpec(
            program=WORKER,
            processes=processes,
            config=dataclasses.replace(config, coordinator=port_reservation.address(port)),
            environ=dict(os.environ),
            run_dir=run_dir,
            devices=devices,
            platform=platform,
        )

        def supervise(_: int) -> int:
            # The pipe of the guard would do, but the supervisor watches the caller with it.
            process_tree.end_with_parent()
            return Supervisor(job, settings["caller"]).run()

        return run_guarded(supervise, run_dir)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LockstepError as error:
        sys.exit(f"lockstep: {error}")
