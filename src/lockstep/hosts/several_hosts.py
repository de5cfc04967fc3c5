"""The hosts of one job over all its attempts: they are reached, checked and given their orders."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lockstep import __version__
from lockstep._errors import LaunchError
from lockstep._finding import Finding
from lockstep._stderr import complain
from lockstep.hosts import host_changes, lease, starters
from lockstep.hosts.checks import host_check, preflight
from lockstep.hosts.checks.request import HostState, Request
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.host_list import Host, Placed
from lockstep.hosts.membership import Membership
from lockstep.hosts.relay import Connect
from lockstep.hosts.remote_processes import RemoteProcesses
from lockstep.hosts.returning_hosts import ReturningHosts
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
        membership: Membership,
        args: argparse.Namespace,
        srun: bool,
        connect: Connect,
    ) -> None:
        self._srun = srun
        self._connect = connect
        self._fleet = fleet
        self._membership = membership
        self._args = args
        self._directory = args.chdir or _working_directory()
        seconds = fleet.reach_seconds
        self._watch = ReturningHosts(fleet, membership, self._judge, args.grow is not None, seconds)
        self._agents = self._watch.agents
        self._before = membership.in_use
        """The hosts of the last attempt."""
        self._checked: tuple[list[HostState], Request] = ([], Request())
        """What the last check has found, and what was asked."""
        self._addresses: dict[str, str] = {}
        """The address of each host in the job, by its name."""

    def _note(self, checked: host_check.Checked, job: LaunchSpec) -> None:
        """Keeps what was found now: hosts that answer later are compared with it."""
        request = self._request(job)
        bad = preflight.with_problems(checked.found)
        good = [state for label, state in checked.states.items() if label not in bad]
        self._checked = (good, request)
        self._watch.question = host_check.question(request)

    def _judge(self, connection: Connection, facts: Mapping[str, Any] | None) -> str:
        return host_check.problem_of(connection, facts, *self._checked)

    @property
    def _places(self) -> list[tuple[Connection, Placed]]:
        return [(self._agents[each.host.name], each) for each in self._membership.places]

    def first(self, job: LaunchSpec) -> LaunchSpec:
        """``job`` with the address of its coordinator; all hosts have been reached.

        Raises `LaunchError` with all that is wrong, and `Interrupted`.
        """
        hosts = self._sized(self._membership.hosts)
        with _ssh_starts():
            checked = host_check.check_hosts(self._fleet, hosts, self._request(job))
        host_check.end_probes(self._fleet, checked)
        if preflight.with_problems(checked.found):
            raise LaunchError(
                f"{preflight.headline(checked.found)}\n{preflight.table(checked.found)}"
            )
        if warnings := preflight.table(checked.found):
            complain(f"before the start:\n{warnings}")
        self._agents |= {each.host.name: each for each in checked.connections.values()}
        self._note(checked, job)
        self._addresses = {each.name: each.address for each in checked.states.values()}
        return self._with_coordinator(job)

    def _sized(self, hosts: Sequence[Host]) -> list[Host]:
        """``hosts`` with as many slots as each would run processes: a spare as many as any."""
        counts = {each.host: each.count for each in self._membership.places}
        most = max(counts.values())
        return [dataclasses.replace(each, slots=counts.get(each, most)) for each in hosts]

    def _request(self, job: LaunchSpec) -> Request:
        return Request(
            directory=self._directory,
            program=job.program,
            interface=self._args.interface,
            port=self._args.coordinator_port,
            collectives=job.config.collectives,
            platform=job.platform or job.environ.get("JAX_PLATFORMS", ""),
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
        fleet, places = self._fleet, self._places
        return RemoteProcesses(job, loop, fleet, places, orders, self._connect, self._watch)

    def _order(self, job: LaunchSpec, placed: Placed, key: str) -> dict[str, Any]:
        """The ``start`` message of one host."""
        config = job.config
        is_engine = config.collectives == "lockstep" and config.record
        return {
            "program": job.program,
            "first": placed.first,
            "count": placed.count,
            "total": job.processes,
            "max_restarts": job.max_restarts,
            "preload": job.preload,
            "config": config.to_environ(),
            "environ": dict(job.environ),
            "directory": self._directory,
            "devices": job.devices,
            "platform": job.platform,
            "bind": self._args.bind,
            "oversubscribe": self._args.oversubscribe,
            "interface": self._args.interface,
            "key": key,
            "network": is_engine and len(self._places) > 1,
            "relayed": list(self._connect),
        }

    # Again

    def again(self, job: LaunchSpec) -> LaunchSpec:
        """Gives the places of lost hosts to spares, checks all hosts, and goes on with the good
        ones if enough are left.

        Lost hosts are reached once more where spares do not suffice. A host that answers may have
        lost its network, its disk, or the way to another host.
        """
        own = self._membership
        gone = self._take_lost()
        used = {each.name for each in self._before}
        lost = [*gone.values(), *self._watch.take_replaced()]
        self._wait_for_ends([each for each in lost if each.host.name in used])
        found: dict[str, list[Finding]] = {}
        if own.planned().is_full():
            found |= self._check(job, [])
        if not own.planned().is_full():
            found |= self._check(job, [gone[each.name] for each in own.lost if each.name in gone])
        before, changes = self._before, own.plan()
        self._before = own.in_use
        self._watch.report_left_out()
        problems = {each: found[each] for each in preflight.with_problems(found)}
        self._check_enough(problems)
        for line in host_changes.described(changes, own, problems):
            complain(line)
        count = sum(placed.count for placed in own.places)
        made = host_changes.summed_up(before, changes, own)
        return self._with_coordinator(dataclasses.replace(job, processes=count, changes=made))

    def _take_lost(self) -> dict[str, Connection]:
        """The connections that were lost since the last attempt was planned, which are dropped."""
        gone = {name: agent for name, agent in self._agents.items() if agent.lost}
        for agent in gone.values():
            self._watch.lost(agent)
        if len(gone) > 1 and all(host.name in gone for host in self._before):
            # The launcher stood still, or has lost its network: no host is to blame. A spare, whose
            # lease is longer, may be left.
            self._membership.forgive()
        self._fleet.drop(list(gone.values()))
        for name in gone:
            del self._agents[name]
        return gone

    def _wait_for_ends(self, gone: Sequence[Connection]) -> None:
        """Waits until no process of lost hosts can run any more: never do two attempts at once."""
        until, why = lease.last_end(gone, time.monotonic())
        if why:
            complain(why)
            self._fleet.wait(until)

    def _check(self, job: LaunchSpec, lost: Sequence[Connection]) -> dict[str, list[Finding]]:
        """The findings of all hosts that are there, and of ``lost``, which are reached again.

        Good ones of ``lost`` are spares afterwards, and those with problems are lost.
        """
        own = self._membership
        self._agents |= self._reached(lost)
        first = [each.name for each in own.planned().in_use if each.name in self._agents]
        # The first host is that of the coordination service.
        agents = [self._agents[name] for name in dict.fromkeys([*first, *self._agents])]
        checked = host_check.check_agents(self._fleet, agents, self._request(job))
        host_check.end_probes(self._fleet, checked)
        self._note(checked, job)
        bad = set(preflight.with_problems(checked.found))
        for host in [each for each in own.hosts if each.name in self._agents]:
            agent = self._agents[host.name]
            if agent.label not in bad:
                own.returned(host)
                continue
            self._watch.lost(agent, preflight.first_problem(checked.found[agent.label]))
            self._fleet.drop([agent])
            del self._agents[host.name]
        self._addresses |= {each.name: each.address for each in checked.states.values()}
        return checked.found

    def _reached(self, lost: Sequence[Connection]) -> dict[str, Connection]:
        """New agents in the place of ``lost``, by the name of the host."""
        for each in lost:
            self._watch.forget(each.host.name)
        with _ssh_starts():
            fresh = self._fleet.connect([each.host for each in lost])
        for old, new in zip(lost, fresh, strict=True):
            new.label = old.label  # which is unique among all hosts
        return {each.host.name: each for each in fresh}

    def _check_enough(self, bad: preflight.Findings) -> None:
        """Raises `LaunchError` where too few hosts are left; ``bad`` are those with problems."""
        own = self._membership
        least, kept = self._args.min_hosts or own.seats, len(own.in_use)
        if kept < least:
            hint = "" if self._args.min_hosts else ". --min-hosts K goes on with K hosts"
            head = f"{kept} of {own.seats} hosts are left, and the job needs {least}{hint}"
            absent = self._watch.absent.items()
            lines = [f"  {label} {why}" for label, why in absent if label not in bad]
            raise LaunchError("\n".join(filter(None, [head, preflight.table(bad), *lines])))

    def end(self) -> None:
        self._watch.end()
        self._fleet.end()


@contextlib.contextmanager
def _ssh_starts() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LaunchError(f"nothing can be started: {not_started(error)}") from error


def _lacking(directory: str, program: str) -> frozenset[str]:
    """Lists the paths that this machine lacks, of the directory and of the program in it."""
    paths = (directory, os.path.join(directory, program))
    return frozenset(path for path in paths if not os.path.exists(path))


def _working_directory() -> str:
    """The path of this directory as the user has typed it: a home may be a link on each host."""
    typed = os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(typed) and os.path.samefile(typed, "."):
            return typed
    return os.getcwd()
