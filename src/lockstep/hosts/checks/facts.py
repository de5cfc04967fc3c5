"""What an agent reports of its host before a job starts. `preflight` judges it."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.machinery
import importlib.metadata
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.nccl import gpus
from lockstep.system import oom
from lockstep.system.interfaces import interfaces
from lockstep.system.names import resolve

PACKAGES = {"lockstep": "lockstep-jax", "jax": "jax", "jaxlib": "jaxlib"}
"""What it is called here, and where it is installed from."""
_RESOLVE_SECONDS = 1.0
_MAX_PROGRAM = 1 << 24
"""Bytes of a program that are compared."""
_WRITTEN = bytes(1 << 16)


def gather(request: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of this host, as JSON takes them.

    ``request`` has ``directory``, where processes will run, and ``program``, the first word of the
    program or ``-m`` and the module; empty: not asked; ``platform`` is that of the job, and
    ``gpu_seconds`` how long its GPUs may take. Raises nothing: a fact that cannot be read says why.
    """
    directory = str(request.get("directory") or "")
    program = [str(word) for word in request.get("program") or ()]
    return {
        "host_name": platform.node(),
        "resolves": list(resolve(platform.node(), _RESOLVE_SECONDS)),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "versions": versions(),
        "directory_problem": _directory_problem(directory) if directory else "",
        "program": _program(program, directory) if program and program[0] != "-c" else {},
        "interfaces": [dataclasses.asdict(each) for each in interfaces()],
        "reached_at": _reached_at(os.environ.get("SSH_CONNECTION", "")),
        "memory": oom.free_memory() or 0,
        "run_dir": _run_dir(),
        "open_files": _open_files(),
        "gpus": _gpus(request),
        "time": time.time(),
    }


def _gpus(request: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs of NVIDIA and what is installed for them; empty: none, or the job uses none."""
    platform = str(request.get("platform") or "") or None
    if gpus.used(platform, os.environ) != "cuda" or not gpus.has_nvidia():
        return {}
    # A late import: only hosts with GPUs need it.
    from lockstep.nccl import devices

    return dataclasses.asdict(devices.ask(float(request.get("gpu_seconds") or 1)))


def versions() -> dict[str, str]:
    """The version of each of `PACKAGES`, by the name that is used here."""
    return {name: _version(package) for name, package in PACKAGES.items()}


def _version(package: str) -> str:
    """The version of an installed package; "": it is not installed."""
    try:
        return importlib.metadata.version(package)
    except (importlib.metadata.PackageNotFoundError, KeyError, ValueError, OSError):
        return ""


def _directory_problem(directory: str) -> str:
    path = Path(directory)
    try:
        if not path.exists():
            return "does not exist"
        if not path.is_dir():
            return "is no directory"
    except OSError as error:
        return f"cannot be reached ({error.strerror})"
    return "" if os.access(path, os.R_OK | os.X_OK) else "cannot be entered (permission denied)"


def _program(words: list[str], directory: str) -> dict[str, str]:
    """Where the program is and the hash of its contents, or why it cannot be read."""
    if words[0] == "-m":
        return _module(words[1] if len(words) > 1 else "", directory)
    path = Path(directory, words[0])
    try:
        with path.open("rb") as file:
            contents = file.read(_MAX_PROGRAM)
    except IsADirectoryError:
        return {"path": str(path), "sha256": "", "problem": "is a directory (a package: -m NAME)"}
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return {"path": str(path), "sha256": "", "problem": str(why)}
    return {"path": str(path), "sha256": hashlib.sha256(contents).hexdigest(), "problem": ""}


def _module(name: str, directory: str) -> dict[str, str]:
    """Only the outermost package is looked for: to look further, it would have to be imported."""
    top = name.partition(".")[0]
    found = None
    if top:
        found = importlib.machinery.PathFinder.find_spec(top, [directory, *sys.path])
    if found is None and top not in sys.builtin_module_names:
        return {"path": name, "sha256": "", "problem": "no module of this name is found"}
    return {"path": name, "sha256": "module", "problem": ""}


def _reached_at(ssh_connection: str) -> str:
    """The address of this host to which ssh has connected; "" without ssh."""
    words = ssh_connection.split()
    return words[2] if len(words) == 4 else ""


def _run_dir() -> dict[str, Any]:
    """Where the files of a run go, how many bytes are free there, and why none can be written."""
    path = os.environ.get("TMPDIR") or "/tmp"
    try:
        free = shutil.disk_usage(path).free
        # Some file systems do not report quotas: only writing shows them.
        with tempfile.TemporaryFile(dir=path, buffering=0) as file:
            file.write(_WRITTEN)
            os.posix_fallocate(file.fileno(), 0, len(_WRITTEN))
    except OSError as error:
        return {"path": path, "free": 0, "problem": error.strerror or str(error)}
    return {"path": path, "free": free, "problem": ""}


def _open_files() -> int:
    """The hard limit, to which Lockstep raises the limit of a process; -1: there is none."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return -1 if hard == resource.RLIM_INFINITY else hard
