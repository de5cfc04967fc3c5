"""``--max-restarts``: starts the whole job again after a failure.

All processes are started again, not only the one that failed, because the survivors hold
communicators of the failed job. Each attempt has its own number in the logs and its own port for
JAX's coordination service, so that late messages of the attempt before cannot reach it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Protocol

from lockstep._errors import LaunchError
from lockstep.hosts.fleet import Interrupted
from lockstep.launch.supervisor import Supervisor
from lockstep.processes.console import complain
from lockstep.processes.job_processes import Loop, Processes
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.local_processes import LocalProcesses
from lockstep.processes.restart_decision import Restarts
from lockstep.system import port_reservation


class Placement(Protocol):
    """Where the processes of a job run: on this host, or on several."""

    def processes(self, job: LaunchSpec, loop: Loop) -> Processes:
        """Those of one attempt, to be started."""
        ...

    def again(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with what has to be new in the next attempt. Raises `LaunchError` where there
        can be none."""
        ...


class ThisHost:
    """All processes run on this host."""

    def __init__(self, ports_held: contextlib.ExitStack) -> None:
        self._ports_held = ports_held

    def processes(self, job: LaunchSpec, loop: Loop) -> LocalProcesses:
        return LocalProcesses(job, loop)

    def again(self, job: LaunchSpec) -> LaunchSpec:
        port = self._ports_held.enter_context(port_reservation.reserve())
        config = dataclasses.replace(job.config, coordinator=port_reservation.address(port))
        return dataclasses.replace(job, config=config)


def run(job: LaunchSpec, lifeline: int, place: Placement | None = None) -> int:
    """Runs the job until it succeeds, is stopped, or has failed too often; its last status."""
    restarts = Restarts(job.max_restarts)
    with contextlib.ExitStack() as ports_held:
        place = place or ThisHost(ports_held)
        while True:
            supervisor = Supervisor(job, lifeline, restarts, place.processes)
            status = supervisor.run()
            supervisor.close()
            if not supervisor.may_restart:
                return status
            restarts.left -= 0 if supervisor.grows else 1
            config = dataclasses.replace(job.config, attempt=job.config.attempt + 1)
            try:
                job = place.again(dataclasses.replace(job, config=config))
            except Interrupted:
                raise
            except LaunchError as error:
                complain(f"not started again: {error}")
                supervisor.report_folders(complain)
                return status
