"""The commands ``lockstep report`` and ``lockstep top``."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from lockstep._errors import RecordError

FAULT = 1
_REPORT = """\
Matches the records of all processes of a run, running or ended, and shows where they diverged,
which processes wait for which, and likely causes. The exit status is 1 when there is a fault,
else 0.
"""
_REPORT_EXAMPLES = """\
examples:
  lockstep report                             your running job, else your last failed run
  lockstep report DIR --summary               a failed run, with the time spent in collectives
  lockstep report --pid 4711 --trace t.json   a running job, as a trace for Perfetto
"""
_TOP = """\
Shows, while a job runs, what each process is doing, which processes the others wait for, and the
time spent in collectives. Ends with Ctrl-C, or with the job.
"""
_TOP_EXAMPLES = """\
examples:
  lockstep top                your running job, updated every second
  lockstep top --pid 4711     one of several jobs
  lockstep top --once         print the tables once, for a script
"""


def add_parsers(subparsers: Any) -> None:
    """Adds ``report`` and ``top`` to the subcommands of ``lockstep``."""
    report = subparsers.add_parser(
        "report",
        help="what every process was doing when a run stopped",
        description=_REPORT,
        epilog=_REPORT_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run(report)
    output = report.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    output.add_argument(
        "--trace", metavar="FILE", help="write a trace to open at https://ui.perfetto.dev"
    )
    output.add_argument(
        "--summary", action="store_true", help="add the time spent in collectives, by program line"
    )
    report.set_defaults(func=main)
    top = subparsers.add_parser(
        "top",
        help="what every process is doing now",
        description=_TOP,
        epilog=_TOP_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_run(top)
    output = top.add_argument_group("output")
    output.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="time between two updates (1)",
    )
    output.add_argument("--once", action="store_true", help="print the tables once and exit")
    top.set_defaults(func=_top)


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which run")
    which = group.add_mutually_exclusive_group()
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
    group.add_argument(
        "--attempt",
        type=int,
        metavar="A",
        help="the attempt of a restarted run (default: the last)",
    )


def main(args: argparse.Namespace) -> int:
    """Prints the report; 1 when there is a fault, else 0."""
    from lockstep.flight_recorder import diagnose, json_report
    from lockstep.flight_recorder.time_summary import summarize
    from lockstep.processes import running_job
    from lockstep.report import locate_run

    run = locate_run.read(*_which(args), args.attempt)
    now_ns = time.monotonic_ns()  # of the records: what follows takes a while
    now = running_job.now_of_hosts(run, now_ns)
    run = running_job.with_compilations(run, now)
    diagnosis = running_job.settled(diagnose.diagnose(run), now)
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
