"""The disk of a host that fills up while a job runs: the job goes on, and its failure is told."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssh_hosts import NEEDED, SshHosts, ssh_hosts

pytestmark = [NEEDED, pytest.mark.full]

LOOP = """
import os
import jax, jax.numpy as jnp
jax.distributed.initialize()
me = jax.process_index()
total = jax.pmap(lambda x: jax.lax.psum(x, "device"), axis_name="device")
for step in range(5):
    if step == 2 and me == {full}:
        os.system("cat /dev/zero > $TMPDIR/full 2>/dev/null")
    if step == 3 and me == 1:
        {end}
    result = float(total(jnp.ones(1))[0])
print("sum", result)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path, "ab") as made:
        for name in made.names:
            where = str(made.folder / name / "tmp")
            made.run(name, ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", where])
        yield made


def run(
    hosts: SshHosts, folder: Path, full: int, end: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """The job in which the disk of process ``full`` fills up, and what the launcher has said."""
    words = hosts.run_command(folder, LOOP.format(full=full, end=end), "--hosts", "a,b")
    done = hosts.run("a", words, timeout=90, check=False)
    hosts.assert_nothing_left()
    return done, [x for x in done.stderr.splitlines() if x.startswith("lockstep: proc")]


def test_a_job_ends_well(hosts: SshHosts, tmp_path: Path) -> None:
    done, _ = run(hosts, tmp_path, 1, "pass")
    assert (done.returncode, done.stdout.count("sum 2.0")) == (0, 2), done


def test_an_exception_on_that_host_is_the_cause(hosts: SshHosts, tmp_path: Path) -> None:
    done, said = run(hosts, tmp_path, 1, "raise ValueError('no data')")
    for text in (said[0], said[-1]):
        assert "process 1 of 2 on b failed first: ValueError: no data (exit code 1)" in text, done
        assert "program.py:11" in text, done


def test_a_killed_process_on_that_host_is_told_to_the_others(
    hosts: SshHosts, tmp_path: Path
) -> None:
    done, said = run(hosts, tmp_path, 1, "os.kill(os.getpid(), 9)")
    assert "process 1 of 2 on b failed first: killed by SIGKILL" in said[0], done
    assert "process 0 on a failed" in said[1], done
    assert said[1].endswith("process 1 had failed"), done


def test_a_full_disk_of_the_launcher_is_said_where_records_are_missing(
    hosts: SshHosts, tmp_path: Path
) -> None:
    done, said = run(hosts, tmp_path, 0, "raise ValueError('no data')")
    assert "process 1 of 2 on b failed first: ValueError: no data (exit code 1)" in said[0], done
    assert "the records of this run could not be kept, for lockstep report: [Errno 28]" in said[-1]
    assert "name another directory with --log-dir" in said[-1], done
