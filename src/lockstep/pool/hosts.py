"""The hosts of a pool: which process runs on which of them."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from typing import NoReturn

from lockstep._errors import ConfigError
from lockstep.hosts import host_list
from lockstep.launch import hosts_command, usage
from lockstep.launch import options as run_options


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts of a pool."""

    words: tuple[str, ...]
    """The options of ``lockstep run`` that name them."""
    labels: tuple[str, ...]
    """The host of each process, as output and errors show it."""


class _Parser(usage.Parser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"options: {message}. Allowed are those of lockstep run for hosts.")


def parse(hosts: str | Sequence[str], options: str, n: int | None) -> Hosts:
    """The hosts of `Pool`'s arguments; ``n`` is the number of all processes, None one for each
    slot. Raises `ConfigError`."""
    names = hosts if isinstance(hosts, str) else ",".join(hosts)
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"options={options!r}: {error}.") from None
    words = [*(["--hosts", names] if names else []), *words]
    parser = _Parser(prog="lockstep.Pool", add_help=False, allow_abbrev=False)
    run_options.add_hosts(parser)
    args = parser.parse_args(words)
    if not (args.hosts or args.hostfile):
        raise ConfigError("hosts: give the names of hosts, such as hosts='a:4,b:4', or --hostfile.")
    if args.min_hosts or args.this_host:
        raise ConfigError("options: --min-hosts and --this-host are for lockstep run.")
    placed = host_list.place(hosts_command.hosts_of(args), n)
    labels = host_list.labels_of_processes(placed)
    return Hosts(("-n", str(len(labels)), *words), labels)
