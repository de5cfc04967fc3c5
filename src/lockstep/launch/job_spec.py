"""What is to be started, and with which environment."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep._config import Config

BOOTSTRAP = "lockstep.launch.child_main"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""What OpenBLAS reads; the first that is set counts."""
_HUGE_PAGES = "glibc.malloc.hugetlb"
_HASH_SEED = "PYTHONHASHSEED"
_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """One run of a program on ``processes`` processes of this machine."""

    program: tuple[str, ...]
    """``script.py args...`` or ``-m module args...``."""
    processes: int
    config: Config
    """What all processes share; see `config_of`."""
    environ: Mapping[str, str]
    run_dir: Path
    devices: int | None = None
    platform: str | None = None
    cores: Sequence[frozenset[int]] | None = None
    """The cores of each process; None leaves them alone."""
    log_dir: Path | None = None
    prefixed: bool = True
    grace: float = 5.0
    """Seconds that processes have to end by themselves when the job is stopped or has failed."""
    max_restarts: int = 0
    """How often the job starts again after a failure."""

    def config_of(self, process_id: int) -> Config:
        return dataclasses.replace(
            self.config,
            num_processes=self.processes,
            process_id=process_id,
            local_process_id=process_id,
            local_num_processes=self.processes,
            run_dir=str(self.run_dir),
            agent=None,
        )

    def environ_of(self, process_id: int) -> dict[str, str]:
        """The whole environment of one process."""
        environ = worker_environ(self.environ, self.config_of(process_id))
        cores = self.cores[process_id] if self.cores else frozenset(os.sched_getaffinity(0))
        add_jax_variables(environ, self.devices, self.platform)
        beside = sum(bool(c & cores) for c in self.cores) if self.cores else self.processes
        if self.processes * (self.devices or 1) > 1:
            add_blas_threads(environ, max(1, len(cores) // (beside * (self.devices or 1))))
        return environ


def worker_environ(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """``environ`` for a process that follows ``config``, and no older variable of ours or JAX's.

    Large results of collectives are fresh memory: huge pages make touching it several times
    faster, and only glibc can be told, before the process starts.

    All processes get one seed for the hashes of strings, so that they iterate over a set of strings
    in one order; else collectives that are made in a loop over a set add up different things. The
    seed is constant because the processes of several hosts cannot agree on one before they start.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("LOCKSTEP_")}
    kept.pop(_IMPLEMENTATION, None)
    tunables = kept.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES not in tunables:
        kept["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, f"{_HUGE_PAGES}=1"]))
    if not kept.get(_HASH_SEED):
        kept[_HASH_SEED] = "0"
    return kept | config.to_environ() | {"LOCKSTEP_ATTEMPT": str(config.attempt)}


def add_jax_variables(environ: dict[str, str], devices: int | None, platform: str | None) -> None:
    """Says to JAX what ``-d`` and ``--platform`` say."""
    if devices is not None:
        environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    if platform is not None:
        environ["JAX_PLATFORMS"] = platform


def add_blas_threads(environ: dict[str, str], threads: int) -> None:
    """Says to the BLAS of NumPy, SciPy and so jaxlib how many threads one device's calls may use.

    By itself it takes all cores in each process, and its threads spin while they wait: then a
    factorization on two processes and two cores took two and a half times as long.
    """
    if not any(name in environ for name in _BLAS_THREADS):
        environ[_BLAS_THREADS[0]] = str(threads)


def command(program: Sequence[str]) -> list[str]:
    """The command line of a process that runs ``program``.

    -P keeps the current directory out of the bootstrap's imports: a file there called json.py is
    for the program, not for us. The bootstrap sets the program's own ``sys.path[0]``.
    """
    return [sys.executable, "-P", "-m", BOOTSTRAP, "--", *program]


def overridden_collectives(environ: Mapping[str, str], collectives: str) -> str | None:
    """What JAX's own variable chooses for the collectives, None if it agrees with ``collectives``.

    "mpi" is also what JAX calls the engine.
    """
    asked = environ.get(_IMPLEMENTATION)
    return asked if asked not in (None, "", "mpi", collectives) else None


def overridden_devices(environ: Mapping[str, str], devices: int | None) -> int | None:
    """The number of devices that XLA_FLAGS asks for and ``-d`` overrides, None if they agree.

    jaxlib takes JAX_NUM_CPU_DEVICES, which ``-d`` sets, and does not say so.
    """
    found = _FORCED_DEVICES.findall(environ.get("XLA_FLAGS", ""))
    if devices is None or not found or int(found[-1]) == devices:
        return None
    return int(found[-1])
