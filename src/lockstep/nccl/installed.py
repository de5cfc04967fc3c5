"""Which NCCL, or AMD's RCCL, JAX loads in this process."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

_LIBRARIES = {"cuda": "libnccl.so.2", "rocm": "librccl.so.1"}
_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")


def other(environ: Mapping[str, str]) -> str:
    """A NCCL in LD_LIBRARY_PATH, which comes before the installed one; "": there is none."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        path = Path(folder or "/nonexistent", _LIBRARIES["cuda"])
        if path.exists() and "site-packages" not in str(path):
            return str(path.resolve())
    return ""


def version(vendor: str) -> str:
    """The version of the library for the GPUs of ``vendor``; "": not known."""
    if vendor == "cuda" and not other(os.environ):
        for name in _PACKAGES:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return importlib.metadata.version(name)
    return _said_by(_LIBRARIES[vendor])


def _said_by(library: str) -> str:
    """What the library itself says, where the loader finds it: JAX loads the same then."""
    number = ctypes.c_int()
    try:
        if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number)):
            return ""
    except (OSError, AttributeError):
        return ""
    major, rest = divmod(number.value, 10_000)
    return f"{major}.{rest // 100}.{rest % 100}"
