"""``lockstep worker``: runs the program as one process of a job that a cluster's launcher started.

It starts the same main module as ``lockstep run``, with the same variables (glibc reads its
settings only when a process starts), and becomes the program's agent
(`lockstep.hosts.worker_agent`). With other collectives than Lockstep's, or only one process, there
is nothing to watch, and it replaces itself by the program.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lockstep._config import Config
from lockstep._errors import LaunchError
from lockstep._stderr import complain
from lockstep.bootstrap import cluster_env, rendezvous
from lockstep.hosts import joining, node_range, worker_attempt
from lockstep.hosts.worker_agent import WorkerAgent
from lockstep.job import topology
from lockstep.launch import options
from lockstep.launch.before_start import check_program, configure, make_log_dir, warn_of_collectives
from lockstep.nccl import gpus
from lockstep.processes import failed_runs
from lockstep.processes.host_dir import HostDir
from lockstep.processes.job_spec import add_jax_variables, command, worker_environ


def main(words: Sequence[str]) -> NoReturn:
    """Never returns: this process becomes the program or its agent.

    Raises `LockstepError` when its rank in the job cannot be found.
    """
    parser = options.worker_parser()
    own, program = options.split(words, parser)
    args = parser.parse_args(own)
    check_program(program, "worker")
    before = dict(os.environ)
    config = configure(args, before)
    joins = joining.joins(config, args.nnodes, before)
    config = joining.without_number(config, args.nnodes) if joins else placed(config, before)
    size, local_size = config.num_processes or 1, config.local_num_processes or 1
    node_range.check(args.nnodes, size, local_size, args.max_restarts, args.grow is not None)
    if config.process_id == 0 or joins:
        warn_of_collectives(before, config)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = command(program)
    process = config.process_id or 0
    log_dir = make_log_dir(args.log_dir, run_name(before, config))
    if log_dir and not joins:  # jobs that are started by hand all have one name, also earlier ones
        failed_runs.forget(log_dir, process)
    watched = is_watched(config, args.max_restarts)
    shared = _host_dir(before, config, bool(args.max_restarts)) if watched else None
    agent = WorkerAgent(grace=args.grace)
    if args.max_restarts:
        # A late import: it is needed only there.
        from lockstep.launch import worker_job

        agent = worker_job.join(config, shared, run_name(before, config), args)
    if not shared:
        os.execve(arguments[0], arguments, _environ(before, args, config))
    own = dataclasses.replace(config, run_dir=str(shared.path))
    while True:
        if args.max_restarts:
            attempt = agent.wait_for_start()
            if attempt is None:
                why = "the job has ended well"
                complain(f"process {agent.process} has run nothing, as a spare: {why}")
                worker_attempt.leave(shared, log_dir, 0)
                sys.exit(0)
            own = dataclasses.replace(own, **attempt._asdict())
            shared.take_attempt(own.attempt, attempt.process_id)
            if log_dir and joins and own.attempt == 0:
                failed_runs.forget(log_dir, attempt.process_id)
        environ_of = functools.partial(_environ, before, args)
        worker_attempt.run(agent, arguments, environ_of, own, shared, log_dir)


def is_watched(config: Config, max_restarts: int = 0) -> bool:
    """Whether the program gets an agent; under ``lockstep run`` the launcher does its work."""
    if config.run_dir:
        return False
    alone = (config.num_processes or 1) == 1
    has_engine = config.collectives == "lockstep" and config.record
    return bool(max_restarts) or (has_engine and not alone)


def _host_dir(before: Mapping[str, str], config: Config, restarts: bool) -> HostDir | None:
    # An agent in the place of a lost one finds that one's folder in the present attempt.
    attempt = None if restarts else config.attempt
    try:
        shared = HostDir(_names(before, config), attempt, config.process_id or 0)
        if config.local_num_processes == config.num_processes and config.host_id is None:
            shared.share_secret()
        return shared
    except LaunchError as error:
        complain(
            f"{error} The job goes on, but errors will not say how a process died: make room "
            "there, or set TMPDIR."
        )
        return None


def _environ(before: Mapping[str, str], args: argparse.Namespace, config: Config) -> dict[str, str]:
    environ = worker_environ(before, config)
    add_jax_variables(environ, args.devices, args.platform)
    there = gpus.shown(args.platform, before)
    local, processes = config.local_process_id or 0, config.local_num_processes or 1
    return environ | gpus.of_task(local, processes, args.devices, there, before)


def _names(before: Mapping[str, str], config: Config) -> list[str]:
    """Identifies this job on this host among all jobs that run at the same time."""
    return [*_names_of_job(before, config), config.host_id or topology.system_host_id()]


def _names_of_job(before: Mapping[str, str], config: Config) -> list[str]:
    """Identifies the job; equal in all its processes."""
    names = cluster_env.names_of_job(before)
    return [*names, str(config.coordinator), str(config.num_processes)]


def run_name(before: Mapping[str, str], config: Config) -> str:
    """The name of the job's folder in ``--log-dir``; all hosts compute the same one."""
    names = "\0".join(_names_of_job(before, config))
    return hashlib.sha256(names.encode()).hexdigest()[:12]


def placed(config: Config, before: Mapping[str, str]) -> Config:
    """``config`` with the rank from the cluster's launcher, unless ``config`` has one already."""
    own = (config.process_id, config.num_processes)
    if None not in own and config.coordinator:
        return config
    if own != (None, None):
        raise LaunchError(
            "LOCKSTEP_PROCESS_ID and LOCKSTEP_NUM_PROCESSES have to be set together, with "
            "LOCKSTEP_COORDINATOR. LOCKSTEP_COORDINATOR may be set alone: then the rank and the "
            "number of processes come from the cluster's launcher."
        )
    place = cluster_env.detect(before)
    if place is None:
        raise LaunchError(cluster_env.explain_none(before))
    return dataclasses.replace(
        config,
        num_processes=place.size,
        process_id=place.rank,
        local_process_id=place.local_rank,
        local_num_processes=place.local_size,
        coordinator=config.coordinator or place.coordinator or rendezvous.coordinator(place),
    )
