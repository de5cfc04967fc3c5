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

import slurm_hosts
from processes import read_lines, write_key
from slurm_hosts import SlurmHosts, program
from support import assert_unsaid, wait_until

pytestmark = slurm_hosts.MARKS
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
GOES_ON = r"""
import os, sys, time, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
attempt, requeued = os.environ["LOCKSTEP_ATTEMPT"], os.environ.get("SLURM_RESTART_COUNT", "0")
multihost_utils.process_allgather(jax.numpy.array([0]))
sys.stdout.write(f"ready: {jax.process_count()}, attempt {attempt}, requeued {requeued}\n")
sys.stdout.flush()
while attempt == requeued == "0" and not os.path.exists("finish"):
    multihost_utils.process_allgather(jax.numpy.array([0]))
    time.sleep(0.05)
sys.stdout.write(f"ended: {jax.process_count()}, attempt {attempt}, requeued {requeued}\n")
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
    return {"LOCKSTEP_KEY_FILE": str(write_key(tmp_path / "key"))}


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


class Batch:
    """A batch job of two nodes that runs `GOES_ON`, and waits for what happens to it."""

    def __init__(self, slurm: SlurmHosts, folder: Path, srun: str, *options: str) -> None:
        self._slurm, self._output = slurm, folder / "job.out"
        worker = f"{' '.join(WORKER)} --nnodes 1:2 --max-restarts 2 {program(folder, GOES_ON)}"
        (folder / "job.sh").write_text(f"#!/bin/sh\nsrun {srun} -N2 -n2 {worker}\n")
        where = ["-o", str(self._output), "-D", str(folder), "--open-mode=append"]
        batch = ["sbatch", "--parsable", "-N2", "-n2", "--ntasks-per-node=1", *where, *options]
        key = {"LOCKSTEP_KEY_FILE": str(folder / "key")}
        self.number = slurm.run([*batch, str(folder / "job.sh")], env=key).stdout.strip()
        wait_until(lambda: self.output.count("ready: 2") == 2, "both to run", 60)

    @property
    def output(self) -> str:
        return self._output.read_text() if self._output.exists() else ""

    def take_down(self, state: str) -> None:
        self._slurm.run(["scontrol", "update", "nodename=b", f"state={state}", "reason=test"])

    def end(self) -> int:
        """Brings the node back; the job's status."""
        status = self._slurm.wait_for(self.number, 60)
        self._slurm.run(["scontrol", "update", "nodename=b", "state=resume"], check=False)
        for host in "ab":  # the directory of a killed agent stays until the next run
            for left in (self._slurm.hosts.folder / host / "tmp").glob("lockstep-run-*"):
                shutil.rmtree(left)
        self._slurm.assert_nothing_left()
        return status


@pytest.mark.usefixtures("key")
def test_a_step_goes_on_without_a_node_that_slurm_sets_down(
    slurm: SlurmHosts, tmp_path: Path
) -> None:
    batch = Batch(slurm, tmp_path, "--no-kill --kill-on-bad-exit=0", "--no-kill", "--no-requeue")
    batch.take_down("down")
    batch.end()
    assert "process 1 of 2 on b failed first: its agent was lost" in batch.output, batch.output
    assert "going on with 1 host, 1 process, without node 1" in batch.output, batch.output
    assert "ended: 1, attempt 1, requeued 0\n" in batch.output, batch.output


@pytest.mark.usefixtures("key")
def test_a_job_of_a_node_that_is_drained_runs_to_its_end(slurm: SlurmHosts, tmp_path: Path) -> None:
    batch = Batch(slurm, tmp_path, "")
    batch.take_down("drain")
    (tmp_path / "finish").touch()
    assert batch.end() == 0, batch.output
    assert batch.output.count("ended: 2, attempt 0, requeued 0\n") == 2, batch.output


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("how", ["node down", "scontrol requeue"])
def test_slurm_starts_a_requeued_job_from_the_beginning(
    slurm: SlurmHosts, tmp_path: Path, how: str
) -> None:
    batch = Batch(slurm, tmp_path, "", "--requeue")
    if how == "node down":
        batch.take_down("down")
    else:
        slurm.run(["scontrol", "requeue", batch.number])

    def is_pending() -> bool:
        shown = slurm.run(["squeue", "-h", "-j", batch.number, "-o", "%T"]).stdout
        return shown.strip() == "PENDING"

    wait_until(is_pending, "the job to be queued again", 60)
    slurm.run(["scontrol", "update", "nodename=b", "state=resume"], check=False)
    slurm.run(["scontrol", "update", f"jobid={batch.number}", "starttime=now"])  # else 2 min later
    wait_until(lambda: batch.output.count("ended: 2") == 2, "the job's end", 120)
    assert batch.end() == 0, batch.output
    assert batch.output.count("ended: 2, attempt 0, requeued 1\n") == 2, batch.output


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
    read_lines(started, 2, "ready")
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
