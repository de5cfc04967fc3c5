"""The hosts that a batch system has given to this job, where the user names none. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep._errors import ConfigError, LaunchError
from lockstep.bootstrap import cluster_env
from lockstep.bootstrap.cluster_env import slurm
from lockstep.hosts import starters
from lockstep.hosts.host_list import Host


def around(environ: Mapping[str, str]) -> list[Host]:
    """The hosts of the allocation around this process; none outside of one.

    A process that a launcher has started inside the allocation (srun, mpirun) gets none: it is one
    process of many, or the user has asked for it on this host. Raises `LaunchError` for variables
    that contradict each other.
    """
    try:
        if cluster_env.detect(environ) is not None:
            return []
    except LaunchError:  # a launcher has started it, and lacks something that is not needed here
        return []
    found = cluster_env.allocation(environ)
    return [Host(name, slots) for name, slots in found.hosts] if found else []


def is_elsewhere(hosts: list[Host], environ: Mapping[str, str]) -> bool:
    """Whether these hosts are not this one alone."""
    if len(hosts) != 1:
        return bool(hosts)
    # A shell from salloc may run on another host than its allocation; scripts do not.
    own = slurm.this_host(environ)
    return own not in (None, hosts[0].name) and not starters.is_here(hosts[0])


def outside(hosts: list[Host], environ: Mapping[str, str]) -> list[str]:
    """The names of those hosts that do not belong to the Slurm allocation around this process.

    Slurm knows its hosts by short names. This very machine does not count: nothing goes there by
    ssh.
    """
    if not (inside := _slurm_hosts(environ)):
        return []
    own = set(map(_short, inside))
    return [
        host.name
        for host in hosts
        if _short(host.name.rpartition("@")[2]) not in own and not starters.is_here(host)
    ]


def check_inside(hosts: list[Host], environ: Mapping[str, str]) -> None:
    """Raises `ConfigError` for hosts that are `outside` of the Slurm allocation."""
    if not (names := outside(hosts, environ)):
        return
    inside = ",".join(_slurm_hosts(environ))
    raise ConfigError(
        f"{','.join(names)} {'does' if len(names) == 1 else 'do'} not belong to this Slurm "
        f"allocation, which has {inside}. Processes there would run outside of it, by ssh, where "
        "Slurm may have started another job or drained the host. Leave them out of --hosts, or ask "
        "Slurm for them (--nodelist of salloc and sbatch). To start there all the same: "
        "--outside-allocation."
    )


def _short(name: str) -> str:
    return name.partition(".")[0]


def by_srun(hosts: list[Host], environ: Mapping[str, str]) -> bool:
    """Whether all of these hosts belong to a Slurm allocation, so that srun reaches them."""
    inside = _slurm_hosts(environ)
    return bool(inside) and {host.name for host in hosts} <= set(inside)


def _slurm_hosts(environ: Mapping[str, str]) -> list[str]:
    """The hosts of the Slurm allocation around this process; none outside of one."""
    found = cluster_env.allocation(environ)
    return [name for name, _ in found.hosts] if found and found.found_by == slurm.NAME else []
