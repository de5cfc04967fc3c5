"""Hosts of one machine: namespaces with a network, a name and an /etc/hosts of their own.

Two of them, with a cable between, for tests; a benchmark takes more, on a switch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import fork_server
from processes import clean_environ
from support import MARK, marked, wait_until

NAMES = ("hosta", "hostb")
_ADDRESSES = tuple(f"10.9.0.{host + 1}" for host in range(26))
_PORT = "29500"
_DEVICE = "eth0"
_PAIR = ("link", "add", _DEVICE, "type", "veth", "peer", "name", _DEVICE)
_WITHOUT_AGENT = """
import lockstep, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# It ends with its stdin, and so with this process, however that ends.
_BE = 'hostname "$1" && mount --bind "$2" /etc/hosts && echo up && exec cat'
TIMEOUT = 20.0
_LISTEN = "0A"
"""In /proc/net/tcp."""


def possible() -> bool:
    """Whether this system lets us make such hosts."""
    if not (shutil.which("ip") and shutil.which("nsenter")):
        return False
    probe = ["unshare", "-Urnmu", "ip", "link", "add", "type", "veth"]
    return subprocess.run(probe, capture_output=True, timeout=TIMEOUT).returncode == 0


def _place(hosts: int, host: int, local: int, per_host: int) -> dict[str, str]:
    return {
        "RANK": str(host * per_host + local),
        "WORLD_SIZE": str(hosts * per_host),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": _ADDRESSES[0],
        "MASTER_PORT": _PORT,
    }


class Hosts:
    """Hosts on one network. `two_hosts` and `some_hosts` make them and look after them."""

    def __init__(self, folder: Path, count: int = len(NAMES), forked: bool = False) -> None:
        self.mark = uuid.uuid4().hex
        self.variables: dict[str, str] = {}
        """Of all processes of these hosts, besides their places."""
        self._names = [f"host{chr(ord('a') + host)}" for host in range(count)]
        self._folder = folder
        self.forked = forked and fork_server.WANTED
        """Whether processes are forks of a ready interpreter."""
        self._started: list[subprocess.Popen[bytes]] = []
        self._hosts: list[subprocess.Popen[bytes]] = []

    def make(self) -> None:
        self._host(["unshare", "-Urnmu"])
        for _ in self._names[1:]:
            self._host([*self._enter(0, "-U"), "unshare", "-nmu"])
        if len(self._names) == 2:
            self._ip(0, *_PAIR, "netns", str(self._hosts[1].pid))
        else:
            self._connect_to_switch()
        for host in range(len(self._names)):
            self._ip(host, "address", "add", f"{_ADDRESSES[host]}/24", "dev", _DEVICE)
            self._ip(host, "link", "set", _DEVICE, "up")
            self._ip(host, "link", "set", "lo", "up")
        for host in range(len(self._names)):
            wait_until(lambda host=host: self._is_up(host), "a host's network is not up")

    def _is_up(self, host: int) -> bool:
        """The kernel says so up to some seconds later, and UCX uses no device before that."""
        command = [*self._enter(host, "-U", "-n"), "ip", "-oneline", "link", "show", _DEVICE]
        shown = subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
        return b" state UP " in shown.stdout

    def _connect_to_switch(self) -> None:
        """A namespace of its own, behind the hosts in the list of them."""
        switch = len(self._names)
        self._host([*self._enter(0, "-U"), "unshare", "-nmu"])
        self._ip(switch, "link", "add", "br0", "type", "bridge")
        self._ip(switch, "link", "set", "br0", "up")
        for host, name in enumerate(self._names):
            there = ("peer", "name", name, "netns", str(self._hosts[switch].pid))
            self._ip(host, "link", "add", _DEVICE, "type", "veth", *there)
            self._ip(switch, "link", "set", "dev", name, "master", "br0", "up")

    def _host(self, new: Sequence[str]) -> None:
        names = self._folder / "hosts"
        lines = [f"{a} {n}" for a, n in zip(_ADDRESSES, self._names, strict=False)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        made = subprocess.Popen(
            [*new, "sh", "-c", _BE, "sh", [*self._names, "switch"][len(self._hosts)], str(names)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._hosts.append(made)
        assert made.stdout is not None
        assert made.stdout.readline() == b"up\n"

    def _enter(self, host: int, *namespaces: str) -> list[str]:
        pid = str(self._hosts[host].pid)
        return ["nsenter", "--preserve-credentials", "-t", pid, *namespaces]

    def _ip(self, host: int, *words: str) -> None:
        command = [*self._enter(host, "-U", "-n"), "ip", *words]
        subprocess.run(command, check=True, timeout=TIMEOUT)

    @staticmethod
    def address(host: int) -> str:
        return _ADDRESSES[host]

    def write_key(self, host: int, key: str = "k" * 64) -> None:
        """Gives the process of that host a key, and so the engine in place of gloo."""
        path = self.key(host)
        path.write_text(key)
        path.chmod(0o600)

    def key(self, host: int) -> Path:
        return self._folder / f"{self._names[host]}.key"

    def start(
        self,
        host: int,
        program: Path,
        *args: str,
        local: int = 0,
        per_host: int = 1,
        env: Mapping[str, str] | None = None,
        agent: bool = True,
    ) -> subprocess.Popen[bytes]:
        """One of a host's processes, as a cluster's launcher would start it there.

        ``agent``: by ``lockstep worker``, whose agent is what is returned.
        """
        environ = self.environ(host, local, per_host) | clean_environ(**(env or {}))
        environ[MARK] = self.mark
        how = ["-m", "lockstep", "worker"] if agent else ["-c", _WITHOUT_AGENT]
        command = [sys.executable, *how, str(program), *args]
        path = self._output(host, local)
        path.write_bytes(b"")
        self._started.append(
            fork_server.start(command, environ, path, path, self._hosts[host].pid)
            if self.forked
            else self._interpreter([*self.enter(host), *command], environ, path)
        )
        return self._started[-1]

    @staticmethod
    def _interpreter(
        command: Sequence[str], environ: Mapping[str, str], path: Path
    ) -> subprocess.Popen[bytes]:
        with path.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
            )

    def enter(self, host: int) -> list[str]:
        """What to put before a command to run it on that host."""
        return self._enter(host, "-U", "-n", "-m", "-u")

    def environ(self, host: int, local: int = 0, per_host: int = 1) -> dict[str, str]:
        """The variables of one of a host's processes."""
        # The namespaces of processes are the same: by them they would be on one host. A job of
        # another test has the same addresses, and is told apart by its hosts.
        place = _place(len(self._names), host, local, per_host)
        environ = clean_environ(LOCKSTEP_HOST_ID=f"{self._names[host]}-{self.mark}", **place)
        if self.key(host).exists():
            environ["LOCKSTEP_KEY_FILE"] = str(self.key(host))
        return environ | self.variables

    def _output(self, host: int, local: int) -> Path:
        return self._folder / f"{self._names[host]}.{local}.txt"

    def said(self, host: int, local: int = 0) -> str:
        """What that process of that host has printed so far, stderr too."""
        return self._output(host, local).read_text()

    def lines(self, host: int, first_word: str, local: int = 0) -> list[list[str]]:
        """The lines of its program that begin so, in words."""
        lines = (line.split() for line in self.said(host, local).splitlines())
        return [words for words in lines if words[:1] == [first_word]]

    def pid(self, host: int, local: int = 0) -> int:
        """Of that process's program, which says so; what was started is its agent."""
        [said] = self.lines(host, "pid", local)
        return int(said[1])

    def listening(self, host: int) -> list[tuple[str, int]]:
        """Where processes of that host take connections, but for JAX's service."""
        table = Path(f"/proc/{self._hosts[host].pid}/net/tcp").read_text()
        rows = [line.split() for line in table.splitlines()[1:]]
        ports = [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTEN]
        return [(_ADDRESSES[host], port) for port in ports if str(port) != _PORT]

    def run(self, host: int, code: str, *args: str) -> str:
        """What a Python program that somebody runs on that host prints."""
        command = [*self._enter(host, "-U", "-n"), sys.executable, "-c", code, *args]
        done = subprocess.run(command, check=True, capture_output=True, timeout=120)
        return done.stdout.decode()

    def flood(self, host: int, code: str) -> int:
        """What that program prints, which gets the host's address and the port of JAX's service."""
        return int(self.run(host, code, _ADDRESSES[host], "5", _PORT))

    def shape(self, host: int, rate: str) -> None:
        """Gives what that host sends a rate, "1gbit"."""
        queue = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        shape = ["tc", "qdisc", "add", "dev", _DEVICE, "root", *queue]
        subprocess.run([*self._enter(host, "-U", "-n"), *shape], check=True, timeout=TIMEOUT)

    def cut(self) -> None:
        """Pulls the cable: neither host hears of the other again, nor why."""
        self._ip(1, "link", "set", _DEVICE, "down")

    def mute(self, host: int, other: int) -> None:
        """Loses what the host sends to another one; what that sends to it arrives."""
        no_such = ("lladdr", "02:00:00:00:00:01", "dev", _DEVICE, "nud", "permanent")
        self._ip(host, "neighbor", "replace", _ADDRESSES[other], *no_such)

    def end(self) -> None:
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in [*self._started, *reversed(self._hosts)]:
            process.kill()
            process.communicate()


def two_hosts(folder: Path, forked: bool = False) -> contextlib.AbstractContextManager[Hosts]:
    """Two hosts, of which nothing outlives the block."""
    return some_hosts(folder, len(NAMES), forked)


@contextlib.contextmanager
def some_hosts(folder: Path, count: int, forked: bool = False) -> Iterator[Hosts]:
    """Up to 26 hosts, of which nothing outlives the block."""
    hosts = Hosts(folder, count, forked)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.end()
