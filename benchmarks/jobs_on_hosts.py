"""Jobs of ``benchmarks/between_hosts.py`` on network namespaces, and their links' counters."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.bench.job import BenchJob, JobSpec
from lockstep.bench.runner import Jobs
from stock_job import limited_connections

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
    GLOO: {},
}
COUNTERS = {"received": 0, "packets_received": 1, "sent": 8, "packets_sent": 9}
"""Columns of /proc/net/dev."""
CONTROL_GROUPS = Path("/sys/fs/cgroup")


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


_ENTER = """#!/bin/sh
# Called as ssh is: [OPTIONS] -- NAME COMMAND.
while [ "$1" != -- ]; do shift; done
case "$2" in
{cases}
esac
"""


def fake_ssh(folder: Path, hosts: Any, count: int) -> tuple[str, list[str]]:
    """A command that runs others on the hosts as ssh does, and the names of the hosts."""
    names = [f"host{host}" for host in range(count)]
    cases = [
        f"{name}) LOCKSTEP_HOST_ID={name}-{hosts.mark} exec {shlex.join(hosts.enter(host))} "
        'sh -c "$3";;'
        for host, name in enumerate(names)
    ]
    file = folder / "ssh"
    file.write_text(_ENTER.format(cases="\n".join(cases)))
    file.chmod(0o755)
    return str(file), names


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
from lockstep.hosts.checks import network_probe
listener = network_probe.Listener(network_probe.listen(sys.argv[1]), "line", b"line")
print(listener.port, flush=True)
sys.stdin.read()
"""
_PROBE = """
import sys
from lockstep.hosts.checks import network_probe
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
        return float(hosts.python(0, _PROBE, where, listener.stdout.readline().strip()))
    finally:
        listener.kill()
        listener.communicate()


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
        rate = round((options.connection_gbit or 0) * 1e9 / 8)
        self._limit = limited_connections(rate, folder) if rate else {}
        self.links = Links(hosts, layout.hosts)
        self.stream_rate = stream_rate(hosts)
        self.running: dict[str, CountedJob] = {}
        self.jobs = Jobs(self._start)

    def _start(self, name: str) -> CountedJob:
        layout = self.layout
        given = {
            **JOBS[name],
            **({} if name == GLOO else dict(self._options.set)),
            "PYTHONHASHSEED": "0",
            **self._limit,
            self._mark: self._hosts.mark,
        }
        ssh, names = fake_ssh(self._folder, self._hosts, layout.hosts)
        slots = ",".join(f"{each}:{layout.processes}" for each in names)
        job = JobSpec(
            GLOO if name == GLOO else "lockstep",
            layout.hosts * layout.processes,
            layout.devices,
            ("--hosts", slots, "--ssh", ssh, "--interface", "10.9.0.0/24", "--bind", "none"),
            hosts=tuple(each for each in names for _ in range(layout.processes)),
            environ=tuple(given.items()),
        )
        self.running[name] = CountedJob(BenchJob(job), self.links)
        return self.running[name]

    def close(self) -> None:
        self.jobs.close()
        self.links.close()


def _cpu_groups() -> tuple[Path, Path]:
    """The root of the control groups that share out cores, and the group of this process."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    paths = {name: path for _, names, path in lines for name in names.split(",")}
    name = "cpu" if "cpu" in paths else ""
    root = CONTROL_GROUPS / name
    return root, root / paths[name].lstrip("/")


@contextlib.contextmanager
def in_one_group() -> Iterator[None]:
    """Processes that start meanwhile are in one control group, as if they had one session.

    The hosts share the cores of this machine, and each process of a job has a session. Linux yields
    a core only within a control group and, outside of all, within a session (autogroup). So a rank
    that waits for one of another host would keep the core from it.
    """
    made = None
    try:
        root, before = _cpu_groups()
        made = root / f"lockstep-benchmark-{os.getpid()}"
        made.mkdir()
        if not (made / "cpu.weight").exists() and not (made / "cpu.shares").exists():
            raise OSError("the control group does not share out cores")
        (made / "cgroup.procs").write_text(str(os.getpid()))
    except (OSError, KeyError) as error:
        print(
            f"no control group for the benchmark ({error}): with more processes than cores, a "
            "wait may take its core from the process that it waits for",
            file=sys.stderr,
        )
        if made is not None and made.exists():
            made.rmdir()
        yield
        return
    try:
        yield
    finally:
        (before / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # a process that has just been killed may be in it
            made.rmdir()


@contextlib.contextmanager
def on_hosts(layout: Layout, options: argparse.Namespace) -> Iterator[Layouts]:
    sys.path[:0] = [str(ROOT / "tests" / "faults"), str(ROOT / "tests")]
    some_hosts = importlib.import_module("hosts").some_hosts
    with (
        in_one_group(),
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
