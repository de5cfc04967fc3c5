"""``lockstep.initialize``: `jax.distributed.initialize`, and a check that the processes agree."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import lockstep
from lockstep import _config, _jax_compat
from lockstep._errors import DisagreementError, InitializationError
from lockstep.bootstrap import config_check, plugin, startup_liveness
from lockstep.bootstrap.rank import find_place
from lockstep.engine import bindings
from lockstep.job import kv_store

if TYPE_CHECKING:
    from jax.sharding import Mesh


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    local_device_ids: int | Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
    heartbeat_timeout_seconds: int = 100,
    shutdown_timeout_seconds: int = 300,
    coordinator_bind_address: str | None = None,
    slice_index: int | None = None,
    partition_index: int | None = None,
    mtls_cert_file: str | None = None,
    mtls_key_file: str | None = None,
    mtls_ca_file: str | None = None,
    mtls_peer_uri_prefix: str | None = None,
    verify_secure_credentials: bool | None = None,
    *,
    check: bool = True,
    **more: Any,
) -> None:
    """Brings the processes of a job together; call it before any JAX computation.

    Every argument but ``check`` is that of `jax.distributed.initialize` and may be left out under
    ``lockstep run``, ``lockstep worker``, and the launchers that JAX knows. A second call in a
    process that is already part of the job only checks. Those for mutual TLS of JAX's coordination
    service (``mtls_cert_file`` to ``verify_secure_credentials``) need jax 0.11.2.

    Args:
      check: compare jax, jaxlib and lockstep versions, the engine, x64 mode, platform, collectives,
        PYTHONHASHSEED, and number and kind of local devices of all processes. This makes JAX's
        backend, as any computation would.
      more: arguments that a newer `jax.distributed.initialize` takes.

    Raises:
      ImportOrderError: lockstep was imported after jax.
      TypeError: the installed jax does not take an argument.
      DisagreementError: on every process, with a table of what differs.
      InitializationError: a process did not come, or no place in a job could be found.
    """
    import jax

    global _is_called
    _is_called = True
    plugin.check_in_time()
    if _jax_compat.distributed_client() is None:
        arguments = {
            "coordinator_address": coordinator_address,
            "num_processes": num_processes,
            "process_id": process_id,
            "local_device_ids": local_device_ids,
            "cluster_detection_method": cluster_detection_method,
            "initialization_timeout": initialization_timeout,
            "heartbeat_timeout_seconds": heartbeat_timeout_seconds,
            "shutdown_timeout_seconds": shutdown_timeout_seconds,
            "coordinator_bind_address": coordinator_bind_address,
            "slice_index": slice_index,
            "partition_index": partition_index,
            "mtls_cert_file": mtls_cert_file,
            "mtls_key_file": mtls_key_file,
            "mtls_ca_file": mtls_ca_file,
            "mtls_peer_uri_prefix": mtls_peer_uri_prefix,
            "verify_secure_credentials": verify_secure_credentials,
        }
        # What was left out is not passed on: an older jax may not know it.
        defaults = inspect.signature(initialize).parameters
        given = {n: value for n, value in arguments.items() if value != defaults[n].default}
        given |= more
        _check_known(given)
        try:
            jax.distributed.initialize(**(_found_place() | given))
        except ValueError as error:
            raise InitializationError(
                f"{error} This process does not know its place in a job. Start the program with "
                "`lockstep run -n N`, under a cluster's launcher with `lockstep worker`, or pass "
                "coordinator_address, num_processes and process_id."
            ) from error
    if check:
        _check_agreement("settings", _settings())
        _check_agreement("devices", _devices())
        _warn_of_random_hashes()


def _check_known(given: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments that this jax's ``initialize`` does not take."""
    import jax

    known = inspect.signature(jax.distributed.initialize).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    if not takes_all and (unknown := [name for name in given if name not in known]):
        raise TypeError(
            f"lockstep.initialize(): jax.distributed.initialize() of jax {jax.__version__} does "
            f"not take {', '.join(unknown)}. Leave it out, or install a jax that does."
        )


def _found_place() -> dict[str, Any]:
    """The place that cluster detection would find, where its hook could not be put in."""
    if _jax_compat.is_in(plugin.CLUSTER) or (place := find_place()) is None:
        return {}
    return {
        "coordinator_address": place.coordinator,
        "num_processes": place.size,
        "process_id": place.rank,
    }


def _settings() -> dict[str, str]:
    import jax
    from jaxlib import version as jaxlib_version

    collectives = _jax_compat.setting("jax_cpu_collectives_implementation")
    if collectives == "mpi":  # as which jaxlib knows the engine too
        collectives = _config.current().collectives
    return {
        "jax": jax.__version__,
        "jaxlib": jaxlib_version.__version__,
        "lockstep": lockstep.__version__,
        "x64": str(_jax_compat.setting("jax_enable_x64")),
        "platforms": _jax_compat.setting("jax_platforms") or "default",
        "collectives": str(collectives),
        "engine": bindings.interface(),
        "PYTHONHASHSEED": _hash_seed(),
    }


def _hash_seed() -> str:
    seed = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED")
    return seed or "random"


def _warn_of_random_hashes() -> None:
    process, count = _jax_compat.distributed_place()
    if count > 1 and process == 0 and _hash_seed() == "random":
        print(
            "lockstep: warning: each process iterates over a set of strings in another order, and "
            "collectives in such a loop would mix up their arrays. Set PYTHONHASHSEED=0 for all "
            "processes before Python starts, as `lockstep run` and `lockstep worker` do.",
            file=sys.stderr,
        )


def _devices() -> dict[str, str]:
    import jax

    devices = jax.local_devices()
    kinds = sorted({device.device_kind for device in devices})
    return {
        "platform": jax.default_backend(),
        "local devices": str(len(devices)),
        "kind": ", ".join(kinds),
    }


_checks = 0
_is_called = False
"""Whether the program has called `initialize`, whose ``check`` says what is compared."""
_WARNING_SECONDS = 5.0
"""For all processes to publish what they have: they have just met, to list their devices."""


def warn_of_differences(client: Any) -> None:
    """Prints a table, in process 0, where the processes differ; raises nothing.

    For programs that call `jax.distributed.initialize` themselves. ``client`` is JAX's CPU client,
    which has just been made.
    """
    global _checks
    joined = _jax_compat.distributed_client()
    if _is_called or joined is None:
        return
    _checks += 1
    process, count = _jax_compat.distributed_place()
    prefix = f"lockstep/differences/{_checks}"
    # A warning is all that is lost where this fails.
    with contextlib.suppress(Exception):
        shared = kv_store.of_application(joined)
        facts = _settings() | {"local CPU devices": str(client.local_device_count())}
        shared.put(f"{prefix}/{process}", facts)
        if process == 0:
            _print_differences(_published(shared, prefix, count))


def _published(shared: kv_store.Store, prefix: str, count: int) -> list[config_check.Facts]:
    end = time.monotonic() + _WARNING_SECONDS
    return [
        shared.once(f"{prefix}/{other}", f"process {other}", end - time.monotonic())
        for other in range(count)
    ]


def _print_differences(facts: Sequence[config_check.Facts]) -> None:
    try:
        config_check.check([str(process) for process in range(len(facts))], facts)
    except DisagreementError as error:
        print(
            f"lockstep: warning: {error} With different numbers of devices jax.pmap fails by an "
            "AssertionError without a text.",
            file=sys.stderr,
            flush=True,
        )


def _check_agreement(topic: str, facts: config_check.Facts) -> None:
    global _checks
    _checks += 1
    shared = kv_store.of_application(_jax_compat.distributed_client())
    process, count = _jax_compat.distributed_place()
    folder = f"lockstep/agreement/{_checks}/{topic}"
    shared.put(f"{folder}/{process}", dict(facts))
    said = [
        facts if other == process else startup_liveness.first_value(shared, folder, other, count)
        for other in range(count)
    ]
    config_check.check([str(other) for other in range(count)], said)


def process_mesh(axis_names: tuple[str, str] = ("process", "device"), **options: Any) -> Mesh:
    """The grid of processes x local devices as a mesh: row i holds the devices of process i.

    Args:
      axis_names: names of the two axes, of sizes `jax.process_count()` and
        `jax.local_device_count()`.
      options: further arguments of `jax.sharding.Mesh` (``axis_types``).

    Raises:
      ValueError: the processes have different numbers of devices, or there are not two names.
    """
    import jax
    import numpy as np

    if len(axis_names) != 2:
        raise ValueError(f"process_mesh has two axes; got the names {axis_names!r}.")
    rows: dict[int, list[Any]] = {}
    for device in sorted(jax.devices(), key=lambda d: d.id):
        rows.setdefault(device.process_index, []).append(device)
    counts = {process: len(row) for process, row in rows.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the processes have different numbers of devices: {counts}.")
    grid = np.array([rows[process] for process in sorted(rows)], dtype=object)
    return jax.sharding.Mesh(grid, axis_names, **options)
