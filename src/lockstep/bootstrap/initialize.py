"""``lockstep.initialize``: `jax.distributed.initialize`, and a check that the processes agree."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep import _jax_compat
from lockstep._errors import InitializationError
from lockstep._words import grouped
from lockstep.bootstrap import agreement, jax_hooks, plugin
from lockstep.bootstrap.rank import find_place

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
    """Joins this process to its job; call it before any JAX computation.

    All arguments but ``check`` are passed to `jax.distributed.initialize`. They may be left out
    under ``lockstep run``, ``lockstep worker``, and the launchers that JAX knows. Where this
    process is part of a job already, only the check is made.

    Args:
      coordinator_address: ``"HOST:PORT"`` at which process 0 serves JAX's key-value store. Default:
        as the launcher sets it.
      num_processes: how many processes the job has. Default: as the launcher sets it.
      process_id: the index of this process, from 0. Default: as the launcher sets it.
      local_device_ids: the indices of the accelerators that this process may use: one, or a list.
        Default: all (JAX has other defaults under Slurm and Open MPI).
      cluster_detection_method: the only way in which JAX looks for a launcher, such as
        ``"mpi4py"``; ``"deactivate"`` for none. Default: all ways.
      initialization_timeout: seconds until missing processes are an error. With the default, 300,
        ``--start-timeout`` applies instead, whose default is 120.
      heartbeat_timeout_seconds: seconds without a sign of life after which JAX takes a process for
        dead. An unreachable host is an error after 0.3 of it. Default: 100.
      shutdown_timeout_seconds: seconds that the end of a process waits for the others, where JAX
        waits. Default: 300.
      coordinator_bind_address: ``"HOST:PORT"`` at which process 0 listens. Default: the port of
        ``coordinator_address``, on all interfaces.
      slice_index: JAX's old name of ``partition_index``.
      partition_index: the index of the partition of accelerators that this process belongs to;
        either all processes give one or none. Default: what JAX finds.
      mtls_cert_file: path of a PEM file with this process's certificates, for mutual TLS of JAX's
        coordination service. Like the four arguments that follow it needs jax 0.11.2. Default:
        one that is made from the key of the job, where it has one.
      mtls_key_file: path of a PEM file with the private key of ``mtls_cert_file``.
      mtls_ca_file: path of a PEM file with the certificates by which peers are verified.
      mtls_peer_uri_prefix: how a URI in the certificate of a peer has to begin.
      verify_secure_credentials: True raises where the service would have no secure credentials.
      check: compare the versions of jax, jaxlib and lockstep, the engine, x64 mode, the precision
        of matrix products, the generator of random numbers, platform, collectives, PYTHONHASHSEED,
        XLA_FLAGS, and number and kind of local devices of all processes. This makes JAX's backend,
        as any computation would. Default: True.
      more: arguments that a newer `jax.distributed.initialize` takes.

    Raises:
      ImportOrderError: lockstep was imported after jax.
      TypeError: the installed jax does not take an argument.
      ConfigError: a ``LOCKSTEP_*`` variable has a bad value, or the key file cannot be used.
      DisagreementError: on every process, with a table of what differs.
      InitializationError: a process has not arrived in time or has ended, or this process does not
        know its place in a job.
    """
    arguments = dict(locals())  # no other name is bound yet
    del arguments["check"], arguments["more"]
    import jax

    plugin.check_in_time()
    if _jax_compat.distributed_client() is None:
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
    agreement.begin(check)


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
    if _jax_compat.is_in(jax_hooks.CLUSTER) or (place := find_place()) is None:
        return {}
    return {
        "coordinator_address": place.coordinator,
        "num_processes": place.size,
        "process_id": place.rank,
    }


def process_mesh(axis_names: tuple[str, str] = ("process", "device"), **options: Any) -> Mesh:
    """The grid of processes x local devices as a mesh: row i holds the devices of process i.

    Args:
      axis_names: names of the two axes, of sizes `jax.process_count()` and
        `jax.local_device_count()`. Default: ``("process", "device")``.
      options: further arguments of `jax.sharding.Mesh` (``axis_types``).

    Returns:
      A `jax.sharding.Mesh` of all devices of the job, in the order of their ids.

    Raises:
      ValueError: the processes have different numbers of devices, or there are not two names.
    """
    import jax
    import numpy as np

    if len(axis_names) != 2:
        raise ValueError(f"process_mesh has two axes; got the names {axis_names!r}.")
    rows = grouped((d.process_index, d) for d in sorted(jax.devices(), key=lambda d: d.id))
    counts = {process: len(row) for process, row in rows.items()}
    if len(set(counts.values())) > 1:
        raise ValueError(f"the processes have different numbers of devices: {counts}.")
    grid = np.array([rows[process] for process in sorted(rows)], dtype=object)
    return jax.sharding.Mesh(grid, axis_names, **options)
