"""``--max-restarts``: starts the whole job again after a failure.

All processes are started again, not only the one that failed, because the survivors hold
communicators of the failed job. Each attempt has its own number in the logs and its own port for
JAX's coordination service, so that late messages of the attempt before cannot reach it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Protocol

from lockstep import _run_files
from lockstep._errors import LaunchError
from lockstep._stderr import complain
from lockstep.hosts.fleet import Interrupted
from lockstep.launch import lost_time
from lockstep.launch.lost_time import Restart
from lockstep.launch.supervisor import Supervisor
from lockstep.processes.job_processes import Loop, Processes
from lockstep.processes.job_spec import LaunchSpec
from lockstep.processes.local_processes import LocalProcesses
from lockstep.processes.preload import Preloaded
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
        self._preloaded = Preloaded()

    def processes(self, job: LaunchSpec, loop: Loop) -> LocalProcesses:
        return LocalProcesses(job, loop, self._preloaded)

    def again(self, job: LaunchSpec) -> LaunchSpec:
        port = self._ports_held.enter_context(port_reservation.reserve())
        config = dataclasses.replace(job.config, coordinator=port_reservation.address(port))
        return dataclasses.replace(job, config=config)


def run(job: LaunchSpec, lifeline: int, place: Placement | None = None) -> int:
    """Runs the job until it succeeds, is stopped, or has failed too often; its last status."""
    restarts = Restarts(job.max_restarts)
    lost = _LostTime()
    with contextlib.ExitStack() as ports_held:
        ports_held.callback(lost.close)
        place = place or ThisHost(ports_held)
        while True:
            supervisor = Supervisor(job, lifeline, restarts, place.processes, lost.account)
            status = supervisor.run()
            supervisor.close()
            if not supervisor.may_restart:
                return status
            restarts.one_begins(counts=not supervisor.grows)
            ended_at = time.monotonic()
            config = dataclasses.replace(job.config, attempt=job.config.attempt + 1)
            try:
                job = place.again(dataclasses.replace(job, config=config))
            except Interrupted:
                raise
            except LaunchError as error:
                complain(f"not started again: {error}")
                supervisor.report.folders(complain)
                return status
            lost.add(_restart(supervisor, job, ended_at), job)


class _LostTime:
    """Accounts for the restarts of a run: a line for each, a table at the end, and a file."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._restarts: list[Restart] = []
        self._run_dir = Path()
        self._folders: set[Path] = set()
        """The run's, and its own in ``--log-dir``, once there was a restart."""
        self._is_logged = False
        self._is_told = False

    def close(self) -> None:
        """The run has ended."""
        if self._is_logged:  # else nothing is kept of the run, or it was moved with the records
            self.write()
        if text := self._table():
            complain(text)

    def add(self, restart: Restart, job: LaunchSpec) -> None:
        self._restarts.append(restart)
        self._run_dir = job.run_dir
        self._folders = {job.run_dir, job.log_dir or job.run_dir}
        self._is_logged = bool(job.log_dir)
        complain(restart.words)
        self.write()

    def account(self) -> str:
        """Writes it and returns the table, which stands above the last line of a failed run."""
        self.write()
        return self._table()

    def _table(self) -> str:
        """The table; "" without a restart, and when it was told already."""
        is_told, self._is_told = self._is_told, True
        self._restarts = [self._with_step(each) for each in self._restarts]
        seconds = time.monotonic() - self._began
        return "" if is_told else lost_time.table(self._restarts, seconds)

    def write(self) -> None:
        """Writes the account up to now into the folders of the run, if there was a restart.

        `lockstep top` reads it while the run goes on.
        """
        self._restarts = [self._with_step(each) for each in self._restarts]
        values = lost_time.values(self._restarts, time.monotonic() - self._began)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                (folder / _run_files.RESTARTS).write_text(json.dumps(values, indent=1))

    def _with_step(self, restart: Restart) -> Restart:
        """``restart`` with the step that the program has told since."""
        attempt = _run_files.attempt_dir(self._run_dir, restart.attempt + 1)
        step = _run_files.read_continues_from(attempt)
        return restart if step is None else dataclasses.replace(restart, continues_from=step)


def _restart(supervisor: Supervisor, job: LaunchSpec, ended_at: float) -> Restart:
    """What the restart has cost from which ``job`` comes, after the end of ``supervisor``'s."""
    noticed_at, first = supervisor.stopping_at, supervisor.first
    fault_at = min(first.failed_at if first else noticed_at, noticed_at)
    cause = lost_time.HOST_LOST if first and first.was_lost else lost_time.PROCESS_FAILED
    if supervisor.grows:
        cause = lost_time.MORE_HOSTS
    return Restart(
        attempt=job.config.attempt - 1,
        cause=cause,
        noticed=noticed_at - fault_at,
        ended=ended_at - noticed_at,
        prepared=time.monotonic() - ended_at,
        hosts=job.changes,
    )
