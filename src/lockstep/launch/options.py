"""The command lines of ``lockstep run`` and ``lockstep worker``. Pure.

The program and its arguments are split off before argparse sees them, so that an argument of the
program is never parsed as an option of Lockstep.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from lockstep._config import (
    CHECKS_OF_PROGRAMS,
    COLLECTIVES,
    DEFAULT_CHECK_REPLICAS,
    TRANSPORTS,
    connection_count,
    natural,
    positive,
    seconds,
    some_seconds,
)
from lockstep._errors import ConfigError
from lockstep.hosts import starters
from lockstep.launch import usage


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


GROW_SECONDS = 30.0
"""How long a program may take to end by itself when it is asked to: ``--grow``."""
T = TypeVar("T")


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse``, whose ValueError says what is expected, as the type of an option."""

    def check(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return check


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
    add(
        "--auto-init",
        action="store_true",
        default=None,
        help="call lockstep.initialize() before the program starts, so that the program need not",
    )
    add(
        "--collective-timeout",
        type=checked(seconds),
        metavar="SECONDS",
        help="how long a collective waits for the other processes before it raises an error; "
        "0: forever; default: 600",
    )
    add(
        "--stall-warning",
        type=checked(seconds),
        metavar="SECONDS",
        help="report a wait after this long, with the processes that have not arrived and what "
        "they are doing; 0: never; default: 30",
    )
    add(
        "--start-timeout",
        type=checked(seconds),
        metavar="SECONDS",
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
    add(
        "--strict",
        action="store_true",
        default=None,
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
    add(
        "--full-tracebacks",
        action="store_true",
        default=None,
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
    add_hosts(parser)
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
    return parser


_OF_HOSTS = (
    *("ssh", "python", "chdir", "interface", "coordinator_port", "export"),
    *("min_hosts", "spares", "grow"),
    *("outside_allocation", "reach_timeout", "check_timeout"),
)
"""The settings that need ``--hosts`` or ``--hostfile``."""


def add_reach(group: argparse._ArgumentGroup) -> None:
    """Adds the options that name hosts and say how they are reached."""
    add = group.add_argument
    add(
        "--hosts",
        metavar="A:4,B:4,C",
        help="run on these hosts, reached by ssh: NAME or NAME:SLOTS, one slot without a number. "
        "As for mpirun, -n is the number of all processes, and fills the slots host by host",
    )
    add(
        "--hostfile",
        metavar="FILE",
        help="the same from a file: lines NAME slots=N (Open MPI), or a list "
        '[{"ssh": NAME, "ips": [ADDRESS]}] (MLX)',
    )
    add(
        "--ssh",
        type=checked(starters.ssh_words),
        default=starters.SSH,
        metavar="COMMAND",
        help="how to call ssh, such as 'ssh -F FILE'; default: ssh, and in a Slurm allocation srun "
        "instead",
    )
    add(
        "--python",
        metavar="PATH",
        help="the Python of all hosts, with Lockstep installed; default: the path of this one",
    )
    add(
        "--interface",
        default="",
        metavar="NAME|NETWORK",
        help="the network of the job: an interface, such as eth1, or a network, such as "
        "10.0.0.0/24; default: the addresses by which ssh reaches the hosts",
    )
    add(
        "--reach-timeout",
        type=checked(some_seconds),
        metavar="SECONDS",
        help="how long to wait for hosts until they answer, counted from the last answer; ssh may "
        "take half of it to connect; default: 10",
    )
    add(
        "--check-timeout",
        type=checked(some_seconds),
        metavar="SECONDS",
        help="how long to wait for each answer in the checks before the start, counted from the "
        "last one; a connection between two hosts may take three eighths of it; default: 8",
    )


def add_bind(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Adds ``--bind``."""
    parser.add_argument(
        "--bind",
        choices=("cores", "none"),
        help="cores: bind each process to its own share of the cores, if there is a core for each; "
        "none: leave the placement to the kernel; default: cores if every share has at least two "
        "cores, and one per device of -d",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``lockstep run`` for several hosts."""
    group = parser.add_argument_group("several hosts (docs: Several hosts)")
    add_reach(group)
    add = group.add_argument
    add(
        "--this-host",
        action="store_true",
        help="run on this host alone, also in a batch job that has others",
    )
    add(
        "--outside-allocation",
        action="store_true",
        help="in a Slurm allocation: also run on hosts of --hosts that do not belong to it, by ssh",
    )
    add(
        "--chdir",
        metavar="DIR",
        help="the directory to run in, on all hosts; default: the path of this one",
    )
    add(
        "--coordinator-port",
        type=checked(positive),
        default=0,
        metavar="PORT",
        help="where JAX's coordination service listens on the first host; default: a free port",
    )
    add(
        "--export",
        action="append",
        default=[],
        metavar="VAR[=VALUE]",
        help="a variable that all processes get; without VALUE that of here; NAME* for all that "
        "begin so. JAX_*, XLA_*, LIBTPU_*, TF_*, NCCL_*, UCX_*, OMP_*, OPENBLAS_*, GOTO_*, MKL_*, "
        "PYTHON* and GLIBC_TUNABLES are passed anyway. Repeat it for more",
    )
    add(
        "--min-hosts",
        type=checked(positive),
        metavar="K",
        help="with --max-restarts: start again without hosts that are lost, if K are left; "
        "default: all hosts are needed",
    )
    add(
        "--spares",
        type=checked(natural),
        default=0,
        metavar="K",
        help="with --max-restarts: the last K hosts run nothing at first, and take the places of "
        "hosts that are lost, with the same processes; default: 0",
    )
    add(
        "--grow",
        nargs="?",
        const=GROW_SECONDS,
        type=checked(some_seconds),
        metavar="SECONDS",
        help="with --min-hosts: when a lost host returns to a job that has an empty place, ask the "
        "program to save and end (lockstep.should_stop), and start again with it. After SECONDS "
        f"(without a number {GROW_SECONDS:g}) the processes are interrupted",
    )


def check_hosts_given(args: argparse.Namespace) -> None:
    """Raises `ConfigError` for options of several hosts on one."""
    parser = run_parser()
    for name in _OF_HOSTS:
        if getattr(args, name) != parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for --hosts or --hostfile, and neither is given.")


def worker_parser() -> argparse.ArgumentParser:
    """The options of ``lockstep worker``."""
    parser = usage.parser(
        "worker",
        "Runs a program as one process of a job that a cluster's launcher (srun, mpirun, mpiexec,\n"
        "jsrun, blaunch, pbsdsh, torchrun, a Kubernetes Job) has started. Rank, size and\n"
        "coordinator come from the launcher's environment variables.",
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
        "--log-dir",
        metavar="DIR",
        help="keep the records of a failed run in DIR/run_JOB, best on a disk that all hosts "
        "share; default: a private directory of each host",
    )
    return parser
