"""The command lines of ``lockstep run`` and ``lockstep worker``. Pure.

The program and its arguments are split off before argparse sees them, so that an argument of the
program is never parsed as an option of Lockstep.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from lockstep._config import (
    CHECKS_OF_PROGRAMS,
    COLLECTIVES,
    DEFAULT_CHECK_REPLICAS,
    TRANSPORTS,
    connection_count,
    natural,
    positive,
    seconds,
)
from lockstep._errors import ConfigError
from lockstep.hosts import agent_attempts, node_range
from lockstep.launch import host_options, usage
from lockstep.launch.usage import checked


def split(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our options, and the program with its arguments, in one of the forms of `usage.forms`.

    ``parser`` has the options: those with a value take the next word, and those that may have a
    number take it if it is one.
    """
    with_value, with_number = (
        {name for each in parser._actions if each.nargs == nargs for name in each.option_strings}
        for nargs in (None, "?")
    )
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            return list(words[:i]), list(words[i + 1 :])
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            return list(words[:i]), list(words[i:])
        if word.startswith(("-m", "-c")):
            return list(words[:i]), [word[:2], word[2:], *words[i + 1 :]]
        number = word in with_number and words[i + 1 : i + 2] and words[i + 1].isdigit()
        i += 2 if word in with_value or number else 1
    return list(words), []


def _add_shared(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("devices and collectives").add_argument
    add(
        "--collectives",
        choices=COLLECTIVES,
        help="which library moves the data between processes on CPUs; default: lockstep",
    )
    add(
        "--platform",
        metavar="NAME",
        help="cpu, cuda, ...: sets JAX_PLATFORMS; default: what JAX finds",
    )
    add(
        "-d",
        "--devices",
        type=checked(positive),
        metavar="D",
        help="CPU devices per process; default: as the program or XLA_FLAGS sets it, else 1; on a "
        "host with GPUs its GPUs, default: one",
    )
    add = parser.add_argument_group("checks, waits and errors").add_argument
    flag = functools.partial(add, action="store_true", default=None)
    limit = functools.partial(add, type=checked(seconds), metavar="SECONDS")
    flag(
        "--auto-init",
        help="call lockstep.initialize() before the program starts, so that the program need not",
    )
    limit(
        "--collective-timeout",
        help="how long a collective waits for the other processes before it raises an error; "
        "0: forever; default: 600",
    )
    limit(
        "--stall-warning",
        help="report a wait after this long, with the processes that have not arrived and what "
        "they are doing; 0: never; default: 30",
    )
    limit(
        "--start-timeout",
        help="how long to wait for all processes to join the job before an error names those that "
        "have not; 0: forever; default: 120",
    )
    add(
        "--no-encryption",
        dest="encryption",
        action="store_false",
        default=None,
        help="between hosts, only prove that the processes have the job's key, and send data as it "
        "is: faster, for networks that you trust",
    )
    add(
        "--connections",
        type=checked(connection_count),
        metavar="N",
        help="between hosts, divide large messages among N TCP connections, each with threads of "
        "its own, where one core or the network's limit for a connection is the bound; default: 1",
    )
    add(
        "--transport",
        choices=TRANSPORTS,
        help="what carries the data between hosts: tcp, or ucx, for InfiniBand and RoCE, which "
        "takes UCX and --no-encryption; default: tcp",
    )
    flag(
        "--strict",
        help="also check that all processes call a collective from the same line; slower",
    )
    add(
        "--check-programs",
        choices=CHECKS_OF_PROGRAMS,
        help="what to do where the processes run programs together that differ: error ends the "
        "job, warn prints the difference and goes on; default: error",
    )
    add(
        "--check-replicas",
        nargs="?",
        const=DEFAULT_CHECK_REPLICAS,
        type=checked(natural),
        metavar="EVERY",
        help="check that replicated arguments of programs are the same on all processes, at the "
        "first call of each and at every EVERY-th after it; slower; EVERY without a number: "
        f"{DEFAULT_CHECK_REPLICAS}",
    )
    flag(
        "--full-tracebacks",
        help="keep the frames of jax, of other installed packages and of Python in tracebacks",
    )


def _add_grace(group: argparse._ActionsContainer, default: float | None, text: str) -> None:
    group.add_argument(
        "--grace", type=checked(seconds), default=default, metavar="SECONDS", help=text
    )


def run_parser() -> argparse.ArgumentParser:
    """The options of ``lockstep run``."""
    parser = usage.parser(
        "run",
        "Runs a program on several processes, of this machine or of several hosts.",
        usage.RUN_EXAMPLES,
    )
    group = parser.add_argument_group("processes")
    add = group.add_argument
    add(
        "-n",
        "-np",
        "--processes",
        type=checked(positive),
        metavar="N",
        help="number of processes; default: 1; with --hosts, or in a batch job, one for each slot",
    )
    add_bind(group)
    add(
        "--oversubscribe",
        action="store_true",
        help="start more processes than the free memory can hold (200 MB for each), or than there "
        "are GPUs; unlike for mpirun, more processes than cores need no option",
    )
    host_options.add_hosts(parser)
    _add_shared(parser)
    group = parser.add_argument_group("output, end and restarts")
    add = group.add_argument
    add("--no-prefix", action="store_true", help="do not prefix lines with the process's number")
    add(
        "--log-dir",
        metavar="DIR",
        help="keep the whole output of each process in DIR/run_TIME/attempt_0/process_N, with the "
        "records of a failed run",
    )
    _add_grace(
        group,
        5.0,
        "how long processes may take to end after Ctrl-C, SIGTERM or the failure of another "
        "process, before they are killed; default: 5",
    )
    add(
        "--max-restarts",
        type=checked(natural),
        default=0,
        metavar="K",
        help="start the whole job again after a failure, at most K times; the program has to "
        "continue from its last checkpoint; default: 0",
    )
    add_preload(group)
    return parser


def _modules(text: str) -> tuple[str, ...]:
    """The names of modules, separated by commas. Raises ValueError."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise ValueError("a list of modules, such as jax,sklearn.datasets")
    return names


def add_bind(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--bind",
        choices=("cores", "none"),
        help="cores: bind each process to its own share of the cores, if there is a core for each; "
        "none: leave the placement to the kernel; default: cores if every share has at least two "
        "cores, and one per device of -d",
    )


def add_preload(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--preload",
        type=checked(_modules),
        default=(),
        metavar="MODULES",
        help="import these modules (jax,sklearn.datasets) once on each host, for all processes and "
        "restarts, which are then forks: starts several times faster; default: none",
    )


def check_hosts_given(args: argparse.Namespace) -> None:
    """Raises `ConfigError` for options of several hosts on one."""
    parser = run_parser()
    for name in host_options.NAMES:
        if getattr(args, name) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for --hosts or --hostfile, and neither is given.")


def worker_parser() -> argparse.ArgumentParser:
    """The options of ``lockstep worker``."""
    parser = usage.parser(
        "worker",
        "Runs a program as one process of a job that a cluster's launcher (srun, mpirun, mpiexec,\n"
        "jsrun, blaunch, pbsdsh, torchrun, a Kubernetes Job) has started. Rank, size and\n"
        "coordinator come from the launcher's environment variables. Or, with --nnodes and\n"
        "LOCKSTEP_COORDINATOR alone, hosts join a job and get their ranks as they come.",
        usage.WORKER_EXAMPLES,
    )
    _add_shared(parser)
    group = parser.add_argument_group("output, end and restarts")
    _add_grace(
        group,
        None,
        "how long the program may take to end after SIGTERM (default: 25; after half of it the "
        "program gets KeyboardInterrupt), and after a failure how long to wait for the other "
        "processes to end before exiting (default: 5)",
    )
    group.add_argument(
        "--max-restarts",
        type=checked(natural),
        default=0,
        metavar="K",
        help="start the programs of all processes again after a failure, at most K times, under "
        "the same launcher; all processes need the same K; default: 0",
    )
    group.add_argument(
        "--nnodes",
        type=checked(node_range.parse),
        metavar="MIN:MAX",
        help="with --max-restarts, and the same number of processes on each node: start when MIN "
        f"nodes are there, and wait {agent_attempts.JOIN_SECONDS:g} s for more, up to MAX; go on "
        "without lost nodes while MIN are left; nodes that come later are spares, or take part "
        "from the next restart on; default: all that the launcher starts",
    )
    host_options.add_grow(group, "--nnodes", "node comes")
    group.add_argument(
        "--log-dir",
        metavar="DIR",
        help="keep the records of a failed run in DIR/run_JOB, best on a disk that all hosts "
        "share; default: a private directory of each host",
    )
    return parser
