"""Who is in a clique where XLA's frames do not say: from the programs, and by an exchange.

The engine asks when it has never found XLA's key in a frame (native/membership.h). One kind of job
can be served, the simplest: its programs communicate in one clique only, that of all devices. Two
witnesses have to agree: the texts of this process's programs, which name that clique and no other,
and the asks of all devices, which are published and fit together as that clique. All else is an
error: docs/design/membership.md says why less would be a guess.

The program that asks has to be among those that are read. JAX may have dropped it while it runs;
so from the making of the client on, each program is kept. That ends when the engine has found a
key, or when all devices of this process have their clique: no other can be known.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import InitializationError
from lockstep.engine import bindings
from lockstep.hlo.replica_groups import (
    COLLECTIVE,
    Clique,
    UnknownError,
    claim,
    named,
    text_of,
    the_only_one,
)
from lockstep.job.kv_store import Store

_FOLDER = "lockstep/members"
_SLICE_SECONDS = 0.5
"""How long a wait does not see that the job has failed."""
_MAX_LABELS = 4


@dataclasses.dataclass(frozen=True)
class Job:
    store: Store
    labels: Sequence[str]
    process: int
    process_of: Mapping[int, int]
    """All devices."""


class _Programs:
    """The programs of this process's CPU client."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, tuple[int, ...] | None]] = []
        self._noting = False
        self.gap: str | None = "the programs of this process were not noted"
        """Why a program that asks may not be here; None when it certainly is."""

    def start(self, client: Any, also: Callable[[Any], None]) -> None:
        if self._noting:
            # What runs on the earlier client would ask the engine of this one.
            return self.stop("JAX has made its devices a second time")
        self._noting = True
        try:
            _jax_compat.note_programs(client, functools.partial(self._note, also))
        except (AttributeError, TypeError) as error:
            self.gap = f"the programs of this process cannot be noted ({error})"
            _jax_compat.report(
                "compiled programs",
                "error messages name the lines of a program's collectives only while JAX keeps it.",
                error,
            )
        else:
            self.gap = None

    def stop(self, gap: str) -> None:
        self.gap = gap
        self._kept.clear()

    def release(self) -> None:
        """Lets go of the programs once a frame has told: then nobody asks for them."""
        if self.gap is None and bindings.frames_known():
            self.stop("XLA's frames did show an earlier group")

    def _note(
        self, also: Callable[[Any], None], program: Any, devices: tuple[int, ...] | None
    ) -> None:
        also(program)
        self.release()
        if self.gap is None and (devices is None or len(devices) > 1 or _communicates(program)):
            self._kept.append((program, devices))

    def cliques(self, job: Job) -> set[Clique]:
        """Those that the programs name."""
        if self.gap is not None:
            raise UnknownError(self.gap)
        programs = list(self._kept)
        for live in _jax_compat.live_executables():
            if all(live is not kept for kept, _ in programs):
                programs.append((live, None))
        found: set[Clique] = set()
        for program, devices in programs:
            own = [device.id for device in program.local_devices()]
            if [d for d in devices or () if job.process_of.get(d) == job.process] != own:
                devices = None
            for module in program.hlo_modules():
                found |= named(module.to_string(), devices)
        return found


def _communicates(program: Any) -> bool:
    try:
        return any(COLLECTIVE.search(module.to_string()) for module in program.hlo_modules())
    except Exception:  # the compilation that led here has to succeed
        return True


_programs = _Programs()
_answered: set[int] = set()


def note_programs(client: Any, also: Callable[[Any], None]) -> None:
    """Keeps the programs of JAX's CPU client, which has none yet, for as long as `find` may ask.

    ``also`` is given each program as well, to the end; it must raise nothing.
    """
    _programs.start(client, also)


def release() -> None:
    """Lets go of the programs if nobody will ask for them; called now and then."""
    _programs.release()


def find(job: Job, color: int, key: int) -> Clique:
    """The clique that starts with the device ``color`` and has one of this process at ``key``.

    Called on XLA's threads, for several devices at once. Raises `InitializationError` when the
    members cannot be known for certain, and with the job's error when it fails meanwhile.
    """
    try:
        clique = the_only_one(_programs.cliques(job), job.process_of, job.process, color, key)
        _exchange(job, clique, key)
    except UnknownError as why:
        raise InitializationError(
            "lockstep: cannot tell which devices form the group that starts with device "
            f"{color} and has this process at position {key}: {why}. Lockstep does not guess. "
            f"{_version()} does not show members in the way that Lockstep knows; then a group can "
            "be known only when it has all devices and there is no other. --collectives gloo works "
            "without the engine; `lockstep doctor` names the versions of jaxlib that Lockstep "
            "knows; please report this one."
        ) from None
    _answered.add(key)
    if len(_answered) == sum(process == job.process for process in job.process_of.values()):
        _programs.stop(f"it is not {text_of({clique})}, which is known already")
    if key == 0:
        _warn(clique)
    return clique


def _exchange(job: Job, clique: Clique, key: int) -> None:
    """Returns when every device has asked for this clique, at its position."""
    limit = _config.current().collective_timeout or _config.DEFAULT_COLLECTIVE_TIMEOUT
    end = time.monotonic() + limit
    try:
        job.store.put(f"{_FOLDER}/{key}", claim(clique, key, job.process_of))
    except Exception as error:
        raise UnknownError(f"this position was asked for before ({error})") from None
    for position in range(len(clique)):
        while (said := _read(job, position)) is None:
            if time.monotonic() > end:
                raise UnknownError(f"within {limit:g} s {_missing(job, clique)}")
        if said != claim(clique, position, job.process_of):
            raise UnknownError(
                f"who has position {position} asks for another one than {text_of({clique})}: {said}"
            )


def _read(job: Job, position: int) -> str | None:
    try:
        name = f"{_FOLDER}/{position}"
        return job.store.once(name, f"the device at position {position}", _SLICE_SECONDS)
    except Exception as error:
        if failed := bindings.abort_text():
            raise InitializationError(failed) from None
        if not _jax_compat.is_timeout(error):
            raise UnknownError(f"JAX's key-value store fails ({error})") from None
        return None


def _missing(job: Job, clique: Clique) -> str:
    come = {int(position) for position in job.store.values(_FOLDER)}
    absent = {job.process_of[clique[p]] for p in range(len(clique)) if p not in come}
    labels = [job.labels[process] for process in sorted(absent)]
    more = [f"{len(labels) - _MAX_LABELS} more"] if len(labels) > _MAX_LABELS else []
    who = ", ".join([*labels[:_MAX_LABELS], *more])
    return f"not all devices have asked for {text_of({clique})}; missing: {who}"


def _version() -> str:
    import jaxlib.version

    return f"jaxlib {jaxlib.version.__version__}"


def _warn(clique: Clique) -> None:
    print(
        f"lockstep: {_version()} does not show the members of a group in the way that Lockstep "
        f"knows. Its {len(clique)} devices have told each other; another group will be an error.",
        file=sys.stderr,
        flush=True,
    )
