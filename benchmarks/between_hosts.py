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
the last column is the share of the link's rate that the bytes which have to cross take.
``--connection-gbit`` limits each TCP connection, as the networks of some clouds do; ``tls4`` and
``plain4`` have four connections between two processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lockstep._words import format_size, three_digits
from lockstep.bench.cases import OPS, parse_sizes, plan
from lockstep.bench.job import BenchJob
from lockstep.bench.runner import CaseResult, Jobs, Runner
from lockstep.bench.stats import Spread, block_ratios, geometric_mean
from lockstep.bench.summary import case_entry
from lockstep.bench.table import format_time
from lockstep.system import machine

ROOT = Path(__file__).resolve().parent.parent
GLOO = "gloo"
JOBS: dict[str, dict[str, str]] = {
    "tls": {},
    "plain": {"LOCKSTEP_ENCRYPTION": "0"},
    "tls4": {"LOCKSTEP_CONNECTIONS": "4"},
    "plain4": {"LOCKSTEP_ENCRYPTION": "0", "LOCKSTEP_CONNECTIONS": "4"},
    "ucx": {
        "LOCKSTEP_ENCRYPTION": "0",
        "LOCKSTEP_TRANSPORT": "ucx",
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "eth0",
    },
    GLOO: {"LOCKSTEP_COLLECTIVES": "gloo"},
}
DEFAULT_JOBS = ("tls", "plain", GLOO)
COUNTERS = {"received": 0, "packets_received": 1, "sent": 8, "packets_sent": 9}
"""Columns of /proc/net/dev."""


@dataclasses.dataclass(frozen=True)
class Layout:
    hosts: int
    processes: int = 1
    devices: int = 1

    @classmethod
    def of(cls, text: str) -> Layout:
        """Reads "4", "2x4" or "2x1x4"."""
        layout = cls(*map(int, text.split("x")))
        if not (1 < layout.hosts < 26 and layout.processes > 0 and layout.devices > 0):
            raise ValueError(text)
        return layout

    @property
    def ranks(self) -> int:
        return self.hosts * self.processes * self.devices

    def __str__(self) -> str:
        parts = [self.hosts, self.processes, *([self.devices] if self.devices > 1 else [])]
        return " x ".join(map(str, parts))


@dataclasses.dataclass(frozen=True)
class Spec:
    """One job on the hosts, as `BenchJob` starts it."""

    implementation: str
    launched: int
    launches: Path
    """A file with the words to put before the command of each process, and its environment."""

    def command(self, path: Path) -> list[str]:
        return [sys.executable, __file__, "--launch", str(self.launches), str(path)]

    def environ(self, started: Mapping[str, str]) -> dict[str, str]:
        return dict(started)


def launch(file: str, path: str) -> int:
    """Starts the processes of a job, and ends all of them when one fails."""
    worker = [sys.executable, "-m", "lockstep.bench.worker", path]
    children = [
        subprocess.Popen([*enter, *worker], env=environ, stdin=subprocess.DEVNULL)
        for enter, environ in json.loads(Path(file).read_text())
    ]

    def end(*_: object) -> None:
        for child in children:
            child.kill()

    signal.signal(signal.SIGTERM, end)
    while (states := [child.poll() for child in children]).count(None):
        if any(states):
            end()
        time.sleep(0.05)
    return 1 if any(states) else 0


class Links:
    """The counters of the hosts' links, read from outside."""

    def __init__(self, hosts: Any, count: int) -> None:
        # Each of these ends with its stdin, and so with the benchmark.
        self._inside = [
            subprocess.Popen(
                [*hosts.enter(host), "sh", "-c", "echo up && exec cat"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )
            for host in range(count)
        ]  # fmt: skip
        for process in self._inside:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"

    def read(self) -> list[list[int]]:
        """Of each host, what `COUNTERS` names."""
        return [self._of_host(process.pid) for process in self._inside]

    def _of_host(self, pid: int) -> list[int]:
        for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == "eth0":
                values = numbers.split()
                return [int(values[column]) for column in COUNTERS.values()]
        raise SystemExit("no eth0: not one of the benchmark's hosts")

    def close(self) -> None:
        for process in self._inside:
            process.kill()
            process.communicate()


class CountedJob:
    """A job, with what crossed the links during its blocks."""

    def __init__(self, job: BenchJob, links: Links) -> None:
        self._job = job
        self._links = links
        self._start_case()

    def _start_case(self) -> None:
        self._collectives = 0
        self._crossed = [[0] * len(COUNTERS) for _ in self._links.read()]

    def request(self, order: str, timeout: float, **values: Any) -> list[dict[str, Any]]:
        if order == "prepare":
            self._start_case()
        before = self._links.read()
        answers = self._job.request(order, timeout, **values)
        if order == "block":
            samples = values["samples"]
            # See `Worker.block`: one collective before several samples, not counted.
            self._collectives += values["k"] * samples + (samples > 1) + values["calls"]
            for sums, old, new in zip(self._crossed, before, self._links.read(), strict=True):
                sums[:] = [s + n - o for s, o, n in zip(sums, old, new, strict=True)]
        return answers

    def crossed(self) -> dict[str, list[float]]:
        """For one collective of the last case, by `COUNTERS`: the number of each host."""
        return {
            name: [sums[i] / max(1, self._collectives) for sums in self._crossed]
            for i, name in enumerate(COUNTERS)
        }

    def close(self) -> None:
        self._job.close()


def limited_connections(gbit: float, folder: Path) -> dict[str, str]:
    """The variables that limit each connection of a process."""
    library = folder / "limited_connections.so"
    source = Path(__file__).with_name("limited_connections.c")
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {
        "LD_PRELOAD": str(library),
        "CONNECTION_BYTES_PER_SECOND": str(round(gbit * 1e9 / 8)),
    }


class Layouts:
    """The jobs of one layout on its hosts; `on_hosts` makes and ends them."""

    def __init__(
        self, layout: Layout, options: argparse.Namespace, hosts: Any, folder: Path
    ) -> None:
        self.layout = layout
        self._options = options
        self._hosts = hosts
        self._folder = folder
        self._mark = importlib.import_module("support").MARK
        self._limit = (
            limited_connections(options.connection_gbit, folder) if options.connection_gbit else {}
        )
        self.links = Links(hosts, layout.hosts)
        self.running: dict[str, CountedJob] = {}
        self.jobs = Jobs(self._start)

    def _start(self, name: str) -> CountedJob:
        layout = self.layout
        # As a launcher sets the devices: after `initialize`, JAX takes no number of them any more.
        given = {
            **JOBS[name],
            **({} if name == GLOO else dict(self._options.set)),
            "JAX_NUM_CPU_DEVICES": str(layout.devices),
            "MASTER_PORT": str(29500 + list(JOBS).index(name)),
            "PYTHONHASHSEED": "0",
            **self._limit,
            self._mark: self._hosts.mark,
        }
        launches = [
            (
                self._hosts.enter(host),
                self._hosts.environ(host, local, layout.processes) | given,
            )
            for host in range(layout.hosts)
            for local in range(layout.processes)
        ]
        file = self._folder / f"{name}.json"
        file.write_text(json.dumps(launches))
        spec = Spec(name, layout.hosts * layout.processes, file)
        job = CountedJob(BenchJob(spec, self._folder, os.environ), self.links)
        self.running[name] = job
        return job

    def close(self) -> None:
        self.jobs.close()
        self.links.close()


@contextlib.contextmanager
def on_hosts(layout: Layout, options: argparse.Namespace) -> Iterator[Layouts]:
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]
    some_hosts = importlib.import_module("hosts").some_hosts
    with (
        tempfile.TemporaryDirectory(prefix="between-hosts-") as folder,
        some_hosts(Path(folder), layout.hosts) as hosts,
    ):
        for host in range(layout.hosts):
            hosts.write_key(host)
            if options.gbit:
                hosts.shape(host, f"{options.gbit}gbit")
        made = Layouts(layout, options, hosts, Path(folder))
        try:
            yield made
        finally:
            made.close()


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
    shares = [result.get("share_of_line") for result in results.values()]
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
    print(line + ("  of the line: the same" if options.gbit else ""), flush=True)


def measure(layout: Layout, options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Adds the layout to the document, and writes that after each case."""
    heading(layout, options)
    entries: list[dict[str, Any]] = []
    found: dict[str, Any] = {**dataclasses.asdict(layout), "cases": entries}
    document["layouts"].append(found)
    with on_hosts(layout, options) as layouts:
        runner = Runner(
            layouts.jobs,
            options.jobs,
            options.rounds,
            options.timeout,
            machine.available_memory(),
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
            means[name] = {"mean": geometric_mean(ratios), "least": min(ratios)}
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
    if sys.argv[1:2] == ["--launch"]:
        return launch(*sys.argv[2:])
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
