"""``lockstep run`` with an agent for each of a hundred hosts, on this machine, without an sshd."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from own_address import networked, ssh_here
from processes import captured, clean_environ

HOSTS = 100
TIMEOUT = 600.0


@networked
@pytest.mark.full
def test_a_job_starts_on_a_hundred_hosts(tmp_path: Path) -> None:
    hosts = ",".join(f"host{i}" for i in range(HOSTS))
    code = "import os; print(os.environ['LOCKSTEP_PROCESS_ID'])"
    words = ["--hosts", hosts, "--ssh", ssh_here(tmp_path), "--no-prefix", "-c", code]
    command = [sys.executable, "-P", "-m", "lockstep", "run", *words]
    environ = clean_environ(TMPDIR=str(tmp_path))
    done = captured(command, timeout=TIMEOUT, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done
    assert sorted(map(int, done.stdout.split())) == list(range(HOSTS))
    assert not list(tmp_path.glob("lockstep-run-*"))
