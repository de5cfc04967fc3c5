"""What to do when a host is not reached: the errors of ssh, of the shell and of Python. Pure."""

from __future__ import annotations

import errno
import os
import re
import shlex
from typing import NamedTuple

from lockstep._words import printable
from lockstep.system import fd_limit

_MAX_SHOWN = 300


class Failure(NamedTuple):
    """What happened, under which name, and what to do."""

    name: str
    found: str
    fix: str


def same_lockstep(version: str, install: str) -> str:
    """How a host gets this launcher's Lockstep, whether or not its version is published.

    ``install`` is the command of pip on that host.
    """
    return (
        f"install version {version} there as here, from the same wheel or source tree: "
        f"{install} WHEEL"
    )


_INSTALL = "{ssh} {host} {python} -m pip install"


class _Row(NamedTuple):
    """A regular expression of what ssh says, and what to show for it.

    ``{host}``, ``{ssh}``, ``{config}`` and the groups of the expression are filled in.
    """

    said: str
    found: str
    fix: str
    name: str = ""
    """Instead of the name of its table."""


# The first row that fits counts, so that a cause stands before its consequences.
_SSH = (
    _Row(
        r"""REMOTE HOST IDENTIFICATION HAS CHANGED(?:[\s\S]*?-R "(?P<known>[^"\s]+)")?""",
        "the key of {host} is another than the one that ssh knows: the host was installed anew, "
        "or another machine answers in its place",
        "if you know why it has changed: ssh-keygen -R {name}, then type {ssh} {host} once and "
        "compare the key",
    ),
    _Row(
        r"No \S+ host key is known|Host key verification failed",
        "ssh does not know the key of {host} yet, and cannot ask here",
        "type {ssh} {host} once, compare the key and confirm it",
    ),
    _Row(
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        "ssh refuses the private key because other users can read it",
        "chmod 600 on the file of the private key",
    ),
    _Row(
        r"Too many authentication failures",
        "{host} has refused the connection after too many keys",
        "name the right one in {config}, below Host {host}: IdentityFile FILE and "
        "IdentitiesOnly yes",
    ),
    _Row(
        r"(?P<user>\S+)@\S+: Permission denied|Permission denied",
        "{host} does not accept the ssh key{as_user}",
        "ssh-copy-id {host} gives it your key; check User and IdentityFile of {host} in "
        "{config}; a key with a passphrase needs ssh-add first. It works when {ssh} {host} "
        "asks nothing",
    ),
    _Row(
        r"Could not resolve hostname (?P<name>[^\s:]+)",
        "the name {name} is not known",
        "check the spelling; or give the address in {config}: Host {name} with HostName ADDRESS",
    ),
    _Row(
        r"connect to host (?P<address>\S+) port (?P<port>\d+): Connection refused",
        "{address} refuses connections to port {port}: no sshd listens there",
        "start it on {host} (sudo systemctl start ssh), or set its Port in {config}",
    ),
    _Row(
        r"timed out during banner exchange",
        "the host accepts connections, but its sshd does not answer",
        "check its load, or restart its sshd",
    ),
    _Row(
        r"connect to host (?P<address>\S+) port (?P<port>\d+): "
        r"(?P<why>Connection timed out|Operation timed out|No route to host|Network is unreachable)"
        r"|Connection to (?P<address2>\S+) port (?P<port2>\d+) timed out",
        "the host is down or cannot be reached: {where}{why}",
        "check that the machine runs and that a firewall lets port {port} pass: {ssh} {host} true. "
        "To run without it, leave {host} out of --hosts",
    ),
    _Row(
        r"stdio forwarding failed|UNKNOWN port 65535",
        "the jump host does not reach it",
        "check ProxyJump of {host} in {config}, and from the jump host that {host} runs",
    ),
    _Row(
        r"kex_exchange_identification|Connection (?:closed|reset) by",
        "its sshd closes the connection at once",
        "see the log of sshd on {host}: MaxStartups, AllowUsers or a ban after failed logins "
        "(fail2ban) are usual",
    ),
    _Row(
        r"Bad configuration option|Bad owner or permissions|Can't open user config file",
        "ssh cannot use its configuration",
        "correct the file that it names; --ssh 'ssh -F FILE' chooses another",
    ),
)
_REMOTE = (
    _Row(
        r"cannot create a private directory in (?P<path>\S+): (?P<why>[^.\n]+)",
        "no directory of a run can be made in {path}: {why}",
        "make room there, or set TMPDIR on {host} to a directory that can be written",
        "disk",
    ),
    _Row(
        r"No module named '?lockstep",
        "{python} there has no Lockstep, or one that is too old for --hosts",
        f"{same_lockstep('{version}', _INSTALL)}; or name the right Python with --python",
    ),
    _Row(
        r"No module named '?(?P<module>[\w.]+)",
        "{python} there lacks the module {module}",
        same_lockstep("{version}", f"{_INSTALL} --force-reinstall"),
    ),
    _Row(
        r"not available|nologin",
        "the account has no shell there",
        "log in as another user: --hosts USER@{host}",
    ),
)
_NO_PYTHON = _Row(
    "",
    "{python} does not exist there",
    "make the same virtual environment on {host} at the same path, or name a Python that all hosts "
    "have with --python",
)
_NOT_EXECUTABLE = _Row("", "{python} cannot be executed there", _NO_PYTHON.fix)
_SSH_FAILED, _NOT_FOUND, _CANNOT_EXECUTE = 255, 127, 126


def explain(
    host: str, exit_code: int | None, text: str, lost: str, ssh: str, python: str, version: str
) -> Failure:
    """Why no agent has answered on ``host``.

    ``exit_code`` and ``text`` are those of the command that should have started it; None: it has
    not ended, and ``lost`` says why it was given up. ``ssh``, ``python`` and ``version`` are what
    this launcher uses.
    """
    values = {
        "host": shlex.quote(host),
        "name": shlex.quote(host.rpartition("@")[2]),
        "ssh": ssh,
        "config": _config_of(ssh),
        "python": shlex.quote(python),
        "version": version,
    }
    if exit_code == _SSH_FAILED or _is_of_ssh(text):
        return _first("ssh", _SSH, values, text) or Failure(
            "ssh", f"failed: {_shown(text) or 'no error is shown'}", f"type {ssh} {host} and see"
        )
    if exit_code == _NOT_FOUND:
        return _filled("Python", _NO_PYTHON, values)
    if exit_code == _CANNOT_EXECUTE:
        return _filled("Python", _NOT_EXECUTABLE, values)
    if exit_code is None:
        return Failure(
            "agent",
            f"{lost}{_after(text)}",
            f"check the load of {host}, and that its login shell asks nothing: {ssh} {host} true",
        )
    return _first("Lockstep", _REMOTE, values, text) or Failure(
        "agent",
        f"ended with exit code {exit_code}{_after(text)}",
        f"type {ssh} {host} {python} -m lockstep doctor",
    )


def not_started(error: str, ssh: str, python: str, by_ssh: bool) -> Failure:
    """Why the command that starts an agent could not even be started on this machine."""
    here = f"cannot be started on this machine: {_shown(error)}"
    if os.strerror(errno.EMFILE) in error:
        return Failure("open files", f"{ssh if by_ssh else python} {here}", fd_limit.LAUNCHER_NEEDS)
    if by_ssh:
        tool = ssh.split()[0]
        if tool == "srun":
            fix = "put Slurm's srun into the PATH, or start the agents with ssh: --ssh ssh"
            return Failure("srun", f"srun {here}", fix)
        fix = "install the ssh client (openssh-client), or name another with --ssh"
        return Failure("ssh", f"{tool} {here}", fix)
    return Failure("Python", f"{python} {here}", _NO_PYTHON.fix.format(host="this machine"))


def _config_of(ssh: str) -> str:
    """The file that ``ssh`` reads: the one of its ``-F``."""
    chosen = re.search(r" -F ?(\S+)", ssh)
    return chosen[1] if chosen else "~/.ssh/config"


def _is_of_ssh(text: str) -> bool:
    """A jump host's ssh may write this before the outer one has ended."""
    return bool(re.search(r"^ssh: |Host key verification failed", text, re.MULTILINE))


def _first(name: str, rows: tuple[_Row, ...], values: dict[str, str], text: str) -> Failure | None:
    for row in rows:
        if match := re.search(row.said, text):
            return _filled(name, row, {**values, **_groups(match)})
    return None


def _groups(match: re.Match[str]) -> dict[str, str]:
    """The groups of a row, as its texts use them."""
    said = {name: _shown(text) for name, text in match.groupdict().items() if text}
    address = said.get("address") or said.get("address2", "")
    port = said.get("port") or said.get("port2", "22")
    user = said.get("user", "")
    return {
        **said,
        **({"name": shlex.quote(said["known"])} if "known" in said else {}),
        "address": address,
        "port": port,
        "as_user": f" of user {user}" if user else "",
        "where": f"{address} port {port}: " if address else "",
        "why": said.get("why", "Connection timed out"),
    }


def _filled(name: str, row: _Row, values: dict[str, str]) -> Failure:
    return Failure(row.name or name, row.found.format(**values), row.fix.format(**values))


def _shown(text: str) -> str:
    return printable(" ".join(text.split()), _MAX_SHOWN)


def _after(text: str) -> str:
    return f": {_shown(text)}" if text.strip() else ""
