"""One run of ``lockstep bench``: jobs up, every case, jobs down, the report out."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from lockstep._config import Config
from lockstep._words import counted
from lockstep.bench import gpus as bench_gpus
from lockstep.bench import hosts as bench_hosts
from lockstep.bench import plot, summary, table
from lockstep.bench.cases import plan
from lockstep.bench.job import BenchJob, JobSpec
from lockstep.bench.progress import Reporter
from lockstep.bench.runner import CaseResult, Jobs, Runner
from lockstep.doctor import hosts as doctor_hosts
from lockstep.hosts import host_list
from lockstep.system import machine, oom

WIDTH_WITHOUT_TERMINAL = 140
_STDOUT = "standard output"


@dataclasses.dataclass(frozen=True)
class Links:
    """The links between the hosts of a run."""

    pairs: list[dict[str, Any]]
    """The pairs of hosts as `lockstep doctor --hosts --json` has them."""
    line: dict[str, Any] | None
    """The rate of a host's link, and where it is from."""

    @classmethod
    def of(cls, args: argparse.Namespace, hosts: bench_hosts.Hosts) -> Links | None:
        """Measures them; None, with the reasons shown, where a host cannot be used.

        Raises `LockstepError`.
        """
        measured = bench_hosts.measure_links(args, Console(stderr=True, highlight=False))
        if measured is None:
            return None
        pairs = doctor_hosts.pairs_document(measured)
        return cls(pairs, bench_hosts.line(args.gbit, pairs))


class Part:
    """The measurements on one number of hosts, or on this machine."""

    def __init__(
        self,
        args: argparse.Namespace,
        implementations: Sequence[str],
        hosts: bench_hosts.Hosts | None,
    ) -> None:
        """Raises `ConfigError`."""
        self.results: list[CaseResult] = []
        self._args = args
        self._implementations = implementations
        self._hosts = hosts
        self._processes: int = hosts.processes if hosts else args.processes
        self._started = datetime.datetime.now(datetime.UTC)
        self._clock = time.monotonic()
        self._hello: dict[str, dict[str, Any]] = {}
        # A bad variable is an error before minutes of measuring, not after.
        self._algorithms = Config.from_environ(os.environ).algorithms if hosts else ""

    def measure(self) -> None:
        """Appends a result for every case to `results`; stops all jobs however it ends."""
        args, hosts = self._args, self._hosts
        cases = plan(args.ops, args.sizes, self._processes * args.devices, args.dtype)
        on_gpus = args.platform is not None
        # This machine's memory stands for that of each host.
        own = bench_gpus.free_memory() if on_gpus else (oom.free_memory() or 0)
        available = own * (hosts.count if hosts else 1)
        with Reporter(len(cases), sys.stderr) as reporter:
            jobs = Jobs(functools.partial(self._start, reporter))
            runner = Runner(
                jobs,
                self._implementations,
                args.repeats,
                args.timeout,
                available,
                copies=hosts is None and not on_gpus,
                on_gpus=on_gpus,
            )
            try:
                for case in cases:
                    reporter.begin(case)
                    self.results.append(runner.run(case))
                    reporter.end(self.results[-1])
            finally:
                jobs.close()

    def _start(self, reporter: Reporter, implementation: str) -> BenchJob:
        args, hosts = self._args, self._hosts
        where = f" on {counted(hosts.count, 'host')}" if hosts else ""
        reporter.note(f"starting {implementation}{where}")
        spec = JobSpec(
            implementation,
            self._processes,
            args.devices,
            (
                *(("--bind", args.bind) if args.bind else ()),
                *(("--oversubscribe",) if args.oversubscribe else ()),
                *(hosts.words if hosts else ()),
            ),
            x64=args.dtype == "f64",
            environ=bench_gpus.ENVIRON if args.platform else (),
            platform=args.platform,
            hosts=host_list.labels_of_processes(hosts.placed) if hosts else (),
        )
        job = BenchJob(spec)
        self._hello[implementation] = next(h for h in job.hello if h["process"] == 0)
        return job

    def document(self, links: Links | None) -> dict[str, Any]:
        """The report."""
        args, hosts = self._args, self._hosts
        said = next(iter(self._hello.values()), {})
        facts: dict[str, Any] = {
            "command": shlex.join(["lockstep", *sys.argv[1:]]),
            "time": self._started.isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self._clock, 1),
            "versions": said.get("versions", {}),
            "machine": said.get("machine") or machine.describe(),
            "job": {
                "processes": self._processes,
                "devices": args.devices,
                "ranks": self._processes * args.devices,
                "dtype": args.dtype,
                "repeats": args.repeats,
                "bind": args.bind,
                "platform": said.get("platform"),
                "cores_of_process": said.get("cores"),
                "glibc_tunables": said.get("glibc_tunables"),
            },
        }
        if hosts and links:
            facts["hosts"] = {
                "processes": dict(
                    zip(hosts.labels(), (each.count for each in hosts.placed), strict=True)
                ),
                "even": hosts.even,
                "prescribed_algorithms": self._algorithms,
                "line": links.line,
                "pairs": links.pairs,
            }
        return summary.document(self.results, self._implementations, facts)


def publish(args: argparse.Namespace, parts: Sequence[Part], links: Links | None) -> bool:
    """Shows and writes the report; True if the first implementation measured everything.

    If one output cannot be written, prints a line and writes the others, since measuring again
    would take minutes.
    """
    *fewer, report = [part.document(links) for part in parts]
    if fewer:
        report["fewer_hosts"] = fewer
    text = json.dumps(report, indent=1) + "\n"
    outputs: list[tuple[str, Callable[[], object]]] = []
    if args.json not in (None, "-"):
        write = functools.partial(Path(args.json).write_text, text, encoding="utf-8")
        outputs.append((args.json, write))
    if args.plot and report["cases"]:
        outputs.append((args.plot, functools.partial(plot.save, report, args.plot)))
    # This comes last, because rich ends the process when the reader of stdout has gone.
    show = functools.partial(_print, text) if args.json == "-" else functools.partial(_show, report)
    outputs.append((_STDOUT, show))
    written = [_written(name, write) for name, write in outputs]
    complete = all(bool(part.results) for part in parts)
    return all(written) and complete and all(map(summary.succeeded, [*fewer, report]))


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _show(report: dict[str, Any]) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_WITHOUT_TERMINAL)
    for each in [*report.get("fewer_hosts", ()), report]:
        table.show(each, console)
    sys.stdout.flush()


def _written(name: str, write: Callable[[], object]) -> bool:
    try:
        write()
    except OSError as error:
        print(f"lockstep bench: cannot write {name}: {error.strerror or error}", file=sys.stderr)
        if name == _STDOUT:
            # Python would try to write the rest of the buffer again at exit, and print an error.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        return False
    return True
