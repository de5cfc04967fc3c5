"""Whether the kernel has killed processes because memory ran out, which SIGKILL does not say."""

from __future__ import annotations

import re
from pathlib import Path

_COUNTED = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def counters(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Files that may count such kills, the most particular first: the memory limit of our control
    group (version 2, version 1; inside a container the path may be missing), the whole machine."""
    found = []
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += [cgroups / path.lstrip("/") / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            top = cgroups / "memory"
            found += [top / path.lstrip("/") / "memory.oom_control", top / "memory.oom_control"]
    return [*found, proc / "vmstat"]


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
        # Other jobs of the machine count too in the last file; it is asked only when no other is.
        file = next((file for file in self._files if file in now), None)
        return file is not None and now[file] > before.get(file, now[file])
