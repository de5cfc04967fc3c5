"""Room in XLA's pool of threads for the collectives of several devices.

XLA runs a process on a pool of as many threads as there are cores or devices. Each device's
collective holds one, and so does each device's next execution once 32 are in flight: with fewer
than two threads a device, a loop stands still in which no thread waits. ``NPROC`` is their number,
and jaxlib reads it when it makes its CPU client.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping

from lockstep import _jax_compat

_VARIABLE = "NPROC"
_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def planned_devices(asked: int, environ: Mapping[str, str]) -> int:
    """How many CPU devices jaxlib will make; ``asked`` is -1 when only XLA_FLAGS may say so."""
    if asked >= 0:
        return asked
    forced = _FORCED_DEVICES.findall(environ.get("XLA_FLAGS", ""))
    return int(forced[-1]) if forced else 1


@contextlib.contextmanager
def enough() -> Iterator[None]:
    """The CPU client that is made in this block gets two threads a device, unless the user decides.

    Programs that this one starts later do not see the variable: it is no business of theirs.
    """
    devices = planned_devices(_jax_compat.setting("jax_num_cpu_devices"), os.environ)
    if devices < 2 or _VARIABLE in os.environ or len(os.sched_getaffinity(0)) >= 2 * devices:
        yield
        return
    os.environ[_VARIABLE] = str(2 * devices)
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
