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
from typing import NamedTuple

from lockstep._errors import LaunchError
from lockstep.bootstrap.cluster_env import _place
from lockstep.bootstrap.cluster_env._place import Environ, RankInfo, Read

NAME = "a launcher for JAX"
SIZE, RANK = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
ADDRESS, PORT = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"
BACKEND = "JAX_DISTRIBUTED_BACKEND"


class _Names(NamedTuple):
    """The four variables as a launcher calls them."""

    launcher: str
    size: str
    rank: str
    address: str
    port: str


_JAX = _Names(NAME, SIZE, RANK, ADDRESS, PORT)
_OPERATOR = _Names("a JAXJob of Kubeflow", *(name.removeprefix("JAX_") for name in _JAX[1:]))


def find(environ: Environ, read: Read) -> RankInfo | None:
    names = _told(environ)
    if names is None:
        return None
    return RankInfo(
        rank=_place.whole(environ, names.rank, names.launcher),
        size=_place.whole(environ, names.size, names.launcher),
        local_rank=None,
        local_size=None,
        coordinator=coordinator(environ, names),
        found_by=names.launcher,
    )


def _told(environ: Environ) -> _Names | None:
    """Whose variables ``environ`` has. Without JAX_ they are a place only if all four are there."""
    if {SIZE, RANK} <= environ.keys():
        return _JAX
    return _OPERATOR if set(_OPERATOR[1:]) <= environ.keys() else None


def coordinator(environ: Environ, names: _Names = _JAX) -> str | None:
    """``HOST:PORT`` of the two variables; None where the address is not set.

    Raises `LaunchError` where no port is named, or two different ones.
    """
    address = environ.get(names.address)
    if not address:
        return None
    said = f"{names.address}={address!r}"
    source = "the user" if names is _JAX else names.launcher
    host, port = _parts(address)
    named = str(_place.port(environ, names.port, source)) if environ.get(names.port) else ""
    if not host or (port and not (port.isdigit() and 0 < int(port) <= _place.LAST_PORT)):
        raise LaunchError(f"{said} is not HOST:PORT.")
    if not port and not named:
        raise LaunchError(
            f"{said} has no port: on all processes add it, HOST:PORT, or set {names.port}."
        )
    if port and named and port != named:
        raise LaunchError(f"{said} and {names.port}={named} name different ports.")
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
    host, _, port = address.rpartition(":") if address else (None, "", None)
    values: dict[str, str | int | None] = {RANK: rank, SIZE: size, ADDRESS: address, PORT: port}
    if set(_OPERATOR[1:]) <= environ.keys():
        values |= zip(_OPERATOR[1:], (size, rank, host, port), strict=True)
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
    names, told = _told(environ), find(environ, read)
    if names is None or told is None or (told.rank, told.size) == (other.rank, other.size):
        return
    raise LaunchError(
        f"Two launchers disagree: the variables of {other.found_by} say process {other.rank} of "
        f"{other.size}, {names.rank} and {names.size} say process {told.rank} of {told.size}. "
        "Unset the variables of the one that did not start this process (env -u NAME ... lockstep "
        "worker), or set LOCKSTEP_PROCESS_ID, LOCKSTEP_NUM_PROCESSES and LOCKSTEP_COORDINATOR."
    )


def note(environ: Environ, launcher: str) -> str:
    """What `lockstep doctor` says of other variables, where the place is that of ``launcher``."""
    address = coordinator(environ) if launcher != NAME else None
    said = f"; {ADDRESS} names the coordinator, {address}" if address else ""
    if backend := environ.get(BACKEND):
        said += f"; {BACKEND}={backend} is not read (by JAX neither): --collectives chooses"
    return said
