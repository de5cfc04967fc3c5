"""The ``XLA_FLAGS`` of all processes: a program that those with other flags share is refused.

XLA's flags are in no compiled text and no number of an execution, so nothing that moves data shows
a difference. Each process publishes its flags before JAX exchanges the devices of all, which no
process leaves before all have come: when a program is compiled, those of all can be read at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import DisagreementError
from lockstep.job import current_job, kv_store
from lockstep.programs import compilations
from lockstep.programs.compilations import Program

_FOLDER = "lockstep/flags"


class _Flags(current_job.Part):
    """What the processes of this job have published."""

    of: dict[int, str] | None = None


def publish() -> None:
    """Called before JAX makes its devices; without a word where the service does not answer."""
    with contextlib.suppress(Exception):
        store = kv_store.of_application(_jax_compat.distributed_client())
        process, _ = _jax_compat.distributed_place()
        store.put(f"{_FOLDER}/{process}", compilations.flags(), overwrite=True)


def check(program: Program, processes: Collection[int]) -> None:
    """Raises `DisagreementError` where ``processes``, which share a program, have other flags.

    With ``warn`` the table of settings at the start is the warning.
    """
    if _config.current().check_programs != _config.ERROR:
        return
    part = current_job.part(_Flags)
    if part.of is None or not part.of.keys() >= set(processes):
        part.of = _read()
    known = {p: part.of[p] for p in processes if p in part.of}
    if len(set(known.values())) < 2:
        return
    programs = {p: dataclasses.replace(program, flags=flags) for p, flags in known.items()}
    raise DisagreementError(
        f"{compilations.explain(programs)}. Set XLA_FLAGS alike for all processes before Python "
        "starts; --check-programs warn goes on with other flags."
    )


def _read() -> dict[int, str]:
    with contextlib.suppress(Exception):
        store: Any = kv_store.of_application(_jax_compat.distributed_client())
        return {int(process): str(flags) for process, flags in store.values(_FOLDER).items()}
    return {}
