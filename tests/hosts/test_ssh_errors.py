"""What the launcher says about hosts that it does not reach: real texts of OpenSSH and Python."""

from __future__ import annotations

import pytest

from lockstep.hosts.checks.ssh_errors import Failure, explain


def told(code: int | None, text: str, ssh: str = "ssh -F cfg") -> Failure:
    return explain("user@b", code, text, "no answer in time", ssh, "/venv/bin/python", "1.2.0")


@pytest.mark.parametrize(
    ("text", "found", "fix"),
    [
        (
            "ssh: connect to host 10.9.0.2 port 22: No route to host\r\n",
            "down or cannot be reached: 10.9.0.2 port 22: No route to host",
            "ssh -F cfg user@b true",
        ),
        (
            "ssh: connect to host b port 2222: Connection timed out\r\n",
            "down or cannot be reached: b port 2222: Connection timed out",
            "firewall lets port 2222 pass",
        ),
        (
            "Connection to 10.9.0.2 port 22 timed out\r\n",
            "10.9.0.2 port 22: Connection timed out",
            "leave user@b out of --hosts",
        ),
        (
            "Connection timed out during banner exchange\r\n"
            "Connection to 10.9.0.2 port 22 timed out\r\n",
            "its sshd does not answer",
            "restart its sshd",
        ),
        (
            "ssh: connect to host b port 22: Connection refused\r\n",
            "b refuses connections to port 22: no sshd listens there",
            "(sudo systemctl start ssh), or set its Port in cfg",
        ),
        (
            "ssh: Could not resolve hostname bb: Name or service not known\r\n",
            "the name bb is not known",
            "Host bb with HostName ADDRESS",
        ),
        (
            "root@10.9.0.2: Permission denied (publickey).\r\n",
            "does not accept the ssh key of user root",
            "ssh-copy-id user@b",
        ),
        (
            "No ED25519 host key is known for b and you have requested strict checking.\r\n"
            "Host key verification failed.\r\n",
            "does not know the key of user@b yet",
            "type ssh -F cfg user@b once",
        ),
        (
            "@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@@@@\n"
            "Host key verification failed.\r\n",
            "another than the one that ssh knows",
            "ssh-keygen -R b, then",
        ),
        (
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n"
            "Offending ED25519 key in /root/.ssh/known_hosts:2\r\n  remove with:\r\n"
            '  ssh-keygen -f "/root/.ssh/known_hosts" -R "[b]:2222"\r\n',
            "another than the one that ssh knows",
            "ssh-keygen -R '[b]:2222', then",
        ),
        (
            "Received disconnect from 10.9.0.2 port 22:2: Too many authentication failures\r\n",
            "after too many keys",
            "IdentitiesOnly yes",
        ),
        (
            "ssh: connect to host 10.9.0.3 port 22: No route to host\r\n"
            "kex_exchange_identification: Connection closed by remote host\r\n"
            "Connection closed by UNKNOWN port 65535\r\n",
            "10.9.0.3 port 22: No route to host",
            "ssh -F cfg user@b true",
        ),
        (
            "channel 0: open failed: connect failed: No route to host\r\n"
            "stdio forwarding failed\r\nConnection closed by UNKNOWN port 65535\r\n",
            "the jump host does not reach it",
            "ProxyJump",
        ),
        (
            "kex_exchange_identification: read: Connection reset by peer\r\n",
            "closes the connection at once",
            "MaxStartups",
        ),
        (
            "cfg: line 3: Bad configuration option: hostnam\r\ncfg: terminating, 1 bad option\r\n",
            "cannot use its configuration",
            "--ssh 'ssh -F FILE'",
        ),
        ("\x1b[31munheard of\n", "failed: ?[31munheard of", "type ssh -F cfg user@b and see"),
    ],
)
def test_errors_of_ssh(text: str, found: str, fix: str) -> None:
    failure = told(255, text)
    assert failure.name == "ssh"
    assert found in failure.found
    assert fix in failure.fix


def test_the_file_is_that_of_ssh_without_an_f() -> None:
    assert "in ~/.ssh/config" in told(255, "Permission denied (publickey).", "ssh").fix


@pytest.mark.parametrize(
    ("code", "text", "name", "found", "fix"),
    [
        (
            127,
            "bash: line 1: /venv/bin/python: No such file",
            "Python",
            "does not exist",
            "--python",
        ),
        (126, "bash: line 1: Permission denied", "Python", "cannot be executed", "--python"),
        (
            1,
            "/venv/bin/python: Error while finding module specification for "
            "'lockstep.hosts.host_agent' (ModuleNotFoundError: No module named 'lockstep')\n",
            "Lockstep",
            "has no Lockstep",
            "version 1.2.0 there as here, from the same wheel or source tree: "
            "ssh -F cfg user@b /venv/bin/python -m pip install WHEEL; or name the right Python",
        ),
        (
            1,
            "/venv/bin/python: No module named lockstep.hosts.host_agent\n",
            "Lockstep",
            "too old for --hosts",
            "pip install WHEEL",
        ),
        (
            1,
            "lockstep: cannot create a private directory in /tmp: No space left on device. Set\n",
            "disk",
            "no directory of a run can be made in /tmp: No space left on device",
            "TMPDIR",
        ),
        (1, "ModuleNotFoundError: No module named 'numpy'", "Lockstep", "module numpy", "--force"),
        (3, "what is this", "agent", "exit code 3: what is this", "-m lockstep doctor"),
        (None, "", "agent", "no answer in time", "its login shell asks nothing"),
    ],
)
def test_errors_on_the_host(code: int | None, text: str, name: str, found: str, fix: str) -> None:
    failure = told(code, text)
    assert failure.name == name
    assert found in failure.found
    assert fix in failure.fix
