"""The hosts of `namespaces`, with processes of jobs as a cluster's launcher would start them.

Two of them, with a cable between, for tests; a benchmark takes more, on a switch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import fork_server
import namespaces
from lanes import needs
from namespaces import DEVICE
from processes import clean_environ, write_key
from support import MARK, marked, wait_until

NAMES = ("hosta", "hostb")
_PORT = "29500"
_WITHOUT_AGENT = """
import lockstep, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_LISTEN = "0A"
"""In /proc/net/tcp."""


@functools.cache
def possible() -> bool:
    """Whether this system lets us make such hosts."""
    tools = shutil.which("ip") and shutil.which("nsenter")
    return bool(tools) and namespaces.possible(Hosts.private, "ip link add type veth")


class Hosts(namespaces.Hosts):
    """Hosts on one network. `some_hosts` makes them and looks after them."""

    def __init__(self, folder: Path, count: int = len(NAMES), forked: bool = False) -> None:
        names = [f"host{chr(ord('a') + host)}" for host in range(count)]
        super().__init__(folder, names, switched=count > len(NAMES))
        self.variables: dict[str, str] = {}
        """Of all processes of these hosts, besides their places."""
        self.forked = forked and fork_server.WANTED
        """Whether processes are forks of a ready interpreter."""

    def make(self) -> None:
        super().make()
        for host in range(len(self.names)):
            wait_until(lambda host=host: self._is_up(host), "a host's network is not up")

    def _is_up(self, host: int) -> bool:
        """The kernel says so up to some seconds later, and UCX uses no device before that."""
        return " state UP " in self._net(host, "ip", "-oneline", "link", "show", DEVICE)

    def write_key(self, host: int, key: str = "k" * 64) -> None:
        """Gives the process of that host a key, and so the engine in place of gloo."""
        write_key(self.key(host), key)

    def key(self, host: int) -> Path:
        return self.folder / f"{self.names[host]}.key"

    def launch(
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
        if self.forked:
            started = fork_server.start(command, environ, path, path, self.init_of(host))
        else:
            words, none = [*self.enter(host), *command], subprocess.DEVNULL
            with path.open("wb") as out:
                started = subprocess.Popen(words, stdin=none, stdout=out, stderr=out, env=environ)
        self._stack.callback(started.communicate)
        return started

    def environ(self, host: int, local: int = 0, per_host: int = 1) -> dict[str, str]:
        """The variables of one of a host's processes."""
        # The namespaces of processes are the same: by them they would be on one host. A job of
        # another test has the same addresses, and is told apart by its hosts.
        environ = clean_environ(
            LOCKSTEP_HOST_ID=f"{self.names[host]}-{self.mark}",
            RANK=str(host * per_host + local),
            WORLD_SIZE=str(len(self.names) * per_host),
            LOCAL_RANK=str(local),
            LOCAL_WORLD_SIZE=str(per_host),
            MASTER_ADDR=self.address(0),
            MASTER_PORT=_PORT,
        )
        if self.key(host).exists():
            environ["LOCKSTEP_KEY_FILE"] = str(self.key(host))
        return environ | self.variables

    def _output(self, host: int, local: int) -> Path:
        return self.folder / f"{self.names[host]}.{local}.txt"

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
        table = Path(f"/proc/{self.init_of(host)}/net/tcp").read_text()
        rows = [line.split() for line in table.splitlines()[1:]]
        ports = [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTEN]
        return [(self.address(host), port) for port in ports if str(port) != _PORT]

    def python(self, host: int, code: str, *args: str) -> str:
        """What a Python program that somebody runs on that host prints."""
        return self.run(host, [sys.executable, "-c", code, *args], timeout=120).stdout

    def flood(self, host: int, code: str) -> int:
        """What that program prints, which gets the host's address and the port of JAX's service."""
        return int(self.python(host, code, self.address(host), "5", _PORT))

    def pull(self) -> None:
        """Pulls the cable: neither host hears of the other again, nor why."""
        self._net(1, "ip", "link", "set", DEVICE, "down")

    def end(self) -> None:
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        super().end()


NEEDED = needs(possible(), "no network namespaces, or no ip or nsenter: no second host")
"""Marks the tests that need these hosts."""


@contextlib.contextmanager
def some_hosts(folder: Path, count: int = len(NAMES), forked: bool = False) -> Iterator[Hosts]:
    """Up to 26 hosts, of which nothing outlives the block."""
    hosts = Hosts(folder, count, forked)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.end()
