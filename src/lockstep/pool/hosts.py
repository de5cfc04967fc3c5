"""Where the processes of a pool run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NoReturn

from lockstep._errors import ConfigError
from lockstep.hosts import host_list
from lockstep.launch import host_options, hosts_command, usage
from lockstep.launch import options as run_options


class _Parser(usage.Parser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(
            f"options: {message}. Allowed are those of lockstep run for hosts, "
            "--bind and --preload."
        )


def parse(
    hosts: str | Sequence[str], options: str, n: int | None
) -> tuple[Sequence[str], Sequence[str]]:
    """Options of ``lockstep run`` for `Pool`'s arguments, and the host of each process, as output
    and errors show it; none: all on this machine.

    ``n`` is the number of all processes, None one for each slot. Raises `ConfigError`.
    """
    names = hosts if isinstance(hosts, str) else ",".join(hosts)
    try:
        words = shlex.split(options)
    except ValueError as error:
        raise ConfigError(f"options={options!r}: {error}.") from None
    words = [*(["--hosts", names] if names else []), *words]
    parser = _Parser(prog="lockstep.Pool", add_help=False, allow_abbrev=False)
    host_options.add_hosts(parser)
    run_options.add_bind(parser)
    run_options.add_preload(parser)
    args = parser.parse_args(words)
    if args.hosts or args.hostfile:
        if args.min_hosts or args.spares or args.grow or args.this_host:
            raise ConfigError(
                "options: --min-hosts, --spares, --grow and --this-host are for lockstep run."
            )
        return words, host_list.labels_of_processes(
            host_list.place(hosts_command.hosts_of(args), n)
        )
    args.bind = args.bind or "none"
    here = ["--bind", args.bind]
    if args.preload:
        here += ["--preload", ",".join(args.preload)]
    if args != parser.parse_args(here):
        raise ConfigError("hosts: give the names of hosts, such as hosts='a:4,b:4', or --hostfile.")
    return here, ()
