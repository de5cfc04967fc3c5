"""`lockstep.data`, the transfers and `lockstep.inspect` in a job on two hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lanes import needs
from ssh_hosts import possible, ssh_hosts

HERE = Path(__file__).parent
TIMEOUT = 240.0
PROGRAM = HERE / "hosts_job.py"


@pytest.mark.full
@needs(possible(), "needs root, openssh-server and namespaces: .ci/tools installs them")
def test_a_job_on_two_hosts(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "ab") as hosts:
        words = ["--chdir", str(tmp_path), "--hosts", "a:2,b:2", str(PROGRAM)]
        found = hosts.run("a", hosts.lockstep("run", *words), timeout=TIMEOUT, check=False)
        assert found.returncode == 0, found
        checks = re.findall(r"^def (check_\w+)", PROGRAM.read_text(), re.M)
        assert len(checks) == 4
        for process, host in enumerate("aabb"):
            for check in checks:
                assert f"[{process}@{host}] passed {check}" in found.stdout, found
        hosts.assert_nothing_left()
