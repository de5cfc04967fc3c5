"""What to do about an error of Python or JAX that does not say it of a job of several processes."""

from __future__ import annotations

import contextlib
import re
import sys

from lockstep._jax_compat import texts

_NO_LINE = "EOF when reading a line"
"""What ``input()`` raises at the end of the input."""
_TOO_FEW = re.compile(
    r"Number of devices (\d+) must be >= |cannot reshape array of size (\d+) into"
)
"""What `jax.make_mesh`, or a reshape of ``jax.devices()``, raises where devices are missing."""
_UNEVEN = re.compile(r"implies that array axis \d+ is partitioned \d+ times?, but ")
_INPUT = (
    "The launcher's standard input goes to process 0 alone. Read it under `if jax.process_index() "
    "== 0` and broadcast the value, or use an argument of the program, which every process gets."
)
_JOINED = (
    "This process has joined the job already. Remove this call, or make it under `if not "
    "jax.distributed.is_initialized()`."
)
_ROWS = (
    "The devices of all processes share such an array in equal parts: pad or cut it, on every "
    "process alike. lockstep.data.batches cuts rows that do not divide into batches that do."
)
_DELETED = (
    "A function with donate_argnums or donate_argnames has taken this array: use what it has "
    "returned instead."
)


def advice(error: BaseException, process: int) -> str:
    """What to do about ``error`` of this ``process``; "" where the error says enough."""
    if isinstance(error, EOFError):
        return _INPUT if process and error.args[:1] == (_NO_LINE,) else ""
    if not isinstance(error, ValueError | RuntimeError) or "jax" not in sys.modules:
        return ""
    with contextlib.suppress(Exception):  # the error itself is what the user has to see
        return _of_jax(error)
    return ""


def _of_jax(error: BaseException) -> str:
    from lockstep import _jax_compat

    text = str(error)
    if texts.comes_too_late(error):
        return _JOINED if _jax_compat.distributed_client() is not None else ""
    if text.startswith("Array has been deleted with shape"):
        return _DELETED
    if not _jax_compat.has_backend() or _jax_compat.distributed_place()[1] == 1:
        return ""
    if _UNEVEN.search(text):
        return _ROWS
    found = _TOO_FEW.match(text)
    return _devices() if found and int(found[1] or found[2]) == _count() else ""


def _count() -> int:
    import jax

    return jax.device_count()


def _devices() -> str:
    import jax

    return (
        f"This job has {_count()} devices on {jax.process_count()} processes, of which this one "
        f"has {jax.local_device_count()}. `lockstep run -n PROCESSES -d DEVICES` starts PROCESSES "
        "x DEVICES."
    )
