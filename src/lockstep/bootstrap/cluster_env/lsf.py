"""LSF: blaunch, and jsrun (JSM), which runs inside an LSF allocation on IBM's machines.

LSF lists the hosts of a job three times, each host as often as it has slots: in LSB_HOSTS (absent
when the list is long), as ``host slots host slots`` in LSB_MCPU_HOSTS, and in the file
LSB_DJOB_HOSTFILE. blaunch without host names starts a task for each slot, in this order, and
numbers the tasks from 1 in LSF_PM_TASKID.

Sources: IBM Spectrum LSF, "Environment variables set for job execution" and blaunch(1); IBM Job
Step Manager, "JSM environment variables".
"""

from __future__ import annotations

import re

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "LSF"
JOB = "LSB_JOBID"
_LAUNCH_NODE = re.compile(r"batch|login|launch")


def find(environ: Environ, read: Read) -> RankInfo | None:
    """The place of a task of blaunch."""
    if "LSF_PM_TASKID" not in environ or JOB not in environ:
        return None
    slots = _slots(environ, read)
    if not slots:
        return None
    rank = _place.whole(environ, "LSF_PM_TASKID", "blaunch (LSF)") - 1
    return _place.of_slot(slots, rank, _port(environ), "blaunch (LSF)")


def find_jsrun(environ: Environ, read: Read) -> RankInfo | None:
    """The place of a process of jsrun."""
    if "JSM_NAMESPACE_RANK" not in environ:
        return None
    name = "jsrun"
    size = _place.whole(environ, "JSM_NAMESPACE_SIZE", name)
    local_size = _place.optional(environ, ("JSM_NAMESPACE_LOCAL_SIZE",), name)
    found = hosts(environ, read)
    coordinator = None
    if found and local_size != size:
        coordinator = f"{_place.bracketed(found[0][0])}:{_port(environ)}"
    return RankInfo(
        rank=_place.whole(environ, "JSM_NAMESPACE_RANK", name),
        size=size,
        local_rank=_place.optional(environ, ("JSM_NAMESPACE_LOCAL_RANK",), name),
        local_size=local_size,
        coordinator=coordinator,
        found_by=name,
    )


def _port(environ: Environ) -> int:
    return _place.derived_port(environ, _place.optional(environ, (JOB,), NAME) or 0)


def hosts(environ: Environ, read: Read) -> list[tuple[str, int]] | None:
    """The hosts of the allocation around this process, and the slots of each.

    Where scripts run on a launch node, it is the first of the hosts, with one slot, and named after
    its role (batch2, login1). Nothing is started there, so it is left out.
    """
    slots = _slots(environ, read) if JOB in environ else None
    if not slots:
        return None
    counts = [(host, slots.count(host)) for host in dict.fromkeys(slots)]
    on_launch_node = counts[0][1] == 1 and _LAUNCH_NODE.match(counts[0][0])
    return counts[1:] if on_launch_node and len(counts) > 1 else counts


def _slots(environ: Environ, read: Read) -> list[str] | None:
    """The host of each slot."""
    if names := environ.get("LSB_HOSTS", "").split():
        return names
    if words := environ.get("LSB_MCPU_HOSTS", "").split():
        if len(words) % 2 or not all(count.isdecimal() for count in words[1::2]):
            raise LaunchError(
                f"LSB_MCPU_HOSTS={environ['LSB_MCPU_HOSTS']!r} is not a list of hosts and slots "
                "as LSF writes it."
            )
        pairs = zip(words[::2], words[1::2], strict=True)
        return [host for host, count in pairs for _ in range(int(count))]
    path = environ.get("LSB_DJOB_HOSTFILE")
    return (read(path) or "").split() if path else None
