"""``lockstep worker``: the process that a cluster's launcher started becomes a process of the job.

It starts the same bootstrap that ``lockstep run`` starts, with the same variables (glibc's settings
can only be given to a process that is about to start), and becomes its agent (`agent`). Where
there is nothing to watch, other collectives or one process only, it replaces itself by it.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lockstep._config import Config
from lockstep._errors import LaunchError
from lockstep.agent import agent
from lockstep.agent.host_dir import HostDir
from lockstep.bootstrap import cluster_env, rendezvous
from lockstep.job import topology
from lockstep.launch import failed_runs, options
from lockstep.launch.console import complain
from lockstep.launch.job_spec import add_jax_variables, command, worker_environ
from lockstep.launch.run_command import check_program, configure, make_log_dir, warn_of_collectives

_OF_JOB = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "PALS_APID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)


def main(words: Sequence[str]) -> NoReturn:
    """Never returns: this process becomes the program.

    Raises `LockstepError` when its place in the job cannot be found.
    """
    parser = options.worker_parser()
    own, program = options.split(words, parser)
    args = parser.parse_args(own)
    check_program(program, "worker")
    before = dict(os.environ)
    config = placed(configure(args, before), before)
    if config.process_id == 0:
        warn_of_collectives(before, config)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = command(program)
    process = config.process_id or 0
    log_dir = make_log_dir(args.log_dir, run_name(before, config))
    if log_dir:  # of an earlier run: jobs that are started by hand all have one name
        failed_runs.forget(log_dir, process)
    if is_watched(config) and (shared := _host_dir(before, config)):
        config = dataclasses.replace(config, run_dir=str(shared.path))

        def environ_with(agent: int) -> dict[str, str]:
            return _environ(before, dataclasses.replace(config, agent=agent), args)

        agent.keep(arguments, environ_with, shared, process, log_dir, args.grace)
    os.execve(arguments[0], arguments, _environ(before, config, args))


def is_watched(config: Config) -> bool:
    """Whether somebody is to know how the program ends; a launcher of ours does already."""
    alone = (config.num_processes or 1) == 1
    return config.collectives == "lockstep" and config.record and not alone and not config.run_dir


def _host_dir(before: Mapping[str, str], config: Config) -> HostDir | None:
    try:
        shared = HostDir(_names(before, config), config.attempt, config.process_id or 0)
        if config.local_num_processes == config.num_processes and config.host_id is None:
            shared.share_secret()
        return shared
    except LaunchError as error:
        complain(f"{error} The job goes on: less is known of a process that dies")
        return None


def _environ(before: Mapping[str, str], config: Config, args: argparse.Namespace) -> dict[str, str]:
    environ = worker_environ(before, config)
    add_jax_variables(environ, args.devices, args.platform)
    return environ


def _names(before: Mapping[str, str], config: Config) -> list[str]:
    """What tells this host's part of the job from all jobs that run at the same time."""
    return [*_names_of_job(before, config), config.host_id or topology.system_host_id()]


def _names_of_job(before: Mapping[str, str], config: Config) -> list[str]:
    """The same in all processes of the job."""
    said = [f"{name}={before[name]}" for name in _OF_JOB if name in before]
    return [*said, str(config.coordinator), str(config.num_processes)]


def run_name(before: Mapping[str, str], config: Config) -> str:
    """The name of the job's folder in ``--log-dir``, on which the hosts agree without a word."""
    names = "\0".join(_names_of_job(before, config))
    return hashlib.sha256(names.encode()).hexdigest()[:12]


def placed(config: Config, before: Mapping[str, str]) -> Config:
    """``config`` with the place that the cluster's launcher gave; its own has priority."""
    own = (config.process_id, config.num_processes)
    if None not in own and config.coordinator:
        return config
    if own != (None, None):
        raise LaunchError(
            "only a part of this process's place is set: LOCKSTEP_PROCESS_ID, "
            "LOCKSTEP_NUM_PROCESSES and LOCKSTEP_COORDINATOR belong together. LOCKSTEP_COORDINATOR "
            "alone is added to what the cluster's launcher says."
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
