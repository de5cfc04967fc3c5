"""Random programs of collectives on random layouts, each result compared with NumPy: ``make soak``.

    python tests/soak/run.py --minutes 60 --seed 1

Hosts are namespaces with an sshd each, where this system allows them. What fails is run again,
with one program and then with fewer of its steps, and the last command is printed. The totals go to
``build/soak/``, a JSON document for each run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))  # the imports below are found from here on

import ssh_hosts  # noqa: E402
import ucx  # noqa: E402
from soak import layouts  # noqa: E402
from soak.layouts import HOSTS, Batch, Layout  # noqa: E402

WORKER = TESTS / "engine" / "random_programs" / "worker.py"
RESULTS = TESTS.parent / "build" / "soak"
SECONDS = 600
"""A bound for hangs: a batch takes some 20 s on two cores."""
_DONE = re.compile(r"process \d+: (\d+) executions, (\d+) collectives, 0 wrong$", re.MULTILINE)
_SEED = re.compile(r"^(?:\[\d+\] )?program (\d+): ", re.MULTILINE)
ENVIRON = {
    "PYTHONPATH": str(TESTS),
    # XLA runs all that is in flight on one pool of max(cores, local devices) threads, and programs
    # that wait in collectives can take each other's threads away.
    "NPROC": "32",
}


@dataclasses.dataclass
class Totals:
    """What was run and compared so far."""

    batches: int = 0
    executions: int = 0
    collectives: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Result:
    """How one job ended."""

    status: int
    text: str

    @property
    def failed(self) -> bool:
        return self.status != 0 or not _DONE.search(self.text)


class Soak:
    """Runs batches until the time is over."""

    def __init__(self, seed: int, hosts: ssh_hosts.SshHosts | None) -> None:
        self.seed, self.hosts, self.totals = seed, hosts, Totals()
        self.by_transport: dict[str, int] = {}
        with_ucx = ("UCX",) if ucx.is_here() else ()
        self.transports = ("shared memory",) * 3
        if hosts:
            self.transports += ("TLS", "TLS", "plain", *with_ucx)

    def run(self, minutes: float, most_failures: int) -> None:
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end and self.totals.failed < most_failures:
            rng = random.Random(f"{self.seed}/{self.totals.batches}")
            layout, batch = layouts.draw(rng, self.transports), layouts.draw_batch(rng)
            self.one(layout, batch)

    def one(self, layout: Layout, batch: Batch) -> None:
        started = time.monotonic()
        result = self.job(layout, batch)
        self.totals.seconds += time.monotonic() - started
        self.totals.batches += 1
        done = _DONE.findall(result.text)
        collectives = sum(int(count) for _, count in done)
        self.totals.executions += sum(int(count) for count, _ in done)
        self.totals.collectives += collectives
        here = self.by_transport.get(layout.transport, 0)
        self.by_transport[layout.transport] = here + collectives
        totals = self.totals
        print(
            f"{totals.seconds / 60:6.1f} min  {totals.collectives:8} collectives  "
            f"{totals.failed} failed   {layout}, {batch.threads} threads, x {batch.repeat}",
            flush=True,
        )
        if result.failed:
            self.totals.failed += 1
            print(f"FAILED with status {result.status}:\n{result.text[-6000:]}", flush=True)
            print(f"\nthe smallest that fails:\n  {self.shrunk(layout, batch, result)}", flush=True)

    def job(self, layout: Layout, batch: Batch) -> Result:
        """One batch on a job, to its end."""
        options = [*layout.options, "--collective-timeout", "120", "--grace", "5"]
        if not layout.is_local:
            assert self.hosts is not None
            options += ["--ssh", self.hosts.ssh(), "--export", "NPROC"]
        words = [sys.executable, "-P", "-m", "lockstep", "run", *options, str(WORKER), *batch.words]
        enter = [] if layout.is_local or self.hosts is None else self.hosts.enter("a")
        environ = {**os.environ, **ENVIRON}
        if layout.transport == "UCX":
            environ |= {"UCX_TLS": "tcp"}
        try:
            done = subprocess.run(
                [*enter, *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            text = (late.output or b"").decode(errors="replace")
            return Result(124, f"{text}\nit did not end within {SECONDS} s")
        return Result(done.returncode, done.stdout)

    def shrunk(self, layout: Layout, batch: Batch, result: Result) -> str:
        """The command of the smallest program found that fails, too."""
        seeds = list(dict.fromkeys(map(int, _SEED.findall(result.text))))
        for seed in seeds[:3] or range(batch.first, batch.first + batch.count):
            alone = batch.one(seed)
            if self.job(layout, alone).failed:
                return command(layout, self._with_fewer_steps(layout, alone))
        return f"{command(layout, batch)}\n  (none of its programs fails alone)"

    def _with_fewer_steps(self, layout: Layout, batch: Batch) -> Batch:
        keep = list(range(_steps(batch.first, sum(layout.processes) * layout.devices)))
        for step in reversed(range(len(keep))):
            fewer = [each for each in keep if each != step]
            tried = dataclasses.replace(batch, keep=tuple(fewer))
            # A step may need the shape that another one makes: then the program is no program.
            result = self.job(layout, tried)
            if fewer and result.failed and _SEED.search(result.text):
                keep = fewer
        return dataclasses.replace(batch, keep=tuple(keep))

    def document(self) -> dict[str, object]:
        return {"seed": self.seed, **dataclasses.asdict(self.totals), "over": self.by_transport}


def _steps(seed: int, devices: int) -> int:
    from engine.random_programs import auto, program

    return len((auto if seed % 4 == 3 else program).generate(seed, devices).steps)


def command(layout: Layout, batch: Batch) -> str:
    where = str(WORKER.relative_to(TESTS.parent))
    return shlex.join(["lockstep", "run", *layout.options, where, *batch.words])


@contextlib.contextmanager
def _hosts(wanted: bool) -> Iterator[ssh_hosts.SshHosts | None]:
    if not wanted or not ssh_hosts.possible():
        yield None
        return
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))
        yield stack.enter_context(ssh_hosts.ssh_hosts(Path(folder), ["a", *HOSTS]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help="this machine only, no hosts")
    parser.add_argument("--most-failures", type=int, default=5, help="stop after so many")
    options = parser.parse_args()
    with _hosts(not options.here) as hosts:
        soak = Soak(options.seed, hosts)
        try:
            soak.run(options.minutes, options.most_failures)
        finally:
            RESULTS.mkdir(parents=True, exist_ok=True)
            file = RESULTS / f"seed-{options.seed}.json"
            file.write_text(json.dumps(soak.document(), indent=1) + "\n")
            print(json.dumps(soak.document()))
    return 1 if soak.totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
