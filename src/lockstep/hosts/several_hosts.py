"""The hosts of one job over all its attempts: they are reached, checked and given their orders."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from lockstep import __version__
from lockstep._errors import LaunchError
from lockstep.hosts import host_check, preflight, starters
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Placed
from lockstep.hosts.host_state import Request
from lockstep.hosts.relay import Connect
from lockstep.hosts.remote_processes import RemoteProcesses
from lockstep.processes.console import complain
from lockstep.processes.first_failure import not_started
from lockstep.processes.job_processes import Loop
from lockstep.processes.job_spec import LaunchSpec
from lockstep.system import port_reservation


class SeveralHosts:
    """The hosts of a job over all its attempts: see `restarts.Placement`.

    Each attempt has a key of its own. So a process of an earlier attempt on a host that could not
    be reached any more, and runs on there until the lease of its agent is over, cannot take part.
    """

    def __init__(
        self,
        fleet: Fleet,
        placed: Sequence[Placed],
        args: argparse.Namespace,
        srun: bool,
        connect: Connect,
    ) -> None:
        self._srun = srun
        self._connect = connect
        self._fleet = fleet
        self._wanted = placed
        self._args = args
        self._directory = args.chdir or _working_directory()
        self._places: list[tuple[Connection, Placed]] = []
        self._addresses: dict[str, str] = {}
        """The address of each host in the job, by its name."""

    def first(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with the address of its coordinator; all hosts have been reached.

        Raises `LaunchError` with all that is wrong, and `Interrupted`.
        """
        hosts = [dataclasses.replace(each.host, slots=each.count) for each in self._wanted]
        with _ssh_starts():
            checked = host_check.check_hosts(self._fleet, hosts, self._request(job))
        host_check.end_probes(self._fleet, checked)
        if checked.has_problems:
            raise LaunchError(
                f"{preflight.headline(checked.found)}\n{preflight.table(checked.found)}"
            )
        if warnings := preflight.table(checked.found):
            complain(f"before the start:\n{warnings}")
        self._places = list(zip(checked.connections.values(), self._wanted, strict=True))
        self._addresses = {each.name: each.address for each in checked.states.values()}
        return self._with_coordinator(job)

    def _request(self, job: LaunchSpec) -> Request:
        return Request(
            directory=self._directory,
            program=job.program,
            interface=self._args.interface,
            port=self._args.coordinator_port,
            collectives=job.config.collectives,
            ssh=starters.SRUN if self._srun else shlex.join(self._args.ssh),
            srun=self._srun,
            python=self._args.python or sys.executable,
            version=__version__,
            answer_seconds=job.config.check_timeout,
            lacking=_lacking(self._directory, job.program[0]),
        )

    def _with_coordinator(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with a port that the host of process 0 holds for the coordination service."""
        first = self._places[0][0]
        host = self._addresses[first.host.name] if len(self._places) > 1 else ""
        values = {
            "host": host or port_reservation.LOOPBACK,
            "port": self._args.coordinator_port or 0,
        }
        answers = self._fleet.ask("reserve", "reserved", {first: values})
        head = answers[first].head if first in answers else {"problem": first.lost or "no answer"}
        if "address" not in head:
            raise LaunchError(f"{first.host.name}: {head['problem']}")
        config = dataclasses.replace(
            job.config, coordinator=str(head["address"]), num_hosts=len(self._places)
        )
        return dataclasses.replace(job, config=config)

    def processes(self, job: LaunchSpec, loop: Loop) -> RemoteProcesses:
        key = secrets.token_hex(32)
        orders = {connection: self._order(job, placed, key) for connection, placed in self._places}
        return RemoteProcesses(job, loop, self._fleet, self._places, orders, self._connect)

    def _order(self, job: LaunchSpec, placed: Placed, key: str) -> dict[str, Any]:
        """The ``start`` message of one host."""
        config = job.config
        is_engine = config.collectives == "lockstep" and config.record
        return {
            "program": job.program,
            "first": placed.first,
            "count": placed.count,
            "total": job.processes,
            "config": config.to_environ(),
            "environ": dict(job.environ),
            "directory": self._directory,
            "devices": job.devices,
            "platform": job.platform,
            "bind": self._args.bind,
            "oversubscribe": self._args.oversubscribe,
            "key": key,
            "network": is_engine and len(self._places) > 1,
            "relayed": list(self._connect),
        }

    # Again

    def again(self, job: LaunchSpec) -> LaunchSpec:
        """Reaches lost hosts again, checks all, and goes on with the good ones if enough are left.

        A host that answers may have lost its network, its disk, or the way to another host.
        """
        agents = self._reconnected()
        checked = host_check.check_agents(self._fleet, agents, self._request(job))
        host_check.end_probes(self._fleet, checked)
        bad = set(preflight.with_problems(checked.found))
        kept = [
            (agent, placed)
            for agent, (_, placed) in zip(agents, self._places, strict=True)
            if agent.label not in bad
        ]
        problems = {label: own for label, own in checked.found.items() if label in bad}
        self._check_enough(len(kept), problems)
        self._fleet.drop([each for each in agents if each.label in bad])
        self._addresses = {each.name: each.address for each in checked.states.values()}
        self._places = _renumbered(kept)
        count = sum(placed.count for _, placed in self._places)
        if bad:
            complain(
                f"going on with {len(kept)} hosts, {count} processes, without\n"
                f"{preflight.table(problems)}"
            )
        return self._with_coordinator(dataclasses.replace(job, processes=count))

    def _reconnected(self) -> list[Connection]:
        """The agents of all hosts, with new ones where they were lost."""
        lost = [c for c, _ in self._places if c.lost]
        self._fleet.drop(lost)
        with _ssh_starts():
            fresh = self._fleet.connect([each.host for each in lost])
        back = dict(zip(lost, fresh, strict=True))
        for old, new in back.items():
            new.label = old.label  # which is unique among all hosts
        return [back.get(c, c) for c, _ in self._places]

    def _check_enough(self, kept: int, bad: preflight.Findings) -> None:
        """Raises `LaunchError` where too few hosts are left; ``bad`` are those with problems."""
        least = self._args.min_hosts or len(self._wanted)
        if kept < least:
            hint = "" if self._args.min_hosts else ". --min-hosts K goes on with K hosts"
            raise LaunchError(
                f"{kept} of {len(self._wanted)} hosts are left, and the job needs {least}{hint}\n"
                f"{preflight.table(bad)}"
            )

    def end(self) -> None:
        """Ends all agents."""
        self._fleet.end()


@contextlib.contextmanager
def _ssh_starts() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"nothing can be started: {not_started(error)}") from error


def _renumbered(places: Sequence[tuple[Connection, Placed]]) -> list[tuple[Connection, Placed]]:
    found, first = [], 0
    for connection, placed in places:
        found.append((connection, Placed(placed.host, first, placed.count)))
        first += placed.count
    return found


def _lacking(directory: str, program: str) -> frozenset[str]:
    """Those of the directory and the program's path that this machine does not have."""
    paths = (directory, os.path.join(directory, program))
    return frozenset(path for path in paths if not os.path.exists(path))


def _working_directory() -> str:
    """The path of this directory as the user has typed it: a home may be a link on each host."""
    typed = os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(typed) and os.path.samefile(typed, "."):
            return typed
    return os.getcwd()
