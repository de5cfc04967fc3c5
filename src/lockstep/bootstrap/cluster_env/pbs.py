"""PBS: tasks that pbsdsh starts, in OpenPBS, PBS Professional and TORQUE.

PBS_NODEFILE names a file with a line, a host's name, for each slot of the job. It is on the host of
the batch script only, so the script copies it to a shared folder for pbsdsh's tasks.

TORQUE numbers the slots in PBS_VNODENUM. OpenPBS numbers only the hosts, in PBS_NODENUM, so that a
task's place is known if every host has one slot. The batch script itself is task 1 on host 0.

Sources: pbsdsh(1B), qsub(1B), and what the two servers' start_exec.c sets.
"""

from __future__ import annotations

import re

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "PBS"
JOB = "PBS_JOBID"
_LAUNCHER = "pbsdsh (PBS)"


def find(environ: Environ, read: Read) -> RankInfo | None:
    if not _in_task(environ) or not (slots := _slots(environ, read)):
        return None
    if "PBS_VNODENUM" in environ:
        rank = _place.whole(environ, "PBS_VNODENUM", _LAUNCHER)
    else:
        rank = _place.whole(environ, "PBS_NODENUM", _LAUNCHER)
        if twice := next((host for host in slots if slots.count(host) > 1), None):
            raise LaunchError(
                f"pbsdsh starts {slots.count(twice)} tasks on {twice}, and PBS does not say which "
                "of them this is. Ask for one process on each host (mpiprocs=1), with devices "
                "instead of processes (lockstep worker -d D); or use mpiexec, or `lockstep run`, "
                "instead of pbsdsh."
            )
    return _place.of_slot(slots, rank, _port(environ), _LAUNCHER)


def _in_task(environ: Environ) -> bool:
    """Whether pbsdsh has started this process, and not PBS itself as the batch script."""
    if not {JOB, "PBS_NODENUM", "PBS_TASKNUM"} <= environ.keys():
        return False
    # OpenPBS writes a task's number in hexadecimal.
    is_first = re.fullmatch(r"0*1", environ["PBS_TASKNUM"]) is not None
    return not (is_first and environ["PBS_NODENUM"] == "0")


def _port(environ: Environ) -> int:
    number = re.match(r"\d+", environ.get(JOB, ""))
    return _place.derived_port(environ, int(number[0]) if number else 0)


def hosts(environ: Environ, read: Read) -> list[tuple[str, int]] | None:
    """The hosts of the allocation around this process, and the slots of each."""
    slots = _slots(environ, read) if JOB in environ else None
    return [(host, slots.count(host)) for host in dict.fromkeys(slots)] if slots else None


def _slots(environ: Environ, read: Read) -> list[str] | None:
    """The host of each slot; None where the file is missing, as on the other hosts of a job."""
    path = environ.get("PBS_NODEFILE")
    return (read(path) or "").split() if path else None


def missing(environ: Environ) -> str | None:
    """What a task of pbsdsh lacks; None where this is no such task.

    Only for an environment in which `find` finds nothing.
    """
    if not _in_task(environ):
        return None
    return (
        f"pbsdsh has started this process, and the list of hosts, PBS_NODEFILE="
        f"{environ.get('PBS_NODEFILE', '')}, cannot be read here: PBS writes it on the host of the "
        "batch script only. In the script, copy it to a folder that all hosts share and pass it "
        "on: cp $PBS_NODEFILE hosts; pbsdsh -- env PBS_NODEFILE=$PWD/hosts lockstep worker ..."
    )
