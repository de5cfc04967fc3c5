"""The ``JAX_*`` protocol: what Kubeflow Trainer, and many scripts, call the place of a process.

A launcher sets JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAX_COORDINATOR_ADDRESS, which may lack the
port; JAX_COORDINATOR_PORT has it then. JAX itself reads the last two only. The training operator of
Kubeflow, before the Trainer, sets the same without ``JAX_``.

Kubeflow Trainer also sets JAX_DISTRIBUTED_BACKEND=gloo, in all jobs: that is its default, not a
wish of the user's, and JAX does not read it. So the collectives are Lockstep's, unless
``--collectives`` says otherwise.

Sources: kubeflow/trainer, ``pkg/runtime/framework/plugins/jax/jax.go``; kubeflow/training-operator,
``pkg/controller.v1/jax/envvar.go``.
"""

from __future__ import annotations

import re

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "a launcher for JAX"
SIZE, RANK = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
ADDRESS, PORT = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"
BACKEND = "JAX_DISTRIBUTED_BACKEND"
_OPERATOR = {name: name.removeprefix("JAX_") for name in (SIZE, RANK, ADDRESS, PORT)}


def find(environ: Environ, read: Read) -> RankInfo | None:
    if {SIZE, RANK} <= environ.keys():
        return _found(environ, NAME)
    if set(_OPERATOR.values()) <= environ.keys():
        told = {name: environ[short] for name, short in _OPERATOR.items()}
        return _found(told, "a JAXJob of Kubeflow")
    return None


def _found(environ: Environ, launcher: str) -> RankInfo:
    return RankInfo(
        rank=_place.whole(environ, RANK, launcher),
        size=_place.whole(environ, SIZE, launcher),
        local_rank=None,
        local_size=None,
        coordinator=coordinator(environ),
        found_by=launcher,
    )


def coordinator(environ: Environ) -> str | None:
    """``HOST:PORT`` of JAX's two variables; None where the address is not set.

    Raises `LaunchError` where no port is named, or two different ones.
    """
    address = environ.get(ADDRESS)
    if not address:
        return None
    host, port = _parts(address)
    named = str(_place.port(environ, PORT, "the user")) if environ.get(PORT) else ""
    if not host or (port and not (port.isdigit() and 0 < int(port) <= _place.LAST_PORT)):
        raise LaunchError(f"{ADDRESS}={address!r} is not HOST:PORT.")
    if not port and not named:
        raise LaunchError(
            f"{ADDRESS}={address!r} has no port: on all processes add it, HOST:PORT, or set {PORT}."
        )
    if port and named and port != named:
        raise LaunchError(f"{ADDRESS}={address!r} and {PORT}={named} name different ports.")
    return f"{_place.bracketed(host)}:{port or named}"


def _parts(address: str) -> tuple[str, str]:
    """Host and port, "" for a port that is missing; an IPv6 address may stand without brackets."""
    if match := re.fullmatch(r"(\[[^\[\]]+\])(?::(.*))?", address):
        return match[1], match[2] or ""
    if address.count(":") > 1:
        return address, ""
    host, colon, port = address.partition(":")
    return host, port if port or not colon else "none"


def renewed(
    environ: Environ, rank: int | None, size: int | None, address: str | None
) -> dict[str, str]:
    """Returns the variables that ``environ`` has, with the values of another job."""
    port = address.rpartition(":")[2] if address else None
    values = {RANK: rank, SIZE: size, ADDRESS: address, PORT: port}
    return {n: str(value) for n, value in values.items() if n in environ and value is not None}


def missing(environ: Environ) -> str | None:
    """What a process lacks that has one of the two variables; None where it has none or both."""
    if len(found := {SIZE, RANK} & environ.keys()) != 1:
        return None
    [lacks] = {SIZE, RANK} - found
    return f"{found.pop()} is set but {lacks} is not: a launcher for JAX sets both."


def check_agreement(environ: Environ, read: Read, other: RankInfo) -> None:
    """Raises `LaunchError` where another launcher has started a process with another place.

    The variables may be those of the container around the other launcher, or of a script that it
    has started. Nothing tells which, and a wrong guess is a job of the wrong processes.
    """
    told = find(environ, read)
    if told is None or (told.rank, told.size) == (other.rank, other.size):
        return
    raise LaunchError(
        f"Two launchers disagree: the variables of {other.found_by} say process {other.rank} of "
        f"{other.size}, {RANK} and {SIZE} say process {told.rank} of {told.size}. Unset the "
        "variables of the one that did not start this process (env -u NAME ... lockstep worker), "
        "or set LOCKSTEP_PROCESS_ID, LOCKSTEP_NUM_PROCESSES and LOCKSTEP_COORDINATOR."
    )


def note(environ: Environ) -> str:
    """What `lockstep doctor` says of the library that a launcher names; "" where it names none."""
    backend = environ.get(BACKEND)
    if not backend:
        return ""
    return f"; {BACKEND}={backend} is not read (by JAX neither): --collectives chooses"
