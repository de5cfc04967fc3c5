"""The program and processes of a job, and their environment variables."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep import _run_files
from lockstep._config import Config
from lockstep.bootstrap import cluster_env
from lockstep.nccl import gpus

CHILD_MAIN = "lockstep.processes.child_main"
_IMPLEMENTATION = "JAX_CPU_COLLECTIVES_IMPLEMENTATION"
_CACHE = "JAX_COMPILATION_CACHE_DIR"
_LEAST_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
_BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""The variables of OpenBLAS; the first one that is set counts."""
_HUGE_PAGES = "glibc.malloc.hugetlb"
_HASH_SEED = "PYTHONHASHSEED"
_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


@dataclasses.dataclass(frozen=True)
class HostChanges:
    """What has become of the hosts of a job at a restart."""

    lost: tuple[str, ...]
    """Hosts that the attempt has lost, and those that its checks have left out."""
    replaced: tuple[tuple[str, str], ...]
    """A lost host, and the host that has its seat now."""
    in_use: int
    seats: int


@dataclasses.dataclass(frozen=True)
class LaunchSpec:
    """One run of a program.

    ``processes``: those of the job on one machine, or, before they are spread over hosts, all.
    """

    program: tuple[str, ...]
    """``script.py args...``, ``-m module args...`` or ``-c code args...``."""
    processes: int
    config: Config
    """The settings that all processes share; see `config_of`."""
    environ: Mapping[str, str]
    run_dir: Path
    devices: int | None = None
    """CPU devices of each process, or its GPUs."""
    platform: str | None = None
    cores: Sequence[frozenset[int]] | None = None
    """The cores of each process; None: not bound."""
    log_dir: Path | None = None
    prefixed: bool = True
    agents_keep_records: bool = False
    """Whether the agents of the processes keep the records of a failed run, each host its own."""
    grace: float = 5.0
    """Seconds in which processes may end by themselves when the job is stopped or has failed."""
    max_restarts: int = 0
    """How often the job starts again after a failure."""
    preload: tuple[str, ...] = ()
    """Modules that each host imports once: see `preload`."""
    changes: HostChanges | None = None
    """What has become of the hosts since the attempt before; None: nothing is known of them."""
    grow: float | None = None
    """Seconds in which the program may end by itself when the job could start again on more hosts;
    None: it is not asked to."""
    first: int = 0
    """The number of the first process of this machine."""
    total: int | None = None
    """The number of processes of the whole job, where that has more than this machine's."""

    @functools.cached_property
    def gpus(self) -> int:
        """How many GPUs this machine shows, if the job uses GPUs."""
        return gpus.shown(self.platform, self.environ)

    @property
    def job_processes(self) -> int:
        """How many processes the whole job has."""
        return self.processes if self.total is None else self.total

    @property
    def attempt_dir(self) -> Path:
        """The folder of this attempt, below that of the run."""
        return _run_files.attempt_dir(self.run_dir, self.config.attempt)

    def process_dir(self, process_id: int) -> Path:
        """The folder of one process in this attempt."""
        return _run_files.process_dir(self.run_dir, self.config.attempt, process_id)

    def config_of(self, process_id: int) -> Config:
        return dataclasses.replace(
            self.config,
            num_processes=self.job_processes,
            process_id=process_id,
            local_process_id=process_id - self.first,
            local_num_processes=self.processes,
            run_dir=str(self.run_dir),
            agent=None,
        )

    def cores_of(self, process_id: int) -> frozenset[int] | None:
        """The cores of a process; None: not bound."""
        return self.cores[process_id - self.first] if self.cores else None

    def environ_of(self, process_id: int) -> dict[str, str]:
        """The whole environment of one process."""
        environ = worker_environ(self.environ, self.config_of(process_id))
        cores = self.cores_of(process_id) or frozenset(os.sched_getaffinity(0))
        add_jax_variables(environ, self.devices, self.platform)
        local = process_id - self.first
        environ |= gpus.variables(local, self.processes, self.devices, self.gpus, environ)
        beside = sum(bool(c & cores) for c in self.cores) if self.cores else self.processes
        if self.max_restarts:
            keep_programs(environ, self.run_dir)
        if self.processes * (self.devices or 1) > 1:
            add_blas_threads(environ, max(1, len(cores) // (beside * (self.devices or 1))))
        return environ


def worker_environ(environ: Mapping[str, str], config: Config) -> dict[str, str]:
    """``environ`` for a process with ``config``, without older variables of Lockstep and JAX.

    Large results of collectives are newly allocated memory. Huge pages make the first access to it
    several times faster; glibc uses them only if a variable is set before the process starts.

    All processes get the same seed for the hashes of strings, so that they iterate over a set of
    strings in the same order, and collectives in such a loop match. The seed is constant because
    processes of several hosts cannot agree on one before they start.

    A program that reads its place from the ``JAX_*`` variables finds that of this job there, also
    in a later attempt, which has another coordinator.
    """
    kept = {name: value for name, value in environ.items() if not name.startswith("LOCKSTEP_")}
    kept.pop(_IMPLEMENTATION, None)
    tunables = kept.get("GLIBC_TUNABLES", "")
    if _HUGE_PAGES not in tunables:
        kept["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, f"{_HUGE_PAGES}=1"]))
    if not kept.get(_HASH_SEED):
        kept[_HASH_SEED] = "0"
    kept |= cluster_env.renewed(kept, config.process_id, config.num_processes, config.coordinator)
    return kept | config.to_environ() | {"LOCKSTEP_ATTEMPT": str(config.attempt)}


def add_jax_variables(environ: dict[str, str], devices: int | None, platform: str | None) -> None:
    """Adds JAX's variables for ``-d`` and ``--platform``."""
    if devices is not None:
        environ["JAX_NUM_CPU_DEVICES"] = str(devices)
    if platform is not None:
        environ["JAX_PLATFORMS"] = platform


def keep_programs(environ: dict[str, str], run_dir: Path) -> None:
    """Has JAX keep what it compiles for the next attempt, unless the user keeps it elsewhere.

    Also what compiles in less than JAX's limit of a second: a start has many such programs.
    """
    if _CACHE not in environ:
        environ[_CACHE] = str(run_dir / _run_files.PROGRAMS)
        environ.setdefault(_LEAST_SECONDS, "0")


def add_blas_threads(environ: dict[str, str], threads: int) -> None:
    """Limits the threads of a BLAS call on one device (the BLAS of NumPy, SciPy and jaxlib).

    By default it uses all cores in each process, and its threads spin while they wait: a
    factorization on two processes and two cores then took two and a half times as long.
    """
    if not any(name in environ for name in _BLAS_THREADS):
        environ[_BLAS_THREADS[0]] = str(threads)


def command(program: Sequence[str]) -> list[str]:
    """The command line of a process that runs ``program``.

    -P keeps the current directory out of Lockstep's own imports: a json.py there is the program's.
    `child_main` sets ``sys.path[0]`` for the program.
    """
    return [sys.executable, "-P", "-m", CHILD_MAIN, "--", *program]


def overridden_collectives(environ: Mapping[str, str], collectives: str) -> str | None:
    """The collectives that JAX's own variable selects, None if it agrees with ``collectives``.

    "mpi" agrees: JAX uses this name for the engine too.
    """
    asked = environ.get(_IMPLEMENTATION)
    return asked if asked not in (None, "", "mpi", collectives) else None


def overridden_devices(environ: Mapping[str, str], devices: int | None) -> int | None:
    """The number of devices in XLA_FLAGS that ``-d`` overrides, None if they agree.

    jaxlib prefers JAX_NUM_CPU_DEVICES, which ``-d`` sets, and gives no warning.
    """
    found = _FORCED_DEVICES.findall(environ.get("XLA_FLAGS", ""))
    if devices is None or not found or int(found[-1]) == devices:
        return None
    return int(found[-1])
