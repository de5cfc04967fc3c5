"""The hosts of `namespaces`, each with a real sshd, and processes and shared memory of its own.

They end with the test: a host's first process takes all processes of the host with it.
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
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import namespaces
import sshd_files
from lanes import needs
from namespaces import DEVICE as DEVICE
from namespaces import TIMEOUT, Hosts
from namespaces import pid_of as pid_of
from support import MARK, wait_until

LOCKSTEP = [sys.executable, "-P", "-m", "lockstep"]
_SSHD = "/usr/sbin/sshd"
ALL_BUT_SSHD = f"^(?!{_SSHD})"
"""Processes but the sshd that takes connections."""


@functools.cache
def possible() -> bool:
    """Whether this system lets us make such hosts: root, with the tools of `.ci/tools`."""
    tools = (_SSHD, "ssh", "ssh-keygen", "ip", "tc", "nsenter", "unshare", "bash")
    if os.getuid() or not all(map(shutil.which, tools)):
        return False
    return namespaces.possible(SshHosts.private, "mount -t proc proc /proc")


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


class SshHosts(Hosts):
    """Hosts on one switch. `ssh_hosts` makes them and looks after them.

    ``hosts.config`` is what ``ssh -F`` reads on each of them: names, ports and keys.
    """

    private = ("-n", "-m", "-u", "-i", "-p", "--fork")
    init = sshd_files.INIT

    def __init__(self, folder: Path, names: Sequence[str], debian: Sequence[str]) -> None:
        super().__init__(folder, names)
        self.config = folder / "ssh_config"
        self._debian = set(debian)

    def serve(
        self,
        ports: Mapping[str, int],
        jumps: Mapping[str, str],
        clocks: Mapping[str, WrongClocks],
    ) -> None:
        """Starts the sshd of each host."""
        self._keygen(self.folder / "user_key")
        for name in self.names:
            self._start_sshd(name, ports.get(name, 22), clocks.get(name))
        self._write_ssh_config(ports, jumps)

    def _keygen(self, path: Path) -> None:
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
        subprocess.run(command, check=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL)

    def own_address(self, name: str, other: str) -> str:
        return "127.0.1.1" if name == other and name in self._debian else self.address(other)

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

    def ssh(self, *options: str) -> str:
        """The ssh command of a user who reaches all these hosts."""
        return shlex.join(["ssh", "-F", str(self.config), *options])

    def lockstep(self, command: str, *words: str) -> list[str]:
        """A command of ``lockstep`` that is for several hosts."""
        return [*LOCKSTEP, command, "--ssh", self.ssh(), *words]

    def run_command(self, folder: Path, source: str, *options: str) -> list[str]:
        """``lockstep run`` of a program with this text, whose processes work in ``folder``."""
        program = folder / "program.py"
        program.write_text(textwrap.dedent(source))
        return self.lockstep("run", "--chdir", str(folder), *options, str(program))

    def agents(self, name: str) -> list[int]:
        """The guard and the agent on a host, the guard first."""
        # A third one would be in the engine's network; a job goes on without it.
        return self.matching(name, "lockstep.hosts.host_agent")[:2]

    def running(self) -> list[str]:
        """The processes of `leftovers`."""
        return [each for each in self.leftovers() if ": process " in each]

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


NEEDED = needs(possible(), "needs root, openssh-server and namespaces: .ci/tools installs them")
"""Marks the tests that need these hosts."""


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
        hosts.make()
        hosts.serve(ports or {}, jumps or {}, clocks or {})
        yield hosts
    finally:
        hosts.end()


def hosts_of_module(names: Sequence[str]) -> Callable[..., Iterator[SshHosts]]:
    """A fixture: hosts for all tests of a module."""

    @pytest.fixture(scope="module")
    def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
        with ssh_hosts(tmp_path_factory.mktemp("hosts"), names) as made:
            yield made

    return hosts
