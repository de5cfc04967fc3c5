"""Where the processes of a soak run, and how its programs are run: drawn from a seed."""

from __future__ import annotations

import dataclasses
import random

HOSTS = "bcdefgh"
"""Hosts of processes; the launcher runs on host a."""
_LOCAL = ((1, 4), (2, 1), (2, 2), (2, 4), (3, 2), (4, 1), (4, 2), (5, 1), (8, 1))
_ON_HOSTS = (((1, 1), 1), ((1, 1), 2), ((2, 1), 2), ((2, 2), 1), ((1, 1, 1), 1), ((1, 1, 1, 1), 1))
_WIDE = ((1,) * 7, 1)


@dataclasses.dataclass(frozen=True)
class Layout:
    """``processes`` of each host, of ``devices`` each; one host: this machine."""

    processes: tuple[int, ...]
    devices: int
    transport: str
    """``shared memory``, ``TLS``, ``plain`` or ``UCX``."""

    @property
    def is_local(self) -> bool:
        return self.transport == "shared memory"

    @property
    def options(self) -> list[str]:
        """Those of ``lockstep run``."""
        where = ["-n", str(self.processes[0])]
        if not self.is_local:
            named = zip(HOSTS, self.processes, strict=False)
            where = ["--hosts", ",".join(f"{host}:{count}" for host, count in named)]
        how = {"plain": ["--no-encryption"], "UCX": ["--no-encryption", "--transport", "ucx"]}
        return [*where, "-d", str(self.devices), *how.get(self.transport, [])]

    def __str__(self) -> str:
        count = "+".join(map(str, self.processes))
        return f"{count} processes x {self.devices} devices over {self.transport}"


@dataclasses.dataclass(frozen=True)
class Batch:
    """The programs of one job: arguments of ``random_programs/worker.py``."""

    first: int
    count: int
    in_flight: int
    times: int
    repeat: int
    threads: int
    keep: tuple[int, ...] | None = None

    @property
    def words(self) -> list[str]:
        found = []
        for name, value in dataclasses.asdict(self).items():
            if value is not None:
                text = ",".join(map(str, value)) if name == "keep" else str(value)
                found += [f"--{name.replace('_', '-')}", text]
        return found

    def one(self, seed: int) -> Batch:
        """The program of that seed alone."""
        return dataclasses.replace(self, first=seed, count=1, threads=1)


def draw(rng: random.Random, transports: tuple[str, ...]) -> Layout:
    transport = rng.choice(transports)
    if transport == "shared memory":
        processes, devices = rng.choice(_LOCAL)
        return Layout((processes,), devices, transport)
    processes, devices = _WIDE if rng.random() < 0.05 else rng.choice(_ON_HOSTS)
    return Layout(processes, devices, transport)


def draw_batch(rng: random.Random) -> Batch:
    threads = rng.choice((1, 1, 2))
    return Batch(
        first=rng.randrange(1 << 30),
        count=24,
        in_flight=rng.choice((1, 2, 4)),
        times=rng.choice((2, 4)),
        repeat=rng.choice((1, 32, 128, 256)),
        threads=threads,
    )
