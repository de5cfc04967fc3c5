"""The options of commands that run on several hosts. Pure."""

from __future__ import annotations

import argparse

from lockstep._config import natural, positive, some_seconds
from lockstep.hosts import starters
from lockstep.launch.usage import checked

GROW_SECONDS = 30.0
"""How long a program may take to end by itself when it is asked to: ``--grow``."""
NAMES = (
    *("ssh", "python", "chdir", "interface", "coordinator_port", "export"),
    *("min_hosts", "spares", "grow"),
    *("outside_allocation", "reach_timeout", "check_timeout"),
)
"""The settings that need ``--hosts`` or ``--hostfile``."""


def add_reach(group: argparse._ArgumentGroup) -> None:
    """Adds the options that name hosts and say how they are reached."""
    add = group.add_argument
    add(
        "--hosts",
        metavar="A:4,B:4,C",
        help="run on these hosts, reached by ssh: NAME or NAME:SLOTS, one slot without a number. "
        "As for mpirun, -n is the number of all processes, and fills the slots host by host",
    )
    add(
        "--hostfile",
        metavar="FILE",
        help="the same from a file: lines NAME slots=N (Open MPI), or a list "
        '[{"ssh": NAME, "ips": [ADDRESS]}] (MLX)',
    )
    add(
        "--ssh",
        type=checked(starters.ssh_words),
        default=starters.SSH,
        metavar="COMMAND",
        help="how to call ssh, such as 'ssh -F FILE'; default: ssh, and in a Slurm allocation srun "
        "instead",
    )
    add(
        "--python",
        metavar="PATH",
        help="the Python of all hosts, with Lockstep installed; default: the path of this one",
    )
    add(
        "--interface",
        default="",
        metavar="NAME|NETWORK",
        help="the network of the job: an interface, such as eth1, or a network, such as "
        "10.0.0.0/24; default: the addresses by which ssh reaches the hosts",
    )
    add(
        "--reach-timeout",
        type=checked(some_seconds),
        metavar="SECONDS",
        help="how long to wait for hosts until they answer, counted from the last answer; ssh may "
        "take half of it to connect; default: 10",
    )
    add(
        "--check-timeout",
        type=checked(some_seconds),
        metavar="SECONDS",
        help="how long to wait for each answer in the checks before the start, counted from the "
        "last one; a connection between two hosts may take three eighths of it; default: 8",
    )


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``lockstep run`` for several hosts."""
    group = parser.add_argument_group("several hosts (docs: Several hosts)")
    add_reach(group)
    add = group.add_argument
    add(
        "--this-host",
        action="store_true",
        help="run on this host alone, also in a batch job that has others",
    )
    add(
        "--outside-allocation",
        action="store_true",
        help="in a Slurm allocation: also run on hosts of --hosts that do not belong to it, by ssh",
    )
    add(
        "--chdir",
        metavar="DIR",
        help="the directory to run in, on all hosts; default: the path of this one",
    )
    add(
        "--coordinator-port",
        type=checked(positive),
        default=0,
        metavar="PORT",
        help="where JAX's coordination service listens on the first host; default: a free port",
    )
    add(
        "--export",
        action="append",
        default=[],
        metavar="VAR[=VALUE]",
        help="a variable that all processes get; without VALUE that of here; NAME* for all that "
        "begin so. JAX_*, XLA_*, LIBTPU_*, TF_*, NCCL_*, UCX_*, OMP_*, OPENBLAS_*, GOTO_*, MKL_*, "
        "PYTHON* and GLIBC_TUNABLES are passed anyway. Repeat it for more",
    )
    add(
        "--min-hosts",
        type=checked(positive),
        metavar="K",
        help="with --max-restarts: start again without hosts that are lost, if K are left; "
        "default: all hosts are needed",
    )
    add(
        "--spares",
        type=checked(natural),
        default=0,
        metavar="K",
        help="with --max-restarts: the last K hosts run nothing at first, and take the places of "
        "hosts that are lost, with the same processes; default: 0",
    )
    add_grow(group, "--min-hosts", "lost host returns")


def add_grow(group: argparse._ArgumentGroup, needs: str, event: str) -> None:
    """Adds ``--grow``, which ``needs`` an option; ``event``: what makes the job grow."""
    group.add_argument(
        "--grow",
        nargs="?",
        const=GROW_SECONDS,
        type=checked(some_seconds),
        metavar="SECONDS",
        help=f"with {needs}: when a {event} to a job that has an empty place, ask the "
        "program to save and end (lockstep.should_stop), and start again with it. After SECONDS "
        f"(without a number {GROW_SECONDS:g}) the processes are interrupted",
    )
