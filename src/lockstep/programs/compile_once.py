"""One process of a host compiles a program, and the others load it from JAX's cache.

A process that compiles holds a lock (`flock`) beside the cache's entry; the others wait for it, and
look into the cache again. Linux releases the lock when the process ends, however it does: then the
next one compiles. Where the file system has locks for all hosts, one process of all compiles.

JAX keeps no program that it compiles faster than ``jax_persistent_cache_min_compile_time_secs``. To
wait for such a program is of no use, so the file of its lock says so, and no process waits again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep import _jax_compat

HOOK = "compilation cache"
LOST = "with jax_compilation_cache_dir every process but the first compiles at each start."
_FOLDER = "lockstep-locks"
_NOT_KEPT = b"not kept"
_WAIT_SECONDS = 1800.0
"""After this a process compiles the program by itself."""
_POLL_SECONDS = 0.001
_MAX_POLL_SECONDS = 0.1
_PROCESSOR = (
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features"),
)
"""What /proc/cpuinfo says of a processor for which XLA generates code; x86-64, then aarch64."""


def begin() -> None:
    """From now on the processes of a job on CPUs share what they compile."""
    if not _jax_compat.is_in(HOOK):
        _jax_compat.install(
            HOOK, LOST, lambda: _jax_compat.share_compilations(_in_a_job, machine(), _once)
        )


def _in_a_job() -> bool:
    return _jax_compat.distributed_client() is not None and _jax_compat.distributed_place()[1] > 1


def machine(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Equal on two hosts if programs for the processor of one run on the other."""
    try:
        first = Path(cpuinfo).read_text().split("\n\n")[0]
    except OSError:
        return platform.node()  # shared by the processes of this host alone
    lines = (line.partition(":") for line in first.splitlines())
    found = {name.strip(): value.strip() for name, _, value in lines}
    return repr([platform.machine(), *(found.get(name) for name in _PROCESSOR)])


def _once(miss: _jax_compat.Miss) -> Any:
    path = os.path.join(miss.folder, _FOLDER, miss.key)
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(_opened(path))
            waits = os.read(lock, len(_NOT_KEPT)) != _NOT_KEPT and _take(lock)
        except OSError:  # a folder that cannot be written, a file system without locks
            return miss.compile()
        if not waits:
            return miss.compile()
        if (found := miss.read()) is not None:
            _remove(path)
            return found
        if os.pread(lock, len(_NOT_KEPT), 0) == _NOT_KEPT:
            fcntl.flock(lock, fcntl.LOCK_UN)  # the others compile at the same time
            return miss.compile()
        made = miss.compile()
        if miss.is_kept():
            _remove(path)
        else:
            with contextlib.suppress(OSError):
                os.pwrite(lock, _NOT_KEPT, 0)
        return made


def _remove(path: str) -> None:
    """Once the cache has the program, a process that waits for this lock finds it there."""
    with contextlib.suppress(OSError):
        os.unlink(path)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _take(lock: int) -> bool:
    """Waits for the lock; False if it was held for too long."""
    deadline = time.monotonic() + _WAIT_SECONDS
    pause = _POLL_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SECONDS)
    return False
