"""The free memory of this machine, and whether the kernel has killed a process for lack of memory.

The latter cannot be seen from SIGKILL itself, so it is read from counters of the kernel.
"""

from __future__ import annotations

import re
from pathlib import Path

MB_OF_PROCESS = 200
"""Private memory of a JAX process with a small program: see docs/reference/run.md."""
_COUNTED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def counters(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Files with counters of such kills, the most specific first: those of this process's control
    group (version 2, version 1; inside a container they may not exist), that of the machine."""
    found = []
    for folder, is_version_2 in groups("memory", proc, cgroups):
        name = "memory.events" if is_version_2 else "memory.oom_control"
        found += [folder / name, (cgroups if is_version_2 else cgroups / "memory") / name]
    return [*found, proc / "vmstat"]


def groups(controller: str, proc: Path, cgroups: Path) -> list[tuple[Path, bool]]:
    """The folders of this process's control groups that may limit memory, or what ``controller``
    names; True for version 2."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found.append((cgroups / path.lstrip("/"), True))
        elif controller in controllers.split(","):
            found.append((cgroups / controller / path.lstrip("/"), False))
    return found


def free_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes for new processes: the least of the machine and of all enclosing control groups.

    None: not known. Swap does not count.
    """
    found = [field(proc / "meminfo", "MemAvailable:", 1 << 10)]
    for folder, is_version_2 in groups("memory", proc, cgroups):
        top = cgroups if is_version_2 else cgroups / "memory"
        for group in (folder, *folder.parents):
            found.append(_free_of_group(group, is_version_2))
            if group == top:
                break
    known = [each for each in found if each is not None]
    return max(0, min(known)) if known else None


def _free_of_group(group: Path, is_version_2: bool) -> int | None:
    """The bytes that are left of a group's limit; None: it has no limit."""
    limit, used, reclaimable = (
        ("memory.max", "memory.current", "inactive_file")
        if is_version_2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    )
    try:  # "max" is no number: no limit
        free = int((group / limit).read_text()) - int((group / used).read_text())
    except (OSError, ValueError):
        return None
    return free + (field(group / "memory.stat", reclaimable) or 0)


def field(file: Path, name: str, unit: int = 1) -> int | None:
    """The number after ``name`` in a file of the kernel, times ``unit``; None: there is none."""
    try:
        found = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * unit if found else None


class OomKills:
    """Counts the kernel's kills from the moment it is made."""

    def __init__(self, files: list[Path] | None = None) -> None:
        self._files = counters() if files is None else files
        self._seen = self._count()

    def _count(self) -> dict[Path, int]:
        counts = {}
        for file in self._files:
            try:
                match = _COUNTED.search(file.read_text())
            except OSError:
                continue
            if match:
                counts[file] = int(match[1])
        return counts

    def new(self) -> bool:
        """Whether there was a kill since the last call."""
        now, before = self._count(), self._seen
        self._seen = now
        # The last file also counts kills of other jobs; it is used only when there is no other.
        file = next((file for file in self._files if file in now), None)
        return file is not None and now[file] > before.get(file, now[file])
