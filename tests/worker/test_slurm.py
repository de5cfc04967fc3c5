"""``lockstep worker`` under a real Slurm: two nodes, which are namespaces of this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lanes
import slurm_hosts
from slurm_hosts import SlurmHosts
from support import assert_unsaid

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(240),
    lanes.needs(slurm_hosts.possible(), "needs root, namespaces, sshd and Slurm (.ci/tools)"),
]
WORKER = [sys.executable, "-m", "lockstep", "worker"]
SUM = r"""
import os, sys, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
where = [os.uname().nodename, os.environ["SLURM_STEP_ID"]]
sys.stdout.write(f"sum {' '.join(where)} {ranks.ravel().tolist()}\n")
"""
FAILS = r"""
import sys, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
multihost_utils.process_allgather(jax.numpy.array([0]))
if jax.process_index() == 1:
    sys.exit(7)
multihost_utils.process_allgather(jax.numpy.array([0]))
"""
LOSES = r"""
import os, signal, sys, time, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
attempt = os.environ["LOCKSTEP_ATTEMPT"]
multihost_utils.process_allgather(jax.numpy.array([0]))
if attempt == "0" and jax.process_index() == 1:
    os.kill(os.getppid(), signal.SIGKILL)
while attempt == "0":
    multihost_utils.process_allgather(jax.numpy.array([0]))
sys.stdout.write(f"attempt {attempt} on {jax.process_count()}\n")
"""
WAITS = r"""
import sys, time, jax
jax.distributed.initialize()
jax.devices()
sys.stdout.write("ready\n")
sys.stdout.flush()
try:
    time.sleep(100)
except KeyboardInterrupt:
    sys.stdout.write("interrupted\n")
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmHosts]:
    with slurm_hosts.slurm_hosts(tmp_path_factory.mktemp("slurm"), kill_wait=20) as made:
        yield made


@pytest.fixture
def key(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "key"
    path.write_text("k" * 64)
    path.chmod(0o600)
    return {"LOCKSTEP_KEY_FILE": str(path)}


def program(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def test_a_step_over_two_nodes(slurm: SlurmHosts, key: dict[str, str], tmp_path: Path) -> None:
    done = slurm.run(["srun", "-N2", "-n4", *WORKER, program(tmp_path, SUM)], env=key, timeout=120)
    sums = re.findall(r"sum (\w) \d+ (\[.*?\])", done.stdout)
    assert len(sums) == 4, done
    assert {host for host, _ in sums} == {"a", "b"}
    assert {ranks for _, ranks in sums} == {"[0, 1, 2, 3]"}
    assert_unsaid("gloo", done.stdout + done.stderr)
    slurm.assert_nothing_left()


def test_a_failure_ends_the_step_with_its_status(
    slurm: SlurmHosts, key: dict[str, str], tmp_path: Path
) -> None:
    command = ["srun", "-N2", "-n2", *WORKER, program(tmp_path, FAILS)]
    done = slurm.run(command, env=key, timeout=120, check=False)
    assert done.returncode == 7, done
    # What the other host's process raises: it has learned from that host how the process ended.
    assert re.search(r"process 1 \(pid \d+ on b\) failed: sys.exit\(7\)", done.stderr), done
    slurm.assert_nothing_left()


def test_a_step_goes_on_without_a_lost_task(
    slurm: SlurmHosts, key: dict[str, str], tmp_path: Path
) -> None:
    """Its status is that of the lost one all the same."""
    words = ["--nnodes", "1:2", "--max-restarts", "1", program(tmp_path, LOSES)]
    command = ["srun", "--no-kill", "--kill-on-bad-exit=0", "-N2", "-n2", *WORKER, *words]
    done = slurm.run(command, env=key, timeout=120, check=False)
    assert "attempt 1 on 1" in done.stdout, done
    assert "going on with 1 host, 1 process, without node 1" in done.stderr, done
    assert done.returncode == 128 + signal.SIGKILL, done
    # The directory of an agent that is killed stays until the next run; srun has passed TMPDIR on.
    [left] = (slurm.hosts.folder / "a" / "tmp").glob("lockstep-run-*")
    shutil.rmtree(left)
    slurm.assert_nothing_left()


def test_two_steps_on_one_node_do_not_collide(slurm: SlurmHosts, tmp_path: Path) -> None:
    step = f"srun --exact -n2 {' '.join(WORKER)} {program(tmp_path, SUM)}"
    script = f"#!/bin/sh\n{step} & first=$!\n{step} & second=$!\nwait $first && wait $second\n"
    status, output = slurm.script(script, "-N1", "-n4", "-w", "b")
    assert status == 0, output
    steps = re.findall(r"sum b (\d+) (\[.*?\])", output)
    assert sorted(steps) == [("0", "[0, 1]")] * 2 + [("1", "[0, 1]")] * 2, output


def test_scancel_interrupts_the_program(
    slurm: SlurmHosts, key: dict[str, str], tmp_path: Path
) -> None:
    worker = [*WORKER, "--grace", "8", program(tmp_path, WAITS)]
    started = slurm.start(["srun", "-J", "waits", "-N2", "-n2", *worker], env=key)
    assert started.stdout is not None
    assert [started.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
    slurm.run(["scancel", "-n", "waits"])
    out, err = started.communicate(timeout=60)
    assert out.count(b"interrupted\n") == 2, (out, err)
    assert started.returncode != 0
    slurm.assert_nothing_left()


def test_the_script_of_the_page_starts_again_after_a_failure(
    slurm: SlurmHosts, tmp_path: Path
) -> None:
    program(tmp_path, slurm_hosts.of_page("train.py"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = slurm_hosts.of_page("worker.sh")
    status, output = slurm.script(script, env={"PATH": path}, folder=tmp_path)
    assert status == 0, output
    said = re.findall(r"^0: (step \d .*)$", output, re.M)
    assert said == [f"step {i} on 8 devices: {64 * i}" for i in range(4)], output
    failure = r"^0: lockstep: process 3 of 4 on b failed first: killed by SIGKILL \(signal 9\)"
    assert re.search(failure, output, re.M), output
    again = "0: lockstep: attempt 0 has failed; starting again (3 restarts left)"
    assert again in output.splitlines(), output
    assert not list(tmp_path.glob("key-*")), "the script leaves its key behind"
    slurm.assert_nothing_left()
