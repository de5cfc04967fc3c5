"""Reads the operations of a program, and their lines, from its text as MLIR prints it. Pure.

The text is one that JAX lowers for the compiler, with locations. A line is an operation; the names
of its operands and results only number them, so they are left out where operations are compared.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator, Sequence

from lockstep.callsites import hlo_text
from lockstep.callsites.hlo_text import SourceLine

_MAX_DEPTH = 200
_LOCATION = re.compile(r" loc\((#loc\d*|unknown|\"[^\"]*\"(?:\([^()]*\))?)\)$")
_ARGUMENT_LOCATION = re.compile(
    r" loc\((?:#loc\d*|unknown|\"((?:[^\"\\]|\\.)*)\"(?:\([^()]*\))?)\)"
)
_DEFINITION = re.compile(r"(#loc\d*) = loc\((.*)\)$")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):')
_NAMED = re.compile(r'"((?:[^"\\]|\\.)*)"\((#loc\d*)\)')
_CALL = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_FUSED = re.compile(r"fused(?:<.*>)?\[(#loc\d*)")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?(?::\d+)?")
_RESULTS = re.compile(r"^%[\w$.-]+(?::\d+)?(?:, %[\w$.-]+(?::\d+)?)* = ")
_NAME = r"@(\"[^\"]*\"|[\w.$-]+)"
"""MLIR puts a name with other characters into quotes: ``@"<lambda>"``."""
_FUNCTION = re.compile(rf"func\.func (?:public |private )?{_NAME}\(")
_CALLED = re.compile(rf"\bcall {_NAME}\(")
_WITH_REDUCER = re.compile(
    r"\bstablehlo\.(?:all_reduce|reduce|reduce_scatter|reduce_window|scatter|select_and_scatter)\b"
)
_REGION_OF_THE_LAST = re.compile(r"cond \{$|reducer\(")
"""A line that opens a region of the operation on the line before."""
_MAIN = re.compile(r"func\.func (?:public )?@main\(")


@dataclasses.dataclass(frozen=True)
class Operation:
    """One line of a program's text."""

    text: str
    """Without its location, and with the names of values."""
    place: SourceLine
    """Where in the user's program it was traced."""

    @functools.cached_property
    def bare(self) -> str:
        """The text without the names of values."""
        return _VALUE.sub("%", self.text)

    @functools.cached_property
    def name(self) -> str:
        """``stablehlo.multiply``."""
        return _RESULTS.sub("", self.text).split("(")[0].split(" ")[0].strip('"')

    @property
    def called(self) -> str:
        """The name of the function that it calls; "" for another operation."""
        return _named(_CALLED.search(self.text))

    @property
    def function(self) -> str:
        """The name of the function whose head this is; "" for another operation."""
        return _named(_FUNCTION.match(self.text))

    @property
    def value(self) -> str:
        """What a constant is, ``3.000000e+00``; "" for another operation."""
        found = re.search(r"constant dense(?:_resource)?<(.*)> : ", self.text)
        return found[1].strip('"') if found else ""

    @property
    def type(self) -> str:
        """``tensor<8xf32>``: what comes last."""
        return self.text.rpartition(" : ")[2].rpartition("-> ")[2]

    @property
    def is_main(self) -> bool:
        """Whether this is the head of the program's function, with its arguments."""
        return bool(_MAIN.match(self.text))


def _named(found: re.Match[str] | None) -> str:
    return found[1].strip('"') if found else ""


def operations(text: str) -> list[Operation]:
    """The operations of a program in the order in which they are printed.

    One that has regions stands before what is in them, and its location and type behind them.
    """
    lines = text.splitlines()
    locations = {made[1]: made[2] for line in lines if (made := _DEFINITION.match(line))}
    chains = functools.cache(lambda name: tuple(_chain(name, locations, 0)))
    found: list[_Printed] = []
    open_: list[_Printed] = []
    for line in map(str.strip, lines):
        if not line or line.startswith("#"):
            continue
        location = _LOCATION.search(line)
        at = location[1] if location and location[1].startswith("#") else ""
        text = _without_locations(line[: location.start()] if location else line)
        if text.startswith("}"):
            if open_ and not text.endswith("{"):  # else another region of the same operation
                open_.pop().close(text, chains(at) if at else ())
        elif _REGION_OF_THE_LAST.match(text) and found:
            open_.append(found[-1])
        else:
            inside = next((one for one in open_[-1:] if one.has_reducer), None)
            found.append(_Printed(text, chains(at) if at else (), inside))
            if text.endswith("{"):
                open_.append(found[-1])
    return _with_users_lines(_placed(found))


@dataclasses.dataclass
class _Printed:
    text: str
    chain: tuple[hlo_text.Frame, ...]
    """The lines at which it was traced, the innermost frame first."""
    inside: _Printed | None = None
    """The operation of which it is a part of the reduction."""

    @functools.cached_property
    def has_reducer(self) -> bool:
        """Kept, because each operation inside asks: the head of a long program is long."""
        return _WITH_REDUCER.search(self.text) is not None

    def close(self, text: str, chain: tuple[hlo_text.Frame, ...]) -> None:
        self.text = f"{self.text} {text}" if len(text) > 1 else self.text
        self.chain = chain or self.chain


def _without_locations(text: str) -> str:
    """The arguments of a function keep their names, which are their locations."""
    if _FUNCTION.match(text):
        return _ARGUMENT_LOCATION.sub(_kept_name, text)
    return _ARGUMENT_LOCATION.sub("", text)


def _placed(found: list[_Printed]) -> list[Operation]:
    """JAX traces a function that is jitted itself once, so its lines may be of another call.

    Those of a function of the user's are in that function. Of JAX's own (`jnp.cumsum`), the line is
    the one that the function is called from here. A reduction (`add` of `jax.lax.psum`) is traced
    once, too: it has the line of the operation that it is a part of.
    """
    calls: dict[str, SourceLine] = {}
    placed, inside = [], ""
    for one in found:
        inside = _named(_FUNCTION.match(one.text)) or inside
        chain = one.inside.chain if one.inside else one.chain
        place, call = hlo_text.place(chain), calls.get(inside)
        if call is not None and call.file and not _is_in(chain, inside, call):
            place = call
        if called := _named(_CALLED.search(one.text)):
            calls.setdefault(called, place)
        placed.append(Operation(one.text, place))
    return placed


def _is_in(chain: Sequence[hlo_text.Frame], function: str, call: SourceLine) -> bool:
    """Whether a stack is of this call of a function, or of that function's own lines."""
    name = function.rstrip("0123456789").rstrip("_")
    return any(
        frame[:2] == call[:2] or frame[2].rpartition(".")[2] in (function, name) for frame in chain
    )


def _kept_name(location: re.Match[str]) -> str:
    """The location of an argument is its name."""
    return f' loc("{location[1]}")' if location[1] else ""


def _chain(name: str, locations: dict[str, str], depth: int) -> Iterator[hlo_text.Frame]:
    """The frames behind a location, the innermost first."""
    text = locations.get(name, "")
    if depth > _MAX_DEPTH:
        return
    if call := _CALL.fullmatch(text):
        yield from _chain(call[1], locations, depth + 1)
        yield from _chain(call[2], locations, depth + 1)
    elif file := _FILE.match(text):
        yield file[1], int(file[2]), ""
    elif named := _NAMED.fullmatch(text):
        function = named[1]
        for file_name, line, known in _chain(named[2], locations, depth + 1):
            yield file_name, line, known or function
            function = ""
    elif fused := _FUSED.match(text):
        yield from _chain(fused[1], locations, depth + 1)


def _with_users_lines(found: list[Operation]) -> list[Operation]:
    """Gives each constant the line of the operation that uses it.

    JAX gives a constant the line that called the program.
    """
    after: dict[str, SourceLine] = {}
    fixed = []
    for one in reversed(found):
        if _FUNCTION.match(one.text):
            after.clear()
        made = _RESULTS.match(one.text)
        if made and one.name == "stablehlo.constant":
            one = dataclasses.replace(one, place=after.get(made[0].split(" ")[0], one.place))
        for used in _VALUE.findall(one.text[made.end() if made else 0 :]):
            after[used] = one.place
        fixed.append(one)
    return fixed[::-1]
