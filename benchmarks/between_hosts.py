"""Collectives between hosts: the engine with and without encryption, and gloo, in one run.

    python benchmarks/between_hosts.py                       # 2, 4, 8, 2 x 4 and 2 x 1 x 4
    python benchmarks/between_hosts.py --hosts 4 --collectives all_reduce --sizes 1KiB,1MiB
    python benchmarks/between_hosts.py --hosts 2,2x4 --gbit 1 --json benchmarks/results/FILE
    python benchmarks/between_hosts.py --hosts 8 --set LOCKSTEP_ALGORITHMS=all-reduce=ring
    python benchmarks/between_hosts.py --hosts 2 --jobs plain,ucx,gloo
    python benchmarks/between_hosts.py --hosts 2 --jobs tls,tls4,gloo --connection-gbit 1

The hosts are network namespaces of this machine (as in ``tests/faults/hosts.py``). ``--hosts``
lists layouts: hosts, processes of a host, devices of a process. Each layout has three jobs at the
same time: the engine (TLS), the engine with ``--no-encryption``, and gloo. They are measured in
turns, round by round and every other time in the opposite order, by the programs of ``lockstep
bench``, which also check every result.

A row shows the median of a collective (quartiles), how many times as fast as gloo it is (median of
the rounds, quartiles), and the bytes that the busiest host sent for one collective, as a multiple
of what has to cross its link (`Case.crossing_bytes`); the packets are in the file. With ``--gbit``
the last columns are the share of the line that the bytes which have to cross take: of the link's
rate, headers included, and of what one TCP connection without a job carries there.
``--connection-gbit`` limits each TCP connection, as the networks of some clouds do; ``tls4`` and
``plain4`` have four connections between two processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs_on_hosts import GLOO, JOBS, Layout, Layouts, on_hosts
from lockstep._words import format_size, three_digits
from lockstep.bench.cases import OPS, parse_sizes, plan
from lockstep.bench.runner import CaseResult, Runner
from lockstep.bench.stats import Spread, block_ratios
from lockstep.bench.summary import case_entry
from lockstep.bench.table import format_time
from lockstep.system import machine, oom

DEFAULT_JOBS = ("tls", "plain", GLOO)


def entry_of(result: CaseResult, layouts: Layouts, options: argparse.Namespace) -> dict[str, Any]:
    """A case as the file has it."""
    case, found = result.case, result.by_implementation
    entry = case_entry(result, options.jobs)
    for name in ("least_traffic_bytes", "ratio", "share_of_limit"):
        del entry[name]
    hosts = layouts.layout.hosts
    entry["crossing_bytes"] = case.crossing_bytes(hosts)
    entry["times_as_fast_as_gloo"] = {}
    for name, measured in entry["results"].items():
        if measured["status"] != "ok":
            continue
        measured["crossed"] = layouts.running[name].crossed()
        if options.gbit:
            rate = entry["crossing_bytes"] / measured["seconds"]["median"]
            measured["share_of_line"] = rate / (options.gbit * 1e9 / 8)
            measured["share_of_stream"] = rate / layouts.stream_rate
        if name != GLOO and GLOO in found and found[GLOO].status == "ok":
            ratios = block_ratios(found[GLOO].blocks, found[name].blocks)
            entry["times_as_fast_as_gloo"][name] = dataclasses.asdict(Spread.of(ratios))
    return entry


def show(entry: Mapping[str, Any]) -> None:
    line = f"{entry['op']:<15}{format_size(entry['bytes']):>8}"
    results = entry["results"]
    line += "".join(f"{format_time(result):>27}" for result in results.values())
    for name in results:
        if name != GLOO:
            ratio = entry["times_as_fast_as_gloo"].get(name)
            cell = "-" if ratio is None else "{median:.2f} ({q1:.2f}-{q3:.2f})".format(**ratio)
            line += f"{cell:>21}"
    cells = [
        max(result["crossed"]["sent"]) / entry["crossing_bytes"] if "crossed" in result else None
        for result in results.values()
    ]
    line += "".join(f"{'-' if cell is None else three_digits(cell):>7}" for cell in cells)
    for name in ("share_of_line", "share_of_stream"):
        shares = [result.get(name) for result in results.values()]
        if any(shares):
            line += "".join(f"{share or 0:>7.2f}" for share in shares)
    print(line, flush=True)
    for name, result in results.items():
        if result["reason"]:
            print(f"    {name} {result['status']}: {result['reason']}", flush=True)


def heading(layout: Layout, options: argparse.Namespace) -> None:
    print(f"\n{layout}" + (f", {options.gbit:g} Gbit/s" if options.gbit else ""))
    engines = [name for name in options.jobs if name != GLOO]
    line = " " * 23 + "".join(f"{name:>27}" for name in options.jobs)
    line += "".join(f"{f'gloo / {name}':>21}" for name in engines)
    line += "   sent: " + " ".join(options.jobs)
    print(line + ("  of the rate, of a stream: the same" if options.gbit else ""), flush=True)


def measure(layout: Layout, options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Adds the layout to the document, and writes that after each case."""
    heading(layout, options)
    entries: list[dict[str, Any]] = []
    found: dict[str, Any] = {**dataclasses.asdict(layout), "cases": entries}
    document["layouts"].append(found)
    with on_hosts(layout, options) as layouts:
        found["stream_bytes_per_second"] = layouts.stream_rate
        print(f"one TCP connection: {layouts.stream_rate * 8e-9:.3f} Gbit/s", flush=True)
        runner = Runner(
            layouts.jobs,
            options.jobs,
            options.rounds,
            options.timeout,
            oom.free_memory() or 0,
            copies=False,
        )
        for case in plan(options.collectives, options.sizes, layout.ranks, "f32"):
            entries.append(entry_of(runner.run(case), layouts, options))
            show(entries[-1])
            save(document, options.json)
    means = {}
    for name in options.jobs:
        each = [e["times_as_fast_as_gloo"].get(name) for e in entries]
        ratios = [ratio["median"] for ratio in each if ratio]
        if ratios:
            means[name] = {"mean": statistics.geometric_mean(ratios), "least": min(ratios)}
            print(
                "{}: {mean:.2f} times as fast as gloo (geometric mean), least {least:.2f}".format(
                    name, **means[name]
                )
            )
    found["times_as_fast_as_gloo"] = means
    save(document, options.json)


def save(document: dict[str, Any], file: Path | None) -> None:
    if file:
        file.write_text(json.dumps(document, indent=1) + "\n")


def _list_of(choices: Sequence[str], text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not set(names) <= set(choices):
        raise argparse.ArgumentTypeError(f"{text!r}: there is {', '.join(choices)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add(
        "--hosts",
        type=lambda text: [Layout.of(part) for part in text.split(",")],
        default="2,4,8,2x4,2x1x4",
        help="layouts: H, HxP or HxPxD; default: 2,4,8,2x4,2x1x4",
    )
    add("--collectives", type=lambda text: _list_of(OPS, text), default=OPS)
    add("--sizes", type=parse_sizes, default="1KiB,64KiB,1MiB,16MiB")
    add("--jobs", type=lambda text: _list_of(tuple(JOBS), text), default=DEFAULT_JOBS)
    add("--rounds", type=int, default=5)
    add("--gbit", type=float, default=0, help="of each host's link; 0: as it is")
    add("--connection-gbit", type=float, default=0, help="of each connection; 0: as it is")
    add("--timeout", type=float, default=60, help="seconds that one step may take")
    add(
        "--set",
        type=lambda text: tuple(text.split("=", 1)),
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable for the engine's jobs",
    )
    add("--json", type=Path)
    options = parser.parse_args()
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "machine": machine.describe(),
        "gbit": options.gbit or None,
        "connection_gbit": options.connection_gbit or None,
        "layouts": [],
    }
    for layout in options.hosts:
        measure(layout, options, document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
