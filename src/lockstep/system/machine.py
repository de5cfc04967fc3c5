"""Facts about this machine: processor, cores, memory. Each has a pure part that reads text."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

from lockstep.system import oom

CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def parse_cpu_quota(v2: str, v1_quota: str, v1_period: str) -> float | None:
    """Cores that a control group allows, from ``cpu.max`` or its older pair; None: no limit."""
    quota, period = [*v2.split(), "", ""][:2] if v2.strip() else (v1_quota, v1_period)
    try:
        allowed = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
    return allowed if allowed > 0 else None


def parse_memory_limit(text: str) -> int | None:
    """Bytes that a control group allows; None: no limit."""
    try:
        limit = int(text)
    except ValueError:
        return None
    return limit if limit < _UNLIMITED else None


def parse_cpu_model(cpuinfo: str) -> str:
    """The processor's name in ``/proc/cpuinfo``; empty when it names none (as on some aarch64)."""
    match = re.search(r"^(?:model name|Hardware|Processor)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else ""


def _own_group(controller: str) -> Path:
    """The directory of this process's control group (``controller`` is for version 1)."""
    for folder, is_version_2 in oom.groups(controller, Path("/proc"), CGROUP):
        if folder.is_dir():
            return folder
        if not is_version_2:
            return CGROUP / controller
    return CGROUP


def cpu_quota() -> float | None:
    """Cores that the control group of this process allows; None: no limit."""
    group = _own_group("cpu")
    return parse_cpu_quota(
        _read(group / "cpu.max"),
        _read(group / "cpu.cfs_quota_us"),
        _read(group / "cpu.cfs_period_us"),
    )


def memory() -> int | None:
    """Bytes of the machine; None: not known."""
    return oom.field(Path("/proc/meminfo"), "MemTotal:", 1 << 10)


def memory_limit() -> int | None:
    """Bytes that the control group of this process allows; None: no limit."""
    group = _own_group("memory")
    limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")
    return parse_memory_limit(limit)


def dev_shm() -> tuple[int, int] | None:
    """Size and free bytes of /dev/shm; None: there is none."""
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return None
    return usage.total, usage.free


def huge_pages() -> str:
    """When this machine uses huge pages, ``always [madvise] never``; "" where it says nothing."""
    return _read(Path("/sys/kernel/mm/transparent_hugepage/enabled")).strip()


def describe() -> dict[str, Any]:
    """The machine in the words of a benchmark report."""
    return {
        "cpu": parse_cpu_model(_read(Path("/proc/cpuinfo"))) or platform.machine(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu_quota": cpu_quota(),
        "memory": memory(),
        "kernel": platform.release(),
        "transparent_hugepage": huge_pages(),
    }
