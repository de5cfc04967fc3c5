"""``lockstep run --hosts``: makes a job on several hosts from a command line, and runs it."""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep._config import Config
from lockstep._errors import ConfigError
from lockstep._stderr import complain
from lockstep._words import counted
from lockstep.hosts import allocation, host_list, starters
from lockstep.hosts.fleet import Fleet, Interrupted
from lockstep.hosts.host_list import Host
from lockstep.hosts.membership import MAX_LOSSES, Membership
from lockstep.hosts.relay import Connect
from lockstep.hosts.several_hosts import SeveralHosts
from lockstep.hosts.starters import Reach
from lockstep.launch import before_start, restarts
from lockstep.launch.before_start import NO_CALLER, Caller
from lockstep.processes.guard import run_guarded
from lockstep.processes.job_spec import LaunchSpec
from lockstep.system import fd_limit

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


def run(
    args: argparse.Namespace,
    program: Sequence[str],
    config: Config,
    environ: Mapping[str, str],
    caller: Caller = NO_CALLER,
) -> int:
    """Runs the job of these options; the exit status. Raises `LockstepError`."""
    if config.collectives == "mpi":
        raise ConfigError(
            "--collectives mpi on several hosts: an MPI library is started by its own launcher. "
            "Use mpirun -n N --host ... lockstep worker --collectives mpi train.py."
        )
    given = args.hosts or args.hostfile
    hosts = hosts_of(args) if given else allocation.around(environ)
    if not args.outside_allocation:
        allocation.check_inside(hosts, environ)
    membership = members(hosts, args)
    variables = exported(args.export, environ)
    before_start.warn_of_collectives(environ, config)
    before_start.leave_input_of_others()
    # The key of each attempt is drawn here: see `SeveralHosts`.
    config = dataclasses.replace(config, key_file=None)
    processes = sum(each.count for each in membership.places)
    job = before_start.job_of(
        args, program, config, caller, processes=processes, environ=variables, grow=args.grow
    )
    return run_guarded(
        lambda lifeline: _run(job, membership, args, caller.connect, lifeline),
        job.run_dir,
        caller.lifeline,
    )


def _run(
    job: LaunchSpec,
    membership: Membership,
    args: argparse.Namespace,
    connect: Connect,
    lifeline: int,
) -> int:
    hosts = membership.hosts
    fd_limit.make_room_in_launcher(0, len(hosts))
    srun = args.ssh is starters.SSH and allocation.by_srun(hosts, os.environ)
    seconds = job.config.reach_timeout
    reach = Reach(args.ssh, args.python or sys.executable, str(job.run_dir), seconds, srun)
    fleet = Fleet(reach.command, lifeline, seconds)
    place = SeveralHosts(fleet, membership, args, srun, connect)
    try:
        return restarts.run(place.first(job), lifeline, place)
    except Interrupted as error:
        complain(str(error))
        return 128 + error.number
    finally:
        place.end()


def members(hosts: Sequence[Host], args: argparse.Namespace) -> Membership:
    """The hosts with their processes; the last ``--spares`` of them are spares. Raises
    `ConfigError`."""
    if args.spares >= len(hosts):
        raise ConfigError(
            f"--spares {args.spares}: of {counted(len(hosts), 'host')} none would run the job. "
            "Name more hosts."
        )
    if args.spares and not args.max_restarts:
        raise ConfigError(f"--spares {args.spares} is for --max-restarts K: a spare starts then.")
    if args.grow and not (args.max_restarts and args.min_hosts):
        raise ConfigError(
            "--grow is for --max-restarts K with --min-hosts K: only a job that may go on with "
            "fewer hosts can grow again."
        )
    used = len(hosts) - args.spares
    placed, spares = host_list.place(hosts[:used], args.processes), hosts[used:]
    if args.min_hosts is not None and args.min_hosts > len(placed):
        without = ", beside its spares" if spares else ""
        raise ConfigError(
            f"--min-hosts {args.min_hosts}: the job has {counted(len(placed), 'host')}{without}."
        )
    most = max(placed, key=lambda each: each.count)
    for each in spares:
        if each.slots < most.count:
            raise ConfigError(
                f"--spares {args.spares}: {each.name}:{each.slots} cannot take the place of "
                f"{most.host.name}, which runs {most.count} processes. A spare needs as many slots "
                "as any host of the job runs processes."
            )
    # A job that needs all its hosts leaves none out: without a host that was lost often it ends.
    can_go_without = spares or args.min_hosts
    return Membership(placed, spares, MAX_LOSSES if can_go_without else 0)


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
