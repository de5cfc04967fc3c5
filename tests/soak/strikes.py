"""Plants the faults of `faults` into a running job, and lifts them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from soak.bad_link import BadLink, Quality
from soak.chaos_job import LAUNCHER, Job, wait
from soak.faults import Fault
from ssh_hosts import ALL_BUT_SSHD, SshHosts

PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
_QUALITIES = {
    "packets delayed": Quality(delay=0.2),
    "packets dropped": Quality(drops=0.1),
    "packets reordered": Quality(delay=0.03, keeps_order=False),
}
Lift = Callable[[], None]


class NotPlanted(Exception):
    """The job has no such place at this moment: it has ended, say."""


class Planted:
    """A fault in place, until `lift`."""

    def __init__(self, fault: Fault, host: str, process: int | None, lift: Lift) -> None:
        self.fault, self.host, self.process, self.lift = fault, host, process, lift


def plant(job: Job, fault: Fault, saved: Path, clocks: dict[str, Path]) -> Planted:
    """Plants it at once. Raises `NotPlanted`.

    ``clocks``: the file of each host that says how far its clock is ahead.
    """
    kind = fault.kind
    if kind == "launcher stopped":
        return Planted(fault, LAUNCHER, None, _stop_launcher(job))
    # Of the program, which has begun by then.
    if not wait(lambda: job.has_ended or job.places(), 60) or job.has_ended:
        raise NotPlanted
    places = job.places()
    if not places:
        raise NotPlanted
    host = fault.host(list(places))
    if kind in ("process 0's host killed", "checkpoints' disk full"):
        host = next((name for name, (number, _) in places.items() if number == 0), host)
    number, pid = places[host]
    lift = _plant(job, kind, host, pid, saved, clocks)
    return Planted(fault, host, number, lift)


def _plant(job: Job, kind: str, host: str, pid: int, saved: Path, clocks: dict[str, Path]) -> Lift:
    agents = job.hosts.agents(host)
    if kind == "process killed":
        return _kill([pid])
    if kind == "agent killed":
        return _kill(agents[1:2])
    if kind == "guard killed":
        return _kill(agents[:1])
    if kind in ("host killed", "process 0's host killed"):
        return _kill(job.hosts.matching(host, ALL_BUT_SSHD))
    if kind == "process stopped":
        return _stop([pid])
    if kind == "agent stopped":
        return _stop(agents[1:2])
    if kind == "link cut":
        job.hosts.cut(host)
        return lambda: job.hosts.mend(host)
    if kind in ("link cut one way", "link to a host cut one way"):
        others = (
            [LAUNCHER] if kind == "link cut one way" else [n for n in job.places() if n != host]
        )
        if not others:
            raise NotPlanted
        job.hosts.mute(host, others[0])
        return lambda: job.hosts.unmute(host, others[0])
    if quality := _QUALITIES.get(kind):
        try:
            return BadLink(job.hosts.enter("switch"), host, quality).end
        except subprocess.CalledProcessError:  # the link is a bad one already
            raise NotPlanted from None
    if kind in ("disk full", "checkpoints' disk full"):
        return _fill(saved if kind.startswith("ch") else own_tmp(job.hosts, host))
    if kind == "memory taken":
        return _take_memory(pid)
    if kind == "address space taken":
        return _limit([pid], resource.RLIMIT_AS, _address_space(pid) + (1 << 20))
    if kind in ("no descriptors", "agent without descriptors"):
        pids = [pid] if kind == "no descriptors" else agents[1:2]
        return _limit(pids, resource.RLIMIT_NOFILE, max(map(_descriptors, pids), default=0))
    if kind == "clock changed":
        return _change_clock(clocks[host])
    assert kind == "no ports", kind
    return _take_ports(job, host)


def own_tmp(hosts: SshHosts, name: str) -> Path:
    """The temporary directory of a host, which is a file system of its own."""
    return hosts.root(name) / str(hosts.folder / name / "tmp").lstrip("/")


def _kill(pids: list[int]) -> Lift:
    if not pids:
        raise NotPlanted
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return lambda: None


def _stop(pids: list[int]) -> Lift:
    if not pids:
        raise NotPlanted

    def send(number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    send(signal.SIGSTOP)
    return lambda: send(signal.SIGCONT)


def _stop_launcher(job: Job) -> Lift:
    lift = _stop(job.launchers())

    def lift_all() -> None:
        lift()
        # nsenter stops itself, and is late in it, when its child is stopped.
        for _ in range(5):
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.launcher.pid, signal.SIGCONT)
            time.sleep(0.1)

    return lift_all


def _fill(where: Path) -> Lift:
    full = where / "full"
    with contextlib.suppress(OSError), full.open("wb") as file:
        while True:
            file.write(b"0" * 4096)
            file.flush()
    return lambda: full.unlink(missing_ok=True)


def _limit(pids: list[int], what: int, most: int) -> Lift:
    before = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            before[pid] = resource.prlimit(pid, what)
            resource.prlimit(pid, what, (most, before[pid][1]))

    def lift() -> None:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, what, limits)

    return lift


def _address_space(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    raise NotPlanted


def _descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
    raise NotPlanted


def _take_memory(pid: int) -> Lift:
    """The kernel's own end of a process that has no memory: in a group with too small a limit."""
    group = Path(f"/sys/fs/cgroup/memory/lockstep-chaos-{os.getpid()}-{pid}")
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(256 << 10))  # of pages from now on
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        group.rmdir()
        raise NotPlanted from None

    def lift() -> None:
        for member in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (group.parent / "cgroup.procs").write_text(member)
        wait(lambda: _removed(group), 10)

    return lift


def _removed(group: Path) -> bool:
    with contextlib.suppress(OSError):
        group.rmdir()
    return not group.exists()


def _change_clock(file: Path) -> Lift:
    def ahead(seconds: int) -> None:
        with file.open("r+b") as opened:
            opened.write(struct.pack("q", seconds))

    ahead(-7200)
    return lambda: ahead(0)


def _take_ports(job: Job, host: str) -> Lift:
    def allow(text: str) -> None:
        job.hosts.run(host, ["sh", "-c", f"echo {text} > {PORTS}"])

    before = job.hosts.run(host, ["cat", PORTS]).stdout.strip()
    # One port alone, which a process of ours may have or not.
    allow("61000 61000")
    return lambda: allow(f"'{before}'")
