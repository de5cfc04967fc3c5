"""JAX's coordination service, and this process's part in it."""

from __future__ import annotations

import ctypes
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lockstep._jax_compat import hooks, lost_service
from lockstep._jax_compat.settings import setting


class _Instead:
    """A module with some of its names replaced, for one other module that uses it."""

    def __init__(self, module: Any, **names: Any) -> None:
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Survival(NamedTuple):
    """The callbacks of `survive_dead_peers`."""

    serve: Callable[[str, int, dict[str, Any]], Any | None]
    """Takes the arguments of `coordination_service`; returns an object that represents the service
    in process 0, or None: then the service starts in process 0."""
    before_another_job: Callable[[str, Sequence[str]], str]
    """Runs when this process joins a second job. Takes the service's address and those of earlier
    jobs of several processes; returns the address to use."""
    on_joining: Callable[[], None]
    """Runs when this process joins a job for the first time."""
    listen_at: Callable[[str, str, bool], str]
    """Takes the address to bind, the coordinator's address, and whether the user has chosen the
    former; returns the address to bind, or raises if it cannot be used."""
    start_seconds: Callable[[], int]
    """How long to wait for all processes, if the program does not set it."""
    not_started: Callable[[str, int, int, int], Exception]
    """Takes the coordinator's address, this process, the number of processes and the seconds;
    returns the error that names the processes which have not arrived."""
    certificates: Callable[[int], dict[str, str]]
    """Takes the number of processes; returns jaxlib's arguments for mutual TLS, {} for a job
    without. Not called if the user has passed some."""
    before_connecting: Callable[[str, dict[str, str], float], float]
    """Takes the service's address, the result of `certificates`, and the seconds for the start;
    returns the seconds that are left, or raises where the service will not accept this process."""
    on_lost_service: Callable[[], None]
    """Runs on a thread of jaxlib when the service has ended, or cannot be reached any more."""


class _Asked(NamedTuple):
    """This process's arguments of ``jax.distributed.initialize``."""

    bind_address: str | None = None
    seconds: int | None = None


_asked = _Asked()


def survive_dead_peers(calls: Survival) -> None:
    """Keeps JAX's coordination service from ending a process because another has died.

    Every process becomes "recoverable", unless the user has disabled that: then the service does
    not report a dead peer to the others, and the shutdown at exit does not wait. If the service
    runs inside process 0, this process must not end first, so no process is recoverable. The end of
    the service itself is handled by `lost_service`.
    """
    import jax

    distributed: Any = importlib.import_module("jax._src.distributed")
    module = distributed._jax
    serve_inside = module.get_distributed_runtime_service
    connect = module.get_distributed_runtime_client
    state: Any = distributed.State
    initialize = _naming_missing_processes(state.initialize, calls)
    setting("jax_enable_recoverability")
    if "JAX_ENABLE_RECOVERABILITY" not in os.environ:
        jax.config.update("jax_enable_recoverability", True)

    def is_recoverable() -> bool:
        return setting("jax_enable_recoverability")

    def place(address: str) -> str:
        if not joined:
            return address
        free = calls.before_another_job(address, earlier)
        # Inside process 0, the earlier service has ended as JAX was shut down there.
        return free if is_recoverable() else address

    def service(address: str, num_nodes: int, **options: Any) -> Any:
        nonlocal alone
        alone = num_nodes == 1
        is_chosen = bool(_asked.bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS"))
        coordinator = distributed.global_state.coordinator_address or address
        address = calls.listen_at(place(address), coordinator, is_chosen)
        if _asked.seconds is not None:
            options.setdefault("cluster_register_timeout", _asked.seconds)
        options = _with_certificates(options, calls, num_nodes)
        if num_nodes > 1 and is_recoverable():
            outside = calls.serve(address, num_nodes, options)
            if outside is not None:
                return outside
        if "recoverable" in options:  # jax 0.9.1 and later; before that, each client says it
            options["recoverable"] = False
        return coordination_service(address, num_nodes, options)

    def client(address: str, *args: Any, **options: Any) -> Any:
        nonlocal joined
        global _heartbeat_seconds
        _heartbeat_seconds = options.get("heartbeat_timeout") or _heartbeat_seconds
        address = place(address)
        if not joined:
            calls.on_joining()
        joined = True
        if not alone:  # the others know nothing of that job
            earlier.append(address)
        is_ours = not any(options.get(name) for name in _TLS)
        options = _with_certificates(options, calls, distributed.global_state.num_processes)
        if is_ours and distributed.global_state.process_id != 0:
            options = _once_accepted(address, options, calls)
        if callback := lost_service.callback(calls.on_lost_service):
            options.setdefault("missed_heartbeat_callback", callback)
        return connect(address, *args, **options)

    joined, alone = False, False
    earlier: list[str] = []
    distributed._jax = _Instead(
        module,
        get_distributed_runtime_service=_or(serve_inside, service),
        get_distributed_runtime_client=_or(connect, client),
    )
    state.initialize = initialize


_TLS = ("mtls_cert_file", "mtls_key_file", "mtls_ca_file", "mtls_peer_uri_prefix")


def _with_certificates(options: dict[str, Any], calls: Survival, processes: int) -> dict[str, Any]:
    """``options`` with Lockstep's certificates, in a jax that knows them (0.11.2 and later)."""
    if _TLS[0] not in options or any(options.get(name) for name in _TLS):
        return options
    return options | calls.certificates(processes)


def _once_accepted(address: str, options: dict[str, Any], calls: Survival) -> dict[str, Any]:
    """``options`` with what is left of the time to connect, once the service has been found."""
    if _TLS[0] not in options or "init_timeout" not in options:
        return options
    files = {name: options[name] for name in _TLS if options.get(name)}
    left = calls.before_connecting(address, files, options["init_timeout"])
    return options | {"init_timeout": max(1, int(left))}


def _naming_missing_processes(
    original: Callable[..., None], calls: Survival
) -> Callable[..., None]:
    """``State.initialize`` of JAX, with Lockstep's deadline, and an error for missing processes."""
    signature = inspect.signature(original)
    ours = signature.parameters["initialization_timeout"].default
    signature.parameters["coordinator_bind_address"]  # raises where a new jax has none

    @functools.wraps(original)
    def initialize(state: Any, *args: Any, **options: Any) -> None:
        global _asked
        bound = signature.bind(state, *args, **options)
        bound.apply_defaults()
        seconds = bound.arguments["initialization_timeout"]
        if seconds == ours:
            seconds = bound.arguments["initialization_timeout"] = calls.start_seconds()
        _asked = _Asked(bound.arguments["coordinator_bind_address"], seconds)
        try:
            original(*bound.args, **bound.kwargs)
        except RuntimeError as error:
            if not lost_service.is_uncast(error):
                raise
            missing = calls.not_started(
                state.coordinator_address, state.process_id, state.num_processes, seconds
            )
            set_client_aside()
            if state.service is not None:
                state.service.shutdown()
                state.service = None
            raise missing from error
        finally:
            _asked = _Asked()

    return initialize


def _or(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """``ours``, or ``original`` if a new jax passes other arguments than ``ours`` accepts."""

    def call(*args: Any, **options: Any) -> Any:
        try:
            inspect.signature(ours).bind(*args, **options)
        except TypeError as error:
            hooks.report(SURVIVAL, SURVIVAL_LOST, error)
            return original(*args, **options)
        with hooks.blaming():
            return ours(*args, **options)

    return call


SURVIVAL = "coordination service"
SURVIVAL_LOST = "when a process dies, JAX aborts the others."


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

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in self._WITHOUT_DEADLINE:
            return functools.partial(lost_service.ending, method)
        return method


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


def set_client_aside() -> None:
    """Prevents the end of this process from waiting for an unreachable coordination service.

    JAX's client would disconnect at exit, wait five minutes for an answer, and abort the process.
    """
    from jax._src import distributed

    state: Any = distributed.global_state
    for name in ("client", "preemption_sync_manager"):
        if (left := getattr(state, name, None)) is not None:
            # Never freed, because its destructor disconnects too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
            setattr(state, name, None)


def distributed_place() -> tuple[int, int]:
    """(process id, number of processes) as given to ``jax.distributed.initialize``."""
    from jax._src import distributed

    return distributed.global_state.process_id, distributed.global_state.num_processes


def coordinator_address() -> str:
    """``HOST:PORT`` of JAX's coordination service, as this process was given it."""
    from jax._src import distributed

    return distributed.global_state.coordinator_address or ""
