"""``--check-replicas``: checks the arguments of programs in which processes exchange data.

All processes have to call such a program anyway, so waiting for them before it adds no deadlock. A
program without collectives may be called by one process alone, and is not checked: a wrong copy
changes nothing on another process until it comes into a program that is.

The check stops a job for a difference only. If it fails itself, or a process does not come in time,
the program runs without it, and whatever watches the collectives reports the reason.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import DifferenceError
from lockstep._stderr import complain
from lockstep._words import processes
from lockstep.callsites import frames
from lockstep.hlo import text as hlo_text
from lockstep.hlo.collectives import OPS
from lockstep.replicas import report
from lockstep.replicas.check import Comparison, Plan, place
from lockstep.replicas.exchange import Exchange
from lockstep.watchdog import watchdogs

_HOOK = "arguments of programs"
_LOST = "--check-replicas checks nothing; lockstep.check_replicas(tree) still works."
_FUNCTION = re.compile(r"^(?:jit|pmap)\((.*)\)$")
_COLLECTIVE = re.compile(rf" (?:{'|'.join(OPS)})(?:-start)?\(")


def watch() -> None:
    """From now on checks the arguments of programs, as often as the option says."""
    every = _config.current().check_replicas
    known: weakref.WeakValueDictionary[Any, _Program] = weakref.WeakValueDictionary()

    def program_of(program: Any, name: str) -> Callable[[Sequence[Any]], None]:
        # JAX compiles a program again where a sharding is only spelled in another way.
        devices = tuple(device.id for device in program.local_devices())
        key = (name, program.fingerprint or id(program), devices)
        found = known.get(key)
        if found is None:
            found = known[key] = _Program(program, name, every)
        return found.before_execution

    _jax_compat.install(_HOOK, _LOST, lambda: _jax_compat.before_executions(program_of))


class _Program:
    """One compiled program: its calls are counted, and every so many are checked."""

    def __init__(self, program: Any, name: str, every: int) -> None:
        self._text: Callable[[], str] = lambda: program.hlo_modules()[0].to_string()
        self._name = _FUNCTION.sub(r"\1", name)
        self._every = every
        self._calls = itertools.count()
        self._plan: Plan | None = None
        self._is_checked = True
        self._has_reported = False

    def before_execution(self, arrays: Sequence[Any]) -> None:
        """Raises `DifferenceError` for an argument of which the copies differ."""
        import jax

        call = next(self._calls)
        if not self._is_checked or call % self._every:
            return
        try:
            found = self._check(arrays, call + 1)
        except Exception as error:
            if isinstance(error, jax.errors.JaxRuntimeError) or watchdogs.abort_text():
                return  # an argument failed, or the job: the program itself raises it
            self._is_checked, found = False, ""
            _report_once(f"{self._name} is not checked: {type(error).__name__}: {error}")
        if found:
            raise DifferenceError(found)

    def _check(self, arrays: Sequence[Any], call: int) -> str:
        """The text of a difference; "" if there is none."""
        plan = self._plan = self._plan or self._new_plan(arrays)
        if plan is None:
            self._is_checked = False
            return ""
        config = _config.current()
        seconds = config.stall_warning or _config.DEFAULT_STALL_WARNING
        exchange = Exchange(self._name, plan.members, seconds)
        position = f"call {call} with {_types(arrays)}"
        comparison = Comparison(plan, arrays, position)
        found = comparison.run(exchange)
        exchange.close()
        self._report_uncompared(comparison, plan, position, exchange.timed_out)
        if found is None:
            return ""
        head = f"--check-replicas: {self._name}, call {call}{_line()}"
        names = dict(enumerate(_names(self._text(), arrays)))
        return report.text(head, found, names, comparison.labels)

    def _new_plan(self, arrays: Sequence[Any]) -> Plan | None:
        """What is to be compared between processes; None: nothing."""
        if all(array.is_fully_addressable for array in arrays):
            return None
        plan = Plan(arrays)
        return plan if plan.pieces and _COLLECTIVE.search(self._text()) else None

    def _report_uncompared(
        self, comparison: Comparison, plan: Plan, position: str, timed_out: bool
    ) -> None:
        """Reports once what was not compared, and why."""
        if self._has_reported:
            return
        missing = [p for p in plan.members if p not in comparison.labels]
        if missing and timed_out:
            self._has_reported = True
            _report_once(
                f"{self._name}{_line()}: {processes(missing)} did not come to this call in time, "
                "so the copies there were not compared"
            )
        for process, other in comparison.positions.items():
            if other != position:
                self._has_reported = True
                _report_once(
                    f"{self._name}{_line()}: this is {position} on process {place()}, and {other} "
                    f"on process {process}, so the copies there were not compared"
                )


def _types(arrays: Sequence[Any]) -> str:
    kinds = [f"{array.dtype}{list(array.shape)}" for array in arrays]
    if len(kinds) <= 3:
        return ", ".join(kinds)
    digest = hashlib.blake2b(" ".join(kinds).encode(), digest_size=4).hexdigest()
    return f"{len(kinds)} arguments ({digest})"


def _line() -> str:
    at = frames.innermost()
    return f", {os.path.basename(at.file)}:{at.line} in {at.function}" if at else ""


def _names(text: str, arrays: Sequence[Any]) -> list[str]:
    """The arguments as JAX records them, ``params['w']``, with their types."""
    names = _recorded(text)
    # Tokens of ordered effects come before the arguments.
    before = max(0, len(names) - len(arrays))
    return [
        f"argument {names.get(before + i) or i + 1} ({array.dtype}{list(array.shape)})"
        for i, array in enumerate(arrays)
    ]


def _recorded(text: str) -> Mapping[int, str]:
    module = hlo_text.parse(text)
    entry = module.computations[module.entry].values()
    return {each.number: each.op_name for each in entry if each.opcode == "parameter"}


@functools.cache
def _report_once(text: str) -> None:
    """Prints a line once: a program may be compiled for other shardings, too."""
    complain(f"--check-replicas: {text}.")
