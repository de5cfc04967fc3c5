"""``lockstep bench --hosts`` on hosts with a real sshd."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssh_hosts import NEEDED, ssh_hosts


@NEEDED
@pytest.mark.full
@pytest.mark.parametrize("op", ["all_reduce", "permute"])
def test_a_collective_is_measured_between_hosts(tmp_path: Path, op: str) -> None:
    file = tmp_path / "bench.json"
    with ssh_hosts(tmp_path, "abc") as hosts:
        for name in hosts.names:
            hosts.shape(name, "400mbit")
        words = ["--hosts", "a,b,c", "--host-counts", "2", "--sizes", "256KiB", "--repeats", "1"]
        words += ["--ops", op, "--interface", "10.9.0.0/24", "--json", str(file)]
        done = hosts.run("a", hosts.lockstep("bench", *words), timeout=240)
        hosts.assert_nothing_left()
    assert "3 hosts (a, b, c), 3 processes x 1 device" in done.stdout
    report = json.loads(file.read_text())
    [fewer] = report["fewer_hosts"]
    assert list(fewer["hosts"]["processes"]) == ["a", "b"]
    assert report["hosts"]["line"]["source"] == "measured"
    assert {(pair["from"], pair["to"]) for pair in report["hosts"]["pairs"]} >= {("a", "b")}
    for entry in (*fewer["cases"], *report["cases"]):
        assert entry["results"].keys() == {"lockstep", "plain", "gloo"}
        for name, result in entry["results"].items():
            assert result["status"] == "ok", result["reason"]
            # More than the line: the processes were not on different hosts.
            assert 0 < entry["share_of_line"][name] < 1.5
