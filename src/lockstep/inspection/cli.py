"""The command ``lockstep inspect``."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep._config import positive
from lockstep._errors import ConfigError
from lockstep._words import UNITS
from lockstep.launch.usage import checked

if TYPE_CHECKING:
    from lockstep.inspection.cost_model import CostModel
    from lockstep.inspection.report import Report

_DESCRIPTION = """\
Compiles a function of a program for the devices of a job, in one process and without running it.
Shows every collective that the compiler put in, with its bytes, mesh axes, loop, line and cause,
and the memory of a device. The program is imported, and its function example_args() makes the
arguments.
"""
_EXAMPLES = """\
examples:
  lockstep inspect -n 2 -d 4 train.py:step                 for 2 processes of 4 devices
  lockstep inspect -n 16 -d 4 --processes-per-host 4 --link 20us,10GB/s \\
      --link-between 50us,1GB/s train.py:step              with the predicted time of 64 devices
"""
_LINK = re.compile(r"([\d.]+)(ns|us|ms|s),([\d.]+)(B|KiB|MiB|GiB|KB|MB|GB)/s")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_BYTES = {**UNITS, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def add_parser(subparsers: Any) -> None:
    """Adds ``inspect`` to the subcommands of ``lockstep``."""
    parser = subparsers.add_parser(
        "inspect",
        help="what the compiler makes of a function, for any number of devices",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    program = parser.add_argument_group("program").add_argument
    program(
        "program",
        metavar="PROGRAM.py:FUNCTION",
        help="the file and the function in it to compile; or MODULE:FUNCTION",
    )
    program("function", nargs="?", help=argparse.SUPPRESS)  # a mistake that `main` explains
    program(
        "--args",
        dest="arguments",
        metavar="NAME",
        help="the function of the program that returns the arguments; default: example_args",
    )
    add, number = parser.add_argument_group("job").add_argument, checked(positive)
    add("-n", "--processes", type=number, default=1, metavar="N", help="default: 1")
    add("-d", "--devices", type=number, default=1, metavar="D", help="per process; default: 1")
    add(
        "--processes-per-host",
        type=number,
        metavar="P",
        help="what is between hosts; default: all processes are on one host",
    )
    costs = parser.add_argument_group("predicted times")
    costs.add_argument(
        "--costs",
        metavar="FILE",
        help="what `lockstep bench --calibrate` wrote; default: your own file, if there is one",
    )
    costs.add_argument(
        "--link",
        type=_link,
        metavar="LATENCY,BANDWIDTH",
        help="instead: numbers of another machine, within a host: 20us,10GB/s",
    )
    costs.add_argument(
        "--link-between", type=_link, metavar="LATENCY,BANDWIDTH", help="the same between hosts"
    )
    parser.add_argument_group("output").add_argument(
        "--json", metavar="FILE", help="write the report as JSON to FILE, or - for stdout"
    )
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Prints the report of `plan.plan`; its exceptions and those of the program are raised."""
    if args.function is not None:
        meant = f": write {args.program}:{args.function}" if ":" not in args.program else ""
        raise ConfigError(f"what is {args.function!r}? There is one argument, FILE:FUNCTION{meant}")
    model = _model(args)
    from lockstep.inspection.plan import plan

    report = plan(args.program, args.arguments, args.processes, args.devices)
    report = report.on(processes_per_host=args.processes_per_host)
    _publish(report.predict(model) if model else report, args.json)
    return 0


def _publish(report: Report, file: str | None) -> None:
    if file != "-":
        report.print()
    if file is None:
        return
    text = report.to_json(indent=1) + "\n"
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        Path(file).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from None


def _model(args: argparse.Namespace) -> CostModel | None:
    from lockstep.inspection import cost_model

    if args.link:
        between = args.link_between or (None, None)
        return cost_model.CostModel.of_link(
            *args.link, latency_between=between[0], bandwidth_between=between[1]
        )
    if args.link_between:
        raise ConfigError("--link-between needs --link, the numbers within a host")
    return cost_model.load(Path(args.costs)) if args.costs else None


def _link(text: str) -> tuple[float, float]:
    """(seconds, bytes per second) of ``20us,10GB/s``."""
    found = _LINK.fullmatch(text.replace(" ", ""))
    if not found or not float(found[1]) or not float(found[3]):
        raise argparse.ArgumentTypeError(f"{text!r} is not LATENCY,BANDWIDTH like 20us,10GB/s")
    return float(found[1]) * _SECONDS[found[2]], float(found[3]) * _BYTES[found[4]]
