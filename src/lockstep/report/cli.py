"""The commands ``lockstep report`` and ``lockstep top``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lockstep._errors import RecordError

FAULT = 1


def add_parsers(subparsers: Any) -> None:
    """Adds ``report`` and ``top`` to the subcommands of ``lockstep``."""
    report = subparsers.add_parser(
        "report",
        help="what every process was doing when a run stopped",
        description="Matches the records of all processes of a run, running or ended, and shows "
        "where they diverged, which processes wait for which, and likely causes. The exit status "
        "is 1 when there is a fault, else 0.",
    )
    _add_run(report)
    report.add_argument("--json", action="store_true", help="print the report as JSON")
    report.add_argument(
        "--trace", metavar="FILE", help="write a trace to open at https://ui.perfetto.dev"
    )
    report.add_argument(
        "--summary", action="store_true", help="add the time spent in collectives, by program line"
    )
    report.set_defaults(func=main)
    top = subparsers.add_parser(
        "top",
        help="what every process is doing now",
        description="Shows, while a job runs, what each process is doing, which processes the "
        "others wait for, and the time spent in collectives. Ends with Ctrl-C, or with the job.",
    )
    _add_run(top)
    top.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two updates (1)",
    )
    top.add_argument("--once", action="store_true", help="print the tables once and exit")
    top.set_defaults(func=_top)


def _add_run(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "directory",
        nargs="?",
        metavar="DIR",
        help="the directory of a run, or a --log-dir (then its last run); default: your only job "
        "that runs on this machine, else your last failed run",
    )
    which.add_argument(
        "--pid", type=int, help="instead of DIR: the pid of a running job's launcher or process"
    )
    parser.add_argument(
        "--attempt",
        type=int,
        metavar="A",
        help="the attempt of a restarted run (default: the last)",
    )


def main(args: argparse.Namespace) -> int:
    """Prints the report; 1 when there is a fault, else 0."""
    from lockstep.flight_recorder import diagnose, json_report
    from lockstep.flight_recorder.time_summary import summarize
    from lockstep.report import locate_run

    run = locate_run.read(*_which(args), args.attempt)
    diagnosis = diagnose.diagnose(run)
    summary = summarize(run) if args.summary else None
    if args.trace:
        _write_trace(Path(args.trace), run)
    if args.json:
        print(json.dumps(json_report.document(diagnosis, summary), indent=1))
    else:
        from rich.console import Console

        from lockstep.report import tables

        console = Console(highlight=False)
        tables.show(diagnosis, console)
        if summary is not None:
            tables.show_summary(summary, console)
    return FAULT if diagnosis.kind.is_fault else 0


def _write_trace(path: Path, run: Any) -> None:
    from lockstep.flight_recorder.chrome_trace import trace

    try:
        path.write_text(json.dumps(trace(run)), "utf-8")
    except OSError as error:
        raise RecordError(f"cannot write the trace to {path}: {error.strerror}") from None


def _top(args: argparse.Namespace) -> int:
    from lockstep.report import top

    return top.watch(*_which(args), args.attempt, args.interval, args.once)


def _which(args: argparse.Namespace) -> tuple[Path | None, int | None]:
    from lockstep.report import locate_run

    if args.directory or args.pid is not None:
        return (Path(args.directory) if args.directory else None), args.pid
    return locate_run.choose()
