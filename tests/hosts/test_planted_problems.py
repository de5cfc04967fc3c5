"""Planted problems on hosts with a real sshd, and what `lockstep run --hosts` says of them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from processes import read_lines
from ssh_hosts import NEEDED, SshHosts, ssh_hosts
from support import assert_unsaid

pytestmark = NEEDED

PACKAGE = Path(lockstep.__file__).resolve().parent
PROGRAM = "open('started', 'a').close()\n"
TOLD_SECONDS = 60.0
"""For a loaded machine: the limits in `lockstep.hosts` add up to less than 10 s."""


@dataclasses.dataclass
class Planted:
    """Hosts and the directory that they share, in which `PROGRAM` lies."""

    hosts: SshHosts
    work: Path

    def run(self, *options: str, command: str = "run") -> subprocess.CompletedProcess[str]:
        """``lockstep run`` on all hosts; fails if it starts the program or leaves a process."""
        names = ["--hosts", ",".join(self.hosts.names)]
        place = ["--chdir", str(self.work)] if command == "run" else []
        program = ["train.py"] if command == "run" else []
        words = self.hosts.lockstep(command, *names, *place, *options, *program)
        done = self.hosts.run(self.hosts.names[0], words, check=False, timeout=TOLD_SECONDS)
        self.hosts.assert_nothing_left()
        assert not (self.work / "started").exists(), done
        return done


def make_work(folder: Path) -> Path:
    work = folder / "shared" / "work"
    work.mkdir(parents=True)
    (work / "train.py").write_text(PROGRAM)
    return work


def rows(text: str) -> dict[tuple[str, str], str]:
    """(host, name of the check) -> found and fix, of a table of problems."""
    found: dict[tuple[str, str], str] = {}
    host = key = ""
    for line in text.splitlines():
        if match := re.match(r"  (\w*) +(?:problem|warning) +(\w+(?: \w+)?)  +(.*)", line):
            host = match[1] or host
            key = match[2]
            found[host, key] = match[3]
        elif match := re.match(r" +fix: (.*)", line):
            found[host, key] += f" FIX {match[1]}"
    return found


def other_jax(planted: Planted) -> None:
    site = Path(str(importlib.metadata.distribution("jax").locate_file("")))
    [metadata] = site.glob("jax-*.dist-info/METADATA")
    text = re.sub(r"(?m)^Version: .*$", "Version: 0.7.9", metadata.read_text(), count=1)
    planted.hosts.replace("b", metadata, text)


def other_lockstep(hosts: SshHosts, name: str) -> None:
    file = PACKAGE / "__init__.py"
    text = re.sub(r"(?m)^__version__ = .*$", '__version__ = "0.0.9"', file.read_text())
    assert "0.0.9" in text
    hosts.replace(name, file, text)


def forget_host_key(hosts: SshHosts, name: str) -> None:
    known = hosts.folder / "known_hosts"
    lines = known.read_text().splitlines(keepends=True)
    known.write_text("".join(line for line in lines if not line.startswith(f"{name} ")))


def taken_port(planted: Planted) -> None:
    code = (
        "import socket, time; s = socket.create_server(('10.9.0.1', 29500)); "
        "print('up', flush=True); time.sleep(300)"
    )
    # Without the mark: what a user runs is not a leftover.
    holder = planted.hosts.start("a", [sys.executable, "-c", code], {"TEST_RUN_MARK": ""})
    read_lines(holder, 1)


def bridges(planted: Planted) -> None:
    for name in "ab":
        for words in (
            ["link", "add", "docker0", "type", "bridge"],
            ["address", "add", "172.17.0.1/16", "dev", "docker0"],
            ["link", "set", "docker0", "up"],
        ):
            planted.hosts.run(name, ["ip", *words])


def assert_told(
    done: subprocess.CompletedProcess[str], expected: dict[tuple[str, str], tuple[str, str]]
) -> None:
    """That the table has these problems, by host and check, with what is found and the fix."""
    assert done.returncode == 1, done
    told = rows(done.stderr)
    assert told.keys() == expected.keys(), done.stderr
    for key, (found, fix) in expected.items():
        what, _, how = told[key].partition(" FIX ")
        assert found in what
        assert fix in how


@pytest.mark.full
def test_the_chosen_network_and_port_are_those_of_the_job(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "ab", debian="ab") as hosts:
        for i, name in enumerate("ab", 1):
            hosts.run(name, ["ip", "address", "add", f"10.8.0.{i}/24", "dev", "eth0"])
        work = make_work(tmp_path)
        (work / "train.py").write_text("import os; print(os.environ['LOCKSTEP_COORDINATOR'])")
        run = hosts.lockstep("run", "--hosts", "b,a", "--chdir", str(work))
        chosen = ["--interface", "10.8.0.0/24", "--coordinator-port", "29511"]
        done = hosts.run("a", [*run, *chosen, "train.py"], timeout=TOLD_SECONDS)
        lines = sorted(done.stdout.splitlines())
        assert lines == ["[0@b] 10.8.0.2:29511", "[1@a] 10.8.0.2:29511"]
        # By default it is the address that ssh has reached, never that of the name, 127.0.1.1.
        done = hosts.run("a", [*run, "train.py"], timeout=TOLD_SECONDS)
        assert re.match(r"\[0@b\] 10\.9\.0\.2:\d+$", sorted(done.stdout.splitlines())[0])
        hosts.assert_nothing_left()


@pytest.mark.full
def test_an_address_that_both_hosts_have_is_not_that_of_the_other(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "ab") as hosts:
        planted = Planted(hosts, make_work(tmp_path))
        bridges(planted)
        done = planted.run("--interface", "docker0")
        said = rows(done.stderr)["a", "network"]
        assert "no route between a (172.17.0.1) and b (172.17.0.1)" in said
        assert "the bridge of their containers" in said


@pytest.mark.full
def test_what_keeps_an_agent_from_its_start_and_a_port_that_is_taken(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abcdefg") as hosts:
        planted = Planted(hosts, make_work(tmp_path))
        taken_port(planted)
        hosts.separate("b", "a", "blackhole")  # what b answers to a is lost on its way
        forget_host_key(hosts, "c")
        hosts.hide("d", PACKAGE)
        other_lockstep(hosts, "e")
        hosts.hide("f", Path(sys.executable).parent)
        hosts.hide("g", planted.work.parent)
        done = planted.run("--coordinator-port", "29500")
        assert "nothing was started: 7 problems on 7 of 7 hosts" in done.stderr
        taken = "29500 of 10.9.0.1 is not free: the port is taken by process "
        other = f"0.0.9, but this machine has {lockstep.__version__}"
        expected = {
            ("a", "port"): (taken, "ss -ltnp"),
            ("b", "ssh"): ("10.9.0.2 port 22: Connection timed out", "firewall lets port 22 pass"),
            ("c", "ssh"): ("does not know the key of c", "confirm it"),
            ("d", "Lockstep"): ("has no Lockstep", "-m pip install WHEEL"),
            ("e", "Lockstep"): (other, "-m pip install WHEEL"),
            ("f", "Python"): (f"{sys.executable} does not exist there", "--python"),
            ("g", "directory"): ("work does not exist", "--chdir DIR"),
        }
        assert_told(done, expected)


def test_a_directory_that_no_host_has_is_not_to_be_copied(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "ab") as hosts:
        planted = Planted(hosts, make_work(tmp_path))
        done = planted.run("--chdir", str(planted.work / "no"))
        found = rows(done.stderr)
        assert "work/no does not exist" in found["b", "directory"]
        assert_unsaid("rsync", done.stderr)
        assert found["b", "directory"].endswith(
            " FIX --chdir DIR with a directory that all hosts have"
        )


@pytest.mark.full
def test_a_machine_without_ssh_or_with_one_host_left(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "ab") as hosts:
        planted = Planted(hosts, make_work(tmp_path))
        hosts.take_down("b")
        done = planted.run(command="doctor")
        assert "10.9.0.2 port 22: No route to host" in done.stdout
        assert done.stdout.splitlines()[-1].endswith("1 problem: fix the problems first")
        done = planted.run("--ssh", "no-such-ssh")
        assert "no-such-ssh cannot be started on this machine" in rows(done.stderr)["b", "ssh"]


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with ssh_hosts(tmp_path, "abcde", ports={"b": 2222}, jumps={"c": "b"}, debian="abc") as hosts:
        planted = Planted(hosts, make_work(tmp_path))
        other_jax(planted)
        hosts.separate("b", "c")
        hosts.replace("c", planted.work / "train.py", "another")
        hosts.fill_disk("c")
        hosts.take_down("d")
        hosts.replace("e", hosts.folder / "user_key.pub", "ssh-ed25519 AAAA none\n")
        # c cannot be reached through b any more: by a jump over a it can.
        hosts.config.write_text(hosts.config.read_text().replace("ProxyJump b", "ProxyJump a"))
        done = planted.run()
        assert "nothing was started: 6 problems on 4 of 5 hosts" in done.stderr, done.stderr
        no_route = "no route between b (10.9.0.2) and c (10.9.0.3): they are on different networks"
        expected = {
            ("b", "jax"): ("0.7.9, but", "pip install jax=="),
            ("b", "network"): (no_route, "let TCP pass between b and c"),
            ("c", "program"): ("train.py is another file than on a and b", "rsync -a"),
            ("c", "disk"): ("No space left on device", "make room: ssh -F"),
            ("d", "ssh"): ("10.9.0.4 port 22: No route to host", "leave d out"),
            ("e", "ssh"): ("e does not accept the ssh key of user root", "ssh-copy-id e"),
        }
        assert_told(done, expected)
