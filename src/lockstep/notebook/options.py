"""The options of ``%lockstep`` and ``%%lockstep``. Pure."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from lockstep._errors import ConfigError
from lockstep.hosts import host_list
from lockstep.launch import hosts_command, options, usage
from lockstep.notebook.errors import NotebookError

_NOT_HERE = {
    "--min-hosts": "--min-hosts: here, %lockstep start --hosts names the hosts that are left.",
    "--spares": "--spares: here, %lockstep start --hosts names the hosts that are left.",
    "--grow": "--grow: here, %lockstep start --hosts names the hosts that are left.",
    "--max-restarts": "--max-restarts: here, %lockstep restart starts the processes again.",
}
_COMMANDS = ("start", "status", "restart", "stop", "push", "pull")


class _Parser(usage.Parser):
    def error(self, message: str) -> NoReturn:
        raise NotebookError(f"{self.prog}: {message}")


class Start(NamedTuple):
    """What ``%lockstep start`` has been given."""

    processes: int
    options: list[str]
    """Those of `lockstep run`, without the number of processes."""
    hosts: tuple[str, ...]
    """The host of each process; empty: this machine."""


def start(line: str) -> Start:
    """The words of ``%lockstep start``.

    Raises `NotebookError` for an option that is wrong or does not serve in a notebook.
    """
    words = _split(line)
    for word in words:
        if text := _NOT_HERE.get(word.partition("=")[0]):
            raise NotebookError(text)
    parser = options.run_parser()
    parser.__class__ = _Parser
    parser.prog = "%lockstep start"
    parser.usage = "%(prog)s [-n N] [-d D] [options of lockstep run]"
    own, program = options.split(words, parser)
    args = parser.parse_args(own)  # the value of an unknown option looks like a program
    if program:
        raise NotebookError(f"%lockstep start: what is {program[0]!r}? It takes options only.")
    try:
        labels = _hosts(args)
    except ConfigError as error:
        raise NotebookError(f"%lockstep start: {error}") from None
    count = options.run_parser()._option_string_actions["-n"]
    return Start(len(labels) or args.processes or 1, _without(words, count.option_strings), labels)


def _hosts(args: argparse.Namespace) -> tuple[str, ...]:
    if not (args.hosts or args.hostfile):
        options.check_hosts_given(args)
        return ()
    placed = host_list.place(hosts_command.hosts_of(args), args.processes)
    return host_list.labels_of_processes(placed)


def _without(words: list[str], names: Sequence[str]) -> list[str]:
    """``words`` without an option that takes a value, in any of its spellings."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not word.startswith(("-n", "--processes=")):
            kept.append(word)
    return kept


def command(line: str) -> tuple[str, str]:
    """The command of a ``%lockstep`` line, and what follows it. Raises `NotebookError`."""
    name, _, rest = line.strip().partition(" ")
    if name not in _COMMANDS:
        said = f"%lockstep {name}: no such command. " if name else ""
        raise NotebookError(
            f"{said}Commands: {', '.join(_COMMANDS)}. %lockstep start -n 2 -d 4 starts two "
            "processes with four devices each; %%lockstep on top of a cell runs it on all of them."
        )
    return name, rest.strip()


def cell(line: str, processes: int) -> list[int]:
    """The processes that run a cell: all, or those of ``--on``. Raises `NotebookError`."""
    parser = _Parser(prog="%%lockstep", add_help=False, allow_abbrev=False)
    parser.add_argument("--on")
    text = parser.parse_args(_split(line)).on
    if text is None:
        return list(range(processes))
    return chosen(text, processes, "%%lockstep --on")


def chosen(text: str, processes: int, where: str) -> list[int]:
    """The processes of ``0``, ``0,2``, ``1-3``. Raises `NotebookError`."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found.update(range(int(first), int(last if dash else first) + 1))
    except ValueError:
        found = set()
    if not found or max(found) >= processes:
        raise NotebookError(
            f"{where} {text}: expected numbers of processes such as 0 or 0,2-3; there are "
            f"{processes}, from 0 to {processes - 1}."
        )
    return sorted(found)


def names(line: str, where: str) -> tuple[list[str], str | None]:
    """The variables of ``%lockstep push`` and ``pull``, and the text of ``--on``."""
    parser = _Parser(prog=where, add_help=False, allow_abbrev=False)
    parser.add_argument("--on")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args(_split(line))
    if wrong := [name for name in args.names if not name.isidentifier()]:
        raise NotebookError(f"{where}: {wrong[0]!r} is not the name of a variable.")
    return args.names, args.on


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise NotebookError(f"{line}: {error}.") from None
