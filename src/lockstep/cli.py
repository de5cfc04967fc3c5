"""The command ``lockstep``.

Modules are imported only when they are needed: ``run`` and ``worker`` parse their own options, and
jax is never imported here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lockstep import __version__
from lockstep._errors import ConfigError, LockstepError
from lockstep._stderr import complain

_DESCRIPTION = "Runs one JAX program on many processes."
_EXAMPLES = """\
examples:
  lockstep run -n 2 -d 4 train.py               two processes with four CPU devices each
  lockstep run --hosts a:4,b:4 train.py         four processes on each of two hosts
  srun -n 12 lockstep worker train.py           processes that Slurm has started
  lockstep doctor                               checks this machine
  lockstep bench -n 2 -d 4                      speed of the collectives, beside gloo's
  lockstep inspect -n 16 -d 4 train.py:step     the collectives of a step on 64 devices
  lockstep report DIR                           what every process of a job does, or did
  lockstep top                                  the same every second
lockstep COMMAND --help has the options of a command.
"""
_INTERRUPTED = 130


def _run(words: Sequence[str]) -> int:
    from lockstep.launch import run_command

    return run_command.main(words)


def _worker(words: Sequence[str]) -> int:
    from lockstep.launch import worker_command

    return worker_command.main(words)


_WITH_PROGRAM = {"run": _run, "worker": _worker}


def _parser() -> argparse.ArgumentParser:
    from lockstep.bench.cli import add_parser as add_bench
    from lockstep.doctor.cli import add_parser as add_doctor
    from lockstep.inspection.cli import add_parser as add_inspect
    from lockstep.report.cli import add_parsers as add_report_and_top

    parser = argparse.ArgumentParser(
        prog="lockstep",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lockstep {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands.add_parser(
        "run", help="start a program on several processes, of this machine or of several hosts"
    )
    commands.add_parser("worker", help="run a program as a process of a cluster's launcher")
    add_doctor(commands)
    add_bench(commands)
    add_inspect(commands)
    add_report_and_top(commands)
    return parser


def _open_standard_streams() -> None:
    """Has something open as stdin, stdout and stderr: else a file would get one of their numbers,
    and what is printed would be written into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets this number: the lowest that is free
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit status."""
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and (command := _WITH_PROGRAM.get(words[0])):
            return command(words[1:])
        if not words:
            _parser().print_help(sys.stderr)
            return 2
        if not words[0].startswith("-"):
            from lockstep.launch import usage

            if text := usage.no_command(words[0], words[1:]):
                raise ConfigError(text)
        args = _parser().parse_args(words)
        return args.func(args)
    except LockstepError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
