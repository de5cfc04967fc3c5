"""The commands of docs/how-to/several-hosts.md that prepare the hosts, typed on a host of three.

The hosts have the home directory of the page, each one of its own, and sshd takes a password until
a key is there. Nothing but the page's lines and the answers to their questions is typed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import sshd_files
from lanes import needs
from page_commands import ROOT
from ssh_hosts import SshHosts, possible, ssh_hosts

PAGE = (ROOT / "docs" / "how-to" / "several-hosts.md").read_text()
NODES = ("node1", "node2", "node3")
HOME = Path("/home/alice")
PASSWORD = "correct horse battery staple"
SSHD = "/usr/sbin/sshd"
TESTS_PORT = 2222
"""Of the sshd that `ssh_hosts` starts; the one with passwords has port 22."""
ANSWERS = f"""\
#!/bin/sh
echo "$1" >> {HOME}/asked
case $1 in
  *"(yes/no"*) echo yes ;;
  *"password:"*) echo "{PASSWORD}" ;;
esac
"""
"""ssh asks through this program. It answers the questions for a key's passphrase with an empty
line."""

pytestmark = [
    pytest.mark.full,
    needs(
        possible() and all(map(shutil.which, ("rsync", "ssh-copy-id", "openssl"))),
        "needs root, openssh-server, rsync and namespaces: .ci/tools installs them",
    ),
]


def line(pattern: str) -> str:
    """The one line of the page, in a sentence or in a listing."""
    [found] = set(re.findall(rf"(?:`|^    \$ |fix: )({pattern}[^`\n]*)", PAGE, re.M))
    return found


def allow_password(hosts: SshHosts, name: str, digest: str) -> None:
    """Gives the host another home, and an sshd that takes a password or the keys of that home."""
    hosts.hide(name, HOME.parent)
    hosts.run(name, ["mkdir", "-p", str(HOME / "work")])
    own = hosts.folder / name
    users = (own / "passwd").read_text().replace(str(own / "home"), str(HOME))
    hosts.replace(name, Path("/etc/passwd"), users)
    passwords = (own / "shadow").read_text().replace("root:*", f"root:{digest}")
    hosts.replace(name, Path("/etc/shadow"), passwords, 0o600)
    keys, environ = ".ssh/authorized_keys", f'"TMPDIR={own / "tmp"}"'
    config = sshd_files.SSHD_CONFIG.format(port=22, folder=own, keys=keys, environ=environ)
    first = "PasswordAuthentication yes\nPermitRootLogin yes\n"  # the first value counts
    (own / "passwords_config").write_text(first + config)
    log = str(own / "passwords.log")
    hosts.run(name, [SSHD, "-f", str(own / "passwords_config"), "-E", log])


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[SshHosts]:
    made = subprocess.run(
        ["openssl", "passwd", "-6", PASSWORD], capture_output=True, text=True, check=True
    )
    (tmp_path / "answers").write_text(ANSWERS)
    (tmp_path / "answers").chmod(0o755)
    with ssh_hosts(tmp_path, NODES, ports=dict.fromkeys(NODES, TESTS_PORT)) as hosts:
        for name in NODES:
            allow_password(hosts, name, made.stdout.strip())
        yield hosts


def typed(hosts: SshHosts, text: str, *, check: bool = True) -> str:
    """What a line prints on node1; its questions are answered, and those at the terminal by
    Enter."""
    ask = {"SSH_ASKPASS": str(hosts.folder / "answers"), "SSH_ASKPASS_REQUIRE": "force"}
    environ = {**ask, "HOME": str(HOME)}
    enter = ["bash", "-c", 'printf "\\n" | bash -c "$1"', "bash", text]
    return hosts.run("node1", enter, env=environ, check=check).stdout


def read(hosts: SshHosts, name: str, path: Path) -> str:
    return hosts.run(name, ["cat", str(path)]).stdout


def test_a_key_lets_ssh_in_and_rsync_copies_the_program(nodes: SshHosts) -> None:
    is_ready = line("ssh -o BatchMode")
    shown = re.findall(rf"^    \$ {re.escape(is_ready)}\n    (.*)$", PAGE, re.M)
    assert typed(nodes, is_ready, check=False) == ""

    typed(nodes, line("ssh-keygen"))
    assert "BEGIN OPENSSH PRIVATE KEY" in read(nodes, "node1", HOME / ".ssh" / "id_ed25519")
    copy = line("ssh-copy-id")
    typed(nodes, copy)
    assert "password:" in read(nodes, "node1", HOME / "asked")
    assert typed(nodes, is_ready).splitlines() == shown == ["node2"]

    typed(nodes, f"{line('cd ~/work')} && echo 'print(1)' > train.py")
    typed(nodes, line("rsync -a ~"))
    assert read(nodes, "node2", HOME / "work" / "train.py") == "print(1)\n"

    typed(nodes, copy.replace("node2", "node3"))
    nodes.run("node3", ["sh", "-c", f"echo 'print(3)' > {HOME}/work/train.py"])
    typed(nodes, line("rsync -a /home"))
    assert read(nodes, "node3", HOME / "work" / "train.py") == "print(1)\n"
