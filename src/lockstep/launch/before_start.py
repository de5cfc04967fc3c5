"""What every command does before it starts processes: settings, checks, warnings, log folder."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.machinery
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._config import Config
from lockstep._errors import ConfigError, LaunchError
from lockstep._stderr import complain
from lockstep.bootstrap import mpi_backend
from lockstep.hosts.relay import Connect
from lockstep.launch import usage
from lockstep.processes import failed_runs, run_dir
from lockstep.processes.job_spec import LaunchSpec, overridden_collectives, overridden_devices
from lockstep.system import oom

MANY_PER_CORE = 8
_SETTINGS = (
    *("collectives", "transport", "encryption", "connections"),
    *("auto_init", "strict", "check_programs", "check_replicas", "full_tracebacks"),
    *("collective_timeout", "stall_warning", "start_timeout", "reach_timeout", "check_timeout"),
)
"""The fields of `Config` that are options, too."""
MAX_CODE_BYTES = 100_000
"""Bounds the code of ``-c``: Linux passes words of at most 128 KiB."""


@dataclasses.dataclass(frozen=True)
class Caller:
    """The program that has started the launcher, where that talks to the processes of the job."""

    connect: Connect = dataclasses.field(default_factory=dict)
    """Sockets in the private directories of all hosts, which lead to this machine."""
    run_dir: Path | None = None
    """The private directory of the run; None: a new one."""
    lifeline: int | None = None
    """A descriptor that is readable once the program has ended; None: the job goes on without."""


NO_CALLER = Caller()


def settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The settings of the environment, overridden by those options of the command line that the
    command has. Raises `ConfigError`."""
    config = Config.from_environ(environ)
    given = {name: getattr(args, name, None) for name in _SETTINGS}
    return dataclasses.replace(config, **{k: v for k, v in given.items() if v is not None})


def configure(args: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    """The settings of a job. Raises `ConfigError` for those that contradict each other."""
    config = settings(args, environ)
    config.check_transport()
    if config.collectives == "mpi":
        # The launcher raises one error here, in place of one from each process.
        mpi_backend.check_devices(args.devices or 1)
        mpi_backend.find(environ)
    return config


def check_program(program: Sequence[str], command: str, is_here: bool = True) -> None:
    """Raises `ConfigError` for a program that does not exist or cannot be read.

    ``is_here``: it will run on this host, so that it has to be found here.
    """
    if not program:
        raise ConfigError(
            f"no program given. Usage: lockstep {command} [options] {usage.forms(command)}"
        )
    if program[0] == "-":
        raise ConfigError(
            "- is for lockstep run: a cluster's launcher gives its input to one process"
        )
    if program[0] == "-c":
        _check_code(program[1:])
    elif program[0] == "-m":
        if len(program) < 2:
            raise ConfigError("-m needs the name of a module")
        if is_here:
            _check_module(program[1])
    elif not is_here:
        return
    elif not os.path.exists(program[0]):
        raise ConfigError(usage.no_such_file(program[0]))
    elif not os.path.isfile(program[0]):
        raise ConfigError(f"not a file: {program[0]}. To run a package: -m NAME")
    elif not os.access(program[0], os.R_OK):
        raise ConfigError(f"not readable: {program[0]}")


def _check_code(words: Sequence[str]) -> None:
    """Checks the code of ``-c``, one word of the command line, whose length Linux limits."""
    if not words:
        raise ConfigError("-c needs the code of the program")
    size = len(os.fsencode(words[0]))
    if size > MAX_CODE_BYTES:
        raise ConfigError(
            f"the program of -c or - has {size} bytes, and at most {MAX_CODE_BYTES} are possible. "
            "Put it into a file."
        )


def check_memory(processes: int, free: int | None) -> None:
    """Raises `LaunchError` when ``free`` bytes of memory cannot hold the processes."""
    if free is None or processes == 1:
        return
    each, free_mb = oom.MB_OF_PROCESS, free >> 20
    if processes * each <= free_mb:
        return
    raise LaunchError(
        f"-n {processes}: {free_mb} MB of memory are free (of this machine, or of the limit of the "
        f"container or batch job). A JAX process takes about {each} MB before the program's "
        f"arrays, so there is room for {max(1, free_mb // each)}. Start fewer processes, use more "
        "hosts (lockstep worker), or add --oversubscribe to start them anyway."
    )


def _check_module(name: str) -> None:
    # Looks for the first part of the name only: finding the rest would import it here.
    top = name.partition(".")[0]
    path = sys.path if os.environ.get("PYTHONSAFEPATH") else [os.getcwd(), *sys.path]
    finders = (
        importlib.machinery.PathFinder.find_spec(top, path),
        importlib.machinery.FrozenImporter.find_spec(top),
        top in sys.modules,
    )
    if not top or not any(finders):
        raise ConfigError(f"no module named {top!r} (looked in {os.getcwd()} and in sys.path)")


def warn(args: argparse.Namespace, usable: Sequence[int]) -> None:
    """Warns of settings that work, but hardly as intended."""
    if args.processes > MANY_PER_CORE * len(usable):
        complain(
            f"warning: {args.processes} processes on {len(usable)} cores will be slow; each JAX "
            f"process takes about {oom.MB_OF_PROCESS} MB of memory"
        )
    forced = overridden_devices(os.environ, args.devices)
    if forced is not None:
        complain(
            f"warning: -d {args.devices} overrides --xla_force_host_platform_device_count={forced} "
            "in XLA_FLAGS"
        )


def warn_of_collectives(environ: Mapping[str, str], config: Config) -> None:
    """Warns when the user's variable for JAX chooses other collectives than the job uses."""
    asked = overridden_collectives(environ, config.collectives)
    if asked is not None:
        complain(
            f"warning: JAX_CPU_COLLECTIVES_IMPLEMENTATION={asked} is ignored, the job uses "
            f"{config.collectives}; to use {asked}: --collectives {asked}"
        )


def make_log_dir(text: str | None, run: str) -> Path | None:
    """The folder of the run named ``run`` in ``--log-dir``."""
    if text is None:
        return None
    path = failed_runs.run_folder(Path(text).absolute(), run)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--log-dir {text}: {error.strerror}") from error
    return path


def job_of(
    args: argparse.Namespace, program: Sequence[str], config: Config, caller: Caller, **more: Any
) -> LaunchSpec:
    """The job of these options, with ``more`` fields. Makes its folders."""
    log_dir = make_log_dir(args.log_dir, failed_runs.new_name())
    return LaunchSpec(
        program=tuple(program),
        config=config,
        run_dir=caller.run_dir or run_dir.make_locked()[0],
        devices=args.devices,
        platform=args.platform,
        log_dir=log_dir,
        prefixed=not args.no_prefix,
        grace=args.grace,
        max_restarts=args.max_restarts,
        preload=args.preload,
        **more,
    )


def leave_input_of_others() -> None:
    """Has process 0 read nothing where the terminal's input is that of another job.

    The kernel stops background processes that try, but not process 0, which has a session of its
    own.
    """
    with contextlib.suppress(OSError):
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.close(null)
