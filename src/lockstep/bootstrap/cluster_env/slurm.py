"""Slurm: srun's steps, and the notation of its lists.

Source: srun(1) and sbatch(1), "Output environment variables".
"""

from __future__ import annotations

import re

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "Slurm"
JOB = "SLURM_JOB_ID"
_RESERVED_STEPS = 0xFFFFFFF0
"""From here on: the batch script, the shell of salloc, and others. Source: slurm.h."""


def in_step(environ: Environ) -> bool:
    """Whether srun has started this process.

    Outside a step (a batch script, a shell from salloc) the variables describe the allocation. That
    holds for the step with a reserved number, too, in which salloc may run its shell.
    """
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "0"
    if step.isdecimal() and int(step) >= _RESERVED_STEPS:
        return False
    return "SLURM_PROCID" in environ and (
        "SLURM_STEP_NUM_TASKS" in environ or "SLURM_STEP_NODELIST" in environ
    )


def find(environ: Environ, read: Read) -> RankInfo | None:
    if not in_step(environ):
        return None
    size = _place.optional(environ, ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), NAME)
    if size is None:
        raise LaunchError("SLURM_PROCID is set but neither SLURM_STEP_NUM_TASKS nor SLURM_NTASKS.")
    nodes = next((n for n in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environ.get(n)), None)
    if nodes is None:
        raise LaunchError(f"Slurm set no SLURM_STEP_NODELIST; {_place.ADVICE}.")
    hosts = expand_hosts(environ[nodes])
    job = _place.whole(environ, JOB, NAME)
    step = _place.optional(environ, ("SLURM_STEP_ID", "SLURM_STEPID"), NAME) or 0
    return RankInfo(
        rank=_place.whole(environ, "SLURM_PROCID", NAME),
        size=size,
        local_rank=_place.optional(environ, ("SLURM_LOCALID",), NAME),
        local_size=size if len(hosts) == 1 else _local_size(environ),
        coordinator=f"{hosts[0]}:{_place.derived_port(environ, job, step)}",
        found_by=NAME,
    )


def _local_size(environ: Environ) -> int | None:
    layout = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE")
    node = _place.optional(environ, ("SLURM_NODEID",), NAME)
    if layout is None or node is None:
        return None
    counts = expand_counts(layout)
    return counts[node] if node < len(counts) else None


def hosts(environ: Environ, read: Read) -> list[tuple[str, int]] | None:
    """The hosts of the allocation around this process, and the tasks that Slurm plans on each."""
    names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not names or JOB not in environ:
        return None
    found = expand_hosts(names)
    counts = expand_counts(environ.get("SLURM_TASKS_PER_NODE") or f"1(x{len(found)})")
    if len(counts) != len(found):
        raise LaunchError(
            f"SLURM_TASKS_PER_NODE={environ['SLURM_TASKS_PER_NODE']} does not fit "
            f"SLURM_JOB_NODELIST={names}, which has {len(found)} hosts. Were they set by hand?"
        )
    return list(zip(found, counts, strict=True))


def this_host(environ: Environ) -> str | None:
    """What Slurm calls this host, "" where it does not say; None outside of its jobs."""
    return environ.get("SLURMD_NODENAME", "") if JOB in environ else None


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
