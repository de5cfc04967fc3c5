"""How an agent is started on a host: the command line, for each way of reaching a host.

A starter is a function from a host to the command whose stdin and stdout become the connection. ssh
is one; a host that is this machine needs none; inside a Slurm allocation it is srun.
"""

from __future__ import annotations

import dataclasses
import shlex
import socket
import sys

from lockstep._config import DEFAULT_REACH_TIMEOUT
from lockstep.hosts.host_list import Host

AGENT = "lockstep.hosts.host_agent"
SSH = ("ssh",)
"""The default of ``--ssh``; this very object, so that an explicit ``--ssh ssh`` differs from it."""
_SSH_OPTIONS = (
    # No question on the terminal: an unknown host or a missing key is an error at once.
    "-oBatchMode=yes",
    # A shared connection is used where there is one, and this command does not become its master,
    # which would have to outlive the job.
    "-oControlMaster=no",
    "-T",
    "-x",
)

_SRUN_OPTIONS = (
    "--nodes=1",
    "--ntasks=1",
    "--ntasks-per-node=1",
    # Beside other steps of the job, with all of its cores on that host.
    "--overlap",
    "--cpu-bind=none",
    # Messages are bytes, not lines. The output then passes a terminal that changes nothing.
    "--unbuffered",
    "--mpi=none",
    "--job-name=lockstep",
)

SRUN = "srun --overlap --nodes=1 --ntasks=1 -w"
"""What a user types before the name of a host and a command, as ``ssh`` elsewhere."""


@dataclasses.dataclass(frozen=True)
class Reach:
    """How the hosts of a job are reached."""

    ssh: tuple[str, ...] = SSH
    """The words of ``--ssh``."""
    python: str = sys.executable
    """The Python of all hosts."""
    run_dir: str | None = None
    """The launcher's private directory, in which an agent of this host has its own."""

    seconds: float = DEFAULT_REACH_TIMEOUT
    """How long an agent may take to start and answer; ssh may take half of it to connect, so that
    its error, which names the cause, comes before."""
    srun: bool = False
    """Whether srun starts the agents, as steps of the Slurm job around this process."""

    @property
    def agent(self) -> list[str]:
        """Its command there. -P keeps a json.py of the directory out of the agent's imports."""
        return [self.python, "-P", "-m", AGENT]

    def command(self, host: Host) -> list[str]:
        """The command that starts the agent on ``host``."""
        if self.srun:
            # The variable is of the user's own connection, and would tell a wrong address there.
            agent = ["env", "-u", "SSH_CONNECTION", *self.agent]
            return ["srun", *_SRUN_OPTIONS, f"--nodelist={host.name}", *agent]
        if is_here(host):
            return [*self.agent, *([self.run_dir] if self.run_dir else [])]
        # ssh gives the words to the login shell of the user there; exec, so that no shell stays.
        limit = f"-oConnectTimeout={max(1, int(self.seconds / 2))}"
        return [*self.ssh, *_SSH_OPTIONS, limit, "--", host.name, f"exec {shlex.join(self.agent)}"]


def ssh_words(text: str) -> tuple[str, ...]:
    """The words of ``--ssh 'ssh -F FILE'``. Raises ValueError for open quotes or no words."""
    words = tuple(shlex.split(text))
    if not words:
        raise ValueError("a command, such as 'ssh -F FILE'")
    return words


def is_here(host: Host) -> bool:
    """Whether ``host`` is this machine by its name, so that no ssh is needed (as for mpirun).

    A name with a user is none: that may be another one.
    """
    return host.name in ("localhost", "127.0.0.1", "::1", socket.gethostname())
