"""Where a process stands in a job that a cluster's launcher started, and which hosts the job has.

One launcher a file; each is a function of the variables, and of the few files that they name.

Launchers nest: mpirun runs inside a Slurm allocation, torchrun inside srun. The innermost one knows
this process, so it is asked first, and the batch systems, which leave their variables everywhere,
last. Variables of a batch script, or of a shell from salloc, describe the allocation and not this
process: `detect` passes over them, and `allocation` reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import kubernetes, lsf, open_mpi, pbs, pmi, slurm, torchrun
from lockstep.bootstrap.cluster_env._place import LAST_PORT, Environ, RankInfo, Read
from lockstep.bootstrap.cluster_env._place import bracketed as bracketed
from lockstep.bootstrap.cluster_env.slurm import expand_counts as expand_counts
from lockstep.bootstrap.cluster_env.slurm import expand_hosts as expand_hosts

_LAUNCHERS: tuple[Callable[[Environ, Read], RankInfo | None], ...] = (
    lsf.find_jsrun,  # before Open MPI, whose variables it sets too
    open_mpi.find,
    torchrun.find,
    pmi.find,
    slurm.find,
    lsf.find,
    pbs.find,
    kubernetes.find,
)
_BATCH_SYSTEMS = (slurm, lsf, pbs)
RANK_VARIABLES = (
    "PMI_RANK",
    "OMPI_COMM_WORLD_RANK",
    "RANK",
    "PALS_RANKID",
    "SLURM_PROCID",
    "JSM_NAMESPACE_RANK",
    "LSF_PM_TASKID",
    "PBS_TASKNUM",
    "JOB_COMPLETION_INDEX",
)
"""The variables that differ between two processes of one launcher."""
_JOB_VARIABLES = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "PMIX_NAMESPACE",
    "PALS_APID",
    "LSB_JOBID",
    "PBS_JOBID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
)
"""The variables that are equal in all processes of a job and differ between two jobs."""
_KNOWN_BY = {
    "Slurm": ("SLURM_PROCID", "SLURM_JOB_ID"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK",),
    "MPICH, Intel or Cray (PMI)": ("PMI_RANK", "PMI_FD", "PMIX_RANK", "PALS_RANKID"),
    "torchrun": ("TORCHELASTIC_RUN_ID",),
}
"""The variables by which a launcher is known to be around, also without a rank."""


@dataclasses.dataclass(frozen=True)
class Allocation:
    """The hosts that a batch system has given to the script or shell around this process."""

    found_by: str
    """The batch system, as errors call it."""
    hosts: tuple[tuple[str, int], ...]
    """(name, slots) of each host, in the batch system's order."""


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return None


def detect(environ: Environ, read: Read = _read) -> RankInfo | None:
    """The place that ``environ`` describes, None if no launcher started this process.

    Raises `LaunchError` for variables that are incomplete or contradict each other.
    """
    place = next((place for find in _LAUNCHERS if (place := find(environ, read))), None)
    if place is not None and (address := environ.get("JAX_COORDINATOR_ADDRESS")):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= LAST_PORT:
            raise LaunchError(f"JAX_COORDINATOR_ADDRESS={address!r} is not HOST:PORT.")
        place = dataclasses.replace(place, coordinator=address)
    return place


def allocation(environ: Environ, read: Read = _read) -> Allocation | None:
    """The hosts that a batch system has given to this job; None outside of Slurm, LSF and PBS.

    It does not say which launcher started this process: `detect` does, inside a step of srun for
    example.
    Raises `LaunchError` for variables that contradict each other.
    """
    for system in _BATCH_SYSTEMS:
        if hosts := system.hosts(environ, read):
            return Allocation(system.NAME, tuple(hosts))
    return None


def in_batch_job(environ: Environ) -> bool:
    """Whether Slurm, LSF or PBS runs the job around this process."""
    return any(system.JOB in environ for system in _BATCH_SYSTEMS)


def names_of_job(environ: Environ) -> list[str]:
    """What tells the job of these variables from other jobs; equal in all its processes."""
    return [f"{name}={environ[name]}" for name in _JOB_VARIABLES if name in environ]


def launchers(environ: Environ) -> list[str]:
    """The launchers that are around this process, each with the variables that show it."""
    return [
        f"{name} ({', '.join(v for v in variables if v in environ)})"
        for name, variables in _KNOWN_BY.items()
        if any(variable in environ for variable in variables)
    ]


def explain_none(environ: Environ) -> str:
    """What to do where `detect` found nothing."""
    if {"RANK", "WORLD_SIZE"} <= environ.keys():
        return (
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: set MASTER_ADDR and MASTER_PORT "
            "to the address of process 0 and a free port there, on all processes."
        )
    if problem := kubernetes.missing(environ) or pbs.missing(environ):
        return problem
    return (
        "this process was not started by a launcher that Lockstep knows: none of Slurm (srun), "
        "Open MPI, MPICH, Intel MPI, Cray PALS, jsrun, blaunch, pbsdsh, a Kubernetes Indexed Job "
        "or torchrun has set its variables. Inside a batch script or a shell from salloc, put "
        "srun before the command. On one machine, use `lockstep run -n N`. Or set "
        "LOCKSTEP_COORDINATOR, LOCKSTEP_NUM_PROCESSES and LOCKSTEP_PROCESS_ID."
    )
