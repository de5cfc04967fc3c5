"""Where a process stands in a job that a cluster's launcher started. Pure: a function of variables.

Launchers nest: mpirun runs inside a Slurm allocation, torchrun inside srun. The innermost one knows
this process, so it is asked first, and Slurm, which leaves its variables everywhere, last.
Slurm's variables outside a step (a batch script, a shell from salloc) describe the allocation, not
this process, and are passed over.

Sources: srun(1) and sbatch(1), "Output environment variables"; Open MPI's mpirun(1); the MPICH
wiki on PMI; Intel MPI's and HPE PALS' manuals; torchrun's manual.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from lockstep._errors import LaunchError

Environ = Mapping[str, str]

_FIRST_PORT = 61440
"""Above Linux's ephemeral ports, so that no connection has the derived port by accident."""
_PORTS = 4096
_LAST_PORT = 65535
_ADVICE = (
    "set LOCKSTEP_COORDINATOR=HOST:PORT, HOST being the machine of process 0, on all processes"
)


@dataclasses.dataclass(frozen=True)
class RankInfo:
    """A process's place in its job."""

    rank: int
    size: int
    local_rank: int | None
    """Index among the job's processes on this host; None when the launcher does not say."""
    local_size: int | None
    coordinator: str | None
    """``HOST:PORT`` of JAX's coordination service; None when the launcher gives nothing to derive
    it from. On one host `lockstep.bootstrap.rendezvous` then finds it."""
    found_by: str
    """The launcher, as errors call it."""

    def __post_init__(self) -> None:
        for rank, size, words in (
            (self.rank, self.size, "rank {} of {} processes"),
            (self.local_rank, self.local_size, "local rank {} of {} processes on this host"),
        ):
            if rank is not None and size is not None and not 0 <= rank < size:
                raise LaunchError(
                    f"The variables of {self.found_by} say {words.format(rank, size)}: they "
                    "contradict each other. Were some of them set by hand, or left over from "
                    "another launcher?"
                )

    @property
    def on_one_host(self) -> bool:
        """Whether all processes are known to be on this host."""
        return self.size in (1, self.local_size)


def detect(environ: Environ) -> RankInfo | None:
    """The place that ``environ`` describes, None if no launcher started this process.

    Raises `LaunchError` for variables that are incomplete or contradict each other.
    """
    place = next((place for find in _LAUNCHERS if (place := find(environ))), None)
    if place is not None and (address := environ.get("JAX_COORDINATOR_ADDRESS")):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) <= _LAST_PORT:
            raise LaunchError(f"JAX_COORDINATOR_ADDRESS={address!r} is not HOST:PORT.")
        place = dataclasses.replace(place, coordinator=address)
    return place


def explain_none(environ: Environ) -> str:
    """What to do where `detect` found nothing."""
    if {"RANK", "WORLD_SIZE"} <= environ.keys():
        return (
            "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: set MASTER_ADDR and MASTER_PORT "
            "to the address of process 0 and a free port there, on all processes."
        )
    return (
        "this process was not started by a launcher that Lockstep knows: none of Slurm (srun), "
        "Open MPI, MPICH, Intel MPI, Cray PALS or torchrun has set its variables. Inside a "
        "batch script or a shell from salloc, put srun before the command. On one machine, "
        "use `lockstep run -n N`. Or set LOCKSTEP_COORDINATOR, LOCKSTEP_NUM_PROCESSES and "
        "LOCKSTEP_PROCESS_ID."
    )


def _whole(environ: Environ, name: str, launcher: str) -> int:
    text = environ.get(name)
    if text is None:
        raise LaunchError(
            f"This process looks like one that {launcher} started, but {name} is not set. "
            "Was the environment changed between the launcher and this process?"
        )
    if not re.fullmatch(r"\d+", text):
        raise LaunchError(f"{name}={text!r} (from {launcher}) is not a whole number.")
    return int(text)


def _optional(environ: Environ, names: tuple[str, ...], launcher: str) -> int | None:
    name = next((name for name in names if name in environ), None)
    return None if name is None else _whole(environ, name, launcher)


def _port(environ: Environ, name: str, launcher: str, last: int = _LAST_PORT) -> int:
    port = _whole(environ, name, launcher)
    if not 0 < port <= last:
        raise LaunchError(f"{name}={port} (from {launcher}) is not a port: those are 1 to {last}.")
    return port


def _derived_port(environ: Environ, job: int, step: int = 0) -> int:
    if "JAX_COORDINATOR_PORT" in environ:
        return _port(environ, "JAX_COORDINATOR_PORT", "the user")
    return _FIRST_PORT + (job + 97 * step) % _PORTS


# Open MPI


def _open_mpi(environ: Environ) -> RankInfo | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    name = "Open MPI"
    size = _whole(environ, "OMPI_COMM_WORLD_SIZE", name)
    local_size = _optional(environ, ("OMPI_COMM_WORLD_LOCAL_SIZE",), name)
    return RankInfo(
        rank=_whole(environ, "OMPI_COMM_WORLD_RANK", name),
        size=size,
        local_rank=_optional(environ, ("OMPI_COMM_WORLD_LOCAL_RANK",), name),
        local_size=local_size,
        # mpirun's own address is the host of process 0 only where that is among several hosts.
        coordinator=None if local_size == size else _open_mpi_coordinator(environ),
        found_by=name,
    )


def _open_mpi_coordinator(environ: Environ) -> str | None:
    """Version 4 tells where mpirun runs, version 5 only inside a Slurm allocation."""
    if uri := environ.get("OMPI_MCA_orte_hnp_uri"):
        match = re.match(r"(\d+)\.\d+;.*?tcp://([\d.]+)", uri) or re.match(
            r"(\d+)\.\d+;.*?tcp6://\[([0-9a-fA-F:]+)", uri
        )
        if match is None:
            raise LaunchError(
                f"No address can be found in OMPI_MCA_orte_hnp_uri={uri!r}; {_ADVICE}."
            )
        # Job ids of Open MPI 4 are multiples of 2**16.
        return f"{bracketed(match[2])}:{_derived_port(environ, int(match[1]) >> 16)}"
    # prterun-NODE-PID@JOB: the node that mpirun runs on, and its process id.
    if match := re.match(r"prterun-(.+)-(\d+)@\d+$", environ.get("PMIX_NAMESPACE", "")):
        return f"{match[1]}:{_derived_port(environ, int(match[2]))}"
    return None


# torchrun, and everything else that sets RANK and WORLD_SIZE


def _torchrun(environ: Environ) -> RankInfo | None:
    if not {"RANK", "WORLD_SIZE"} & environ.keys() or not (
        {"MASTER_ADDR", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} & environ.keys()
    ):
        return None
    name = "torchrun"
    size = _whole(environ, "WORLD_SIZE", name)
    local_size = _optional(environ, ("LOCAL_WORLD_SIZE",), name)
    host = environ.get("MASTER_ADDR")
    # torchrun's agent listens on MASTER_PORT itself, for its own store: ours is the next. On one
    # host there is no need to hope that it is free.
    taken = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    coordinator = None
    if host and not (taken and local_size == size):
        port = _port(environ, "MASTER_PORT", name, _LAST_PORT - taken)
        coordinator = f"{bracketed(host)}:{port + taken}"
    return RankInfo(
        rank=_whole(environ, "RANK", name),
        size=size,
        local_rank=_optional(environ, ("LOCAL_RANK",), name),
        local_size=local_size,
        coordinator=coordinator,
        found_by=name,
    )


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


# PMI: MPICH, Intel MPI, Cray


def _pmi(environ: Environ) -> RankInfo | None:
    names = ("PMI_RANK", "PALS_RANKID")
    found = next((name for name in names if name in environ), None)
    if found is None or _started_by_srun(environ):
        return None
    launcher = "Cray PALS" if "PALS_RANKID" in environ else "MPICH (PMI)"
    size = _optional(environ, ("PMI_SIZE", "PALS_SIZE"), launcher)
    if size is None:
        raise LaunchError(f"{found} is set but PMI_SIZE is not: {launcher} sets both.")
    return RankInfo(
        rank=_whole(environ, found, launcher),
        size=size,
        local_rank=_optional(
            environ, ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"), launcher
        ),
        local_size=_optional(
            environ, ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"), launcher
        ),
        coordinator=None,
        found_by=launcher,
    )


def _started_by_srun(environ: Environ) -> bool:
    """srun --mpi=pmi2 sets PMI variables too, and its own say more. Under MPICH's mpiexec inside an
    allocation the two differ: Slurm's are those of mpiexec's helper on this node."""
    return (
        _in_step(environ)
        and environ.get("PMI_RANK") == environ.get("SLURM_PROCID")
        and environ.get("PMI_SIZE") == environ.get("SLURM_STEP_NUM_TASKS")
        and "HYDI_CONTROL_FD" not in environ
    )


# Slurm


def _in_step(environ: Environ) -> bool:
    return "SLURM_PROCID" in environ and (
        "SLURM_STEP_NUM_TASKS" in environ or "SLURM_STEP_NODELIST" in environ
    )


def _slurm(environ: Environ) -> RankInfo | None:
    if not _in_step(environ):
        return None
    name = "Slurm"
    size = _optional(environ, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), name)
    if size is None:
        raise LaunchError("SLURM_PROCID is set but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS.")
    nodes = next((n for n in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(n)), None)
    if nodes is None:
        raise LaunchError(f"Slurm set no SLURM_STEP_NODELIST; {_ADVICE}.")
    hosts = expand_hosts(environ[nodes])
    job = _whole(environ, "SLURM_JOB_ID", name)
    step = _optional(environ, ("SLURM_STEP_ID", "SLURM_STEPID"), name) or 0
    return RankInfo(
        rank=_whole(environ, "SLURM_PROCID", name),
        size=size,
        local_rank=_optional(environ, ("SLURM_LOCALID",), name),
        local_size=size if len(hosts) == 1 else _slurm_local_size(environ),
        coordinator=f"{hosts[0]}:{_derived_port(environ, job, step)}",
        found_by=name,
    )


def _slurm_local_size(environ: Environ) -> int | None:
    layout = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE")
    node = _optional(environ, ("SLURM_NODEID",), "Slurm")
    if layout is None or node is None:
        return None
    counts = expand_counts(layout)
    return counts[node] if node < len(counts) else None


def expand_counts(text: str) -> list[int]:
    """``"4(x2),3"`` -> ``[4, 4, 3]``: Slurm's tasks per node."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise LaunchError(f"{text!r} is not a list of tasks per node as Slurm writes it.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def expand_hosts(text: str) -> list[str]:
    """``"n[001-003,7],x1"`` -> ``["n001", "n002", "n003", "n7", "x1"]``: Slurm's host lists.

    A name may hold several brackets. Raises `LaunchError` for what is no such list.
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if not parts or ",".join(parts) != text:
        raise LaunchError(f"{text!r} is not a list of hosts as Slurm writes it.")
    return [host for part in parts for host in _expand_name(part, text)]


def _expand_name(name: str, text: str) -> list[str]:
    head, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    inside, _, tail = rest.partition("]")
    tails = _expand_name(tail, text)
    return [head + number + end for number in _numbers(inside, text) for end in tails]


def _numbers(ranges: str, text: str) -> list[str]:
    numbers = []
    for item in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", item)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise LaunchError(f"{item!r} in {text!r} is not a range of host numbers.")
        width = len(match[1])
        numbers += [f"{n:0{width}}" for n in range(int(match[1]), int(match[2] or match[1]) + 1)]
    return numbers


_LAUNCHERS: tuple[Callable[[Environ], RankInfo | None], ...] = (_open_mpi, _torchrun, _pmi, _slurm)
