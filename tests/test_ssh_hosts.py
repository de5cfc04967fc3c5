"""The hosts that the tests of `lockstep run --hosts` run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssh_hosts import NEEDED, ssh_hosts
from support import wait_until

pytestmark = NEEDED


def test_a_host_runs_commands_of_another_over_ssh(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abc", ports={"b": 2222}, jumps={"c": "b"}, debian="c") as hosts:
        ssh = ["ssh", "-F", str(hosts.config), "-o", "BatchMode=yes"]
        for name in "abc":
            assert hosts.run("a", [*ssh, name, "hostname"]).stdout == f"{name}\n"
        resolved = hosts.run("a", [*ssh, "c", "getent hosts c; ls /dev/shm; echo $TMPDIR"]).stdout
        assert resolved.split() == ["127.0.1.1", "c", str(tmp_path / "c" / "tmp")]

        left = hosts.start("a", [*ssh, "b", "sleep 60"])
        wait_until(lambda: "sleep 60" in str(hosts.processes("b")), "sleep on b")
        assert "sleep 60" in str(hosts.leftovers())
        with pytest.raises(AssertionError, match=r"b: process .*sleep 60"):
            hosts.assert_nothing_left(0)
        assert left.poll() is None

        hosts.separate("b", "c")
        assert hosts.run("c", [*ssh, "b", "true"], check=False).returncode == 255
        hosts.cut("b")
        probe = [*ssh, "-o", "ConnectTimeout=1", "b", "true"]
        assert hosts.run("a", probe, check=False).returncode == 255
        hosts.take_down("c")
        assert not hosts.processes("c")
        kept = hosts.pids()
    wait_until(lambda: not hosts.pids(), f"an end of {kept}")


def test_a_host_can_lack_what_the_others_have(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("everywhere")
    with ssh_hosts(tmp_path) as hosts:
        hosts.replace("b", shared / "file", "other")
        assert hosts.run("b", ["cat", str(shared / "file")]).stdout == "other"
        hosts.hide("b", shared)
        assert hosts.run("b", ["ls", str(shared)]).stdout == ""
        assert hosts.run("a", ["cat", str(shared / "file")]).stdout == "everywhere"
        hosts.fill_disk("b")
        written = hosts.run("b", ["sh", "-c", "cp /etc/hosts $TMPDIR/new"], check=False)
        assert "No space left" in written.stderr
        hosts.shape("a", "1mbit")
        assert "1Mbit" in hosts.run("a", ["tc", "qdisc", "show"]).stdout
