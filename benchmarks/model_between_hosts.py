"""The model of the collectives between hosts: tables, its error, and a simulation's counts.

    python benchmarks/model_between_hosts.py                       # 8 to 1,024 hosts
    python benchmarks/model_between_hosts.py --processes 4         # of each host
    python benchmarks/model_between_hosts.py --check FILE ...      # against between_hosts.py --json
    python benchmarks/model_between_hosts.py --simulate 8,100,1024

The formulas are those of ``lockstep.inspection.algorithms``, the software's costs those that
``--check`` finds between namespaces (docs/design/between-hosts.md). ``--check`` fits the costs
to the files' collectives on two and four hosts and compares the prediction for more hosts with what
was measured. ``--simulate`` carries out each schedule on sets of contributions, and counts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep._words import format_seconds, format_size
from lockstep.bench.cases import HLO_NAMES
from lockstep.inspection import algorithms
from lockstep.inspection.algorithms import Counts, Host, Link

ROOT = Path(__file__).resolve().parent.parent
HOSTS = (8, 64, 256, 1024)
SIZES = (1 << 10, 1 << 20, 256 << 20)
RATES = (10.0, 100.0)
GOODPUT = 0.95
"""Share of a line that is left for data: headers of TCP, IP and Ethernet at 1,500 bytes."""
DEPTH, LINK_BUDGET, MIN_MESSAGE, MAX_MESSAGE = 4, 256 << 20, 64 << 10, 128 << 10
"""Link::kDepth, kLinkBudget, kMinMessage and kCrossingMessage of the engine."""
COSTS = {
    "plain": Link(latency=36e-6, per_byte=1.44e-9, overhead=65e-6, per_byte_added=0.2e-9),
    "TLS": Link(latency=68e-6, per_byte=3.35e-9, overhead=59e-6, per_byte_added=0.2e-9),
}
"""Software costs of one process on one core: see `--check`; a line's rate is not in them."""


def link_of(options: argparse.Namespace, costs: Link, gbit: float) -> Link:
    """The network of a host whose processes encrypt, copy and add at the same time."""
    line = 8 / (gbit * 1e9 * GOODPUT)
    return Link(
        costs.latency + options.wire * 1e-6,
        max(line, costs.per_byte / options.processes),
        costs.overhead,
        costs.per_byte_added / options.processes,
    )


def show_times(options: argparse.Namespace) -> None:
    """Of an all-reduce: the algorithm that the engine takes, and in brackets the best one."""
    host = Host(options.processes, 2e-6, 0.1e-9)
    print("| Gbit/s | | hosts |" + "".join(f" {format_size(size)} |" for size in SIZES))
    print("|---" * (3 + len(SIZES)) + "|")
    for gbit in RATES:
        for name, costs in COSTS.items():
            link = link_of(options, costs, gbit)
            for hosts in HOSTS:
                cells = [_time(hosts, size, link, host) for size in SIZES]
                print(f"| {gbit:g} | {name} | {hosts} | {' | '.join(cells)} |")


def _time(hosts: int, size: int, link: Link, host: Host) -> str:
    name = algorithms.choose("all-reduce", hosts, size)
    inside = host.seconds(size)
    own = link.seconds(algorithms.counts("all-reduce", hosts, size, name)) + inside
    better, least = algorithms.best("all-reduce", hosts, size, link)
    text = f"{format_seconds(own)}, {name}"
    return text + (f" ({format_seconds(least + inside)}, {better})" if better != name else "")


def peers(hosts: int) -> int:
    """Other hosts that a process exchanges messages with in all-reduces of powers of two."""
    return algorithms.log2_up(hosts)


def message_capacity(processes: int) -> int:
    """Clique::make_rings."""
    share = LINK_BUDGET // (DEPTH * processes)
    return min(max(share, MIN_MESSAGE), MAX_MESSAGE) // 4096 * 4096


def show_resources(options: argparse.Namespace) -> None:
    """Of one process: with connections to all processes of other hosts, and to those alone with
    which it exchanges data."""
    print("\n| hosts | to | connections | processor time | memory |\n|---|---|---|---|---|")
    for hosts in HOSTS:
        processes = hosts * options.processes
        others = processes - options.processes
        for to, count in (("all processes", others), ("peers of all-reduces", peers(hosts))):
            # A connection for each direction; a process has one side of both.
            seconds = 2 * count * options.handshake * 1e-3
            slots = DEPTH * message_capacity(processes)
            memory = count * (2 * options.connection * 1024 + slots)
            print(
                f"| {hosts} | {to} | {2 * count} | {format_seconds(seconds)} "
                f"| {format_size(memory)} |"
            )


def cases_of(document: dict[str, Any], job: str) -> list[tuple[int, str, int, Counts, float]]:
    """(hosts, name, bytes, counts, median seconds) of one process a host."""
    words = document["command"]
    prescribed = words.split("all-reduce=")[1].split()[0] if "all-reduce=" in words else None
    found = []
    for layout in document["layouts"]:
        if layout["processes"] * layout["devices"] > 1:
            continue
        for case in layout["cases"]:
            op, hosts, size = HLO_NAMES[case["op"]], layout["hosts"], case["bytes"]
            name = prescribed if op == "all-reduce" else algorithms.choose(op, hosts, size)
            if name not in algorithms.possible(op, hosts):
                name = algorithms.choose(op, hosts, size)
            seconds = case["results"][job]["seconds"]
            if seconds:
                counts = algorithms.counts(op, hosts, size, name)
                found.append((hosts, f"{op} {name}", size, counts, seconds["median"]))
    return found


def crowded(hosts: int, cores: int) -> float:
    """How much slower namespaces are that share cores: everything they do is processor time."""
    return max(1.0, hosts / cores)


def check(files: Sequence[Path], cores: int) -> None:
    read = [json.loads(file.read_text()) for file in files]
    documents = [d for each in read for d in (each if isinstance(each, list) else [each])]
    for job in ("tls", "plain"):
        cases = [case for document in documents for case in cases_of(document, job)]
        known = [(c, s / crowded(hosts, cores)) for hosts, _, _, c, s in cases if hosts <= 4]
        link = algorithms.fit(known)
        print(
            f"\n{job}: latency {link.latency * 1e6:.1f} us, overhead {link.overhead * 1e6:.1f} us, "
            f"{link.per_byte * 1e9:.3f} ns/B, {link.per_byte_added * 1e9:.3f} ns/B added; "
            f"{cores} cores"
        )
        print(f"{'':<36}{'bytes':>10}{'hosts':>7}{'measured':>12}{'model':>12}{'ratio':>8}")
        errors: dict[int, list[float]] = {}
        for hosts, name, size, counts, seconds in sorted(cases, key=lambda c: (c[1], c[2], c[0])):
            model = link.seconds(counts) * crowded(hosts, cores)
            off = algorithms.error(link, counts, seconds / crowded(hosts, cores))
            errors.setdefault(hosts, []).append(off)
            print(
                f"{name:<36}{format_size(size):>10}{hosts:>7}"
                f"{format_seconds(seconds):>12}{format_seconds(model):>12}{model / seconds:>8.2f}"
            )
        for hosts, ratios in sorted(errors.items()):
            print(
                f"{hosts} hosts: off by a factor of {statistics.median(ratios):.2f} in the median, "
                f"{max(ratios):.2f} at worst, {len(ratios)} cases"
                + (" (fitted)" if hosts <= 4 else " (predicted)")
            )


def simulate(counts: Sequence[int]) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    schedules = importlib.import_module("schedules")
    print(f"{'':<36}{'hosts':>6}{'rounds':>8}{'messages':>10}{'blocks':>10}{'peers':>7}{'s':>8}")
    for hosts in counts:
        for op, name in schedules.SCHEDULES:
            if name not in algorithms.possible(op, hosts):
                continue
            began = time.perf_counter()
            found = schedules.tally(schedules.carried_out(op, name, hosts))
            print(
                f"{op + ' ' + name:<36}{hosts:>6}{found.rounds:>8}{found.most_messages:>10}"
                f"{found.blocks:>10}{found.most_peers:>7}{time.perf_counter() - began:>8.1f}",
                flush=True,
            )
    print("all results are right. messages: sent by one host; blocks: through a host's link")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--processes", type=int, default=1, help="of a host")
    add("--wire", type=float, default=5.0, help="us of adapters and switches")
    add("--handshake", type=float, default=0.18, help="ms of a core for a connection, one side")
    add("--connection", type=float, default=64.0, help="KiB of memory for a connection")
    add("--check", type=Path, nargs="+", metavar="FILE")
    add("--cores", type=int, default=2, help="that the measured namespaces shared")
    add("--simulate", type=lambda text: [int(part) for part in text.split(",")])
    options = parser.parse_args()
    if options.check:
        check(options.check, options.cores)
    elif options.simulate:
        simulate(options.simulate)
    else:
        show_times(options)
        show_resources(options)


if __name__ == "__main__":
    main()
