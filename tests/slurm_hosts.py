"""A real Slurm on the hosts of `ssh_hosts`: a controller and a slurmd on each of them.

All of it lives in the test's folder and in the hosts' namespaces, and ends with them.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

import ssh_hosts
from lanes import needs
from page_commands import ROOT, files
from ssh_hosts import SshHosts
from support import wait_until

_TOOLS = ("slurmctld", "slurmd", "srun", "sbatch", "sinfo")
CPUS = 4
"""Of each node, for Slurm. The machine may have fewer; the node reports what it is told."""
# auth/none needs no daemon of its own. The hosts see one file system, hence %n in the names.
_CONFIG = """\
ClusterName=test
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait={kill_wait}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


@functools.cache
def possible() -> bool:
    """Whether this system can have such a Slurm."""
    return all(map(shutil.which, _TOOLS)) and ssh_hosts.possible()


MARKS = [
    pytest.mark.full,
    pytest.mark.timeout(240),
    needs(possible(), "needs root, namespaces, sshd and Slurm (.ci/tools)"),
]
"""The marks of a test that needs a Slurm of its own."""


class SlurmHosts:
    """A cluster of `SshHosts`. The first host has the controller, and users type there."""

    def __init__(self, hosts: SshHosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.environ = {"SLURM_CONF": str(folder / "slurm.conf")}

    def make(self, kill_wait: int) -> None:
        nodes = [
            f"NodeName={name} NodeAddr={self.hosts.address(name)} CPUs={CPUS} RealMemory=1000"
            for name in self.hosts.names
        ]
        (self.folder / "state").mkdir()
        (self.folder / "slurm.conf").write_text(
            _CONFIG.format(
                controller=self.hosts.names[0],
                address=self.hosts.address(self.hosts.names[0]),
                folder=self.folder,
                nodes="\n".join(nodes),
                kill_wait=kill_wait,
            )
        )
        daemons = [self.start(["slurmctld", "-D"])]
        for name in self.hosts.names:
            (self.folder / f"spool-{name}").mkdir()
            daemons.append(self.start(["slurmd", "-D", "-N", name], on=name))

        def all_idle() -> bool:
            ended = next((each for each in daemons if each.poll() is not None), None)
            assert ended is None, ended and ended.communicate()[1]
            found = self.run(["sinfo", "-h", "-N", "-o", "%T"], check=False).stdout.split()
            return found == ["idle"] * len(self.hosts.names)

        wait_until(all_idle, "the nodes to register", ssh_hosts.TIMEOUT)

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, on: str = ""
    ) -> subprocess.Popen[bytes]:
        """See `SshHosts.start`."""
        environ = {**self.environ, **(env or {})}
        return self.hosts.start(on or self.hosts.names[0], command, environ)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """See `SshHosts.run`."""
        environ = {**self.environ, **(env or {})}
        first = self.hosts.names[0]
        return self.hosts.run(first, command, env=environ, timeout=timeout, check=check)

    def script(
        self,
        text: str,
        *options: str,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> tuple[int, str]:
        """Runs a batch script in ``folder``; its status and its output."""
        folder = folder or self.folder
        (folder / "job.sh").write_text(text)
        output = folder / "job.out"
        command = ["sbatch", "--parsable", "-o", str(output), "-D", str(folder), *options]
        job = self.run([*command, str(folder / "job.sh")], env=env).stdout.strip()
        status = self.wait_for(job)
        return status, output.read_text() if output.exists() else f"job {job} has no output"

    def wait_for(self, job: str, seconds: float = 180.0) -> int:
        """The exit status of a batch job; `sbatch -W` looks for its end at long intervals."""
        found: list[str] = []

        def has_ended() -> bool:
            said = self.run(["scontrol", "show", "job", job]).stdout
            [state], found[:] = (
                re.findall(r"JobState=(\w+)", said),
                re.findall(r"ExitCode=(\d+)", said),
            )
            return state not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

        wait_until(has_ended, f"the end of job {job}", seconds)
        return int(found[0])

    def pids(self, pattern: str) -> list[int]:
        """The processes whose command lines match, in the order of their start."""
        return sorted(
            pid for name in self.hosts.names for pid in self.hosts.matching(name, pattern)
        )

    def assert_nothing_left(self, seconds: float = 15.0) -> None:
        """That neither processes nor files are left, but for those of Slurm."""

        def left() -> list[str]:
            return [x for x in self.hosts.leftovers() if not re.search(r": slurm(ctl)?d\b", x)]

        with contextlib.suppress(AssertionError):
            wait_until(lambda: not left(), "an end of all processes", seconds)
        assert not left(), "\n".join(left())


def program(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def of_page(title: str) -> str:
    """The script or program with that title in docs/tutorials/slurm.md."""
    return files((ROOT / "docs" / "tutorials" / "slurm.md").read_text())[title]


@contextlib.contextmanager
def slurm_hosts(folder: Path, kill_wait: int = 30) -> Iterator[SlurmHosts]:
    """A cluster of hosts a and b, of which nothing outlives the block."""
    (folder / "hosts").mkdir()
    (folder / "slurm").mkdir()
    with ssh_hosts.ssh_hosts(folder / "hosts") as hosts:
        slurm = SlurmHosts(hosts, folder / "slurm")
        slurm.make(kill_wait)
        yield slurm
