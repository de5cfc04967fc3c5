"""Jobs of ``benchmarks/between_hosts.py`` on network namespaces, and the counters of their links.

    python benchmarks/jobs_on_hosts.py LAUNCHES WORKER

`Spec` runs this command: it starts the processes of one job.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.bench.job import BenchJob
from lockstep.bench.runner import Jobs

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
        return [sys.executable, __file__, str(self.launches), str(path)]

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


_LISTEN = """
import sys
from lockstep.hosts import network_probe
listener = network_probe.Listener(network_probe.listen(sys.argv[1]), "line", b"line")
print(listener.port, flush=True)
sys.stdin.read()
"""
_PROBE = """
import sys
from lockstep.hosts import network_probe
peer = {"name": "line", "address": sys.argv[1], "port": int(sys.argv[2])}
found = network_probe.probe([peer], b"line", measure=True)["line"]
print(found.get("bandwidth") or found["reason"])
"""


def stream_rate(hosts: Any) -> float:
    """Bytes per second that a TCP connection alone carries from the first host to the second."""
    where = hosts.address(1)
    listener = subprocess.Popen(
        [*hosts.enter(1), sys.executable, "-c", _LISTEN, where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert listener.stdout is not None
        return float(hosts.run(0, _PROBE, where, listener.stdout.readline().strip()))
    finally:
        listener.kill()
        listener.communicate()


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
        self.stream_rate = stream_rate(hosts)
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


if __name__ == "__main__":
    sys.exit(launch(*sys.argv[1:]))
