"""``lockstep run --hosts``: makes a job on several hosts from a command line, and runs it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep import __version__
from lockstep._config import Config
from lockstep._errors import ConfigError, LaunchError
from lockstep.hosts import allocation, host_check, host_list, preflight, starters
from lockstep.hosts.connection import Connection
from lockstep.hosts.fleet import Fleet, Interrupted
from lockstep.hosts.host_list import Host, Placed
from lockstep.hosts.host_state import Request
from lockstep.hosts.relay import Connect
from lockstep.hosts.starters import Reach
from lockstep.launch import failed_runs, restarts, run_command, run_dir
from lockstep.launch.console import complain
from lockstep.launch.first_failure import not_started
from lockstep.launch.guard import run_guarded
from lockstep.launch.job_processes import Loop
from lockstep.launch.job_spec import LaunchSpec
from lockstep.launch.remote_processes import RemoteProcesses
from lockstep.system import port_reservation, process_tree

EXPORTED = (
    "JAX_*",
    "XLA_*",
    "LIBTPU_*",
    "TF_*",
    "NCCL_*",
    "UCX_*",
    "OMP_*",
    "OPENBLAS_*",
    "GOTO_*",
    "MKL_*",
    "PYTHON*",
    "GLIBC_TUNABLES",
)
"""Variables that all hosts get from here: those that change what JAX, XLA and BLAS compute, of
the networks, and Python's. PATH and LD_LIBRARY_PATH are of each host, as for mpirun."""


@dataclasses.dataclass(frozen=True)
class Caller:
    """The program that has started the launcher, where that talks to the processes of the job."""

    connect: Connect = dataclasses.field(default_factory=dict)
    """Sockets in the private directories of all hosts, which lead to this machine."""
    run_dir: Path | None = None
    """The private directory of the run; None: a new one."""
    lifeline: int | None = None
    """A descriptor that is readable once the program has ended; None: the job goes on without."""


def run(
    args: argparse.Namespace,
    program: Sequence[str],
    config: Config,
    environ: Mapping[str, str],
    caller: Caller = Caller(),
) -> int:
    """Runs the job of these options; the exit status. Raises `LockstepError`."""
    if config.collectives == "mpi":
        raise ConfigError(
            "--collectives mpi on several hosts: an MPI library is started by its own launcher. "
            "Use mpirun -n N --host ... lockstep worker --collectives mpi train.py."
        )
    given = args.hosts or args.hostfile
    hosts = hosts_of(args) if given else allocation.around(environ)
    placed = host_list.place(hosts, args.processes)
    if args.min_hosts is not None and args.min_hosts > len(placed):
        raise ConfigError(f"--min-hosts {args.min_hosts}: the job has {len(placed)} hosts.")
    variables = exported(args.export, environ)
    run_command.warn_of_collectives(environ, config)
    run_command.open_standard_streams()
    log_dir = run_command.make_log_dir(args.log_dir, failed_runs.new_name())
    job = LaunchSpec(
        program=tuple(program),
        processes=sum(each.count for each in placed),
        # The key of each attempt is drawn here: see `SeveralHosts`.
        config=dataclasses.replace(config, key_file=None),
        environ=variables,
        run_dir=caller.run_dir or run_dir.make_locked()[0],
        devices=args.devices,
        platform=args.platform,
        log_dir=log_dir,
        prefixed=not args.no_prefix,
        grace=args.grace,
        max_restarts=args.max_restarts,
    )

    def supervise(lifeline: int) -> int:
        if caller.lifeline is None:
            return _run(job, placed, args, caller.connect, lifeline)
        # The pipe of the guard would do, but the supervisor watches the caller with it.
        process_tree.end_with_parent()
        return _run(job, placed, args, caller.connect, caller.lifeline)

    return run_guarded(supervise, job.run_dir)


def _run(
    job: LaunchSpec,
    placed: Sequence[Placed],
    args: argparse.Namespace,
    connect: Connect,
    lifeline: int,
) -> int:
    hosts = [each.host for each in placed]
    srun = args.ssh is starters.SSH and allocation.by_srun(hosts, os.environ)
    reach = Reach(args.ssh, args.python or sys.executable, str(job.run_dir), srun)
    place = SeveralHosts(Fleet(reach.command, lifeline), placed, args, srun, connect)
    try:
        return restarts.run(place.first(job), lifeline, place)
    except Interrupted as error:
        complain(str(error))
        return 128 + error.number
    finally:
        place.end()


class SeveralHosts:
    """The hosts of a job over all its attempts: see `restarts.Place`.

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


def hosts_of(args: argparse.Namespace) -> list[Host]:
    """The hosts of ``--hosts`` or ``--hostfile``. Raises `ConfigError`."""
    if args.hosts and args.hostfile:
        raise ConfigError("--hosts and --hostfile: give one of them.")
    if args.hosts:
        return host_list.parse_hosts(args.hosts)
    try:
        text = Path(args.hostfile).read_text("utf-8", "replace")
    except OSError as error:
        raise ConfigError(f"--hostfile {args.hostfile}: {error.strerror}.") from error
    return host_list.parse_file(text, args.hostfile)


def exported(wanted: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that all hosts get. Raises `ConfigError`."""
    found = {
        name: value
        for name, value in environ.items()
        if any(fnmatch.fnmatchcase(name, each) for each in EXPORTED)
    }
    for item in wanted:
        name, equals, value = item.partition("=")
        if name.startswith("LOCKSTEP_"):
            raise ConfigError(f"--export {item}: all processes get Lockstep's variables anyway.")
        if equals:
            found[name] = value
            continue
        matching = {n: v for n, v in environ.items() if fnmatch.fnmatchcase(n, name)}
        if not matching:
            raise ConfigError(
                f"--export {item}: there is no such variable here. To give it a value: "
                f"--export {item}=VALUE"
            )
        found |= matching
    return found


def _working_directory() -> str:
    """The path of this directory as the user has typed it: a home may be a link on each host."""
    typed = os.environ.get("PWD", "")
    with contextlib.suppress(OSError):
        if os.path.isabs(typed) and os.path.samefile(typed, "."):
            return typed
    return os.getcwd()
