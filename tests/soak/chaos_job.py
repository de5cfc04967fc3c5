"""A job that `chaos` disturbs: a training on four hosts, with a launcher on a fifth."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from soak.faults import Plan
from ssh_hosts import SshHosts

HOSTS = "bcde"
LAUNCHER = "a"
PROGRAM = Path(__file__).parent / "training.py"
ATTEMPT = re.compile(r"^lockstep: attempt (\d+) starts", re.MULTILINE)


def wait(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it has come true in that time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


class Job:
    """One job from its start to its end. ``saved`` is the disk of its checkpoints."""

    def __init__(self, hosts: SshHosts, folder: Path, saved: Path, plan: Plan) -> None:
        self.hosts, self.folder = hosts, folder
        (folder / "at").mkdir(parents=True)
        (folder / "saved").symlink_to(saved)
        for path in saved.iterdir():
            path.unlink()
        self._out, self._err = folder / "out", folder / "err"
        words = ["--ssh", hosts.ssh(), "--hosts", ",".join(HOSTS), *plan.options]
        words += ["-d", str(plan.devices), "--grace", "2", "--collective-timeout", "12"]
        words += ["--reach-timeout", "30"]  # of a busy machine
        words += ["--max-restarts", "99", "--preload", "jax,numpy,jax.experimental.multihost_utils"]
        if "--spares" not in plan.options:
            words += ["-n", str(plan.processes)]
        words = ["run", *words, "--chdir", str(folder), str(PROGRAM), str(folder)]
        command = [sys.executable, "-P", "-m", "lockstep", *words]
        to_files = ["sh", "-c", f'exec "$@" >{self._out} 2>{self._err}', "sh", *command]
        self.launcher: subprocess.Popen[bytes] = hosts.start(LAUNCHER, to_files)

    @property
    def said(self) -> str:
        """What the launcher and the processes have written to stderr."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def attempt(self) -> int:
        """The number of the last attempt that was started."""
        return max(map(int, ATTEMPT.findall(self.said)), default=0)

    @property
    def has_ended(self) -> bool:
        return self.launcher.poll() is not None

    @property
    def step(self) -> int:
        """That of the last checkpoint."""
        with contextlib.suppress(OSError, ValueError, EOFError):
            return int(np.load(self.folder / "saved" / "state.npy")[0])
        return 0

    def places(self) -> dict[str, tuple[int, int]]:
        """The number of each process of the present attempt and its pid as seen from here, by
        host."""
        found = {}
        for path in (self.folder / "at").glob(f"{self.attempt}-*"):
            words = path.read_text().split()
            if len(words) == 2 and (pid := self._pid(*words)):
                found[words[0]] = int(path.name.split("-")[1]), pid
        return found

    def _pid(self, host: str, there: str) -> int | None:
        for pid in self.hosts.processes(host):
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                if re.search(rf"^NSpid:.*\t{there}$", status, re.MULTILINE):
                    return pid
        return None

    def launchers(self) -> list[int]:
        return self.hosts.matching(LAUNCHER, "^(?!.*sh -c).*lockstep run")

    def ask_to_end(self) -> None:
        (self.folder / "end").touch()
