"""JAX's backends and settings: the making of the CPU client, and what lives on it."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

from lockstep._errors import LockstepError
from lockstep._jax_compat import hooks, texts
from lockstep._jax_compat.distributed import check_distributed, distributed_client
from lockstep._jax_compat.settings import setting

_POLL_SECONDS = 0.001
_POLL_BACKOFF = 4.0
"""Pause after a poll, as a multiple of its duration: a program may hold many arrays."""


def around_cpu_client(
    before: Callable[[], None],
    after: Callable[[Any], None],
    within: Callable[[], contextlib.AbstractContextManager[None]],
) -> None:
    """Runs ``before`` just before JAX makes its CPU client, if JAX is distributed by then.

    ``before`` may change ``jax_cpu_collectives_implementation``; its exceptions reach the user.
    ``after`` gets the client. The client is made inside ``within()``, distributed or not.
    """
    from jax._src import xla_bridge

    check_distributed()
    setting("jax_cpu_collectives_implementation")
    registration: Any = xla_bridge._backend_factories["cpu"]
    make_client = registration.factory

    def make_client_between(*args: Any, **kwargs: Any) -> Any:
        with hooks.blaming():
            if distributed_client() is None:
                with within():
                    return make_client(*args, **kwargs)
            before()
            with within():
                client = make_client(*args, **kwargs)
            after(client)
            return client

    registration.factory = make_client_between


def check_collectives() -> None:
    """Raises where this jaxlib has no place for a collectives library."""
    library: Any = importlib.import_module("jaxlib._jax")
    if not callable(library.make_mpi_collectives):
        raise TypeError("jaxlib._jax.make_mpi_collectives is no function")
    if not isinstance(setting("jax_cpu_collectives_implementation"), str | None):
        raise TypeError("jax_cpu_collectives_implementation is no name")


def end_wait_for_devices(client: Any, processes: int) -> None:
    """Ends the creation of JAX's CPU client with an error if it waits for a dead process.

    Each process writes its devices into the key-value store, the first one gathers them, and all
    wait for the result, for minutes. A malformed topology value ends the wait.
    """
    waited_for = [f"cpu:local_topology/cpu/{process}" for process in range(processes)]
    with contextlib.suppress(Exception):  # without the service, no process waits for its answer
        for key in ["cpu:global_topology/cpu", *waited_for]:
            client.key_value_set(key, "a process has died", allow_overwrite=True)


def around_backends(
    before: Callable[[], None], after: Callable[[str], bool] = lambda _: True
) -> None:
    """Runs ``before`` when JAX needs its backends; its exceptions reach the user.

    Runs ``after`` with the default platform once JAX has them, until it returns True. JAX needs its
    backends before it compiles, so ``after`` runs before the first program. If only CUDA is allowed
    and there is no GPU, raises an explanation instead of JAX's bare assertion. An error of
    Lockstep's is raised as it is: JAX would advise to uninstall a plugin.
    """
    from jax._src import xla_bridge

    make_backends = xla_bridge.backends
    done = False

    def backends(*args: Any, **options: Any) -> Any:
        nonlocal done
        with hooks.blaming():
            before()
        try:
            made = make_backends(*args, **options)
        except AssertionError:
            if words := _missing_gpu():
                raise RuntimeError(words) from None
            raise
        except RuntimeError as error:
            if isinstance(ours := error.__context__, LockstepError):
                raise ours from None
            raise
        if not done:
            done = True  # ``after`` may ask for the backends itself
            # `jax.default_backend()` would call itself here.
            default = getattr(xla_bridge, "_default_backend", None)
            try:
                done = after(getattr(default, "platform", ""))
            except Exception as error:  # the devices are there, and stay
                hooks.report("backends", "float16 collectives between processes.", error)
        return made

    xla_bridge.backends = backends


def _missing_gpu() -> str:
    asked = setting("jax_platforms") or ""
    if not {"cuda", "gpu"} & set(asked.split(",")):
        return ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = "" if hidden is None else f" (CUDA_VISIBLE_DEVICES={hidden})"
    return (
        f"JAX may use the platform {asked} only (--platform, JAX_PLATFORMS), but finds no "
        f"NVIDIA GPU on this machine{shown}. `lockstep doctor` shows what is here; for CPUs: "
        "--platform cpu."
    )


def live_executables() -> list[Any]:
    """The compiled programs of the CPU backend; empty: there is no backend yet.

    JAX's public function would create a backend, which then would not belong to the later job.
    """
    cpu = _cpu_backend()
    return cpu.live_executables() if cpu is not None else []


def computing_devices() -> set[Any]:
    """The devices of this process that still have to make a shard of an array that is referred to.

    A program whose results were all dropped is not seen. One that a callback has ended is.
    """
    found = set()
    for backend in _backends().values():
        for array in backend.live_arrays():
            with contextlib.suppress(Exception):  # a thread of the program may delete it meanwhile
                if not array.is_ready():
                    shards = [shard.data for shard in array.addressable_shards]
                    found |= {d for one in shards if not one.is_ready() for d in one.devices()}
    return found


def wait_for_dispatched(
    across_devices: bool = True, stop: Callable[[list[Exception]], bool] = lambda _: False
) -> list[Exception]:
    """Waits for all that this thread has dispatched; returns what the arrays failed with.

    Without ``across_devices``, programs of several devices whose results were dropped have begun,
    but may still run. It polls, because a wait inside jaxlib would hold back signals. ``stop`` is
    called after each poll with the failures so far, and ends the wait where it returns True.
    """
    failures: list[Exception] = []
    running = [array for backend in _backends().values() for array in backend.live_arrays()]
    try:
        running += _last_programs(across_devices)
    except Exception as error:
        if texts.is_interrupt(error):
            raise
        hooks.report(
            "end of a program", "a process that ends does not wait for dropped results.", error
        )
    while True:
        started = time.monotonic()
        running = [array for array in running if _is_running(array, failures)]
        if not running or stop(failures):
            return failures
        time.sleep(max(_POLL_SECONDS, _POLL_BACKOFF * (time.monotonic() - started)))


def _is_running(array: Any, failures: list[Exception]) -> bool:
    """Whether an array has no value yet; adds the error of one that has failed to ``failures``."""
    try:
        if not array.is_ready():
            return True
        array.block_until_ready()
    except Exception as error:
        if texts.is_interrupt(error):
            raise
        if not array.is_deleted():  # a thread of the program may delete it meanwhile
            failures.append(error)
    return False


def _last_programs(across_devices: bool) -> list[Any]:
    """Results that are ready only when everything dispatched before is: also what was dropped.

    A thread's programs for one device run in order on it. Programs for several devices of this
    process run one after another, whatever thread has dispatched them.
    """
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    results: list[Any] = []
    no_mesh = Mesh(np.empty((), object), ())
    for backend in _backends().values():
        devices = np.array(backend.local_devices())
        places = [*devices]
        if across_devices and len(devices) > 1:
            places.append(NamedSharding(Mesh(devices, "d"), PartitionSpec("d")))
        for place in places:
            # The program's own mesh may have other devices, and a transfer guard forbid constants.
            with jax.set_mesh(no_mesh):
                one = jax.device_put(np.zeros(len(devices), np.int8), place)
                results.append(one + one)
    return results


def has_backend() -> bool:
    """Whether JAX has devices yet."""
    return bool(_backends())


def platforms() -> set[str]:
    """The platforms of this process's devices, ``cpu`` and others; empty: no backend yet."""
    return set(_backends())


def local_devices() -> list[Any]:
    """This process's devices of JAX's default platform; empty: there is no backend yet.

    JAX's public function may not be called while JAX makes its backends.
    """
    from jax._src import xla_bridge

    default = getattr(xla_bridge, "_default_backend", None)
    return list(default.local_devices()) if default is not None else []


def all_devices() -> list[Any]:
    """The devices of all processes, as `local_devices`."""
    from jax._src import xla_bridge

    default = getattr(xla_bridge, "_default_backend", None)
    return list(default.devices()) if default is not None else []


def device_lists() -> set[tuple[int, ...]]:
    """The lists of devices that programs are likely to run on, by id and in order.

    All devices of the job, and those of the meshes that arrays lie on.
    """
    cpu = _cpu_backend()
    if cpu is None:
        return set()
    lists = {tuple(device.id for device in cpu.devices())}
    for mesh in {getattr(array.sharding, "mesh", None) for array in cpu.live_arrays()}:
        devices = getattr(mesh, "devices", None)
        if devices is not None:
            lists.add(tuple(device.id for device in devices.flat))
    return lists


def _cpu_backend() -> Any:
    return _backends().get("cpu")


def _backends() -> dict[str, Any]:
    from jax._src import xla_bridge

    backends = getattr(xla_bridge, "_backends", None)
    if not isinstance(backends, dict):
        hooks.report(
            "live programs",
            "error messages do not name the lines of collectives, and a process that ends does not "
            "wait for what it has dispatched.",
            "jax._src.xla_bridge._backends is no dict",
        )
        return {}
    return backends
