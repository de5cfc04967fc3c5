"""Which jax is supported, which was tested, and what differs between them."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path

OLDEST_JAX = (0, 8)
NEWEST_TESTED_JAX = (0, 12)
"""A series: all its patches count as tested."""

KNOWN_PROBLEMS = {
    "0.11.2": (
        "XLA crashes where an input of jax.shard_map turns out to be unused",
        "pip install 'jax!=0.11.2', or set JAX_USE_SHARDY_PARTITIONER=0",
    ),
}
"""jaxlib release -> its known problem, and the fix."""


def release(version: str) -> tuple[int, ...]:
    """The numbers at the head of a version: ``"0.10.2.dev3"`` is ``(0, 10, 2)``."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)


def is_untested(version: str) -> bool:
    """Whether a jax, or jaxlib, is newer than every one that this Lockstep was tested with."""
    return release(version)[: len(NEWEST_TESTED_JAX)] > NEWEST_TESTED_JAX


def pin() -> str:
    """The command that installs a jax that was tested."""
    *first, last = NEWEST_TESTED_JAX
    return f"pip install 'jax<{dotted((*first, last + 1))}'"


def jax_version() -> str:
    """The version of jax, which is imported, or is being imported; "" where it does not say."""
    return getattr(sys.modules.get("jax"), "__version__", "")


def untested_note() -> str:
    """A note for errors that a too new jax may have caused; "" with a tested one."""
    if not is_untested(jax_version()):
        return ""
    return (
        f"jax {jax_version()} is newer than {dotted(NEWEST_TESTED_JAX)}, the newest that this "
        f"Lockstep was tested with. To go back: {pin()}"
    )


def known_problem() -> str:
    """The known problem of this jaxlib with its fix, unless that has been applied; "": none."""
    if os.environ.get("JAX_USE_SHARDY_PARTITIONER", "").lower() in ("0", "false"):
        return ""  # the fix of the only one there is
    what, fix = KNOWN_PROBLEMS.get(jaxlib_version_on_disk(), ("", ""))
    return f"jaxlib {jaxlib_version_on_disk()}: {what}. To avoid it: {fix}" if what else ""


def jaxlib_version_on_disk() -> str:
    """The version of the jaxlib that would be imported, without importing it; "" if unknown."""
    try:
        spec = importlib.util.find_spec("jaxlib")
        folder = next(iter(spec.submodule_search_locations or [])) if spec else ""
        text = Path(folder, "version.py").read_text()
    except (OSError, ImportError, ValueError, StopIteration):
        return ""
    match = re.search(r"""^_(?:release_)?version\b[^=]*=\s*["'](\d[^"']*)""", text, re.MULTILINE)
    return match[1] if match else ""


def _jaxlib_version() -> str:
    import jaxlib.version

    return jaxlib.version.__version__


def _jaxlib_release() -> tuple[int, ...]:
    return release(_jaxlib_version())


def unreadable_requests() -> str:
    """What to add to the error for a communicator request whose group cannot be found."""
    return (
        f"The communicator requests of jaxlib {_jaxlib_version()} cannot be read. Use "
        f"--collectives gloo, or install a jax that this Lockstep was tested with: {pin()}"
    )


def device_id_bytes() -> int:
    """The width of a device id in XLA's lists of devices, which the engine reads."""
    return 4 if _jaxlib_release() >= (0, 9, 1) else 8


def gloo_scatters_wrong() -> str:
    """The version of jaxlib if gloo's reduce-scatter is in it, which can be wrong; "": it is not.

    From 0.12 on XLA has an algorithm of its own.
    """
    return "" if _jaxlib_release() >= (0, 12) else _jaxlib_version()


def numbers_programs() -> bool:
    """Whether the numbers of a program's executions are the same in all processes for good.

    Before 0.9, a program that one process had compiled again (after ``jax.clear_caches``, say) was
    counted from the start again there.
    """
    return _jaxlib_release() >= (0, 9)
