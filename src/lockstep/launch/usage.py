"""What ``lockstep run`` and ``lockstep worker`` say beside their options: help, and which option
was meant. Pure."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

_FORMS = """\
  script.py [args ...]   a file; what stands behind it is passed to it
  -m module [args ...]   a module or a package, as for python -m
  -c code [args ...]     the code itself
"""
_STDIN = """\
  - [args ...]           the code is read from standard input
"""
RUN_EXAMPLES = """\
examples:
  lockstep run -n 2 -d 4 train.py --lr 0.1                2 processes of 4 CPU devices each
  lockstep run -np 2 --auto-init -c 'import jax; print(jax.devices())'
  lockstep run -n 2 --auto-init -m pytest tests/          a whole suite of tests
  lockstep run --hosts a:4,b:4 train.py                   several hosts
  lockstep run -n 2 --collectives gloo train.py           devices and collectives
  lockstep run -n 2 --strict --stall-warning 10 train.py  checks, waits and errors
  lockstep run -n 2 --max-restarts 3 --log-dir logs train.py   output, end and restarts
"""
WORKER_EXAMPLES = """\
examples:
  srun -n 12 lockstep worker train.py
  mpirun -n 4 lockstep worker -d 2 --grace 60 train.py
  mpiexec -n 4 lockstep worker --strict --stall-warning 10 train.py
  LOCKSTEP_COORDINATOR=host1:29500 lockstep worker --nnodes 2:4 --max-restarts 9 train.py
                                     the same on every host: no launcher, no ranks
"""
_NUMBERS = ("-n", "-np", "--processes", "-d", "--devices")
"""Options with a number that are often typed behind the program, as for other launchers."""
_HASH_SEED = (
    "All processes get PYTHONHASHSEED=0 unless it is set already. So they iterate over a set of\n"
    "strings in the same order, and collectives in such a loop match."
)


T = TypeVar("T")


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """``parse``, whose ValueError says what is expected, as the type of an option."""

    def check(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return check


class Parser(argparse.ArgumentParser):
    """A parser that names, for an option that does not exist, the one that was meant."""

    def parse_args(  # pyright: ignore[reportIncompatibleMethodOverride]: it has overloads
        self, args: Any = None, namespace: Any = None
    ) -> Any:
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            word = rest[0].partition("=")[0]
            near = difflib.get_close_matches(word, self._option_string_actions, 1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}{meant}")
        return found


def no_command(word: str, rest: Sequence[str]) -> str:
    """The error for a program where a command is expected; "" where ``word`` is none."""
    if not word.endswith(".py") and not os.path.isfile(word):
        return ""
    behind, program = _own_first(rest)
    meant = shlex.join(["lockstep", "run", *behind, word, *program])
    return f"{word} is a program and no command of lockstep. Did you mean: {meant}"


def behind_program(program: Sequence[str], given: Sequence[str] = ()) -> str:
    """What to say of options of ``lockstep run`` that the program gets; "" where there are none.

    ``given``: options that stand before the program.
    """
    forms = {"-c": 2, "-m": 2}
    own = forms.get(program[0], 1)
    behind, rest = _own_first(program[own:])
    if not behind:
        return ""
    meant = shlex.join(["lockstep", "run", *given, *behind, *program[:own], *rest])
    return (
        f"{shlex.join(behind)} is given to the program, behind whose name it stands. If it is "
        f"meant for Lockstep: {meant}"
    )


def _own_first(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The numbers of processes and devices, and the hosts, among ``words``; and the rest."""
    own: list[str] = []
    rest: list[str] = []
    at = 0
    while at < len(words):
        name, _, value = words[at].partition("=")
        is_number = name in _NUMBERS and (value or "".join(words[at + 1 : at + 2])).isdigit()
        is_own = is_number or (name == "--hosts" and bool(value or words[at + 1 : at + 2]))
        size = 1 if value or not is_own else 2
        (own if is_own else rest).extend(words[at : at + size])
        at += size
    return own, rest


def no_such_file(path: str) -> str:
    """The error for a program that does not exist, with the one that was meant."""
    folder, name = os.path.split(path)
    if re.fullmatch(r"python[\d.]*", name):
        return f"no such file: {path}. Leave it out: Lockstep starts Python itself"
    files: list[str] = []
    with contextlib.suppress(OSError):
        files = [file for file in os.listdir(folder or ".") if file.endswith(".py")]
    near = difflib.get_close_matches(name, files, 1)
    meant = f" (did you mean {os.path.join(folder, near[0])}?)" if near else ""
    module = path.replace(".", os.sep)
    if not folder and (os.path.isfile(f"{module}.py") or os.path.isdir(module)):
        meant = f" (did you mean -m {path}?)"
    return f"no such file: {path}{meant}"


def forms(command: str) -> str:
    """The forms of a program that ``command`` takes: agents of `worker` have no common input."""
    stdin = " | -" if command == "run" else ""
    return f"(script.py | -m module | -c code{stdin}) [args ...]"


def parser(command: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser without options, whose help describes the program and ends with ``examples``."""
    made = Parser(
        prog=f"lockstep {command}",
        usage=f"%(prog)s [options] {forms(command)}",
        description=description,
        epilog=f"{examples}\n{_HASH_SEED}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument_group("program", _FORMS + (_STDIN if command == "run" else ""))
    return made
