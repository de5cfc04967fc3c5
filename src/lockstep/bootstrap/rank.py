"""Where this process stands in its job: as the launcher sets it, else as the cluster does."""

from __future__ import annotations

import dataclasses
import functools
import os

from lockstep import _config
from lockstep.bootstrap import cluster_env, spawned_children


@functools.cache
def find_place() -> cluster_env.RankInfo | None:
    """This process's place, or None where it was not launched as part of a job.

    Raises `LaunchError` for variables that contradict each other, and `InitializationError` in a
    child that imports the main file of a process of the job.
    """
    place = _find_place()
    if place is not None:
        spawned_children.refuse()
    return place


def _find_place() -> cluster_env.RankInfo | None:
    config = _config.current()
    if (
        config.coordinator is not None
        and config.num_processes is not None
        and config.process_id is not None
    ):
        return cluster_env.RankInfo(
            rank=config.process_id,
            size=config.num_processes,
            local_rank=config.local_process_id,
            local_size=config.local_num_processes,
            coordinator=config.coordinator,
            found_by="lockstep",
        )
    place = cluster_env.detect(os.environ)
    if place is None or (place.coordinator and not config.coordinator):
        return place
    # Late import: sockets are for processes that a cluster's launcher has started without us.
    from lockstep.bootstrap import rendezvous

    coordinator = config.coordinator or rendezvous.coordinator(place)
    return dataclasses.replace(place, coordinator=coordinator)
