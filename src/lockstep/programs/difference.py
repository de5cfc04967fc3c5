"""The first difference between two programs, in words of the user's program. Pure."""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Sequence

from lockstep._words import ranges
from lockstep.callsites.hlo_text import SourceLine
from lockstep.flight_recorder import program_difference as found
from lockstep.flight_recorder.program_difference import Difference, Side
from lockstep.programs.module_text import Operation, operations

_SHOWN = 80
"""Characters of a value or a line that are shown."""
_SAME_AFTER = 3
"""So many operations behind an inserted one have to be the same again."""
_MOST_INSERTED = 64
_ARGUMENT = re.compile(
    r"%arg\d+: (?P<type>[^ ,{}()]+)(?: \{(?P<given>(?:[^{}\"]|\"[^\"]*\"|\{[^{}]*\})*)\})?"
    r"(?: loc\(\"(?P<name>[^\"]*)\"\))?"
)
_SHARDING = re.compile(r"sdy\.sharding = #sdy\.sharding<(?:[^<>])*>|mhlo\.sharding = \"[^\"]*\"")
_DONATION = re.compile(r"jax\.buffer_donor = true|tf\.aliasing_output")
_SPECIAL = {
    "0x7F800000": "inf",
    "0xFF800000": "-inf",
    "0x7FC00000": "nan",
    "0x7FF0000000000000": "inf",
    "0xFFF0000000000000": "-inf",
    "0x7FF8000000000000": "nan",
}
"""Numbers that MLIR prints by their bits."""


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A program as it was given to the compiler."""

    title: str
    """``step (train.py:14)``."""
    devices: tuple[int, ...]
    """The ids of its devices, in the order of its mesh."""
    flags: str
    """What ``XLA_FLAGS`` changes in what is computed."""
    text: str
    """The module as MLIR prints it, with locations; "": not known."""


def explain(
    one: Lowered, other: Lowered, groups: tuple[tuple[int, ...], tuple[int, ...]]
) -> Difference:
    """In what ``one`` differs from ``other``, which the processes of ``groups`` run."""
    kind, subject, texts, places = _first(one, other)
    pairs = zip(groups, (one.title, other.title), texts, places, strict=True)
    sides = [Side(some, title, text, _line(place)) for some, title, text, place in pairs]
    few, many = sorted(sides, key=lambda side: (len(side.processes), -max(side.processes)))
    return Difference(kind, subject, (few, many))


_Found = tuple[str, str, tuple[str, str], tuple[SourceLine, SourceLine]]
_NOWHERE = (SourceLine(), SourceLine())


def _first(one: Lowered, other: Lowered) -> _Found:
    if one.flags != other.flags:
        flags = (one.flags or "not set", other.flags or "not set")
        return found.FLAGS, "XLA_FLAGS", _only_differing(*flags), _NOWHERE
    if sorted(one.devices) == sorted(other.devices) and one.devices != other.devices:
        order = (f"devices {_listed(one.devices)}", f"devices {_listed(other.devices)}")
        return found.MESH, "the mesh", order, _NOWHERE
    if one.devices != other.devices:
        these = (f"devices {ranges(one.devices)}", f"devices {ranges(other.devices)}")
        return found.MESH, "the mesh", these, _NOWHERE
    if one.title.split(" ")[0] != other.title.split(" ")[0]:
        return found.OTHER, "", ("", ""), _NOWHERE
    if not (one.text and other.text):
        return found.OTHER, "", ("one program", "another one of that name"), _NOWHERE
    return _of_operations(operations(one.text), operations(other.text))


def _of_operations(ours: Sequence[Operation], theirs: Sequence[Operation]) -> _Found:
    pairs = list(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a.bare != b.bare), None)
    if at is None and len(ours) == len(theirs):
        moved = next(((a, b) for a, b in pairs if a.text != b.text), None)
        if moved is None:
            return found.OTHER, "", ("one program", "another one of that name"), _NOWHERE
        calls = (_call(moved[0], ours), _call(moved[1], theirs))
        return found.OPERATIONS, "an operation", calls, (moved[0].place, moved[1].place)
    at = len(pairs) if at is None else at
    if not _goes_on_alike(ours, theirs, at) and (inserted := _inserted(ours, theirs, at)):
        return inserted
    mine, other = ours[at], theirs[at]
    if mine.value and other.value:
        # The constant with which a reduction begins differs with the reduction.
        users = [
            next((op for op in some[at:] if not op.value), op)
            for some, op in ((ours, mine), (theirs, other))
        ]
        if users[0].bare != users[1].bare:
            mine, other = users
    return _of_pair(mine, other)


def _goes_on_alike(ours: Sequence[Operation], theirs: Sequence[Operation], at: int) -> bool:
    """Whether one operation stands in the place of another one, and the next are the same again."""
    after = [[op.bare for op in some[at + 1 : at + 1 + _SAME_AFTER]] for some in (ours, theirs)]
    return len(ours) == len(theirs) and after[0] == after[1]


def _inserted(ours: Sequence[Operation], theirs: Sequence[Operation], at: int) -> _Found | None:
    """Where one side has more operations from ``at`` on, and then both go on alike."""
    for more in range(1, _MOST_INSERTED):
        for mine, longer, shorter in ((True, ours, theirs), (False, theirs, ours)):
            again = [op.bare for op in longer[at + more : at + more + _SAME_AFTER]]
            there = [op.bare for op in shorter[at : at + _SAME_AFTER]]
            if len(longer) - at < more or not again or again != there[: len(again)]:
                continue
            shown = _most_telling(longer[at : at + more])
            text = f"one more operation: {_short_name(shown)}"
            if mine:
                return found.OPERATIONS, "", (text, ""), (shown.place, SourceLine())
            return found.OPERATIONS, "", ("", text), (SourceLine(), shown.place)
    return None


def _most_telling(some: Sequence[Operation]) -> Operation:
    """Constants and shardings only come with an operation of the user's."""
    plain = ("constant", "broadcast_in_dim", "sharding_constraint", "convert")
    return next((op for op in some if _short_name(op) not in plain), some[0])


def _of_pair(mine: Operation, theirs: Operation) -> _Found:
    places = (mine.place, theirs.place)
    if mine.is_main and theirs.is_main:
        return _of_arguments(mine, theirs)
    if mine.value and theirs.value and mine.type == theirs.type:
        return found.CONSTANT, "a constant", _of_values(mine, theirs), places
    if _short_name(mine) != _short_name(theirs):
        names = (_short_name(mine), _short_name(theirs))
        return found.OPERATIONS, "an operation", names, places
    if mine.name == "sdy.mesh":
        return found.MESH, "the mesh", (_mesh(mine), _mesh(theirs)), places
    if mine.name == "sdy.sharding_constraint":
        specs = (_sharding(mine.bare), _sharding(theirs.bare))
        return found.SHARDING, "a sharding", specs, places
    if mine.type != theirs.type:
        subject = f"the result of {_short_name(mine)}"
        return found.OPERATIONS, subject, (_shape(mine.type), _shape(theirs.type)), places
    return found.OPERATIONS, _short_name(mine), _only_differing(mine.bare, theirs.bare), places


def _of_arguments(mine: Operation, theirs: Operation) -> _Found:
    """What differs in the arguments or results of the program."""
    ours, others = (list(_ARGUMENT.finditer(op.text)) for op in (mine, theirs))
    places = (mine.place, theirs.place)
    if len(ours) != len(others):
        counts = (str(len(ours)), str(len(others)))
        return found.ARGUMENTS, "the number of arguments", counts, places
    for index, (a, b) in enumerate(zip(ours, others, strict=True)):
        name = f"argument {a['name'] or index + 1}"
        if a["type"] != b["type"]:
            one, other = _shape(a["type"]), _shape(b["type"])
            is_dtype = one.partition("[")[2] == other.partition("[")[2]
            return found.DTYPES if is_dtype else found.ARGUMENTS, name, (one, other), places
        given = [each["given"] or "" for each in (a, b)]
        one, other = (_sharding("".join(_SHARDING.findall(text))) for text in given)
        if one != other:
            return found.SHARDING, f"the sharding of {name}", (one, other), places
        donated = ["donated" if _DONATION.search(text) else "not donated" for text in given]
        if donated[0] != donated[1]:
            return found.ARGUMENTS, name, (donated[0], donated[1]), places
        if given[0] != given[1]:
            return found.ARGUMENTS, name, _only_differing(*given), places
    return found.ARGUMENTS, "the results", _only_differing(mine.bare, theirs.bare), places


# --- Words ---------------------------------------------------------------------------------------


def _short_name(operation: Operation) -> str:
    """``multiply``, ``reduce by add``, or the name of the function that is called."""
    applied = re.search(r" applies stablehlo\.(\w+)", operation.text)
    if called := re.search(r"call @(\w+)\(", operation.text):
        return called[1]
    return operation.name.rpartition(".")[2] + (f" by {applied[1]}" if applied else "")


def _call(operation: Operation, program: Sequence[Operation]) -> str:
    """``subtract(x, multiply)``: an operation of arguments and of the results of others."""
    before = list(program[: program.index(operation)])
    given = re.findall(r"%[\w$.-]+", operation.text.partition(" = ")[2])
    return f"{_short_name(operation)}({', '.join(_origin(value, before) for value in given)})"


def _origin(value: str, before: list[Operation]) -> str:
    for index in range(len(before) - 1, -1, -1):
        one = before[index]
        if one.text.startswith((f"{value} = ", f"{value}:")):
            if _short_name(one) == "sharding_constraint":
                return _origin(one.text.split(" ")[3], before[:index])
            return _number(one.value) if one.value else _short_name(one)
        if "func.func" in one.text:
            named = re.search(rf"{value}: [^%]*?loc\(\"([^\"]*)\"\)", one.text)
            return named[1] if named else value
    return value


def _of_values(mine: Operation, theirs: Operation) -> tuple[str, str]:
    """Two constants; of arrays the first element that differs."""
    ours, others = mine.value, theirs.value
    if ours.startswith("[") and others.startswith("["):
        pairs = list(zip(ours.split(","), others.split(","), strict=False))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        what = (_number(each.strip(" []")) for each in pairs[at])
        a, b = (f"{text} in element {at}" for text in what)
        return a, b
    if "elided" in ours or max(len(ours), len(others)) > _SHOWN:
        kind = _shape(mine.type)
        return f"one {kind}", f"another {kind}"
    return _number(ours), _number(others)


def _number(text: str) -> str:
    """``3.0`` of ``3.000000e+00``."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    try:
        return f"{float(text)!r}" if "." in text or "e" in text else text[:_SHOWN]
    except ValueError:
        return text[:_SHOWN]


def _shape(text: str) -> str:
    """``f32[8,2]`` of ``tensor<8x2xf32>``."""
    inner = re.fullmatch(r"tensor<(?:((?:\d+x)+))?(\w+)>", text)
    if inner is None:
        return text[:_SHOWN]
    sizes = ",".join((inner[1] or "").rstrip("x").split("x"))
    return f"{inner[2].replace('ui', 'u')}[{sizes}]"


def _mesh(operation: Operation) -> str:
    axes = re.search(r"= <(\[.*?\])(?:, device_ids=(\[.*?\]))?>", operation.text)
    if axes is None:
        return operation.text[:_SHOWN]
    return axes[1].replace('"', "") + (f" of devices {axes[2]}" if axes[2] else "")


def _sharding(text: str) -> str:
    """``[x, replicated]`` of ``<@mesh, [{"x"}, {}]>``."""
    spec = re.search(r"<@\w+, (\[.*\])", text)
    if spec is None:
        return text[:_SHOWN] or "not given"
    parts = re.findall(r"\{([^{}]*)\}", spec[1])
    return "P(" + ", ".join(part.replace('"', "'") or "None" for part in parts) + ")"


def _only_differing(ours: str, theirs: str) -> tuple[str, str]:
    """The words in which two texts differ, and a little of what stands around them."""
    a, b = ours.split(), theirs.split()
    first = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(map(len, (a, b)))
    )
    while len(a) > first + 1 and len(b) > first + 1 and a[-1] == b[-1]:
        a.pop()
        b.pop()
    cut = (" ".join(words[max(0, first - 2) :])[:_SHOWN] or "nothing more" for words in (a, b))
    mine, other = cut
    return mine, other


def _listed(devices: Sequence[int]) -> str:
    shown = ", ".join(map(str, devices[:8]))
    return f"{shown}, ..." if len(devices) > 8 else shown


def _line(place: SourceLine) -> str:
    """``train.py:12: y = x * scale``."""
    if not place.file:
        return ""
    source = " ".join(linecache.getline(place.file, place.line).split())
    name = f"{place.file.rpartition('/')[2]}:{place.line}"
    return f"{name}: {source[:_SHOWN]}" if source else name
