"""``lockstep worker``: the process that a cluster's launcher started becomes a process of the job.

It replaces itself (exec) by the same bootstrap that ``lockstep run`` starts, with the same
variables: glibc's settings can only be given to a process that is about to start.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from lockstep._config import Config
from lockstep._errors import LaunchError
from lockstep.launch import options
from lockstep.launch.job import add_jax_variables, command, environ_at_start, worker_environ
from lockstep.launch.run import check_program, configure, warn_of_collectives
from lockstep.runtime import clusters, rendezvous


def main(words: Sequence[str]) -> NoReturn:
    """Never returns: this process becomes the program.

    Raises `LockstepError` when its place in the job cannot be found.
    """
    own, program = options.split(words)
    args = options.worker_parser().parse_args(own)
    check_program(program, "worker")
    before = environ_at_start()
    config = placed(configure(args, before), before)
    if config.process_id == 0:
        warn_of_collectives(before, config)
    environ = worker_environ(before, config)
    add_jax_variables(environ, args.devices, args.platform)
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = command(program)
    os.execve(arguments[0], arguments, environ)


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
    place = clusters.detect(before)
    if place is None:
        raise LaunchError(clusters.explain_none(before))
    return dataclasses.replace(
        config,
        num_processes=place.size,
        process_id=place.rank,
        local_process_id=place.local_rank,
        local_num_processes=place.local_size,
        coordinator=config.coordinator or place.coordinator or rendezvous.coordinator(place),
    )
