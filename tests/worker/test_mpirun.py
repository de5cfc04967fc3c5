"""``lockstep worker`` under a real Open MPI and MPICH, on one host and over ssh on two."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lanes
from processes import captured, clean_environ, write_command, write_key
from ssh_hosts import NEEDED, SshHosts, hosts_of_module
from support import assert_unsaid

OPEN_MPI = "mpirun.openmpi"
MPICH = str(Path(sys.executable).with_name("mpiexec"))
pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(240),
    lanes.needs(bool(shutil.which(OPEN_MPI)), "needs Debian's openmpi-bin (.ci/tools)"),
]
WORKER = [sys.executable, "-m", "lockstep", "worker"]
# One write a line: the launchers mix what comes in pieces.
FAILS = r"""
import os, sys, jax
jax.distributed.initialize()
from jax.experimental import multihost_utils
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
sys.stdout.write(f"sum {os.uname().nodename} {ranks.ravel().tolist()}\n")
sys.stdout.flush()
if os.environ["LOCKSTEP_ATTEMPT"] in sys.argv and jax.process_index() == 1:
    sys.exit(7)
try:
    multihost_utils.process_allgather(jax.numpy.array([0]))
except Exception as error:
    sys.stdout.write(f"raised {error}\n")
    sys.stdout.flush()
    raise SystemExit(8)
"""
FAILED_STATUS = (7, 8, 7 | 8)
"""Open MPI's: of the process that has ended first. MPICH's: the bits of all of them."""
FAILED = r"raised .*process 1 \(pid \d+ on {host}\) failed: sys\.exit\(7\)"


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(FAILS)
    return str(tmp_path / "program.py")


def launcher(name: str) -> list[str]:
    if name == "Open MPI":
        return [OPEN_MPI, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    return [MPICH, "-n", "2"]


@pytest.mark.parametrize("name", ["Open MPI", "MPICH"])
def test_on_one_host(name: str, program: str, tmp_path: Path) -> None:
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        # What Open MPI puts into /dev/shm stays there when a process of it fails.
        environ = clean_environ(OMPI_MCA_btl_vader_backing_directory=str(tmp_path))
        return captured([*launcher(name), *WORKER, program, *args], timeout=120, env=environ)

    done = run()
    assert done.returncode == 0, done
    assert re.findall(r"sum \S+ (\[.*?\])", done.stdout) == ["[0, 1]"] * 2, done
    done = run("0")
    assert done.returncode in FAILED_STATUS, done
    assert re.search(FAILED.format(host=os.uname().nodename), done.stdout), done


hosts = hosts_of_module("ab")


@NEEDED
@pytest.mark.parametrize("name", ["Open MPI", "MPICH"])
def test_on_two_hosts(name: str, hosts: SshHosts, program: str, tmp_path: Path) -> None:
    """As docs/reference/run.md says: each launcher passes the key's path on in its own way."""
    key = write_key(tmp_path / "key")
    if name == "Open MPI":
        options = [
            *["--mca", "plm_rsh_agent", hosts.ssh(), "--host", "a:1,b:1"],
            *["-x", f"LOCKSTEP_KEY_FILE={key}"],
        ]
    else:
        ssh = write_command(tmp_path / "ssh", f'exec {hosts.ssh()} "$@"')
        options = [
            *["-launcher", "ssh", "-launcher-exec", ssh, "-hosts", "a,b", "-ppn", "1"],
            *["-genv", "LOCKSTEP_KEY_FILE", str(key), "-genv", "LOCKSTEP_COORDINATOR", "a:29500"],
        ]
    start, *rest = launcher(name)
    command = [start, *rest, *options, *WORKER, program]
    done = hosts.run("a", command, timeout=120)
    sums = re.findall(r"sum (\S+) (\[.*?\])", done.stdout)
    assert sorted(sums) == [("a", "[0, 1]"), ("b", "[0, 1]")], done
    assert_unsaid("gloo", done.stdout + done.stderr)
    done = hosts.run("a", [*command, "0"], timeout=120, check=False)
    assert done.returncode in FAILED_STATUS, done
    assert re.search(FAILED.format(host="b"), done.stdout), done
    again = [*command[:-1], "--max-restarts", "1", program, "0"]
    done = hosts.run("a", again, timeout=120)
    assert re.findall(r"sum (\S+) (\[.*?\])", done.stdout).count(("b", "[0, 1]")) == 2, done
    said = done.stdout + done.stderr
    assert "process 1 of 2 on b failed first: sys.exit(7) (exit code 7)" in said, done
    assert "attempt 0 has failed; starting again (1 restart left)" in said, done
    hosts.assert_nothing_left()
