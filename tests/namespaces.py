"""Hosts of one machine: namespaces with a network, mounts and a name of their own.

`Hosts` makes them. What is started in them is added by `ssh_hosts` (an sshd each), `slurm_hosts`
(Slurm, on those) and `faults.hosts` (the processes of a job). All files of this machine are seen in
all of them, as by hosts that share a file system. Whatever runs in them ends with the test: the
first process of a host ends with its stdin.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lockstep.system import process_tree
from processes import clean_environ
from support import MARK, marked, wait_until

TIMEOUT = 20.0
DEVICE = "eth0"
HOLD = ("sh", "-c", "echo up; exec cat")
"""A process that holds a namespace, until its stdin ends."""
_ADDRESS = "10.9.0.{}"
"""Of a host, by its number from 1 on."""
_SWITCH = "switch"
_IS_ROOT = os.getuid() == 0
Host = str | int
"""The name of a host, or its number from 0 on."""


@contextlib.contextmanager
def holder(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has printed "up", and ends with the block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == b"up\n", process.stderr.read()
        yield process
    finally:
        # It ends with its stdin.
        try:
            process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _users() -> Iterator[int]:
    """A user namespace. For root it has all users: sshd drops to a user of its own."""
    with holder(["unshare", "-U" if _IS_ROOT else "-Ur", *HOLD]) as process:
        for kind in ("uid_map", "gid_map") if _IS_ROOT else ():
            Path(f"/proc/{process.pid}/{kind}").write_text("0 0 65536")
        yield process.pid


def _enter(pid: int, *namespaces: str) -> list[str]:
    return ["nsenter", "--preserve-credentials", "-t", str(pid), *namespaces]


def possible(private: Sequence[str], probe: str) -> bool:
    """Whether this system lets us make such hosts, on which ``probe`` succeeds."""
    with contextlib.ExitStack() as stack:
        try:
            words = ["unshare", *private, "sh", "-c", f"{probe} && echo up"]
            user = stack.enter_context(_users())
            host = stack.enter_context(holder([*_enter(user, "-U"), *words]))
            return host.wait(TIMEOUT) == 0
        except (OSError, AssertionError, subprocess.SubprocessError):
            return False


class Hosts:
    """Hosts on one network: a switch, or a cable between two."""

    private: Sequence[str] = ("-n", "-m", "-u")
    """The namespaces that each host has of its own, as words of `unshare`."""
    init = 'hostname "$1" && mount --bind "$2/$1/hosts" /etc/hosts && echo up && exec cat'
    """What makes one of them a host; it gets its name and the folder."""

    def __init__(self, folder: Path, names: Sequence[str], switched: bool = True) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.names = list(names)
        self._switched = switched
        self._stack = contextlib.ExitStack()
        self._inits: dict[str, int] = {}

    def make(self) -> None:
        user = self._stack.enter_context(_users())
        for name in [*self.names, *([_SWITCH] if self._switched else [])]:
            self._make_host(name, user)
        if self._switched:
            self._net(_SWITCH, "ip", "link", "add", "br0", "type", "bridge")
            self._net(_SWITCH, "ip", "link", "set", "br0", "up")
        for name in self.names:
            self._connect(name)

    def _make_host(self, name: str, user: int) -> None:
        own = self.folder / name
        (own / "tmp").mkdir(parents=True)
        (own / "home").mkdir()
        lines = [f"{self.own_address(name, other)} {other}" for other in self.names]
        (own / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        init = ["unshare", *self.private, "bash", "-c", self.init, "init", name, str(self.folder)]
        held = self._stack.enter_context(holder([*_enter(user, "-U"), *init]))
        self._inits[name] = child(held.pid) if "--fork" in self.private else held.pid

    def _connect(self, name: str) -> None:
        # Made on the host, for a network namespace cannot be named by a process of another.
        add = ("ip", "link", "add", DEVICE, "type", "veth", "peer", "name")
        if self._switched:
            self._net(name, *add, name, "netns", str(self._inits[_SWITCH]))
            self.mend(name)
            self._net(_SWITCH, "ip", "link", "set", "dev", name, "up")
        elif name == self.names[0]:
            self._net(name, *add, DEVICE, "netns", str(self._inits[self.names[1]]))
        self._net(name, "ip", "address", "add", f"{self.address(name)}/24", "dev", DEVICE)
        for device in (DEVICE, "lo"):
            self._net(name, "ip", "link", "set", device, "up")

    def _net(self, host: Host, *command: str) -> str:
        """What a command prints in the network of a host, or of the switch."""
        words = [*_enter(self.init_of(host), "-U", "-n"), *command]
        return subprocess.run(
            words, check=True, timeout=TIMEOUT, stdout=subprocess.PIPE, text=True
        ).stdout

    # Hosts

    def name(self, host: Host) -> str:
        return self.names[host] if isinstance(host, int) else host

    def address(self, host: Host) -> str:
        return _ADDRESS.format(self.names.index(self.name(host)) + 1)

    def own_address(self, name: str, other: str) -> str:
        """What the name of another host, or its own, means to a host."""
        return self.address(other)

    def init_of(self, host: Host) -> int:
        """The first process of a host, as seen from here."""
        return self._inits[self.name(host)]

    def enter(self, host: Host) -> list[str]:
        """What to put before a command to run it on that host."""
        own = [word for word in self.private if word != "--fork"]
        return _enter(self.init_of(host), "-U", *own)

    def start(
        self, host: Host, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A command on a host, with pipes for its output; it ends with the hosts.

        Signals go to `pid_of` what this returns.
        """
        own = self.folder / self.name(host)
        mine = {MARK: self.mark, "TMPDIR": str(own / "tmp")}
        process = subprocess.Popen(
            [*self.enter(host), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean_environ(HOME=str(own / "home")), **mine, **(env or {})},
        )
        self._stack.callback(reap, process)
        return process

    def run(
        self,
        host: Host,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """The result of a command on a host; fails with its output when it fails."""
        process = self.start(host, command, env)
        try:
            out, err = (
                text.decode("utf-8", "replace") for text in process.communicate(None, timeout)
            )
        except subprocess.TimeoutExpired:
            reap(process)
            raise AssertionError(f"on {host}: no end in {timeout:g} s: {command}") from None
        done = subprocess.CompletedProcess(list(command), process.returncode, out, err)
        assert not check or done.returncode == 0, f"on {host}: {command}: {out}{err}"
        return done

    # The network

    def cut(self, host: Host) -> None:
        """Takes the host off the switch: nothing arrives any more, and no end notices."""
        self._net(_SWITCH, "ip", "link", "set", "dev", self.name(host), "nomaster")

    def mend(self, host: Host) -> None:
        self._net(_SWITCH, "ip", "link", "set", "dev", self.name(host), "master", "br0")

    def shape(self, host: Host, rate: str) -> None:
        """Gives what that host sends a rate, "1gbit"."""
        queue = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        self._net(host, "tc", "qdisc", "replace", "dev", DEVICE, "root", *queue)

    def separate(self, one: Host, other: Host, how: str = "unreachable") -> None:
        """Leaves two hosts without a route to each other. ``how``: "unreachable" makes connecting
        fail at once, "blackhole" on one side only makes the other side wait, as a firewall does."""
        for here, there in ((one, other), (other, one))[: 1 if how == "blackhole" else 2]:
            self._net(here, "ip", "route", "add", how, f"{self.address(there)}/32")

    def mute(self, host: Host, other: Host) -> None:
        """Loses what the host sends to another one; what that sends to it arrives."""
        no_such = ("lladdr", "02:00:00:00:00:01", "dev", DEVICE, "nud", "permanent")
        self._net(host, "ip", "neighbor", "replace", self.address(other), *no_such)

    def unmute(self, host: Host, other: Host) -> None:
        """Ends what `mute` did."""
        self._net(host, "ip", "neighbor", "delete", self.address(other), "dev", DEVICE)

    # Files and processes

    def root(self, host: Host) -> Path:
        """The files of a host as it sees them, with its own mounts, from here."""
        return Path(f"/proc/{self.init_of(host)}/root")

    def take_down(self, name: str) -> None:
        """Ends the host as a loss of power does: off the network first, so nothing says goodbye."""
        self.cut(name)
        os.kill(self._inits[name], 9)
        wait_until(lambda: not self.processes(name), f"end of host {name}")

    def fill_disk(self, name: str) -> None:
        """Puts a full file system over TMPDIR."""
        where = str(self.folder / name / "tmp")
        self.run(name, ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", where])
        self.run(name, ["sh", "-c", 'cat /dev/zero >"$1/full" || true', "sh", where])

    def hide(self, name: str, directory: Path) -> None:
        """Makes a directory empty on that host alone."""
        self.run(name, ["mount", "-t", "tmpfs", "tmpfs", str(directory)])

    def replace(self, name: str, path: Path, text: str, mode: int = 0o644) -> None:
        """Gives a file other contents on that host alone."""
        other = self.folder / name / f"replaced-{uuid.uuid4().hex}"
        other.write_text(text)
        other.chmod(mode)
        self.run(name, ["mount", "--bind", str(other), str(path)])

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of the processes on that host that carry the test's mark, by pid
        (as seen from here)."""
        return {
            pid: command
            for pid in marked(self.mark)
            if (command := process_tree.command(pid)) and same_host(pid, self._inits[name])
        }

    def matching(self, name: str, pattern: str) -> list[int]:
        """Those of them whose command lines match, in the order of their start."""
        found = self.processes(name).items()
        return sorted(pid for pid, command in found if re.search(pattern, command))

    def pids(self) -> set[int]:
        """Processes of all hosts that carry the mark, as seen from here."""
        return marked(self.mark)

    def end(self) -> None:
        self._stack.close()


def same_host(pid: int, init: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid")
    return False


def child(pid: int) -> int:
    """The one child of a process that forks once and waits."""
    wait_until(lambda: bool(children(pid)), f"child of process {pid}")
    [only] = children(pid)
    return only


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def pid_of(process: subprocess.Popen[bytes]) -> int:
    """The process on the host of what `Hosts.start` returned, as seen from here."""
    return child(process.pid)


def reap(process: subprocess.Popen[bytes]) -> None:
    """`nsenter` waits for its child, which alone ends with the host."""
    for pid in children(process.pid) if process.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    process.kill()
    process.communicate()
