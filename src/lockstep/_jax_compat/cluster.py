"""Cluster detection: a bare ``jax.distributed.initialize()`` finds its place in the job."""

from __future__ import annotations

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

    known = clusters.ClusterEnv._cluster_types
    known.remove(LockstepCluster)
    known.insert(0, LockstepCluster)
