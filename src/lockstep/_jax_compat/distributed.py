"""JAX's coordination service, and this process's part in it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Callable
from typing import Any

from lockstep._errors import ConfigError
from lockstep._jax_compat import lost_service


def coordination_service(address: str, num_nodes: int, options: dict[str, Any]) -> Any:
    """JAX's coordination service, as JAX starts it; it runs until the object is deleted.

    It imports only jaxlib, so that a process which runs only the service starts in half the time.
    """
    library: Any = importlib.import_module("jaxlib._jax")
    return library.get_distributed_runtime_service(address, num_nodes, **options)


def check_distributed() -> None:
    """Raises if the distributed state of this jax lacks a name that the engine needs."""
    from jax._src import distributed

    state = distributed.global_state
    for name in ("client", "process_id", "num_processes", "coordinator_address"):
        getattr(state, name)
    kind: Any = importlib.import_module("jaxlib._jax").DistributedRuntimeClient
    for name in ("key_value_set", "blocking_key_value_get", "key_value_dir_get"):
        getattr(kind, name)


def is_timeout(error: Exception) -> bool:
    """Whether JAX's client of the key-value store raised this because of a timeout."""
    return "DEADLINE_EXCEEDED" in str(error)


def is_unreachable(error: Exception) -> bool:
    """Whether JAX's client raised this because it has no connection to the service."""
    return "UNAVAILABLE" in str(error)


def is_taken(error: Exception) -> bool:
    """Whether the store's client raised this because the key has a value already."""
    return "ALREADY_EXISTS" in str(error)


class _Client:
    """JAX's client, whose calls end with an error when the service is lost."""

    _WITHOUT_DEADLINE = ("key_value_set", "key_value_set_bytes", "key_value_dir_get")
    _WITHOUT_DEADLINE += ("key_value_dir_get_bytes", "key_value_delete", "wait_at_barrier")

    def __init__(self, client: Any, call: Callable[..., Any] = lost_service.ending) -> None:
        self._client = client
        self._call = call

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in self._WITHOUT_DEADLINE:
            return functools.partial(self._call, method)
        return method

    def within(self, seconds: float) -> _Client:
        """The same client; a call without an answer in that time raises `TimeoutError`."""
        return _Client(self._client, lost_service.Bounded(seconds))


_client: _Client | None = None


def distributed_client() -> Any:
    """JAX's client of the coordination service (the key-value store), or None."""
    global _client
    from jax._src import distributed

    client = distributed.global_state.client
    if client is None:
        _client = None
    elif _client is None or _client._client is not client:
        _client = _Client(client)
    return _client


_heartbeat_seconds = 100.0
"""JAX's default."""


def note_heartbeat(seconds: float | None) -> None:
    """``seconds`` were given to JAX's client; None: nothing was."""
    global _heartbeat_seconds
    _heartbeat_seconds = seconds or _heartbeat_seconds


def heartbeat_seconds() -> float:
    """``heartbeat_timeout_seconds`` as given to ``jax.distributed.initialize``."""
    return _heartbeat_seconds


def service_answers(key: str, seconds: float) -> bool:
    """Whether JAX's coordination service answers within ``seconds``; ``key`` must have a value.

    True if this process has left the service.
    """
    client = distributed_client()
    if client is None:
        return True
    try:
        client.blocking_key_value_get(key, round(seconds * 1000))
    except Exception:  # too late, no connection, or a client that is closed: no answer
        return False
    return True


def wait_for_others(key: str, seconds: float) -> None:
    """Waits until all processes of the job have called this with ``key``, or for ``seconds``.

    It does not use JAX's barrier, in which a late process would wait for those that have left.
    Raises nothing.
    """
    client = distributed_client()
    if client is None:
        return
    _, count = distributed_place()
    with contextlib.suppress(Exception):  # too late, or no service any more
        if client.key_value_increment(f"{key}/arrived", 1) == count:
            client.key_value_increment(f"{key}/all", 1)
        else:
            client.blocking_key_value_get(f"{key}/all", round(seconds * 1000))


def set_client_aside() -> None:
    """Prevents the end of this process from waiting for an unreachable coordination service.

    JAX's client would disconnect at exit, wait five minutes for an answer, and abort the process.
    """
    from jax._src import distributed

    lost_service.give_up()
    state: Any = distributed.global_state
    for name in ("client", "preemption_sync_manager"):
        if (left := getattr(state, name, None)) is not None:
            # Never freed, because its destructor disconnects too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
            setattr(state, name, None)


def reached_stop(step: int) -> bool:
    """Whether all processes stop at ``step``, because one of them has got SIGTERM; each of them
    asks for 1, 2, 3, ... Raises `ConfigError` where JAX does not watch for it."""
    from jax._src import distributed

    manager: Any = distributed.global_state.preemption_sync_manager
    if manager is None:
        raise ConfigError(
            "JAX's preemption service, by which processes agree where to stop, is disabled: remove "
            "jax_enable_preemption_service=False (JAX_ENABLE_PREEMPTION_SERVICE)."
        )
    return bool(manager.reached_sync_point(step))


def distributed_place() -> tuple[int, int]:
    """(process id, number of processes) as given to ``jax.distributed.initialize``."""
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def coordinator_address() -> str:
    """``HOST:PORT`` of JAX's coordination service, as this process was given it."""
    from jax._src import distributed

    return distributed.global_state.coordinator_address or ""
