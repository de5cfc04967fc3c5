"""Where a process writes down what the other processes of its host may read.

Below the directory of its run. A process that was started by neither ``lockstep run`` nor
``lockstep worker`` has none: then it is memory that the others open by way of /proc, and that is
gone with the last of them. The processes publish numbers of descriptors and the directory,
never a path to open.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import stat
from pathlib import Path
from typing import Any

from lockstep import _config, _run_files
from lockstep._errors import InitializationError
from lockstep.job.topology import Peer
from lockstep.system import stack_dump

FILES = {
    "record": _run_files.RECORDER,
    "sites": _run_files.SITES,
    "possible_sites": _run_files.POSSIBLE_SITES,
    "callers": _run_files.CALLERS,
    "waits": _run_files.WAITS,
    "stacks": _run_files.STACKS,
}
"""The fields of `Artifacts` that are files, and their names in the directory of a run."""
MEMORY_NAMES = tuple(f"lockstep-{name}" for name in ("recorder", *list(FILES)[1:]))
"""The names of the memory files; native/recorder/recorder.cc gives the first its name."""
_DESCRIPTOR = re.compile(r"/proc/(\d+)/fd/(\d+)")


@dataclasses.dataclass(frozen=True)
class Artifacts:
    """Paths, for this process and for others of its host; "" for what there is not."""

    record: str = ""
    """The engine's, with all collectives: see `lockstep.flight_recorder.format`."""
    sites: str = ""
    possible_sites: str = ""
    callers: str = ""
    """The lines of the program behind them: see `lockstep.flight_recorder.run_records`."""
    waits: str = ""
    """The barriers that it waits in: see `lockstep.flight_recorder.waits`."""
    stacks: str = ""
    """Its Python stacks, written at request."""
    folder: str = ""
    """Where those and its launcher's record of its end are: see `lockstep._run_files`."""

    def published(self) -> dict[str, Any]:
        """What is published for the others: `of_peer` makes paths of it."""
        paths = {name: getattr(self, name) for name in FILES if getattr(self, name)}
        memory = {name: descriptor(path) for name, path in paths.items()}
        return {
            "folder": self.folder,
            "memory": {n: of[1] if of else None for n, of in memory.items()},
        }


def descriptor(path: str) -> tuple[int, int] | None:
    """(pid, descriptor) of a file in another process's memory; None for any other path."""
    found = _DESCRIPTOR.fullmatch(path)
    return (int(found[1]), int(found[2])) if found else None


def own(process: int, recorder_fd: int) -> Artifacts:
    """Those of this process, whose engine keeps its record in ``recorder_fd``."""
    in_memory = os.readlink(f"/proc/self/fd/{recorder_fd}").startswith("/memfd:")
    record = f"/proc/{os.getpid()}/fd/{recorder_fd}" if in_memory else ""
    if (folder := _config.current().process_dir(process)) is None:
        return dataclasses.replace(_in_memory(), record=record)
    artifacts = _in_folder(folder)
    return dataclasses.replace(artifacts, record=record or artifacts.record)


def of_peer(peer: Peer, record: Any) -> Artifacts:
    """Those of a process of this host, from what it has published.

    Raises `InitializationError` for what such a process does not publish.
    """
    folder, memory = (
        (record.get(n) for n in ("folder", "memory")) if isinstance(record, dict) else (0, 0)
    )
    if not isinstance(folder, str) or not isinstance(memory, dict):
        raise InitializationError(f"{peer.label} has not published where its records are.")
    if folder and not _is_folder_of(peer.process, folder):
        raise InitializationError(
            f"{peer.label} names {folder!r:.300} as the directory of its records, which is not a "
            "private one of this user's run."
        )
    artifacts = _in_folder(Path(folder)) if folder else Artifacts()
    there: dict[str, str] = {}
    for name in FILES:
        fd = memory.get(name, "")
        if type(fd) is int and fd >= 0:
            there[name] = f"/proc/{peer.pid}/fd/{fd}"
        elif fd is None:
            there[name] = getattr(artifacts, name)
    return Artifacts(**there, folder=folder)


def _in_folder(folder: Path) -> Artifacts:
    return Artifacts(
        **{name: str(folder / file) for name, file in FILES.items()}, folder=str(folder)
    )


def _is_folder_of(process: int, folder: str) -> bool:
    """Whether it is that process's, in a directory that only this user can enter."""
    path = Path(folder)
    if not path.is_absolute() or ".." in path.parts or len(path.parts) < 4:
        return False
    run_dir, attempt = path.parents[1], path.parent.name.removeprefix("attempt_")
    if not attempt.isdecimal() or path != _run_files.process_dir(run_dir, int(attempt), process):
        return False
    try:
        found = run_dir.lstat()
    except (OSError, ValueError):  # ValueError: a name with a zero in it
        return False
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not mode & 0o077


@functools.cache
def _in_memory() -> Artifacts:
    made = {
        name: f"/proc/{os.getpid()}/fd/{os.memfd_create(f'lockstep-{name}', os.MFD_CLOEXEC)}"
        for name in list(FILES)[1:]
    }
    artifacts = Artifacts(**made)
    stack_dump.install(Path(artifacts.stacks))
    return artifacts
