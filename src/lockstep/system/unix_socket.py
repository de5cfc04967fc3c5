"""Unix sockets in the private directory of a run, however long its path is."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def short_path(folder: Path) -> Iterator[str]:
    """Another path of ``folder``: that of a Unix socket has at most 107 bytes, and TMPDIR may be
    longer."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{held}"
    finally:
        os.close(held)


def listen(folder: Path, name: str) -> socket.socket:
    """Listens on a socket in ``folder``, in place of an older one. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with short_path(folder) as path:
            (folder / name).unlink(missing_ok=True)
            listener.bind(f"{path}/{name}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def connect(folder: Path, name: str, timeout: float | None = None) -> socket.socket:
    """Connects to what listens in ``folder``; ``timeout`` in seconds. Raises OSError."""
    connected = socket.socket(socket.AF_UNIX)
    try:
        connected.settimeout(timeout)
        with short_path(folder) as path:
            connected.connect(f"{path}/{name}")
    except OSError:
        connected.close()
        raise
    return connected
