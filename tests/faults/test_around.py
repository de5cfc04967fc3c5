"""Faults around a job: no room for records, a fork, an unauthenticated peer, a busy process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from faults.harness import PROGRAMS
from lanes import needs
from processes import captured, clean_environ
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


@pytest.mark.full
def test_a_job_goes_on_where_its_records_cannot_be_written() -> None:
    result = run_lockstep([], LOOP.format(remove=True), timeout=90, forked=True)
    assert result.by_process == {0: ["sum 2.0"], 1: ["sum 2.0"]}
    assert 0 not in result.stderr_by_process, result
    [said] = result.stderr_by_process[1]
    assert "the recorder cannot write" in said
    assert "process_1/recorder.bin: No such file or directory" in said
    assert said.endswith(IN_MEMORY)


def namespaces() -> bool:
    return subprocess.run(["unshare", "-Urm", "true"], capture_output=True).returncode == 0


needs_namespaces = needs(namespaces(), "no user namespaces: no disk of our own to mount")


def run_with_disk(
    options: str, folder: Path, program: str, *args: str
) -> subprocess.CompletedProcess[str]:
    """``lockstep run`` with TMPDIR on a disk of its own, in namespaces that end with it."""
    file = folder / "program.py"
    file.write_text(program)
    disk = folder / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o {options} none {disk} && exec env TMPDIR={disk} "
    command = [sys.executable, "-m", "lockstep", "run", "-n", "2", *args, str(file)]
    return captured(
        ["unshare", "-Urm", "--kill-child", "sh", "-c", f'{mount} "$@"', "sh", *command],
        env=clean_environ(),
        timeout=90,
    )


@needs_namespaces
@pytest.mark.full
def test_a_job_goes_on_where_the_disk_is_full(tmp_path: Path) -> None:
    done = run_with_disk("size=40k", tmp_path, LOOP.format(remove=False))
    assert done.returncode == 0, done
    for process in range(2):
        assert f"[{process}] sum 2.0" in done.stdout, done
        words = f"process_{process}/recorder.bin: No space left on device; {IN_MEMORY}"
        assert done.stderr.count(words) == 1, done


@needs_namespaces
@pytest.mark.full
def test_why_a_process_failed_is_told_where_the_disk_has_filled_up(tmp_path: Path) -> None:
    fill = """
if step == 2 and jax.process_index() == 1:
        os.system("cat /dev/zero > $TMPDIR/full 2>/dev/null")
        raise ValueError("no data")
    result = total("""
    program = LOOP.format(remove=False).replace("result = total(", fill.lstrip("\n"), 1)
    done = run_with_disk("size=16m", tmp_path, program)
    assert done.returncode == 1, done
    first, *_, last = [x for x in done.stderr.splitlines() if x.startswith("lockstep: ")]
    for text in (first, last):
        assert "process 1 of 2 failed first: ValueError: no data" in text, done
        assert "program.py:" in text, done


@needs_namespaces
def test_a_read_only_disk_is_reported_before_anything_starts(tmp_path: Path) -> None:
    done = run_with_disk("ro", tmp_path, LOOP.format(remove=False))
    assert done.returncode == 2, done
    words = (
        f"cannot create a private directory in {tmp_path}/disk: Read-only file system. Set TMPDIR"
    )
    assert words in done.stderr, done
    assert not done.stdout, done


@pytest.mark.full
def test_a_process_that_was_busy_until_the_launcher_stopped_it_is_not_the_culprit() -> None:
    program = """
import os, signal, time, jax, jax.numpy as jnp
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
print(float(total(jnp.ones(jax.local_device_count()))[0]), flush=True)
if jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    result = run_lockstep(["--grace", "2"], program, timeout=90, expect_status=137, forked=True)
    words = result.said_by_launcher
    assert "process 1 of 2 failed first: killed by SIGKILL (signal 9)" in words, result
    assert "> process 1 (pid " in words, result
    assert "> process 0 (pid " not in words, result
    assert "  process 0 (pid " in words, result


def test_an_unauthenticated_peer_on_the_port_does_not_stop_the_job() -> None:
    program = """
import os, socket, jax, jax.numpy as jnp
jax.distributed.initialize()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
ones = jnp.ones(jax.local_device_count())
total(ones)
host, port = os.environ["LOCKSTEP_COORDINATOR"].rsplit(":", 1)
for junk in (bytes(4096), os.urandom(1 << 16), b"GET / HTTP/1.1\\r\\n\\r\\n"):
    with socket.create_connection((host, int(port)), 10) as peer:
        try:
            peer.sendall(junk)
        except OSError:
            pass  # cut off before all was said
print("sum", float(total(ones)[0]))
"""
    result = run_lockstep([], program, timeout=90, forked=True)
    assert result.by_process == {0: ["sum 2.0"], 1: ["sum 2.0"]}, result


@pytest.mark.full
def test_a_collective_in_a_forked_child_is_an_error_and_the_parent_goes_on() -> None:
    result = run_lockstep([], PROGRAMS / "forked.py", timeout=90, forked=True)
    assert result.by_process[0] == ["before 2.0", "after 2.0"], result
    before, child, ended, after = result.by_process[1]
    assert (before, ended, after) == ("before 2.0", "child ended 0", "after 2.0")
    assert "child raised" in child
    assert "a collective in a process that was forked from process 1 (pid " in child
    assert "multiprocessing's 'spawn'" in child
