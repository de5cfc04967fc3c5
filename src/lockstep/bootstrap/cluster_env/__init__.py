"""Where a process stands in a job that a cluster's launcher started, and which hosts the job has.

One launcher a file; each is a function of the variables, and of the few files that they name.

Launchers nest: mpirun runs inside a Slurm allocation, torchrun inside srun. The innermost one knows
this process, so it is asked first, and the batch systems, which leave their variables everywhere,
later. Those that number pods or nodes, which may have several processes, come last. Variables of a
batch script, or of a shell from salloc, describe the allocation and not this process: `detect`
passes over them, and `allocation` reads them.

The ``JAX_*`` variables name a process of JAX, and can be those of the container around a launcher
as well as those of a script inside it. So they have to agree with each launcher before them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import (
    jax_variables,
    kubernetes,
    lsf,
    open_mpi,
    pbs,
    pmi,
    skypilot,
    slurm,
    torchrun,
)
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read
from lockstep.bootstrap.cluster_env._place import bracketed as bracketed
from lockstep.bootstrap.cluster_env.jax_variables import renewed as renewed
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
    jax_variables.find,  # the processes of a pod or node, which may be several
    kubernetes.find,
    skypilot.find,
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
    jax_variables.RANK,
    kubernetes.RANK,
    skypilot.RANK,
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
    skypilot.TASK,
)
"""The variables that are equal in all processes of a job and differ between two jobs."""
_KNOWN_BY = {
    "Slurm": ("SLURM_PROCID", "SLURM_JOB_ID"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK",),
    "MPICH, Intel or Cray (PMI)": ("PMI_RANK", "PMI_FD", "PMIX_RANK", "PALS_RANKID"),
    "torchrun": ("TORCHELASTIC_RUN_ID",),
    "a launcher for JAX": (jax_variables.SIZE, jax_variables.RANK),
    "Kubernetes": (kubernetes.RANK,),
    "SkyPilot": (skypilot.RANK,),
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
    if place is None:
        return None
    jax_variables.check_agreement(environ, read, place)
    if address := jax_variables.coordinator(environ):
        place = dataclasses.replace(place, coordinator=address)
    return place


def explain_choice(environ: Environ, read: Read = _read) -> str:
    """Which launchers `detect` has passed over and why, and which variables do not count; "" where
    it had no choice."""
    places: list[RankInfo] = []
    for find in _LAUNCHERS:
        # An outer launcher does not count, so its variables may be as they like.
        with contextlib.suppress(LaunchError):
            if place := find(environ, read):
                places.append(place)
    others = [f"{each.found_by}: {each.rank} of {each.size}" for each in places[1:]]
    if kubernetes.RANK in environ and kubernetes.NAME not in {each.found_by for each in places}:
        others.append(f"{kubernetes.NAME}, without the number of pods")
    by = places[0].found_by
    choice = f", from {by}, the innermost launcher; the others: {', '.join(others)}"
    notes = jax_variables.note(environ, by) + skypilot.note(environ)
    return (choice if others else "") + notes


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


def missing(environ: Environ) -> str | None:
    """What a process lacks whose launcher has set some variables of a place and not all of them.

    Only for an environment in which `detect` finds nothing.
    """
    if {"RANK", "WORLD_SIZE"} <= environ.keys():
        return (
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: set MASTER_ADDR and MASTER_PORT "
            "to the address of process 0 and a free port there, on all processes."
        )
    lacks = (jax_variables.missing, kubernetes.missing, pbs.missing)
    return next((problem for of in lacks if (problem := of(environ))), None)


def explain_none(environ: Environ) -> str:
    """What to do where `detect` found nothing."""
    return missing(environ) or (
        "this process was not started by a launcher that Lockstep knows: none of Slurm (srun), "
        "Open MPI, MPICH, Intel MPI, Cray PALS, jsrun, blaunch, pbsdsh, a Kubernetes Indexed Job, "
        "Kubeflow, SkyPilot or torchrun has set its variables. Inside a batch script or a shell "
        "from salloc, put srun before the command. On one machine, use `lockstep run -n N`. Or set "
        "LOCKSTEP_COORDINATOR, LOCKSTEP_NUM_PROCESSES and LOCKSTEP_PROCESS_ID; with --nnodes "
        "LOCKSTEP_COORDINATOR alone is enough."
    )
