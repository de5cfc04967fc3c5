"""ipyparallel's cluster, with ``lockstep run`` as the launcher of its engines."""

from __future__ import annotations

import logging
import os
import queue
import shutil
from collections.abc import Sequence
from typing import Any

import ipyparallel
from ipyparallel.cluster.launcher import (
    EngineLauncher,
    LocalControllerLauncher,
    LocalProcessLauncher,
)
from traitlets import Bool, List, Unicode
from traitlets.config import Config

from lockstep.notebook import controller_guard, engine
from lockstep.pool.launcher import Settings
from lockstep.processes import run_dir

_OUTPUT = ("stream", "display_data", "update_display_data", "execute_result", "clear_output")


class ControllerLauncher(LocalControllerLauncher):
    """ipyparallel's controller, which ends with the notebook's kernel."""

    def find_args(self) -> list[str]:
        return controller_guard.command(super().find_args())


class EngineSetLauncher(LocalProcessLauncher, EngineLauncher):  # type: ignore[misc]
    """All engines of a job, started by one ``lockstep run``, as MPI's are by ``mpiexec``."""

    options = List(Unicode(), help="options of lockstep run").tag(config=True)
    on_hosts = Bool(False, help="whether the options name hosts").tag(config=True)
    stop_seconds_until_kill = 10

    def find_args(self) -> list[str]:
        words = ["-n", str(self.n), *self.options]
        sockets: dict[str, int] = {}
        if self.on_hosts:
            words += ["--export", engine.INFO]
            ports = engine.ports(self.environment[engine.INFO])
            sockets = {engine.socket_name(port): port for port in ports}
        return Settings(
            program=("-m", "lockstep.notebook.engine"),
            words=words,
            run_dir=str(self.run_dir),
            on_hosts=self.on_hosts,
            auto_init=True,
            sockets=sockets,
        ).command()

    def start(self, n: int) -> None:  # type: ignore[override]
        self.n = n
        self.run_dir, self._lock = run_dir.make_locked()
        super().start()

    def notify_stop(self, data: Any) -> Any:
        if self.state != "after":  # it may be called twice
            shutil.rmtree(self.run_dir, ignore_errors=True)
            os.close(self._lock)
        return super().notify_stop(data)


class Client(ipyparallel.Client):
    """Passes output on in order; ipyparallel sorts it by kind."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.output: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        super().__init__(*args, **options)

    def create_message_futures(self, *args: Any, **options: Any) -> Any:
        # Before the message is sent: output could otherwise arrive before the callback is there.
        futures = super().create_message_futures(*args, **options)
        futures[0].iopub_callbacks.append(self._put)
        return futures

    def _put(self, message: dict[str, Any]) -> None:
        if message["header"]["msg_type"] in _OUTPUT:
            self.output.put(message)


class Cluster(ipyparallel.Cluster):
    """A cluster with a client of our own."""

    async def connect_client(self, **options: Any) -> Client:
        controller: Any = self.controller
        info = await controller.get_connection_info()
        return Client(info["client"], cluster=self, profile_dir=self.profile_dir, **options)


def cluster(processes: int, options: Sequence[str], folder: str, on_hosts: bool) -> Cluster:
    """A cluster that is not started yet; its files are in ``folder``.

    ``on_hosts``: the options name hosts.
    """
    log = logging.getLogger("lockstep.notebook")
    log.setLevel(logging.CRITICAL)  # what the user has to know is said by the commands
    return Cluster(
        n=processes,
        engines=EngineSetLauncher,
        controller=ControllerLauncher,
        profile_dir=folder,
        cluster_file="",
        delay=0,
        load_profile=False,
        shutdown_atexit=False,
        # Here the processes start at the same time as the controller: see engine.main.
        send_engines_connection_env=on_hosts,
        config=Config({"EngineSetLauncher": {"options": list(options), "on_hosts": on_hosts}}),
        log=log,
    )
