"""Cluster detection: a bare ``jax.distributed.initialize()`` finds its place in the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

_BIND = "JAX_COORDINATOR_BIND_ADDRESS"
_is_bound = False


def _bind_to(address: str) -> None:
    """JAX reads the variable next, and the service of a job on one machine listens there only.

    It is not set any earlier: a program that passes its own address would bind ours.
    """
    global _is_bound
    if _BIND not in os.environ or _is_bound:
        os.environ[_BIND] = address
        _is_bound = True


def forget_bind_address() -> None:
    """Once JAX has read it: a child that starts a job of its own would bind our address."""
    global _is_bound
    if _is_bound:
        os.environ.pop(_BIND, None)
        _is_bound = False


class Place(Protocol):
    """A process's place in the job, as cluster detection finds it."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def coordinator(self) -> str | None: ...


def register_cluster(find_place: Callable[[], Place | None]) -> None:
    """Lets a bare ``jax.distributed.initialize()`` find its place through ``find_place``.

    Ours goes first: inside a Slurm allocation, JAX's own detection would take the variables of the
    allocation for those of our processes.
    """
    from jax._src import clusters

    class LockstepCluster(clusters.ClusterEnv):
        name = "lockstep"

        @classmethod
        def is_env_present(cls) -> bool:
            return find_place() is not None

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: int | None = None, override_coordinator_port: str | None = None
        ) -> str:
            address = cls._place().coordinator
            assert address is not None  # find_place asks the other processes for it
            if address.startswith("127."):
                _bind_to(address)
            if override_coordinator_port is None:
                return address
            return f"{address.rpartition(':')[0]}:{override_coordinator_port}"

        @classmethod
        def get_process_count(cls) -> int:
            return cls._place().size

        @classmethod
        def get_process_id(cls) -> int:
            return cls._place().rank

        @classmethod
        def _place(cls) -> Place:
            place = find_place()
            assert place is not None  # JAX asks is_env_present first
            return place

    known = clusters.ClusterEnv._cluster_types
    known.remove(LockstepCluster)
    known.insert(0, LockstepCluster)
