"""Faults around a job that must not stop it: no room for the records, a fork."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from processes import clean_environ
from support import run_lockstep

LOOP = """
import os, shutil, jax, jax.numpy as jnp
from pathlib import Path
if {remove} and os.environ["LOCKSTEP_PROCESS_ID"] == "1":
    shutil.rmtree(Path(os.environ["LOCKSTEP_RUN_DIR"], "attempt_0", "process_1"))
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
for step in range(5):
    result = total(jnp.ones(jax.local_device_count()))
print("sum", float(result[0]))
"""
IN_MEMORY = "it records in memory only, which ends with the process."


def test_a_job_goes_on_where_its_records_cannot_be_written() -> None:
    result = run_lockstep([], LOOP.format(remove=True), timeout=90)
    assert result.by_process == {0: ["sum 2.0"], 1: ["sum 2.0"]}
    assert 0 not in result.stderr_by_process, result
    [said] = result.stderr_by_process[1]
    assert "the recorder cannot write" in said
    assert "process_1/recorder.bin: No such file or directory" in said
    assert said.endswith(IN_MEMORY)


def namespaces() -> bool:
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not namespaces(), reason="no user namespaces: no small disk to fill")
def test_a_job_goes_on_where_the_disk_is_full(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LOOP.format(remove=False))
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=40k none {disk} && exec env TMPDIR={disk} "
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", str(program)]
    done = subprocess.run(
        ["unshare", "-Urm", "--kill-child", "sh", "-c", f'{mount} "$@"', "sh", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        env=clean_environ(),
    )
    assert done.returncode == 0, done
    for process in range(2):
        assert f"[{process}] sum 2.0" in done.stdout, done
    assert done.stderr.count("recorder.bin: No space left on device; " + IN_MEMORY) == 2, done


def test_a_collective_in_a_forked_child_is_an_error_and_the_parent_goes_on() -> None:
    result = run_lockstep([], PROGRAMS / "forked.py", timeout=90)
    assert result.by_process[0] == ["before 2.0", "after 2.0"], result
    before, child, ended, after = result.by_process[1]
    assert (before, ended, after) == ("before 2.0", "child ended 0", "after 2.0")
    assert "child raised" in child
    assert "a collective in a process that was forked from process 1 (pid " in child
    assert "multiprocessing's 'spawn'" in child
