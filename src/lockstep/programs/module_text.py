"""Reads the operations of a program, and their lines, from its text as MLIR prints it. Pure.

The text is one that JAX lowers for the compiler, with locations. A line is an operation; the names
of its operands and results only number them, so they are left out where operations are compared.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator

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
_FUNCTION = re.compile(r"func\.func (?:public |private )?@")
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


def operations(text: str) -> list[Operation]:
    """The operations of a program in the order in which they are printed."""
    lines = text.splitlines()
    locations = {found[1]: found[2] for line in lines if (found := _DEFINITION.match(line))}
    places = functools.cache(lambda name: hlo_text.place(list(_chain(name, locations, 0))))
    found = []
    for line in lines:
        bare = line.strip()
        if not bare or bare.startswith(("#", "}")):
            continue
        location = _LOCATION.search(bare)
        text = bare[: location.start()] if location else bare
        if _FUNCTION.match(text):
            text = _ARGUMENT_LOCATION.sub(_kept_name, text)
        elif text.startswith("^"):  # the head of a block, as of a collective's reduction
            text = _ARGUMENT_LOCATION.sub("", text)
        at = location[1] if location and location[1].startswith("#") else ""
        found.append(Operation(text, places(at) if at else SourceLine()))
    return _with_users_lines(found)


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
