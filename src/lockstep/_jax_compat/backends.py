"""JAX's backends and settings: the making of the CPU client, and what lives on it."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from lockstep._jax_compat import hooks
from lockstep._jax_compat.distributed import check_distributed, distributed_client
from lockstep._jax_compat.settings import setting


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
    and there is no GPU, raises an explanation instead of JAX's bare assertion.
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
    return (
        f"JAX may use the platform {asked} only (--platform, JAX_PLATFORMS), but finds no "
        "NVIDIA GPU on this machine. `lockstep doctor` shows what is here; for CPUs: "
        "--platform cpu."
    )


def live_executables() -> list[Any]:
    """The compiled programs of the CPU backend; empty: there is no backend yet.

    JAX's public function would create a backend, which then would not belong to the later job.
    """
    cpu = _cpu_backend()
    return cpu.live_executables() if cpu is not None else []


def live_arrays() -> list[Any]:
    """The arrays on CPU devices; empty: there is no backend yet."""
    cpu = _cpu_backend()
    return cpu.live_arrays() if cpu is not None else []


def wait_for_dispatched() -> None:
    """Waits until all that this thread has dispatched to this process's CPU devices has begun.

    A thread's programs begin in order on a device, so it waits for one more program on each. Their
    collectives may still be running then.
    """
    import jax

    if has_backend():
        for device in jax.local_devices(backend="cpu"):
            (jax.device_put(0, device) + 1).block_until_ready()


def has_backend() -> bool:
    """Whether JAX has devices yet."""
    return bool(_backends())


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
