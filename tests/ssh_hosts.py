"""Hosts of one machine, each with a real sshd: namespaces behind one switch.

Each host has its own network, mounts, name, processes, shared memory and temporary directory, and
sees all other files of this machine, as hosts that share a file system do. All of them end with
the test: a host's first process ends with its stdin, and takes all processes of the host with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import sshd_files
from namespaces import (
    HOLD,
    NEW,
    TIMEOUT,
    child,
    command_line,
    enter,
    holder,
    map_all_users,
    reap,
    same_host,
)
from namespaces import pid_of as pid_of
from processes import clean_environ
from support import MARK, marked, wait_until

DEVICE = "eth0"
ADDRESS = "10.9.0.{}"
"""Of a host, by its number from 1 on."""
_SSHD = "/usr/sbin/sshd"
_SWITCH = "switch"


@functools.cache
def possible() -> bool:
    """Whether this system lets us make such hosts: root, with the tools of `.ci/tools`."""
    tools = (_SSHD, "ssh", "ssh-keygen", "ip", "tc", "nsenter", "unshare", "bash")
    if os.getuid() or not all(map(shutil.which, tools)):
        return False
    with contextlib.ExitStack() as stack:
        try:
            user = stack.enter_context(holder(["unshare", "-U", *HOLD]))
            map_all_users(user.pid)
            new = [*enter(user.pid, "-U"), "unshare", *NEW, "sh", "-c"]
            host = stack.enter_context(holder([*new, "mount -t proc proc /proc && echo up"]))
            return host.wait(TIMEOUT) == 0
        except (OSError, AssertionError, subprocess.SubprocessError):
            return False


@dataclasses.dataclass(frozen=True)
class WrongClocks:
    """How the clocks of a host differ, in seconds."""

    library: Path
    """What makes the wall clock wrong: built from `wall_clock.c`."""
    wall: int
    boot: int
    """Of the clocks that count from the boot."""
    file: Path | None = None
    """What holds the seconds of the wall clock, 8 bytes that may change, in place of ``wall``."""


class SshHosts:
    """Hosts on one switch. `ssh_hosts` makes them and looks after them.

    ``hosts.config`` is what ``ssh -F`` reads on each of them: names, ports and keys.
    """

    def __init__(self, folder: Path, names: Sequence[str], debian: Sequence[str]) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.names = list(names)
        self.config = folder / "ssh_config"
        self._debian = set(debian)
        self._stack = contextlib.ExitStack()
        self._inits: dict[str, int] = {}

    def address(self, name: str) -> str:
        return ADDRESS.format(self.names.index(name) + 1)

    def make(
        self,
        ports: Mapping[str, int],
        jumps: Mapping[str, str],
        clocks: Mapping[str, WrongClocks],
    ) -> None:
        user = self._stack.enter_context(holder(["unshare", "-U", *HOLD]))
        map_all_users(user.pid)
        (self.folder / "shadow").write_text(sshd_files.SHADOW)
        self._keygen(self.folder / "user_key")
        for name in (_SWITCH, *self.names):
            self._make_host(name, user.pid)
        self._connect_all()
        for name in self.names:
            self._start_sshd(name, ports.get(name, 22), clocks.get(name))
        self._write_ssh_config(ports, jumps)

    def _keygen(self, path: Path) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
        subprocess.run(command, check=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def _make_host(self, name: str, user: int) -> None:
        own = self.folder / name
        (own / "tmp").mkdir(parents=True)
        (own / "home").mkdir()
        (own / "passwd").write_text(sshd_files.PASSWD.format(home=own / "home"))
        lines = [f"{self.address(other)} {other}" for other in self.names if other != name]
        if name in self.names:
            lines.append(f"{'127.0.1.1' if name in self._debian else self.address(name)} {name}")
        (own / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        init = ["bash", "-c", sshd_files.INIT, "init", name, str(self.folder)]
        unshare = self._stack.enter_context(holder([*enter(user, "-U"), "unshare", *NEW, *init]))
        self._inits[name] = child(unshare.pid)

    def _connect_all(self) -> None:
        self.run(_SWITCH, ["ip", "link", "add", "br0", "type", "bridge"])
        self.run(_SWITCH, ["ip", "link", "set", "br0", "up"])
        for name in self.names:
            # Made on the host, for a network namespace cannot be named by a process of another.
            there = str(self._inits[_SWITCH])
            pair = ["link", "add", DEVICE, "type", "veth", "peer", "name", name, "netns", there]
            subprocess.run([*self._enter_network(name), "ip", *pair], check=True, timeout=TIMEOUT)
            self.run(name, ["ip", "address", "add", f"{self.address(name)}/24", "dev", DEVICE])
            self.run(name, ["ip", "link", "set", DEVICE, "up"])
            self.run(_SWITCH, ["ip", "link", "set", "dev", name, "master", "br0", "up"])

    def _start_sshd(self, name: str, port: int, clocks: WrongClocks | None) -> None:
        own = self.folder / name
        self._keygen(own / "host_key")
        environ = {MARK: self.mark, "TMPDIR": str(own / "tmp")}
        if path := os.environ.get("PYTHONPATH"):
            environ["PYTHONPATH"] = path
        command: list[str] = []
        if clocks:
            environ |= {"LD_PRELOAD": str(clocks.library), "WALL_CLOCK_AHEAD": str(clocks.wall)}
            if clocks.file:
                environ["WALL_CLOCK_FILE"] = str(clocks.file)
            offsets = [f"--{name}={clocks.boot}" for name in ("monotonic", "boottime")]
            command = ["unshare", "-T", *offsets, "--fork"]
        variables = " ".join(f'"{key}={value}"' for key, value in environ.items())
        keys = self.folder / "user_key.pub"
        (own / "sshd_config").write_text(
            sshd_files.SSHD_CONFIG.format(port=port, folder=own, keys=keys, environ=variables)
        )
        # It goes to the background when it listens, and stays a process of the host.
        command += [_SSHD, "-f", str(own / "sshd_config"), "-E", str(own / "sshd.log")]
        self.run(name, command)

    def _write_ssh_config(self, ports: Mapping[str, int], jumps: Mapping[str, str]) -> None:
        known = self.folder / "known_hosts"
        keys = {name: (self.folder / name / "host_key.pub").read_text() for name in self.names}
        known.write_text("".join(f"{name} {key.strip()}\n" for name, key in keys.items()))
        hosts = [
            sshd_files.host_entry(name, self.address(name), ports.get(name, 22), jumps.get(name))
            for name in self.names
        ]
        everywhere = sshd_files.FOR_ALL_HOSTS.format(key=self.folder / "user_key", known=known)
        self.config.write_text("".join([*hosts, everywhere]))

    def _enter_network(self, name: str) -> list[str]:
        return enter(self._inits[name], "-U", "-n")

    def enter(self, name: str) -> list[str]:
        """What to put before a command to run it on that host."""
        return enter(self._inits[name], "-U", "-n", "-m", "-u", "-i", "-p")

    def start(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A command on a host, with pipes for its output; it ends with the hosts.

        Signals go to `pid_of` what this returns.
        """
        own = self.folder / name
        mine = {MARK: self.mark, "TMPDIR": str(own / "tmp")}
        process = subprocess.Popen(
            [*self.enter(name), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean_environ(HOME=str(own / "home")), **mine, **(env or {})},
        )
        self._stack.callback(reap, process)
        return process

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """The result of a command on a host; fails with its output when it fails."""
        process = self.start(name, command, env)
        try:
            out, err = (
                text.decode("utf-8", "replace") for text in process.communicate(None, timeout)
            )
        except subprocess.TimeoutExpired:
            reap(process)
            raise AssertionError(f"on {name}: no end in {timeout:g} s: {command}") from None
        done = subprocess.CompletedProcess(list(command), process.returncode, out, err)
        assert not check or done.returncode == 0, f"on {name}: {command}: {out}{err}"
        return done

    def ssh(self, *options: str) -> str:
        """The ssh command of a user who reaches all these hosts."""
        return shlex.join(["ssh", "-F", str(self.config), *options])

    def cut(self, name: str) -> None:
        """Takes the host off the switch: nothing arrives any more, and no end notices."""
        self.run(_SWITCH, ["ip", "link", "set", "dev", name, "nomaster"])

    def mend(self, name: str) -> None:
        self.run(_SWITCH, ["ip", "link", "set", "dev", name, "master", "br0"])

    def shape(self, name: str, rate: str) -> None:
        """Gives what that host sends a rate, "1gbit"."""
        queue = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        self.run(name, ["tc", "qdisc", "replace", "dev", DEVICE, "root", *queue])

    def separate(self, one: str, other: str, how: str = "unreachable") -> None:
        """Leaves two hosts without a route to each other. ``how``: "unreachable" makes connecting
        fail at once, "blackhole" on one side only makes the other side wait, as a firewall does."""
        for here, there in ((one, other), (other, one))[: 1 if how == "blackhole" else 2]:
            self.run(here, ["ip", "route", "add", how, f"{self.address(there)}/32"])

    def mute(self, name: str, other: str) -> None:
        """Loses what the host sends to another one; what that sends to it arrives."""
        nobody = ["lladdr", "02:00:00:00:00:01", "dev", DEVICE, "nud", "permanent"]
        self.run(name, ["ip", "neighbor", "replace", self.address(other), *nobody])

    def unmute(self, name: str, other: str) -> None:
        """Ends what `mute` did."""
        self.run(name, ["ip", "neighbor", "delete", self.address(other), "dev", DEVICE])

    def root(self, name: str) -> Path:
        """The files of a host as it sees them, with its own mounts, from here."""
        return Path(f"/proc/{self._inits[name]}/root")

    def take_down(self, name: str) -> None:
        """Ends the host as a loss of power does: off the network first, so nothing says goodbye."""
        self.cut(name)
        os.kill(self._inits[name], 9)
        wait_until(lambda: not self.processes(name), f"end of host {name}")

    def fill_disk(self, name: str, path: Path | None = None, kib: int = 64) -> None:
        """Puts a full file system of that size over a directory; without one, over TMPDIR."""
        where = str(path or self.folder / name / "tmp")
        self.run(name, ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", where])
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

    def replace_directory(self, name: str, path: Path, other: Path) -> None:
        """Gives a directory other contents on that host alone."""
        self.run(name, ["mount", "--bind", str(other), str(path)])

    def processes(self, name: str) -> dict[int, str]:
        """The command lines of the processes on that host that carry the test's mark, by pid
        (as seen from here)."""
        return {
            pid: command
            for pid in marked(self.mark)
            if (command := command_line(pid)) and same_host(pid, self._inits[name])
        }

    def pids(self) -> set[int]:
        """Processes of all hosts that carry the mark, as seen from here."""
        return marked(self.mark)

    def leftovers(self) -> list[str]:
        """Processes that sshd or a test started, run directories and shared memory."""
        found = [
            f"{name}: process {pid}: {command}"
            for name in self.names
            for pid, command in self.processes(name).items()
            if not command.startswith((_SSHD, "sshd: "))
        ]
        for name in self.names:
            found += [str(p) for p in (self.folder / name / "tmp").glob("lockstep-run-*")]
            shared = self.root(name) / "dev/shm"
            with contextlib.suppress(OSError):
                found += [f"{name}: /dev/shm/{path.name}" for path in shared.iterdir()]
        return found

    def held_run_dirs(self, names: Sequence[str] | None = None) -> list[Path]:
        """The run directories on these hosts, else on all, that are still locked; the next run
        removes others."""
        found = []
        for name in names or self.names:
            for path in (self.folder / name / "tmp").glob("lockstep-run-*"):
                with contextlib.suppress(OSError):
                    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                    try:
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError:
                        found.append(path)
                    os.close(held)
        return found

    def assert_nothing_left(self, seconds: float = 10.0) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.leftovers(), "an end of all processes", seconds)
        assert not self.leftovers(), "\n".join(self.leftovers())

    def end(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def ssh_hosts(
    folder: Path,
    names: Sequence[str] = ("a", "b"),
    *,
    ports: Mapping[str, int] | None = None,
    jumps: Mapping[str, str] | None = None,
    debian: Sequence[str] = (),
    clocks: Mapping[str, WrongClocks] | None = None,
) -> Iterator[SshHosts]:
    """Hosts of these names, of which nothing outlives the block.

    ``ports``: of the sshd of a host, instead of 22. ``jumps``: hosts that the ssh configuration
    reaches through another host. ``debian``: hosts whose own name means 127.0.1.1 to them.
    ``clocks``: hosts whose clocks differ from those of the others.
    """
    hosts = SshHosts(folder, names, debian)
    try:
        hosts.make(ports or {}, jumps or {}, clocks or {})
        yield hosts
    finally:
        hosts.end()
