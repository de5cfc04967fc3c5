"""``lockstep run``: makes a job from a command line, and runs it."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence

from lockstep._config import Config
from lockstep._errors import ConfigError, LaunchError
from lockstep._stderr import complain
from lockstep.bootstrap import cluster_env
from lockstep.launch import before_start, options, restarts, usage
from lockstep.launch.before_start import NO_CALLER, Caller
from lockstep.nccl import gpus
from lockstep.processes import cpu_affinity, run_dir
from lockstep.processes.guard import run_guarded
from lockstep.system import oom, port_reservation


def main(words: Sequence[str]) -> int:
    """Runs a job; returns the first failure's status, 0 without one.

    Raises `LockstepError` when nothing can be started.
    """
    parser = options.run_parser()
    own, program = options.split(words, parser)
    args = parser.parse_args(own)
    if program[:1] == ["-"]:
        program = ["-c", sys.stdin.read(), *program[1:]]
    several = bool(args.hosts or args.hostfile)
    if several and args.this_host:
        raise ConfigError("--this-host excludes --hosts and --hostfile: give one of them.")
    before_start.check_program(program, "run", is_here=not several)
    environ = dict(os.environ)
    config = before_start.configure(args, environ)
    slots, is_elsewhere = _of_allocation(args, environ)
    # A real MPI starts on several hosts by its own launcher: by this one, on this host alone.
    if several or (is_elsewhere and config.collectives != "mpi"):
        # Late import: it is needed only there.
        from lockstep.launch import hosts_command

        return hosts_command.run(args, program, config, environ)
    options.check_hosts_given(args)
    if args.processes is None and slots == 1 and (text := usage.behind_program(program)):
        complain(f"one process runs, and {text}")
    args.processes = args.processes or slots
    return run(args, program, config, environ)


def run(
    args: argparse.Namespace,
    program: Sequence[str],
    config: Config,
    environ: Mapping[str, str],
    caller: Caller = NO_CALLER,
) -> int:
    """Runs the job of these options on this host; the exit status. Raises `LockstepError`."""
    there = gpus.shown(args.platform, environ)
    gpus.check_each(args.devices, there, environ)
    if not args.oversubscribe:
        before_start.check_memory(args.processes, oom.free_memory())
        gpus.check(args.processes, args.devices, there, environ)
    usable = cpu_affinity.usable()
    before_start.warn(args, usable)
    before_start.warn_of_collectives(environ, config)
    before_start.leave_input_of_others()
    cores = cpu_affinity.chosen(args.bind, usable, args.processes, args.devices)
    with port_reservation.reserve() as port:
        config = dataclasses.replace(config, coordinator=port_reservation.address(port))
        job = before_start.job_of(
            args, program, config, caller, processes=args.processes, environ=environ, cores=cores
        )
        run_dir.share_secret(job.run_dir)
        return run_guarded(
            lambda lifeline: restarts.run(job, lifeline), job.run_dir, caller.lifeline
        )


def _of_allocation(args: argparse.Namespace, environ: Mapping[str, str]) -> tuple[int, bool]:
    """The slots that a batch system has given to this host, and whether there are other hosts."""
    if args.hosts or args.hostfile or args.this_host or not cluster_env.in_batch_job(environ):
        return 1, False
    # Late import: it is needed only there.
    from lockstep.hosts import allocation

    try:
        hosts = allocation.around(environ)
    except LaunchError as error:
        if args.processes is None:
            raise
        complain(f"warning: {error} The job runs on this host; --hosts names others.")
        return args.processes, False
    return (hosts[0].slots if hosts else 1), allocation.is_elsewhere(hosts, environ)
