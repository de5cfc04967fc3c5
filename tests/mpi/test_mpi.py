"""``--collectives mpi`` over a real MPI: the mpich package of the ``mpi`` extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lanes import sample
from of_this_jax import FLOAT16_PASS
from support import MARK, marked, run_lockstep

PROGRAMS = Path(__file__).parent / "programs"
FIVE = PROGRAMS / "five.py"
MPIEXEC = Path(sys.prefix, "bin", "mpiexec")
CHECKS = 5 * (6 if FLOAT16_PASS else 5) + 1
"""What `FIVE` checks: five collectives of each of its types, and a sum over pairs."""


@sample("n", [2, 4], 0)
def test_the_five_collectives(n: int) -> None:
    result = run_lockstep(["--collectives", "mpi"], FIVE, n=n, d=1, timeout=120)
    for process in range(n):
        lines = result.by_process[process]
        assert sum(line.startswith("ok ") for line in lines) == CHECKS, result
        assert lines[-1] == "done", result


@pytest.mark.full
def test_under_the_mpis_own_launcher() -> None:
    mark = f"mpiexec-{os.getpid()}"
    command = [str(MPIEXEC), "-n", "2", sys.executable, "-m", "lockstep", "worker"]
    command += ["--collectives", "mpi", str(FIVE), "float32"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, MARK: mark},
    )
    try:
        out, _ = process.communicate(timeout=120)
    finally:
        for pid in marked(mark):
            os.kill(pid, 9)
    assert process.returncode == 0, out
    assert out.count("done") == 2, out
    assert out.count("ok ") == 2 * (5 + 1), out


@pytest.mark.full
def test_several_devices_in_a_process_are_refused() -> None:
    # `-d 2` is refused before anything starts.
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    result = run_lockstep(["--collectives", "mpi"], FIVE, env=two, expect_status=1)
    assert "2 CPU devices in this process, but --collectives mpi takes one" in result.stderr
    assert "-n N -d 1" in result.stderr


@pytest.mark.full
def test_an_mpi_that_knows_of_fewer_processes_is_refused() -> None:
    program = """\
        import os
        for name in ("PMI_FD", "PMI_RANK", "PMI_SIZE"):
            del os.environ[name]
        import jax
        jax.distributed.initialize()
        try:
            jax.devices()
        except RuntimeError as error:
            print(error)
        """
    result = run_lockstep(["--collectives", "mpi"], program)
    for process in range(2):
        [said] = result.by_process[process]
        assert f"process {process} of 2: MPI did not start" in said
        assert "MPI knows of 1 of the job's 2 processes" in said
        assert "mpiexec -n N lockstep worker --collectives mpi" in said


@pytest.mark.full
def test_processes_that_request_different_groups_raise() -> None:
    program = """\
        import jax, numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec
        jax.distributed.initialize()
        groups = {0: [[0, 2], [1]], 1: [[0, 2], [1]], 2: [[0, 1, 2]]}[jax.process_index()]
        mesh = Mesh(np.array(jax.devices()), ("x",))
        rows = NamedSharding(mesh, PartitionSpec("x"))
        x = jax.make_array_from_callback((3, 1), rows, lambda i: np.ones((1, 1), "float32"))
        def total(x):
            return jax.lax.psum(x, "x", axis_index_groups=groups)
        spec = PartitionSpec("x")
        f = jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
        try:
            jax.block_until_ready(jax.jit(f)(x))
            print("no error")
        except jax.errors.JaxRuntimeError as error:
            print("raised", "in different orders" in str(error))
        """
    result = run_lockstep(["--collectives", "mpi"], program, n=3, d=1, expect_status=None)
    assert result.by_process[0] == ["raised True"], result
    assert result.by_process[2] == ["raised True"], result


@pytest.mark.parametrize(
    ("end", "status"), [("raise ValueError('boom')", 1), ("os.kill(os.getpid(), 9)", 137)]
)
@pytest.mark.full
def test_a_process_that_fails_ends_the_job_and_leaves_no_shared_memory(
    end: str, status: int
) -> None:
    program = f"""\
        import os, jax
        from jax.experimental import multihost_utils
        jax.distributed.initialize()
        multihost_utils.sync_global_devices("all are here")
        if jax.process_index() == 1:
            {end}
        multihost_utils.sync_global_devices("one is missing")
        """
    before = set(os.listdir("/dev/shm"))
    result = run_lockstep(["--collectives", "mpi"], program, d=1, expect_status=status)
    assert "process 1 of 2 failed first" in result.said_by_launcher
    assert not {x for x in set(os.listdir("/dev/shm")) - before if x.startswith("mpich")}


def test_a_library_that_is_no_mpi_is_named(tmp_path: Path) -> None:
    path = tmp_path / "libmpi_abi.so.1"
    path.write_text("not a library")
    environ = {"LOCKSTEP_MPI_LIBRARY": str(path)}
    program = "import jax; jax.devices()"
    result = run_lockstep(["--collectives", "mpi"], program, n=1, env=environ, expect_status=1)
    assert f"the MPI at {path} cannot be used" in result.stderr


def test_without_a_library_nothing_is_started(tmp_path: Path) -> None:
    environ = {"LOCKSTEP_MPI_LIBRARY": str(tmp_path / "none")}
    result = run_lockstep(["--collectives", "mpi"], "print(1)", env=environ, expect_status=2)
    assert result.stderr.startswith("lockstep: LOCKSTEP_MPI_LIBRARY=")
    assert result.stdout == ""
