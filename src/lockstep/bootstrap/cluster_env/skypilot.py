"""SkyPilot: one process on each node of a task, which has all of the node's GPUs.

SkyPilot runs a task's commands once on each node, and numbers the nodes, not processes. So a
launcher that starts several processes on a node (torchrun, mpirun) knows better.

Source: SkyPilot, "Environment variables for run".
"""

from __future__ import annotations

import zlib

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "SkyPilot"
RANK = "SKYPILOT_NODE_RANK"
TASK = "SKYPILOT_TASK_ID"
GPUS = "SKYPILOT_NUM_GPUS_PER_NODE"
_HOSTS, _SIZE = "SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"


def find(environ: Environ, read: Read) -> RankInfo | None:
    if RANK not in environ:
        return None
    rank = _place.whole(environ, RANK, NAME)
    hosts = environ.get(_HOSTS, "").split()
    if not hosts:
        raise LaunchError(f"{RANK} is set but {_HOSTS} is not: {NAME} sets both.")
    size = _place.optional(environ, (_SIZE,), NAME)  # older versions set none
    if size is not None and size != len(hosts):
        raise LaunchError(
            f"{_SIZE}={size}, but {_HOSTS} has {len(hosts)} addresses: they contradict each other. "
            "Were some of them set by hand?"
        )
    port = _place.derived_port(environ, zlib.crc32(environ.get(TASK, "").encode()))
    return _place.of_slot(hosts, rank, port, NAME)


def note(environ: Environ) -> str:
    """What `lockstep doctor` says of the GPUs that a node has for the task; "" for none."""
    gpus = environ.get(GPUS, "0")
    return "" if gpus == "0" else f"; {GPUS}={gpus}: the process of a node has all of them"
