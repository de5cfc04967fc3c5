"""Kubernetes: an Indexed Job, or the Indexed Jobs of a JobSet, with one process in each pod.

The Job's controller sets JOB_COMPLETION_INDEX. The number of pods is in no variable and in no
field that a pod can see, so the manifest repeats it in JOB_COMPLETIONS; for a JobSet it passes the
pod's annotations on in JOBSET_JOB_INDEX, JOBSET_REPLICAS and, optionally, JOBSET_COORDINATOR.

The kubelet writes a pod's DNS name into its /etc/hosts if the manifest names a headless service
(``subdomain``). The names of the pods differ in the indexes at their end, so process 0's name
follows from this pod's own. Every pod has an address of its own, so that one port serves all jobs.

Sources: Kubernetes, "Indexed Job" and "DNS for Services and Pods"; JobSet, ``jobset_types.go``.
"""

from __future__ import annotations

import re

from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "Kubernetes"
RANK = "JOB_COMPLETION_INDEX"
HOSTS = "/etc/hosts"


def find(environ: Environ, read: Read) -> RankInfo | None:
    if not {RANK, "JOB_COMPLETIONS"} <= environ.keys():
        return None
    index = _place.whole(environ, RANK, NAME)
    pods = _place.whole(environ, "JOB_COMPLETIONS", NAME)
    job = jobs = None
    if {"JOBSET_JOB_INDEX", "JOBSET_REPLICAS"} & environ.keys():
        job = _place.whole(environ, "JOBSET_JOB_INDEX", "a JobSet")
        jobs = _place.whole(environ, "JOBSET_REPLICAS", "a JobSet")
        RankInfo(job, jobs, None, None, None, "a JobSet")  # checks the one against the other
    # Checks the index within its Job: a rank within the JobSet could hide a wrong one.
    RankInfo(index, pods, None, None, None, NAME)
    return RankInfo(
        rank=(job or 0) * pods + index,
        size=(jobs or 1) * pods,
        local_rank=None,
        local_size=None,
        coordinator=_coordinator(environ, read, in_jobset=job is not None),
        found_by=NAME,
    )


def _coordinator(environ: Environ, read: Read, in_jobset: bool) -> str | None:
    host = environ.get("JOBSET_COORDINATOR") or _first_pod(environ, read, in_jobset)
    return f"{host}:{_place.derived_port(environ, 0)}" if host else None


def _first_pod(environ: Environ, read: Read, in_jobset: bool) -> str | None:
    """``train-0.train.default.svc.cluster.local``, from ``train-3`` and its line in /etc/hosts."""
    own = environ.get("HOSTNAME", "")
    indexes, zeros = (r"-\d+-\d+$", "-0-0") if in_jobset else (r"-\d+$", "-0")
    match = re.search(indexes, own)
    if match is None:
        return None
    for line in (read(HOSTS) or "").splitlines():
        for name in line.partition("#")[0].split()[1:]:
            if name.startswith(f"{own}."):
                return own[: match.start()] + zeros + name[len(own) :]
    return None


def missing(environ: Environ) -> str | None:
    """What a pod of an Indexed Job lacks; None where this is no such pod, or it lacks nothing."""
    if RANK not in environ or "JOB_COMPLETIONS" in environ:
        return None
    return (
        "this is a pod of a Kubernetes Indexed Job (JOB_COMPLETION_INDEX is set), which does not "
        "say how many pods it has: set JOB_COMPLETIONS in the manifest, to the same number as "
        "completions. docs/how-to/kubernetes.md has a manifest."
    )
