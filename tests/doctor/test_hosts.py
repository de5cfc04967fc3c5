"""``lockstep doctor --hosts`` on hosts with a real sshd."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from lockstep import cli
from lockstep.doctor.hosts import show_pairs
from ssh_hosts import NEEDED, ssh_hosts


@pytest.mark.full
@NEEDED
def test_hosts_are_checked_and_each_pair_measured(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abc", debian="b") as hosts:
        hosts.separate("b", "c")
        hosts.shape("a", "80mbit")
        words = ["--hosts", "a,b,c", "--json", "--interface", "10.9.0.0/24"]
        done = hosts.run("a", hosts.lockstep("doctor", *words), check=False, timeout=60)
        assert done.returncode == 1, done
        document = json.loads(done.stdout)
        found = {(each["area"], each["name"]): each for each in document["checks"]}
        assert document["status"] == "problem"
        assert found["host a", "network"]["found"].startswith("reaches b and c, within")
        assert found["host a", "address"]["found"] == "10.9.0.1 (eth0)"
        assert "b is 127.0.1.1: not used" in found["host b", "host name"]["found"]
        assert found["host b", "network"]["status"] == "problem"
        assert found["host c", "network"]["found"].startswith("reaches a, within")
        pairs = {(each["from"], each["to"]): each for each in document["pairs"]}
        assert len(pairs) == 6
        assert pairs["b", "c"] == {"from": "b", "to": "c", "latency": None, "bandwidth": None}
        assert 1e6 < pairs["a", "b"]["bandwidth"] < 20e6  # of 80 Mbit/s
        assert pairs["a", "b"]["bandwidth"] < pairs["b", "a"]["bandwidth"]
        assert pairs["a", "b"]["latency"] > 0

        words = hosts.lockstep("doctor", "--hosts", "a,c", "--interface", "eth7")
        done = hosts.run("a", words, check=False, timeout=60)
        assert "no interface eth7: it has eth0 10.9.0.1" in done.stdout
        assert done.stdout.splitlines()[-1].endswith("2 problems: fix the problems first")
        hosts.assert_nothing_left()


def test_pairs_are_a_table() -> None:
    reached = {"reason": "", "latency": 48.1e-6, "bandwidth": float(1 << 30)}
    measured = {("a", "b"): reached, ("b", "a"): {"reason": "timeout", "detail": ""}}
    out = io.StringIO()
    show_pairs(measured, Console(file=out, width=60))
    assert out.getvalue().splitlines() == [
        "between hosts (one TCP connection, not encrypted)",
        "  from  to  latency  bandwidth",
        "  a     b   48.1 µs  1 GiB/s",
        "  b     a   timeout  -",
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "a,,b"], "a host's name is missing"),
        (["--hosts", "a", "--hostfile", "f"], "give one of them"),
        (["--hosts", "a,b", "--interface", "1.2.3.4/99"], "--interface 1.2.3.4/99: expected"),
    ],
)
def test_bad_options(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *words]) == 2
    assert said in capsys.readouterr().err
