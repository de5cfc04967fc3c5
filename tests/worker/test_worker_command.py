"""``lockstep worker`` under launchers, and under MPICH's real mpiexec on this host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from lanes import sample
from lockstep import cli
from processes import captured

WORKER = [sys.executable, "-m", "lockstep", "worker"]
PLACE = r"""
import os, sys
names = ("PROCESS_ID", "NUM_PROCESSES", "LOCAL_PROCESS_ID", "LOCAL_NUM_PROCESSES", "COORDINATOR")
words = [os.environ.get("LOCKSTEP_" + name) for name in names]
# One write: mpiexec mixes what comes in pieces.
sys.stdout.write(" ".join(map(str, [*words, *sys.argv[1:]])) + "\n")
"""
SUM = r"""
import sys, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
everybody = multihost_utils.process_allgather(jax.numpy.array([10 + jax.process_index()]))
counts = f"{jax.process_index()} {jax.local_device_count()}"
sys.stdout.write(f"sum {counts} {everybody.ravel().tolist()}\n")
"""
DIFFER = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
jax.distributed.initialize()
rows = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
total = jax.jit(lambda x: x.sum())
mine = np.ones(1, np.float32 if jax.process_index() else np.int32)
total(jax.make_array_from_process_local_data(rows, mine)).block_until_ready()
"""
_FOREIGN = ("PMI", "MPI", "OMPI", "PALS", "SLURM", "LOCKSTEP_", "MASTER_", "TORCHELASTIC")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not (name.startswith(_FOREIGN) or name in _RANKS) or name == "LOCKSTEP_ENGINE"
}


def run(
    *command: str,
    status: int | None = 0,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    done = captured(command, env={**CLEAN, **(env or {})}, timeout=timeout)
    assert status is None or done.returncode == status, done.stderr
    return done


def sums(output: str) -> list[str]:
    """What the program says, each in one write; it may come amid a line of gloo's."""
    return sorted(re.findall(r"sum \d+ \d+ \[.*?\]", output))


@pytest.fixture
def place_program(tmp_path: Path) -> str:
    (tmp_path / "place.py").write_text(PLACE)
    return str(tmp_path / "place.py")


def mpiexec() -> str:
    """MPICH's, from the wheel that the tests need."""
    path = Path(sys.executable).with_name("mpiexec")
    assert path.exists(), "the mpich package is not installed beside this Python"
    return str(path)


def test_mpich(place_program: str) -> None:
    done = run(mpiexec(), "-n", "3", *WORKER, place_program, "-x")
    lines = sorted(done.stdout.splitlines())
    coordinator = lines[0].split()[4]
    assert coordinator.startswith("127.0.0.1:")
    assert lines == [f"{i} 3 {i} 3 {coordinator} -x" for i in range(3)]


def test_mpich_through_a_shell(place_program: str) -> None:
    done = run(mpiexec(), "-n", "2", "sh", "-c", '"$@"; true', "sh", *WORKER, place_program)
    assert {line.split()[0] for line in done.stdout.splitlines()} == {"0", "1"}
    assert len({line.split()[4] for line in done.stdout.splitlines()}) == 1


@sample("collectives", ["lockstep", "gloo"], 0)
def test_mpich_starts_a_jax_program(collectives: str, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(SUM)
    options = ["-d", "2", "--collectives", collectives]
    done = run(mpiexec(), "-n", "2", *WORKER, *options, str(tmp_path / "sum.py"), timeout=120)
    assert sums(done.stdout) == ["sum 0 2 [10, 11]", "sum 1 2 [10, 11]"]


@pytest.mark.full
def test_mpich_starts_a_program_that_joins_a_second_job(tmp_path: Path) -> None:
    """At the same address: the service of the first job may serve for as long as it likes."""
    leave = "jax.distributed.shutdown()\nimport jax.extend\njax.extend.backend.clear_backends()\n"
    (tmp_path / "twice.py").write_text(SUM + leave + SUM)
    done = run(mpiexec(), "-n", "2", *WORKER, str(tmp_path / "twice.py"), timeout=120)
    assert sums(done.stdout) == 2 * ["sum 0 1 [10, 11]"] + 2 * ["sum 1 1 [10, 11]"]


@pytest.mark.full
def test_a_process_that_fails_before_it_computes_is_not_waited_for(tmp_path: Path) -> None:
    fails = """
import os, sys, jax
jax.distributed.initialize()
if os.environ["PMI_RANK"] == "1":
    raise FileNotFoundError("data")
try:
    jax.devices()
except RuntimeError as error:
    sys.stdout.write(f"raised {error}\\n")
"""
    (tmp_path / "fails.py").write_text(fails)
    # Far longer than it takes: the launcher hears of the failure when the other has ended too.
    done = run(
        *[mpiexec(), "-n", "2", *WORKER, "--grace", "40", str(tmp_path / "fails.py")], status=None
    )
    assert done.returncode == 1, done.stderr
    assert "raised process 1 of 2" in done.stdout, done.stderr
    said = "process 1 of 2 failed: FileNotFoundError: data, before the job had begun"
    assert said in done.stdout


@pytest.mark.full
def test_a_difference_is_told_with_the_lines_of_both(tmp_path: Path) -> None:
    """Without the directory that `lockstep run` makes: the lines are in memory."""
    program = tmp_path / "differ.py"
    program.write_text(DIFFER)
    done = run(mpiexec(), "-n", "2", *WORKER, str(program), status=None, timeout=120)
    line = DIFFER.splitlines().index("total = jax.jit(lambda x: x.sum())") + 1
    for dtype in ("f32", "s32"):
        call = rf"\) called all-reduce \(sum\) of 1 x {dtype}, differ\.py:{line} in _lambda"
        assert re.search(call, done.stderr + done.stdout), done


@pytest.mark.parametrize(
    ("env", "place"),
    [
        (
            {
                "SLURM_JOB_ID": "7",
                "SLURM_PROCID": "1",
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NODELIST": "a[1-2]",
                "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
                "SLURM_NODEID": "1",
            },
            "1 2 0 1 a1:61447",
        ),
        # The user's coordinator has priority.
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2", "LOCKSTEP_COORDINATOR": "head:99"},
            "0 2 None None head:99",
        ),
    ],
    ids=["Slurm", "PMI"],
)
def test_variables_of_a_launcher(place_program: str, env: dict[str, str], place: str) -> None:
    assert run(*WORKER, place_program, env=env).stdout == f"{place}\n"


def test_lockstep_run_inside_an_allocation_is_a_job_of_its_own(place_program: str) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "9", "PMI_RANK": "0"}
    done = run(sys.executable, "-m", "lockstep", "run", "-n", "1", place_program, env=env)
    assert done.stdout.startswith("[0] 0 1 0 1 127.0.0.1:")


@pytest.mark.parametrize(
    ("env", "error"),
    [
        ({}, "was not started by a launcher that Lockstep knows"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "put srun before"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "Set LOCKSTEP_COORDINATOR=HOST:PORT on all of them"),
        (
            {"LOCKSTEP_PROCESS_ID": "0"},
            "LOCKSTEP_PROCESS_ID and LOCKSTEP_NUM_PROCESSES have to be set together",
        ),
        ({"PMI_RANK": "0"}, "PMI_RANK is set but PMI_SIZE is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE are set, but MASTER_ADDR is not"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "99999"},
            "lockstep: MASTER_PORT=99999 (from torchrun) is not a port: those are 1 to 65535",
        ),
    ],
)
def test_errors(
    env: dict[str, str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in os.environ.keys() - CLEAN.keys():
        monkeypatch.delenv(name)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "execve", None)  # this process would become the program
    assert cli.main(["worker", "-c", "pass"]) == 2
    assert error in capsys.readouterr().err
