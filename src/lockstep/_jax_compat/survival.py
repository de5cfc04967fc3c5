"""Keeps JAX's coordination service from ending a process because another has died."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lockstep._jax_compat import distributed, hooks, lost_service
from lockstep._jax_compat.settings import setting

SURVIVAL = "coordination service"
SURVIVAL_LOST = "when a process dies, JAX aborts the others."


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
    not_started: Callable[[str, int, int, int, float], Exception]
    """Takes the coordinator's address, this process, the number of processes, the seconds of the
    deadline, and those that have passed; returns the error that says why, and names the processes
    which have not arrived."""
    certificates: Callable[[int], dict[str, str]]
    """Takes the number of processes; returns jaxlib's arguments for mutual TLS, {} for a job
    without. Not called if the user has passed some."""
    before_connecting: Callable[[str, dict[str, str], float], float]
    """Takes the service's address, the result of `certificates`, and the seconds for the start;
    returns the seconds that are left, or raises where the service will not accept this process."""
    before_leaving: Callable[[], None]
    """Runs at the start of ``jax.distributed.shutdown``, where JAX would wait for the others."""
    on_lost_service: Callable[[], None]
    """Runs on a thread of jaxlib when the service has ended, or cannot be reached any more."""


class _Asked(NamedTuple):
    """This process's arguments of ``jax.distributed.initialize``."""

    bind_address: str | None = None
    seconds: int | None = None


class _Instead(hooks.InPlaceOf):
    """A module with some of its names replaced, for one other module that uses it."""

    def __init__(self, module: Any, **names: Any) -> None:
        super().__init__(module)
        self.__dict__.update(names)


def survive_dead_peers(calls: Survival) -> None:
    """Makes every process "recoverable", unless the user has disabled that.

    Then the service does not report a dead peer to the others, and the shutdown at exit does not
    wait; ``calls.before_leaving`` replaces that wait. If the service runs inside process 0, this
    process must not end first, so no process is recoverable. The end of the service itself is
    handled by `lost_service`.
    """
    import jax

    module: Any = importlib.import_module("jax._src.distributed")
    ours = _Survivor(module, calls)
    initialize = ours.initializing(module.State.initialize)
    setting("jax_enable_recoverability")
    if "JAX_ENABLE_RECOVERABILITY" not in os.environ:
        jax.config.update("jax_enable_recoverability", True)
    jaxlib = module._jax
    module._jax = _Instead(
        jaxlib,
        get_distributed_runtime_service=_or(jaxlib.get_distributed_runtime_service, ours.service),
        get_distributed_runtime_client=_or(jaxlib.get_distributed_runtime_client, ours.client),
    )
    module.State.initialize = initialize
    module.State.shutdown = ours.shutting_down(module.State.shutdown)


def is_recoverable() -> bool:
    """Whether JAX's shutdown does not wait for the other processes."""
    return setting("jax_enable_recoverability")


class _Survivor:
    """What this process does where JAX starts a service or a client, over all its jobs."""

    def __init__(self, module: Any, calls: Survival) -> None:
        self._module = module
        self._connect = module._jax.get_distributed_runtime_client
        self._calls = calls
        self._asked = _Asked()
        self._joined = False
        self._alone = False
        """Whether the last job has this process alone."""
        self._earlier: list[str] = []
        """The addresses of earlier jobs of several processes."""

    def service(self, address: str, num_nodes: int, **options: Any) -> Any:
        """Instead of ``get_distributed_runtime_service``."""
        self._alone = num_nodes == 1
        chosen = self._asked.bind_address or os.environ.get("JAX_COORDINATOR_BIND_ADDRESS")
        coordinator = self._module.global_state.coordinator_address or address
        address = self._calls.listen_at(self._place(address), coordinator, bool(chosen))
        if self._asked.seconds is not None:
            options.setdefault("cluster_register_timeout", self._asked.seconds)
        options = self._with_certificates(options, num_nodes)
        if num_nodes > 1 and is_recoverable():
            outside = self._calls.serve(address, num_nodes, options)
            if outside is not None:
                return outside
        if "recoverable" in options:  # jax 0.9.1 and later; before that, each client says it
            options["recoverable"] = False
        return distributed.coordination_service(address, num_nodes, options)

    def client(self, address: str, *args: Any, **options: Any) -> Any:
        """Instead of ``get_distributed_runtime_client``."""
        distributed.note_heartbeat(options.get("heartbeat_timeout"))
        address = self._place(address)
        if not self._joined:
            self._calls.on_joining()
        self._joined = True
        if not self._alone:  # the others know nothing of a job of this process alone
            self._earlier.append(address)
        is_ours = not any(options.get(name) for name in _TLS)
        options = self._with_certificates(options, self._module.global_state.num_processes)
        if is_ours and self._module.global_state.process_id != 0:
            options = self._once_accepted(address, options)
        if callback := lost_service.callback(self._calls.on_lost_service):
            options.setdefault("missed_heartbeat_callback", callback)
        return self._connect(address, *args, **options)

    def initializing(self, original: Callable[..., None]) -> Callable[..., None]:
        """``State.initialize`` of JAX, with Lockstep's deadline, and an error for processes that
        are missing."""
        signature = inspect.signature(original)
        default = signature.parameters["initialization_timeout"].default
        signature.parameters["coordinator_bind_address"]  # raises where a new jax has none

        @functools.wraps(original)
        def initialize(state: Any, *args: Any, **options: Any) -> None:
            bound = signature.bind(state, *args, **options)
            bound.apply_defaults()
            given = bound.arguments
            if given["initialization_timeout"] == default:
                given["initialization_timeout"] = self._calls.start_seconds()
            seconds = given["initialization_timeout"]
            self._asked = _Asked(given["coordinator_bind_address"], seconds)
            start = time.monotonic()
            try:
                original(*bound.args, **bound.kwargs)
            except RuntimeError as error:
                if not lost_service.is_uncast(error):
                    raise
                # What JAX has raised, "std::bad_cast", says nothing.
                raise self._without_missing(state, seconds, time.monotonic() - start) from None
            finally:
                self._asked = _Asked()

        return initialize

    def shutting_down(self, original: Callable[..., None]) -> Callable[..., None]:
        """``State.shutdown`` of JAX, after the process has left its job in order."""

        @functools.wraps(original)
        def shutdown(state: Any, *args: Any, **options: Any) -> None:
            if state.client is not None and is_recoverable():
                self._calls.before_leaving()
            original(state, *args, **options)

        return shutdown

    def _without_missing(self, state: Any, seconds: int, elapsed: float) -> Exception:
        """Leaves the job that has not started; returns the error."""
        missing = self._calls.not_started(
            state.coordinator_address, state.process_id, state.num_processes, seconds, elapsed
        )
        distributed.set_client_aside()
        if state.service is not None:
            state.service.shutdown()
            state.service = None
        return missing

    def _place(self, address: str) -> str:
        if not self._joined:
            return address
        free = self._calls.before_another_job(address, self._earlier)
        # Inside process 0, the earlier service has ended as JAX was shut down there.
        return free if is_recoverable() else address

    def _with_certificates(self, options: dict[str, Any], processes: int) -> dict[str, Any]:
        """``options`` with Lockstep's certificates, in a jax that knows them (0.11.2 and later)."""
        if _TLS[0] not in options or any(options.get(name) for name in _TLS):
            return options
        return options | self._calls.certificates(processes)

    def _once_accepted(self, address: str, options: dict[str, Any]) -> dict[str, Any]:
        """``options`` with what is left of the time to connect, once the service was found."""
        if _TLS[0] not in options or "init_timeout" not in options:
            return options
        files = {name: options[name] for name in _TLS if options.get(name)}
        left = self._calls.before_connecting(address, files, options["init_timeout"])
        return options | {"init_timeout": max(1, int(left))}


_TLS = ("mtls_cert_file", "mtls_key_file", "mtls_ca_file", "mtls_peer_uri_prefix")


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
