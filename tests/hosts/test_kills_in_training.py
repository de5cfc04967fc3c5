"""Kills at random moments of a training on several hosts, which goes on from its checkpoints.

``KILLS=50`` makes 50 of each kind. A job meets several of them, one after the other, at a random
moment after the start of an attempt: it ends with the bits of a job that met none, and each line of
the launcher names what was killed.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssh_hosts import ALL_BUT_SSHD, NEEDED, SshHosts, ssh_hosts
from support import wait_until

pytestmark = [NEEDED, pytest.mark.slow]

KINDS = ("process", "agent", "guard", "host", "host of process 0", "link")
KILLS = int(os.environ.get("KILLS", "5"))
"""Of each kind, one in each job."""
SEED = int(os.environ.get("SEED", "48"))
LATEST = 8.0
"""Seconds after the start of an attempt: it starts, meets the others, compiles, or makes steps."""
STEPS = 60
TIMEOUT = 90.0
PROGRAM = """
import hashlib, os, pathlib, sys, time
import jax, numpy
jax.distributed.initialize()
from jax.experimental import multihost_utils

folder, me = pathlib.Path(sys.argv[1]), jax.process_index()
saved = folder / "saved.npy"
first, *weights = numpy.load(saved) if saved.exists() else numpy.zeros(301, numpy.float32)
weights = numpy.array(weights, numpy.float32)
print("goes on from step", int(first), flush=True)

@jax.jit
def gradient(weights, rows):
    return jax.grad(lambda w: (jax.numpy.tanh(rows @ w) ** 2).sum())(weights)

for step in range(int(first), STEPS):
    rows = numpy.random.default_rng([step, me]).normal(size=(32, 300)).astype(numpy.float32)
    own = gradient(weights, rows) + numpy.float32(step)
    weights = weights - numpy.float32(0.01) * multihost_utils.process_allgather(own).sum(0)
    if step % 5 == 0 and me == 0:
        numpy.save(folder / "next.npy", [step + 1, *weights])
        os.replace(folder / "next.npy", saved)
    while step == STEPS - 1:  # until the last kill
        ends = multihost_utils.process_allgather(numpy.array([(folder / "end").exists()]))
        if ends.all():
            break
        time.sleep(0.02)
    time.sleep(0.02)
print("weights", hashlib.sha256(weights.tobytes()).hexdigest(), flush=True)
"""
CAUSES = {
    "process": r"process {process} of 3 on {host} failed first: killed by SIGKILL",
    "agent": r"on {host} failed first: its host was lost: the agent on {host} has ended: ",
    "guard": r"on {host} failed first: its host was lost: the agent on {host} has ended: ",
    "host": r"on {host} failed first: its host was lost: the agent on {host} has ended: ",
    "link": r"on {host} failed first: its host was lost: no answer from {host} for 10 s",
}
CAUSES["host of process 0"] = CAUSES["host"]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path_factory.mktemp("hosts"), "abcdef") as made:
        yield made


class Training:
    """A job of three processes on the hosts b to f, of which two are spares; a has the launcher."""

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        folder.mkdir()
        self.hosts, self.folder = hosts, folder
        self.out, self.err = folder / "out", folder / "err"
        (folder / "program.py").write_text(PROGRAM.replace("STEPS", str(STEPS)))
        options = ["--ssh", hosts.ssh(), "--hosts", "b,c,d,e,f", "--spares", "2", "--grace", "2"]
        options += ["--max-restarts", "99", "--chdir", str(folder)]
        words = [sys.executable, "-P", "-m", "lockstep", "run", *options, "program.py", str(folder)]
        to_files = ["sh", "-c", f'exec "$@" >{self.out} 2>{self.err}', "sh", *words]
        self.launcher = hosts.start("a", to_files)

    @property
    def said(self) -> str:
        return self.err.read_text() if self.err.exists() else ""

    @property
    def attempt(self) -> int:
        """The number of the last attempt that was started."""
        return max(map(int, re.findall(r"attempt (\d+) starts", self.said)), default=0)

    def wait_for_restart(self, attempt: int) -> None:
        """Waits for the attempt after this one."""
        wait_until(lambda: self.attempt > attempt, f"a restart: {self.said}", TIMEOUT)

    def processes(self) -> dict[str, list[int]]:
        """The processes of the job by host, once all three are there."""
        found: dict[str, list[int]] = {}

        def look() -> bool:
            found.clear()
            for name in "bcdef":
                if own := self.hosts.matching(name, "lockstep.processes.child_main"):
                    found[name] = own
            return len(found) == 3 or self.launcher.poll() is not None

        wait_until(look, f"three processes run: {found}\n{self.said}", TIMEOUT)
        assert self.launcher.poll() is None, self.said
        return found

    def process_of(self, host: str) -> int:
        """The number of the process on that host, by its environment."""
        [pid] = self.processes()[host][:1]
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        [number] = [each[20:] for each in environ if each.startswith(b"LOCKSTEP_PROCESS_ID=")]
        return int(number)

    def finish(self) -> str:
        """The weights of all processes, which have to be the same."""
        (self.folder / "end").touch()
        self.launcher.communicate(timeout=TIMEOUT)
        assert self.launcher.returncode == 0, self.said
        [weights] = set(re.findall(r"weights (\w+)", self.out.read_text()))
        return weights


def kill_on(hosts: SshHosts, kind: str, name: str) -> None:
    if kind == "process":
        found = hosts.matching(name, "lockstep.processes.child_main")
    elif kind in ("agent", "guard"):
        found = hosts.agents(name)[kind == "agent" :][:1]
    else:
        found = hosts.matching(name, ALL_BUT_SSHD)
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def strike(
    job: Training, kind: str, losses: collections.Counter[str], chance: random.Random
) -> str:
    """Kills something of the running attempt; the host."""
    places = job.processes()
    if kind == "host of process 0":
        [name] = [name for name in places if job.process_of(name) == 0]
    else:
        # A host that was lost three times is not used any more.
        name = chance.choice(sorted(name for name in places if losses[name] < 2))
    losses[name] += kind != "process"
    if kind == "link":
        job.hosts.cut(name)
    else:
        kill_on(job.hosts, kind, name)
    return name


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("number", range(KILLS))
def test_a_training_ends_with_the_bits_of_an_undisturbed_one(
    hosts: SshHosts, tmp_path: Path, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(SEED * 1000 + number)
    kinds = chance.sample(KINDS, len(KINDS))
    losses: collections.Counter[str] = collections.Counter()
    job, wrong = Training(hosts, tmp_path / "job"), []
    for kind in kinds:
        job.processes()
        time.sleep(chance.uniform(0.0, LATEST))
        attempt, before, began = job.attempt, job.said, time.monotonic()
        numbers = {name: job.process_of(name) for name in job.processes()}
        name = strike(job, kind, losses, chance)
        job.wait_for_restart(attempt)
        seconds = time.monotonic() - began
        if kind == "link":
            hosts.mend(name)
        cause = CAUSES[kind].format(process=numbers[name], host=name)
        said = job.said[len(before) :]
        is_right = re.search(cause, said) is not None
        wrong += [] if is_right else [f"{kind} on {name}: {said}"]
        with capsys.disabled():
            print(f"\n{kind}: {'right' if is_right else 'WRONG'}, {seconds:.1f} s", flush=True)
    job.processes()
    weights = job.finish()
    assert not wrong, "\n".join(wrong)
    calm = Training(hosts, tmp_path / "calm")
    assert calm.finish() == weights
    wait_until(lambda: not hosts.running(), f"left: {hosts.running()}", 40.0)
    assert hosts.held_run_dirs() == []
    left = [each for each in hosts.leftovers() if "/dev/shm/" in each]
    assert left == []
