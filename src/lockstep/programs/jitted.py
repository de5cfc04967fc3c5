"""Which program a call of a jitted function launches.

JAX tells of a call on its fast path with the function, and not with the executable. Both are known
where JAX makes the fast path for a kind of arguments (`Functions.learn`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import weakref
from collections.abc import Sequence
from typing import Any

from lockstep import _jax_compat
from lockstep.programs.compilations import Program

_MAX_LEAVES = 32
"""So many of the first and of the last arguments tell the programs of a function apart."""


@dataclasses.dataclass
class Launched:
    """A program that this process launches, and what the entries of its launches begin with."""

    program: Program
    run_id: int
    """A hash of the program: the same number on all processes."""
    clique: int
    """A hash of the devices that it runs on."""
    members: tuple[int, ...]
    """The first device of each process that takes part."""
    devices: frozenset[int]
    known: bytes
    unknown: bytes
    """The head of its entries, where it is sure that this program was launched, and where not."""
    tail: bytes
    crosses: bool
    """Whether a collective takes part of several processes, or may."""


_Signature = tuple[Any, ...]
Static = tuple[tuple[int, ...], tuple[str, ...]]
"""The numbers and the names of a function's static arguments."""
NOT_STATIC: Static = ((), ())


class _NotKnown(enum.Enum):
    """Which program a call launches; several programs may fit."""

    NOT_KNOWN = enum.auto()


NOT_KNOWN = _NotKnown.NOT_KNOWN
_Table = dict[Any, Launched | _NotKnown | None]
"""Programs; None: one that is not recorded."""


@dataclasses.dataclass
class _Function:
    """A jitted function: the programs that it was compiled to."""

    launched: list[Launched] = dataclasses.field(default_factory=list)
    has_others: bool = False
    """Whether it has programs that are not recorded, too."""
    by_arguments: _Table = dataclasses.field(default_factory=dict)
    """The program for each kind of arguments."""

    by_settings: _Table = dataclasses.field(default_factory=dict)
    """The same, under JAX's settings: they choose where several programs fit the arguments."""

    static: Static = NOT_STATIC
    only: Launched | None = None
    """The latest program, if all became one executable: every launch looks it up."""

    def learn(self, signature: _Signature, launched: Launched | None) -> None:
        _put_if_alone(self.by_arguments, signature, launched)
        settings = _jax_compat.settings_of_trace()
        _put_if_alone(self.by_settings, (signature, settings), launched)
        self._note(launched)

    def of(self, args: Any, kwargs: Any) -> Launched | _NotKnown | None:
        """The program of a call with such arguments; None: it is not recorded."""
        signature = _signature(args, kwargs, self.static)
        found = self.by_arguments.get(signature, NOT_KNOWN)
        if found is NOT_KNOWN:
            settings = _jax_compat.settings_of_trace()
            found = self.by_settings.get((signature, settings), NOT_KNOWN)
        return found

    def _note(self, launched: Launched | None) -> None:
        if launched is None:
            self.has_others = True
        elif launched not in self.launched:
            self.launched.append(launched)
        made = {each.program.executable or each.run_id for each in self.launched}
        self.only = self.launched[-1] if len(made) == 1 and not self.has_others else None


def _put_if_alone(table: _Table, key: Any, launched: Launched | None) -> None:
    table[key] = launched if table.setdefault(key, launched) is launched else NOT_KNOWN


class Functions:
    """The programs of jitted functions. Calls of other threads may come in between."""

    def __init__(self) -> None:
        self._by_function: dict[int, _Function] = {}
        self.by_jitted: dict[int, _Function] = {}
        """The id of what JAX calls -> the function."""
        self._kept: dict[tuple[int, int], Any] = {}
        """What forgets each object when it dies: another one may get its id."""

    def learn(
        self,
        function: Any,
        launched: Launched | None,
        args: Any,
        kwargs: Any,
        static: Static = NOT_STATIC,
    ) -> None:
        """Such calls of ``function`` launch this program; None: one that is not recorded."""
        known = self._of(function)
        known.static = static
        known.learn(_signature(args, kwargs, static), launched)

    def launched_by(
        self, jitted: Any, args: Any, kwargs: Any, results: Any
    ) -> tuple[Launched | None, bool]:
        """The program of a call, and whether it is sure that it is that one."""
        known = self.by_jitted.get(id(jitted))
        if known is None:
            known = self._first_call(jitted)
        if not known.launched:
            return None, False
        found = known.only or known.of(args, kwargs)
        if not isinstance(found, _NotKnown):
            return found, found is not None
        devices = _devices_of(results)
        fitting = [each for each in known.launched if each.devices == devices]
        return (fitting[-1] if fitting else None), False

    def latest_of_some(self, functions: Sequence[Any]) -> tuple[Launched | None, bool]:
        """The program of a call of one of ``functions``, as `launched_by`: several are no proof."""
        found = [self.latest_of(each) for each in functions]
        known = [(launched, is_sure) for launched, is_sure in found if launched is not None]
        if not known:
            return None, False
        launched, is_sure = known[-1]
        return launched, is_sure and len({id(each) for each, _ in known}) == 1

    def latest_of(self, jitted: Any) -> tuple[Launched | None, bool]:
        """The program of a call whose arguments are not known, as `launched_by`.

        ``jitted`` may be what a function was jitted from at once (`frames.called`).
        """
        known = None
        if jitted is not None:
            known = self.by_jitted.get(id(jitted)) or self._by_function.get(id(jitted))
        # The first call that JAX makes on its fast path may be the one that does not return.
        if known is None and _jax_compat.is_compiled_function(jitted):
            known = self._first_call(jitted)
        if known is None or not known.launched:
            return None, False
        return known.launched[-1], known.only is not None

    def _of(self, function: Any) -> _Function:
        known = self._by_function.get(id(function))
        if known is None:
            known = self._by_function[id(function)] = _Function()
            self._keep(function, self._by_function)
        return known

    def _first_call(self, jitted: Any) -> _Function:
        function = getattr(jitted, "__wrapped__", None)
        # Without a function it was compiled ahead of time: then it was learned itself.
        known = self._of(jitted if function is None else function)
        self.by_jitted[id(jitted)] = known
        self._keep(jitted, self.by_jitted)
        return known

    def _keep(self, key: Any, of: dict[int, _Function]) -> None:
        name = id(key)
        # A program that was compiled ahead of time is in both tables.
        place = name, id(of)

        def forget(_: Any) -> None:
            of.pop(name, None)
            self._kept.pop(place, None)

        try:
            self._kept[place] = weakref.ref(key, forget)
        except TypeError:
            self._kept[place] = key


def _signature(args: Any, kwargs: Any, static: Static) -> _Signature:
    """What tells the programs of a function apart, of its first and last arguments."""
    import jax

    values = [args[number] for number in static[0] if -len(args) <= number < len(args)]
    values += [kwargs[name] for name in static[1] if name in kwargs]

    leaves = jax.tree_util.tree_leaves((args, kwargs))
    some = (
        leaves if len(leaves) <= 2 * _MAX_LEAVES else leaves[:_MAX_LEAVES] + leaves[-_MAX_LEAVES:]
    )
    return (len(leaves), *map(_kind, some), *((type(value), value) for value in values))


def _kind(leaf: Any) -> Any:
    # A static argument may have one of them alone, or raise what it likes.
    with contextlib.suppress(Exception):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if isinstance(shape, tuple) and dtype is not None:
            return shape, dtype, getattr(leaf, "sharding", None), getattr(leaf, "weak_type", 0)
    return type(leaf)


def _devices_of(results: Any) -> frozenset[int]:
    """The devices on which the first array among the results of a call lies; empty: none."""
    import jax

    for leaf in jax.tree_util.tree_leaves(results):
        if (sharding := getattr(leaf, "sharding", None)) is not None:
            return frozenset(device.id for device in sharding.device_set)
    return frozenset()
