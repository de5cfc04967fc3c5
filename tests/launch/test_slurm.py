"""``lockstep run`` inside an allocation of a real Slurm: srun starts an agent on each host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_hosts
from lockstep.hosts.lease import LEASE_SECONDS
from processes import read_lines
from slurm_hosts import SlurmHosts, program
from support import wait_until

pytestmark = slurm_hosts.MARKS
RUN = [sys.executable, "-m", "lockstep", "run"]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
WAITS = r"""
import time, jax
jax.distributed.initialize()
jax.devices()
print("ready", flush=True)
time.sleep(100)
"""
HAS_KEY = r"""
import os, time
print("key", open(os.path.join(os.environ["LOCKSTEP_RUN_DIR"], "secret")).read(), flush=True)
time.sleep(5)
"""
SAVES = r"""
import signal, sys, time
def save(number, frame):
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(100)
"""
SHORT = "import os; print(os.uname().nodename, os.environ['LOCKSTEP_NUM_PROCESSES'])"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmHosts]:
    with slurm_hosts.slurm_hosts(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def test_the_script_of_the_page_starts_again_after_a_failure(
    slurm: SlurmHosts, tmp_path: Path
) -> None:
    program(tmp_path, slurm_hosts.of_page("train.py"))
    script = slurm_hosts.of_page("job.sh")
    status, output = slurm.script(script, env={"PATH": PATH}, folder=tmp_path)
    assert status == 0, output
    said = re.findall(r"^\[0@a\] (step \d .*)$", output, re.M)
    assert said == [f"step {i} on 8 devices: {64 * i}" for i in range(4)], output
    assert "process 3 of 4 on b failed first: killed by SIGKILL" in output
    assert "attempt 0 has failed; starting again (3 restarts left)" in output
    slurm.assert_nothing_left()


def test_processes_and_hosts_of_the_allocation(slurm: SlurmHosts, tmp_path: Path) -> None:
    path = program(tmp_path, SHORT)

    def hosts(*options: str, salloc: tuple[str, ...]) -> list[str]:
        done = slurm.run(["salloc", "-Q", *salloc, *RUN, *options, path])
        return sorted(re.sub(r"^\[.*?\] ", "", line) for line in done.stdout.splitlines())

    two = ("-N2", "--ntasks-per-node=2")
    assert hosts("-n", "3", salloc=two) == ["a 3", "a 3", "b 3"]
    assert hosts("--hosts", "b:2", salloc=two) == ["b 2", "b 2"]
    assert hosts("--hosts", "localhost:2", salloc=two) == ["a 2", "a 2"]
    assert hosts("--this-host", "-n", "2", salloc=two) == ["a 2", "a 2"]
    # One host: this one needs no agent, the other one does.
    assert hosts(salloc=("-N1", "-n2", "-w", "a")) == ["a 2", "a 2"]
    assert hosts(salloc=("-N1", "-n2", "-w", "b")) == ["b 2", "b 2"]
    assert hosts("-n", "3", salloc=("-N1", "-n2", "-w", "a")) == ["a 3"] * 3
    # As a task of srun it stays on its host.
    done = slurm.run(["srun", "-N1", "-n1", "-w", "b", *RUN, "-n", "2", path])
    assert sorted(done.stdout.splitlines()) == ["[0] b 2", "[1] b 2"]
    slurm.assert_nothing_left()


@pytest.mark.parametrize("how", ["scancel", "kill -9 of the launcher"])
def test_nothing_outlives_the_launcher(slurm: SlurmHosts, tmp_path: Path, how: str) -> None:
    command = ["salloc", "-Q", "-J", "waits", "-N2", "--ntasks-per-node=1", *RUN]
    started = slurm.start([*command, program(tmp_path, WAITS)])
    assert sorted(read_lines(started, 2, "ready")) == ["[0@a] ready", "[1@b] ready"]
    if how == "scancel":
        slurm.run(["scancel", "-n", "waits"])
    else:
        launcher, _guard = slurm.pids(r"^\S*python\S* -m lockstep run ")
        os.kill(launcher, signal.SIGKILL)
    slurm.assert_nothing_left(LEASE_SECONDS + 20)
    wait_until(lambda: started.poll() is not None, "an end of salloc", 30)


def test_a_signal_to_the_script_leaves_time_to_save(slurm: SlurmHosts, tmp_path: Path) -> None:
    """As docs/tutorials/slurm.md says."""
    program(tmp_path, SAVES)
    script, output = tmp_path / "job.sh", tmp_path / "job.out"
    script.write_text("#!/bin/sh\nexec lockstep run --grace 20 train.py\n")
    options = ["-J", "saves", "-N2", "--ntasks-per-node=1", "-D", str(tmp_path), "-o", str(output)]
    job = slurm.run(["sbatch", "--parsable", *options, str(script)], env={"PATH": PATH}).stdout

    def lines(word: str) -> list[str]:
        return re.findall(rf"\] {word}$", output.read_text() if output.exists() else "", re.M)

    wait_until(lambda: len(lines("ready")) == 2, "the start of the processes", 60)
    slurm.run(["scancel", "--batch", "--signal=TERM", "-n", "saves"])
    slurm.wait_for(job.strip(), 60)
    assert len(lines("saved")) == 2, output.read_text()
    slurm.assert_nothing_left()


def test_the_key_is_in_no_argument_variable_or_file_of_slurm(
    slurm: SlurmHosts, tmp_path: Path
) -> None:
    path = program(tmp_path, HAS_KEY)
    started = slurm.start(["salloc", "-Q", "-N2", "--ntasks-per-node=1", *RUN, path])
    [key] = {line.split()[-1].encode() for line in read_lines(started, 2, "")}
    assert len(key) == 64
    processes = [Path(f"/proc/{pid}") for pid in slurm.hosts.pids()]
    assert len(processes) > 6, "the launcher, srun and agents are among them"
    files = [path for path in slurm.folder.rglob("*") if path.is_file()]
    assert slurm.folder / "slurmctld.log" in files
    for file in [*files, *(each / name for each in processes for name in ("cmdline", "environ"))]:
        with contextlib.suppress(OSError):  # a process that has ended
            assert key not in file.read_bytes(), file
    started.communicate(timeout=60)
    assert started.returncode == 0
    slurm.assert_nothing_left()
