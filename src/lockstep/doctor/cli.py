"""The command ``lockstep doctor``."""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from lockstep.launch import host_options

# Each of these modules gathers its facts in `probe`, judges them in pure `check_*` functions, and
# puts both together in `findings`.
AREAS = {
    "software": "lockstep.doctor.software",
    "engine": "lockstep.doctor.engine",
    "machine": "lockstep.doctor.resources",
    "network": "lockstep.doctor.network",
    "optional": "lockstep.doctor.optional",
    "GPUs": "lockstep.doctor.gpus",
}
_DESCRIPTION = """\
Checks this machine, one line each: ok, warning or problem, what was found, and how to fix it. The
exit status is 1 when there is a problem.
"""
_EXAMPLES = """\
examples:
  lockstep doctor                            this machine
  lockstep doctor --hosts node1:4,node2:4    several hosts, and the network between them
"""


def add_parser(subparsers: Any) -> None:
    """Adds ``doctor`` to the subcommands of ``lockstep``."""
    parser = subparsers.add_parser(
        "doctor",
        help="what is installed, what would go wrong, how to fix it",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the report as JSON")
    group = parser.add_argument_group(
        "several hosts",
        "With --hosts or --hostfile: what lockstep run --hosts checks before it starts,\n"
        "and the latency and bandwidth between all hosts.",
    )
    host_options.add_reach(group)
    parser.set_defaults(func=main)


def main(args: argparse.Namespace) -> int:
    """Checks everything; 1 when there is a problem, else 0."""
    if args.hosts or args.hostfile:
        from lockstep.doctor import hosts

        return hosts.main(args)
    from rich.console import Console
    from rich.text import Text

    from lockstep._finding import PROBLEM, worst
    from lockstep.doctor import report

    console = Console(highlight=False)
    areas = []
    for area, module in AREAS.items():
        findings = importlib.import_module(module).findings()
        areas.append((area, findings))
        if findings and not args.json:
            report.show_area(area, findings, console)
    everything = [finding for _, findings in areas for finding in findings]
    if args.json:
        print(json.dumps(report.document(areas), indent=1))
    else:
        console.print(Text(report.summary(everything), style="bold"))
    return 1 if worst(everything) == PROBLEM else 0
