"""Cluster detection: a bare ``jax.distributed.initialize()`` finds its place in the job."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol

from lockstep._jax_compat import hooks


class HasRank(Protocol):
    """A process's place in the job, as cluster detection finds it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def coordinator(self) -> str | None: ...


def register_cluster(find_place: Callable[[], HasRank | None]) -> None:
    """Lets a bare ``jax.distributed.initialize()`` find its place through ``find_place``.

    Ours goes first: inside a Slurm allocation, JAX's own detection would take the variables of the
    allocation for those of our processes. A new jax may pass more arguments than are known here.
    """
    from jax._src import clusters

    class LockstepCluster(clusters.ClusterEnv):
        name = "lockstep"

        @classmethod
        def is_env_present(cls, *_: Any, **__: Any) -> bool:
            with hooks.blaming():
                return find_place() is not None

        @classmethod
        def get_coordinator_address(
            cls,
            timeout_secs: int | None = None,
            override_coordinator_port: str | None = None,
            *_: Any,
            **__: Any,
        ) -> str:
            address = cls._place().coordinator
            assert address is not None  # find_place asks the other processes for it
            if override_coordinator_port is None:
                return address
            return f"{address.rpartition(':')[0]}:{override_coordinator_port}"

        @classmethod
        def get_process_count(cls, *_: Any, **__: Any) -> int:
            return cls._place().size

        @classmethod
        def get_process_id(cls, *_: Any, **__: Any) -> int:
            return cls._place().rank

        @classmethod
        def _place(cls) -> HasRank:
            with hooks.blaming():
                place = find_place()
            assert place is not None  # JAX asks is_env_present first
            return place

    _take_the_coordinator(find_place)
    known = clusters.ClusterEnv._cluster_types
    known.remove(LockstepCluster)
    known.insert(0, LockstepCluster)


def _take_the_coordinator(find_place: Callable[[], HasRank | None]) -> None:
    """Has a bare ``initialize()`` use the coordinator of ``find_place``.

    JAX would take the variable JAX_COORDINATOR_ADDRESS before it asks for a cluster. That may lack
    the port, which another variable has, or name the coordinator of the job around this one.
    """
    module: Any = importlib.import_module("jax._src.distributed")
    original = module.State.initialize
    signature = inspect.signature(original)
    for name in _PLACE:
        signature.parameters[name]  # raises where a new jax has none

    @functools.wraps(original)
    def initialize(state: Any, *args: Any, **options: Any) -> None:
        bound = signature.bind(state, *args, **options)
        if all(bound.arguments.get(name) is None for name in _PLACE):
            with hooks.blaming():
                place = find_place()
            if place is not None:
                bound.arguments[_PLACE[0]] = place.coordinator
        original(*bound.args, **bound.kwargs)

    module.State.initialize = initialize


_PLACE = ("coordinator_address", "num_processes", "process_id", "cluster_detection_method")
