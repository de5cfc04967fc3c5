"""The processes of a job exchange their settings, and say in what they differ (`config_check`)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import lockstep
from lockstep import _config, _jax_compat, _run_files
from lockstep._errors import DisagreementError
from lockstep._stderr import complain
from lockstep.bootstrap import config_check, startup_liveness
from lockstep.engine import bindings
from lockstep.job import current_job, kv_store
from lockstep.programs import compilations

_WARNING_SECONDS = 5.0
"""For all processes to publish what they have: they have just met, to list their devices."""


class _Checks(current_job.Part):
    """The comparisons of this process's settings with those of the others of its job."""

    count = 0
    is_called = False
    """Whether the program has called `initialize`, whose ``check`` says what is compared."""

    def next(self) -> int:
        self.count += 1
        return self.count


def begin(check: bool) -> None:
    """Called by `lockstep.initialize`; ``check``: raises `DisagreementError` where the processes
    differ."""
    current_job.part(_Checks).is_called = True
    if check:
        _check_agreement("settings", _settings())
        _check_agreement("devices", _devices())
        _warn_of_random_hashes()


def warn_of_differences(client: Any) -> None:
    """Prints a table, in process 0, where the processes differ; raises nothing.

    For programs that call `jax.distributed.initialize` themselves. ``client`` is JAX's CPU client,
    which has just been made.
    """
    joined = _jax_compat.distributed_client()
    checks = current_job.part(_Checks)
    if checks.is_called or joined is None:
        return
    process, count = _jax_compat.distributed_place()
    prefix = f"lockstep/differences/{checks.next()}"
    # A warning is all that is lost where this fails.
    with contextlib.suppress(Exception):
        shared = kv_store.of_application(joined)
        facts = _settings() | {"local CPU devices": str(client.local_device_count())}
        end = time.monotonic() + _WARNING_SECONDS

        def receive(other: int, name: str) -> config_check.Settings:
            return shared.once(name, f"process {other}", end - time.monotonic())

        if process > 0:
            shared.put(f"{prefix}/{process}", facts)
        else:
            _print_differences(shared.all_gather(prefix, process, count, facts, receive))


def _print_differences(facts: Sequence[config_check.Settings]) -> None:
    try:
        config_check.check([str(process) for process in range(len(facts))], facts)
    except DisagreementError as error:
        complain(
            f"warning: {error} With different numbers of devices jax.pmap fails by an "
            "AssertionError without a text."
        )
        if folder := _config.current().process_dir(0):
            summary = config_check.summary(config_check.differences(facts))
            (folder / _run_files.DIFFERENCES).write_text(summary, encoding="utf-8")


def _check_agreement(topic: str, facts: config_check.Settings) -> None:
    shared = kv_store.of_application(_jax_compat.distributed_client())
    process, count = _jax_compat.distributed_place()
    folder = f"lockstep/agreement/{current_job.part(_Checks).next()}/{topic}"

    def receive(other: int, _: str) -> config_check.Settings:
        return startup_liveness.first_value(shared, folder, other, count)

    found = shared.all_gather(folder, process, count, dict(facts), receive)
    config_check.check([str(other) for other in range(count)], found)


_RANDOM_NUMBERS = ("jax_default_prng_impl", "jax_threefry_partitionable")


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
        "LOCKSTEP_LINALG_LINK": str(_config.current().linalg_link or "none"),
        "XLA_FLAGS": compilations.flags() or "none",
        "matmul precision": _optional("jax_default_matmul_precision"),
        "random numbers": "/".join(map(_optional, _RANDOM_NUMBERS)),
    }


def _optional(name: str) -> str:
    """A setting that another jax may not have."""
    try:
        value = _jax_compat.setting(name)
    except AttributeError:
        return "none"
    return "default" if value is None else str(value)


def _hash_seed() -> str:
    seed = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED")
    return seed or "random"


def _warn_of_random_hashes() -> None:
    process, count = _jax_compat.distributed_place()
    if count > 1 and process == 0 and _hash_seed() == "random":
        complain(
            "warning: each process iterates over a set of strings in another order, and "
            "collectives in such a loop would mix up their arrays. Set PYTHONHASHSEED=0 for all "
            "processes before Python starts, as `lockstep run` and `lockstep worker` do."
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
