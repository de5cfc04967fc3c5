"""Cores, memory, huge pages, shared memory, open files."""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

from lockstep._finding import Finding, ok, problem, warning
from lockstep._words import counted, format_size
from lockstep.system import machine, oom

LITTLE_MEMORY = 1 << 30
FEW_FILES = 1024
GLIBC_WITH_HUGETLB = (2, 35)
PROBE_SECONDS = 20.0

_HOLD_MEMFD = """\
import os, sys
number = os.memfd_create("lockstep-doctor")
os.write(number, b"lockstep")
print(number, flush=True)
sys.stdin.read()
"""


@dataclasses.dataclass(frozen=True)
class ResourceFacts:
    """Bytes, counts, and file contents; None or empty where the system does not say."""

    cores: int
    usable_cores: int
    cpu_quota: float | None
    memory: int | None
    available: int
    memory_limit: int | None
    huge_pages: str
    tunables: str
    libc: tuple[str, str]
    memfd_error: str
    foreign_memfd_error: str
    dev_shm: tuple[int, int] | None
    """Size and free bytes of /dev/shm."""
    files: int


def probe_memfd() -> str:
    """Empty when anonymous shared memory can be made and mapped, else the error."""
    try:
        number = os.memfd_create("lockstep-doctor")
        try:
            os.ftruncate(number, mmap.PAGESIZE)
            with mmap.mmap(number, mmap.PAGESIZE) as view:
                view[:1] = b"x"
        finally:
            os.close(number)
    except OSError as error:
        return str(error)
    return ""


def probe_foreign_memfd() -> str:
    """Empty when another process's memfd can be opened through /proc, else the error."""
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _HOLD_MEMFD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            number = int(child.stdout.readline() or b"-1")
            path = Path(f"/proc/{child.pid}/fd/{number}")
            return "" if path.read_bytes() == b"lockstep" else f"{path} holds something else"
        except OSError as error:
            return str(error)
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()
            try:
                child.wait(PROBE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()


def probe() -> ResourceFacts:
    chosen = re.search(r"\[(\w+)\]", machine.huge_pages())
    return ResourceFacts(
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        cpu_quota=machine.cpu_quota(),
        memory=machine.memory(),
        available=oom.free_memory() or 0,
        memory_limit=machine.memory_limit(),
        huge_pages=chosen[1] if chosen else "",
        tunables=os.environ.get("GLIBC_TUNABLES", ""),
        libc=platform.libc_ver(),
        memfd_error=probe_memfd(),
        foreign_memfd_error=probe_foreign_memfd(),
        dev_shm=machine.dev_shm(),
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def check_cores(facts: ResourceFacts) -> Finding:
    found = f"{facts.usable_cores} of {counted(facts.cores, 'core')} usable"
    if facts.cpu_quota is not None:
        found += f", the control group allows {facts.cpu_quota:g}"
        if facts.cpu_quota < facts.usable_cores:
            return warning(
                "cores",
                found,
                "start no more processes than it allows, or raise the limit (docker run --cpus, "
                "resources.limits.cpu in Kubernetes): all processes wait for a throttled one",
            )
    if facts.usable_cores == 1:
        return warning(
            "cores",
            found,
            "works, but slowly, because the processes share one core; see taskset -p $$ or the "
            "job's core request",
        )
    return ok("cores", found)


def check_memory(facts: ResourceFacts) -> Finding:
    if facts.memory is None:
        return ok("memory", "not known")
    found = f"{format_size(facts.available)} available of {format_size(facts.memory)}"
    if facts.memory_limit is not None:
        found += f", the control group allows {format_size(facts.memory_limit)}"
    if facts.available < LITTLE_MEMORY:
        return warning(
            "memory", found, "free some, or raise the limit: a JAX process takes about 300 MiB"
        )
    return ok("memory", found)


def check_huge_pages(facts: ResourceFacts) -> Finding:
    """Large results are newly allocated, and page faults take longer than the collective."""
    name = "huge pages"
    if facts.libc[0] != "glibc":
        return warning(
            name,
            f"the C library is {facts.libc[0] or 'not glibc'}: its malloc uses no huge pages",
            "use a distribution with glibc; here page faults make large results slow",
        )
    version = tuple(int(part) for part in re.findall(r"\d+", facts.libc[1])[:2])
    if version < GLIBC_WITH_HUGETLB:
        return warning(
            name,
            f"glibc {facts.libc[1]} lacks glibc.malloc.hugetlb, which 2.35 and later have",
            "use a newer distribution; here page faults make large results slow",
        )
    if facts.huge_pages == "never":
        return warning(
            name,
            "transparent huge pages are off: page faults make large results slow",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    setting = re.search(r"glibc\.malloc\.hugetlb=(\d)", facts.tunables)
    if setting and setting[1] == "0":
        return warning(
            name,
            "GLIBC_TUNABLES turns glibc.malloc.hugetlb off: page faults make large results slow",
            "remove glibc.malloc.hugetlb=0 from GLIBC_TUNABLES; lockstep run then sets it to 1",
        )
    mode = facts.huge_pages or "not shown by this kernel"
    return ok(name, f"transparent: {mode}; glibc {facts.libc[1]} can use them")


def check_shared_memory(facts: ResourceFacts) -> Finding:
    """The arena is a memfd that the processes of a host open through /proc."""
    name = "shared memory"
    if facts.memfd_error:
        return problem(
            name,
            f"memfd_create: {facts.memfd_error}",
            "a seccomp filter or a kernel before 3.17 forbids it; for a container use the "
            "runtime's default seccomp profile",
        )
    if facts.foreign_memfd_error:
        return problem(
            name,
            f"another process's memfd cannot be opened: {facts.foreign_memfd_error}",
            "run all processes of a host as one user, in one container, with /proc mounted "
            "without hidepid",
        )
    shm = ""
    if facts.dev_shm is not None:
        size, free = facts.dev_shm
        shm = f"; /dev/shm, not needed: {format_size(free)} free of {format_size(size)}"
    return ok(name, f"memfd works between processes{shm}")


def check_open_files(facts: ResourceFacts) -> Finding:
    limit = facts.files
    if limit != resource.RLIM_INFINITY and limit < FEW_FILES:
        return warning("open files", f"at most {limit}", f"ulimit -n {4 * FEW_FILES}")
    shown = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit}"
    return ok("open files", shown)


def findings() -> list[Finding]:
    facts = probe()
    return [
        check_cores(facts),
        check_memory(facts),
        check_huge_pages(facts),
        check_shared_memory(facts),
        check_open_files(facts),
    ]
