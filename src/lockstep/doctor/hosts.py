"""``lockstep doctor --hosts``: the check before ``lockstep run --hosts``, and each pair's speed."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep import __version__
from lockstep._errors import LaunchError
from lockstep._finding import PROBLEM, Finding, worst
from lockstep._words import format_seconds, format_size
from lockstep.doctor import report
from lockstep.hosts.checks import host_check
from lockstep.hosts.checks.request import Request
from lockstep.hosts.fleet import Fleet
from lockstep.hosts.starters import Reach
from lockstep.launch import before_start
from lockstep.launch.hosts_command import hosts_of

if TYPE_CHECKING:
    from rich.console import Console

Measured = Mapping[tuple[str, str], Mapping[str, Any]]
"""(from, to) -> the result of `lockstep.hosts.checks.network_probe.probe`."""
PAIRS = "between hosts (one TCP connection, not encrypted)"


def main(args: argparse.Namespace) -> int:
    """Checks the hosts; 1 when there is a problem, else 0. Raises `LockstepError`."""
    from rich.console import Console
    from rich.text import Text

    areas, measured = examine(args)
    if args.json:
        print(json.dumps(report.document(areas) | {"pairs": pairs_document(measured)}, indent=1))
    else:
        console = Console(highlight=False)
        for area, findings in areas:
            report.show_area(area, findings, console)
        if measured:
            show_pairs(measured, console)
        everything = [finding for _, findings in areas for finding in findings]
        console.print(Text(report.summary(everything), style="bold"))
    return 1 if worst(f for _, findings in areas for f in findings) == PROBLEM else 0


def examine(args: argparse.Namespace) -> tuple[list[tuple[str, list[Finding]]], Measured]:
    """The findings of each host, and what was measured between those that reach each other.

    Raises `LockstepError`.
    """
    python = args.python or sys.executable
    config = before_start.settings(args, os.environ)
    request = Request(
        interface=args.interface,
        ssh=shlex.join(args.ssh),
        python=python,
        version=__version__,
        answer_seconds=config.check_timeout,
    )
    seconds = config.reach_timeout
    fleet = Fleet(Reach(args.ssh, python, seconds=seconds).command, reach_seconds=seconds)
    try:
        checked = host_check.check_hosts(fleet, hosts_of(args), request)
        measured = host_check.measure(fleet, checked, request)
    except OSError as error:
        raise LaunchError(f"{error.filename or 'ssh'} cannot be started: {error}") from error
    finally:
        fleet.end()
    return [(f"host {label}", findings) for label, findings in checked.found.items()], measured


def pairs_document(measured: Measured) -> list[dict[str, Any]]:
    """The pairs as ``--json`` prints them: seconds and bytes per second; null: not measured."""
    return [
        {
            "from": source,
            "to": target,
            "latency": result.get("latency"),
            "bandwidth": result.get("bandwidth") or None,
        }
        for (source, target), result in measured.items()
    ]


def show_pairs(measured: Measured, console: Console) -> None:
    """Prints a line for each direction of each pair."""
    from rich.text import Text

    rows = [("from", "to", "latency", "bandwidth"), *map(_row, measured.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    console.print(Text(PAIRS, style="bold"))
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        console.print(Text(f"  {'  '.join(cells)}".rstrip()), soft_wrap=True)


def _row(item: tuple[tuple[str, str], Mapping[str, Any]]) -> Sequence[str]:
    (source, target), result = item
    if result["reason"]:
        return source, target, str(result["reason"]), "-"
    bandwidth = result["bandwidth"]
    speed = f"{format_size(bandwidth)}/s" if bandwidth else "-"
    return source, target, format_seconds(result["latency"]), speed
