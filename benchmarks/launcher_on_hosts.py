"""What a launcher of many hosts takes: time, processor time, memory and descriptors a host.

    .venv/bin/python benchmarks/launcher_on_hosts.py 16 64 128 256 --json FILE

In the place of ssh the agents start here, so all of them share these cores: the launcher's own
processor time, memory and descriptors are those of hosts of their own, the seconds are not. The
program of each host is a line of Python without JAX. In one job all processes write, and end; in a
second one a process is killed. Signs of life may be missing for a minute, and not for 10 s, because
hundreds of interpreters start on these cores. Slopes are least squares over the numbers of hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SSH = """#!/bin/sh
# The command is the last word, and runs on this machine as on another.
for last; do :; done
last=$(echo "$last" | sed "s#-m lockstep.hosts.host_agent#{1} lockstep.hosts.host_agent#")
exec env SSH_CONNECTION="{0} 1 {0} 22" sh -c "$last"
"""
PATIENT = """
import runpy, sys
from lockstep.hosts import lease
for name in ("SILENCE_SECONDS", "LEASE_SECONDS", "IDLE_SECONDS"):
    setattr(lease, name, 6 * getattr(lease, name))
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
LINES = 100
PROGRAM = f"""
import os, pathlib
number = os.environ["LOCKSTEP_PROCESS_ID"]
pathlib.Path("up", number).write_text(str(os.getpid()))
os.open("go", os.O_RDONLY)  # which nobody opens to write before the job is up
for line in range({LINES}):
    print(number, line, "." * 80)
pathlib.Path("wrote", number).touch()
os.open("end", os.O_RDONLY)
"""
IDLE_SECONDS = 10.0
TIMEOUT = 900.0
_TICKS = os.sysconf("SC_CLK_TCK")
_SLOPES = ("processor_seconds", "rss_mib", "descriptors", "idle_share_of_a_core")


def own_address() -> str:
    """An address of this machine that is no loopback. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("198.51.100.1", 9))
        return str(probe.getsockname()[0])


def processor_seconds(pid: int) -> float:
    """Of one process, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Peaks(threading.Thread):
    """The most that a process has taken so far."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.processor_seconds = self.rss_mib = 0.0
        self.descriptors = self.children = 0

    def run(self) -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            while True:
                own = f"/proc/{self.pid}"
                self.processor_seconds = processor_seconds(self.pid)
                high = Path(own, "status").read_text().split("VmHWM:")[1].split()[0]
                self.rss_mib = int(high) / 1024
                self.descriptors = max(self.descriptors, len(os.listdir(f"{own}/fd")))
                children = Path(own, "task", str(self.pid), "children").read_text().split()
                self.children = max(self.children, len(children))
                time.sleep(0.05)


def wait_until(is_so: Callable[[], bool], job: subprocess.Popen[bytes] | None = None) -> float:
    """Seconds until it is so."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > TIMEOUT or (job and job.poll() is not None):
            raise SystemExit(f"not so after {time.monotonic() - began:.0f} s, {job and job.poll()}")
        time.sleep(0.01)
    return round(time.monotonic() - began, 2)


def supervisor(launcher: int) -> int:
    """The child of the launcher's guard that does the work."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    wait_until(lambda: bool(children.read_text().split()))
    return int(children.read_text().split()[0])


@contextlib.contextmanager
def launched(folder: Path, count: int) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """A job whose processes are all up, and the seconds until then."""
    ssh = folder / "ssh"
    ssh.write_text(SSH.format(own_address(), folder / "patient.py"))
    ssh.chmod(0o755)
    (folder / "patient.py").write_text(PATIENT)
    for name in ("up", "wrote", "tmp"):
        (folder / name).mkdir()
    for name in ("go", "end"):
        os.mkfifo(folder / name)
    hosts = ",".join(f"host{i}" for i in range(count))
    command = [sys.executable, "-P", str(folder / "patient.py"), "lockstep", "run"]
    command += ["--hosts", hosts, "--ssh", str(ssh)]
    with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
        job = subprocess.Popen(
            [*command, "--no-prefix", "-c", PROGRAM],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            # Without records the agents have no engine of their own, which would start here too.
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "LOCKSTEP_RECORD": "0"},
        )
    try:
        yield job, wait_until(lambda: len(os.listdir(folder / "up")) == count, job)
    except SystemExit as error:
        raise SystemExit(f"{error}: {(folder / 'err').read_text()}") from None
    finally:
        job.terminate()
        job.wait(60)


@contextlib.contextmanager
def open_gate(path: Path) -> Iterator[None]:
    """Lets all pass that open ``path`` to read it."""
    fd = os.open(path, os.O_WRONLY)
    try:
        yield
    finally:
        os.close(fd)


def run_to_the_end(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, launched(Path(name), count) as (job, up):
        folder = Path(name)
        peaks = Peaks(supervisor(job.pid))
        peaks.start()
        before = processor_seconds(peaks.pid)
        time.sleep(IDLE_SECONDS)
        idle = (processor_seconds(peaks.pid) - before) / IDLE_SECONDS
        lines = count * LINES
        with open_gate(folder / "go"):
            output = wait_until(lambda: (folder / "out").read_bytes().count(b"\n") == lines, job)
        with open_gate(folder / "end"):
            end = wait_until(lambda: job.poll() is not None)
        if job.returncode:
            raise SystemExit((folder / "err").read_text())
    return {
        "hosts": count,
        "seconds_until_all_are_up": up,
        "seconds_of_output": output,
        "seconds_of_the_end": end,
        "processor_seconds": round(peaks.processor_seconds - idle * IDLE_SECONDS, 2),
        "idle_share_of_a_core": round(idle, 4),
        "rss_mib": round(peaks.rss_mib, 1),
        "descriptors": peaks.descriptors,
    }


def kill_one(count: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, launched(Path(name), count) as (job, _):
        folder = Path(name)
        os.kill(int((folder / "up" / str(count // 2)).read_text()), signal.SIGKILL)
        seconds = wait_until(lambda: job.poll() is not None)
        said = (folder / "err").read_text()
    if f"process {count // 2}" not in said:
        raise SystemExit(said)
    return {"seconds_after_a_kill": seconds, "lines_after_a_kill": len(said.splitlines())}


def slopes(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """A straight line for each quantity, and how far the rows are off it, in shares of the most."""
    hosts = [row["hosts"] for row in rows]
    found = {}
    for name in _SLOPES:
        values = np.array([row[name] for row in rows])
        slope, base = np.polyfit(hosts, values, 1)
        off = np.abs(values - np.polyval([slope, base], hosts)).max() / values.max()
        found[name] = {"a_host": round(slope, 6), "base": round(base, 3), "off": round(off, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("counts", type=int, nargs="+")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    found: dict[str, Any] = {"slopes": {}}
    for count in options.counts:
        rows.append({**run_to_the_end(count), **kill_one(count)})
        print(json.dumps(rows[-1]), flush=True)
        found = {"rows": rows, "slopes": slopes(rows) if len(rows) > 2 else {}}
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found["slopes"], indent=1))


if __name__ == "__main__":
    main()
