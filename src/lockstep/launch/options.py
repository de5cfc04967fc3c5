"""The command lines of ``lockstep run`` and ``lockstep worker``. Pure.

The program's own arguments are cut off before argparse sees them: nothing behind the script is
ours, however much it looks like an option.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TypeVar

from lockstep._config import COLLECTIVES, natural, positive, seconds

USAGE = "%(prog)s [options] (script.py | -m module) [args ...]"
_HASH_SEED = (
    "All processes get PYTHONHASHSEED=0, unless it is set already: so they iterate over a set of "
    "strings in the same order, and collectives in such a loop match."
)


def split(words: Sequence[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Our options, and the program with its arguments: ``script.py ...`` or ``-m module ...``.

    ``parser`` has the options: those with a value take the next word.
    """
    with_value = {
        name for action in parser._actions if action.nargs is None for name in action.option_strings
    }
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            return list(words[:i]), list(words[i + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            return list(words[:i]), list(words[i:])
        if word.startswith("-m") and not word.startswith("--"):
            return list(words[:i]), ["-m", word[2:], *words[i + 1 :]]
        i += 2 if word in with_value else 1
    return list(words), []


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
    add = parser.add_argument
    add(
        "--collectives",
        choices=COLLECTIVES,
        help="what moves the data between processes on CPUs; default: lockstep",
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
        help="CPU devices per process; default: what the program or XLA_FLAGS says, else 1",
    )
    add(
        "--auto-init",
        action="store_true",
        default=None,
        help="call lockstep.initialize() before the program, which then needs no line for it",
    )
    add(
        "--collective-timeout",
        type=checked(seconds),
        metavar="SECONDS",
        help="how long a collective waits for the other processes; 0: forever; default: 600",
    )
    add(
        "--stall-warning",
        type=checked(seconds),
        metavar="SECONDS",
        help="after this long a wait is reported, with who is missing and what they do; 0: never; "
        "default: 30",
    )
    add(
        "--start-timeout",
        type=checked(seconds),
        metavar="SECONDS",
        help="how long the processes may take to come together, until an error names those that "
        "are missing; 0: forever; default: 120",
    )
    add(
        "--strict",
        action="store_true",
        default=None,
        help="also compare which calls in the program make a collective; slower",
    )
    add(
        "--full-tracebacks",
        action="store_true",
        default=None,
        help="show the frames of jax, of other installed packages and of Python in tracebacks",
    )


def _add_grace(parser: argparse.ArgumentParser, default: float | None, text: str) -> None:
    parser.add_argument(
        "--grace", type=checked(seconds), default=default, metavar="SECONDS", help=text
    )


def run_parser() -> argparse.ArgumentParser:
    """The options of ``lockstep run``."""
    parser = argparse.ArgumentParser(
        prog="lockstep run",
        usage=USAGE,
        description="Runs a program on several processes of this machine.",
        epilog=_HASH_SEED,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--processes", type=checked(positive), default=1, metavar="N", help="default: 1")
    _add_shared(parser)
    add(
        "--bind",
        choices=("cores", "none"),
        help="cores: hold each process to its own share of the cores, if there is one for each; "
        "none: leave placement to the kernel; default: cores if every share has at least two, and "
        "one per device of -d",
    )
    add(
        "--oversubscribe",
        action="store_true",
        help="start even more processes than there is free memory for, at 200 MB each; more "
        "processes than cores need no option, unlike with mpirun's --oversubscribe",
    )
    add("--no-prefix", action="store_true", help="do not put the process's number before a line")
    add(
        "--log-dir",
        metavar="DIR",
        help="keep each process's whole output in DIR/run_TIME/attempt_0/process_N, and the "
        "records of a failed run beside it",
    )
    _add_grace(
        parser,
        5.0,
        "how long processes may take to end after Ctrl-C, SIGTERM or the failure of another; "
        "default: 5",
    )
    add(
        "--max-restarts",
        type=checked(natural),
        default=0,
        metavar="K",
        help="start the job again after a failure, at most K times; the program has to go on from "
        "its last checkpoint; default: 0",
    )
    return parser


def worker_parser() -> argparse.ArgumentParser:
    """The options of ``lockstep worker``."""
    parser = argparse.ArgumentParser(
        prog="lockstep worker",
        usage=USAGE,
        description="Runs a program as the process that a cluster's launcher (srun, mpirun, "
        "mpiexec, torchrun) has started: finds its rank, the number of processes and the "
        "coordinator.",
        epilog=_HASH_SEED,
        allow_abbrev=False,
    )
    _add_shared(parser)
    _add_grace(
        parser,
        None,
        "how long the program may take to end after SIGTERM (KeyboardInterrupt comes after half of "
        "it; default: 25), and how long to wait for the others to end when the program has failed, "
        "before the cluster's launcher is told (default: 5)",
    )
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        help="put the records of a failed run in DIR/run_JOB, best where all hosts see it; "
        "default: a private directory of each host",
    )
    return parser
