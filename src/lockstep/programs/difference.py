"""The first difference between two programs, in words of the user's program. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Sequence

from lockstep._words import ranges
from lockstep.callsites import hlo_metadata
from lockstep.callsites.hlo_text import SourceLine
from lockstep.flight_recorder import program_difference as found
from lockstep.flight_recorder.program_difference import Difference, Side
from lockstep.programs import executable_text, words
from lockstep.programs.module_text import Operation, operations

_SAME_AFTER = 3
"""So many operations behind an inserted one have to be the same again."""
_MOST_INSERTED = 64
_GIVEN = r"(?: \{(?P<given>(?:[^{}\"]|\"[^\"]*\"|\{[^{}]*\})*)\})?"
_ARGUMENT = re.compile(rf"%arg\d+: (?P<type>[^ ,{{}}()]+){_GIVEN}(?: loc\(\"(?P<name>[^\"]*)\"\))?")
_RESULT = re.compile(rf"(?P<type>tensor<[^<>]*>){_GIVEN}(?P<name>)")
_RESULT_NAME = re.compile(r"jax\.result_info = \"(?:result)?([^\"]*)\"")
_SHARDING = re.compile(r"sdy\.sharding = #sdy\.sharding<(?:[^<>])*>|mhlo\.sharding = \"[^\"]*\"")
_LAYOUT = re.compile(r"mhlo\.layout_mode = \"([^\"]*)\"")
_DONATION = re.compile(r"jax\.buffer_donor = true|tf\.aliasing_output")


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
    is_executable: bool = False
    """Whether it came as an executable, of which ``text`` is what the compiler has made."""


def explain(
    one: Lowered, other: Lowered, groups: tuple[tuple[int, ...], tuple[int, ...]]
) -> Difference:
    """In what ``one`` differs from ``other``, which the processes of ``groups`` run."""
    kind, subject, texts, places = _first(one, other)
    pairs = zip(groups, (one.title, other.title), texts, places, strict=True)
    sides = [Side(some, title, text, words.line(place)) for some, title, text, place in pairs]
    few, many = sorted(sides, key=lambda side: (len(side.processes), -max(side.processes)))
    return Difference(kind, subject, (few, many))


_Found = tuple[str, str, tuple[str, str], tuple[SourceLine, SourceLine]]
_NOWHERE = (SourceLine(), SourceLine())
_UNSEEN: _Found = (found.OTHER, "", ("one program", "another one of that name"), _NOWHERE)


def _first(one: Lowered, other: Lowered) -> _Found:
    if one.flags != other.flags:
        return found.FLAGS, "XLA_FLAGS", words.other_flags(one.flags, other.flags), _NOWHERE
    if sorted(one.devices) == sorted(other.devices) and one.devices != other.devices:
        order = (f"devices {words.listed(one.devices)}", f"devices {words.listed(other.devices)}")
        return found.MESH, "the mesh", order, _NOWHERE
    if one.devices != other.devices:
        these = (f"devices {ranges(one.devices)}", f"devices {ranges(other.devices)}")
        return found.MESH, "the mesh", these, _NOWHERE
    if one.title.split(" ")[0] != other.title.split(" ")[0]:
        return found.OTHER, "", ("", ""), _NOWHERE
    if one.is_executable != other.is_executable:
        return found.OTHER, "", (_origin(one), _origin(other)), _NOWHERE
    if not (one.text and other.text):
        return _UNSEEN
    asked = [hlo_metadata.compiler_options(each.text) for each in (one, other)]
    if asked[0] != asked[1]:
        return found.FLAGS, "compiler_options", words.other_flags(asked[0], asked[1]), _NOWHERE
    if one.is_executable:
        return executable_text.first_difference(one.text, other.text) or _UNSEEN
    return _of_operations(*(_written(each.text) for each in (one, other)))


def _written(text: str) -> list[Operation]:
    """Without the mesh of one device that JAX adds for a callback, which has no line."""
    return [op for op in operations(text) if "sdy.mesh @maximal_mesh" not in op.text]


def _origin(one: Lowered) -> str:
    return "an executable that was loaded" if one.is_executable else "a program that was compiled"


def _of_operations(ours: Sequence[Operation], theirs: Sequence[Operation]) -> _Found:
    pairs = list(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in enumerate(pairs) if a.bare != b.bare), None)
    if at is None and len(ours) == len(theirs):
        moved = next(((a, b) for a, b in pairs if a.text != b.text), None)
        if moved is None:
            return _UNSEEN
        calls = words.calls(moved[0], ours, moved[1], theirs)
        return found.OPERATIONS, "an operation", calls, (moved[0].place, moved[1].place)
    at = len(pairs) if at is None else at
    # One process may call a function again where the other has a second one of that name, because
    # the first ones differ.
    is_call = at < len(pairs) and all(op.name == "call" for op in pairs[at])
    if is_call and (bodies := _called(pairs[:at], ours, theirs)):
        return _of_operations(*bodies)
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
    if words.short_name(mine) != words.short_name(other):
        mine, other = _telling_of_line(ours, at, mine), _telling_of_line(theirs, at, other)
    return _of_pair(mine, other)


def _telling_of_line(program: Sequence[Operation], at: int, first: Operation) -> Operation:
    """What the line of an operation does: it may begin with constants and conversions."""
    same = itertools.takewhile(lambda op: op.place == first.place, program[at:])
    return _most_telling([first, *itertools.islice(same, _MOST_INSERTED)])


def _called(
    pairs: Sequence[tuple[Operation, Operation]],
    ours: Sequence[Operation],
    theirs: Sequence[Operation],
) -> tuple[Sequence[Operation], Sequence[Operation]] | None:
    """The bodies of the first function that both call by one name, and that differs."""
    mine, other = _functions(ours), _functions(theirs)
    left, seen = list(pairs), set[str]()
    while left:
        names = {op.called for op in left.pop(0)}
        if len(names) != 1 or names <= seen or "" in names:
            continue
        seen |= names
        [name] = names
        one, two = mine.get(name, ()), other.get(name, ())
        if [op.bare for op in one] != [op.bare for op in two]:
            return one, two
        left[:0] = zip(one, two, strict=True)
    return None


def _functions(program: Sequence[Operation]) -> dict[str, Sequence[Operation]]:
    """The functions of a program by their names, each with its head."""
    heads = [i for i, op in enumerate(program) if op.name == "func.func"]
    ends = [*heads[1:], len(program)]
    return {program[i].function: program[i:end] for i, end in zip(heads, ends, strict=True)}


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
            start = at - _back(longer, shorter, at, more)
            shown = _most_telling(longer[start : start + more])
            if shown.name.endswith("return"):  # of a branch: its operations differ
                continue
            text = f"one more operation: {words.short_name(shown)}"
            if mine:
                return found.OPERATIONS, "", (text, ""), (shown.place, SourceLine())
            return found.OPERATIONS, "", ("", text), (SourceLine(), shown.place)
    return None


def _back(longer: Sequence[Operation], shorter: Sequence[Operation], at: int, more: int) -> int:
    """How far before ``at`` the ``more`` operations begin, by the lines of the others.

    In ``sin, sin, cos`` and ``sin, cos`` either ``sin`` may be the one more.
    """
    best = gained = most = 0
    for back in range(1, at + 1):
        own, moved, other = longer[at - back], longer[at - back + more], shorter[at - back]
        if own.bare != moved.bare:
            break
        gained += (moved.place == other.place) - (own.place == other.place)
        if gained > most:
            best, most = back, gained
    return best


def _most_telling(some: Sequence[Operation]) -> Operation:
    """Constants and shardings only come with an operation of the user's."""
    plain = ("constant", "broadcast_in_dim", "sharding_constraint", "convert", "return")
    return next((op for op in some if words.short_name(op) not in plain), some[0])


def _of_pair(mine: Operation, theirs: Operation) -> _Found:
    places = (mine.place, theirs.place)
    if mine.is_main and theirs.is_main:
        return _of_arguments(mine, theirs)
    if mine.value and theirs.value and mine.type == theirs.type:
        return found.CONSTANT, "a constant", words.of_values(mine, theirs), places
    if words.short_name(mine) != words.short_name(theirs):
        names = (words.short_name(mine), words.short_name(theirs))
        return found.OPERATIONS, "an operation", names, places
    if mine.name == "sdy.mesh":
        return found.MESH, "the mesh", (words.mesh(mine), words.mesh(theirs)), places
    if mine.name == "sdy.manual_computation" and (specs := words.specs(mine.bare, theirs.bare)):
        return found.SHARDING, *specs, places
    if mine.name == "sdy.sharding_constraint":
        specs = (words.sharding(mine.bare), words.sharding(theirs.bare))
        return found.SHARDING, "a sharding", specs, places
    if mine.type != theirs.type:
        subject = f"the result of {words.short_name(mine)}"
        return found.OPERATIONS, subject, (words.shape(mine.type), words.shape(theirs.type)), places
    subject, texts = words.short_name(mine), words.only_differing(mine.bare, theirs.bare)
    if all(text.startswith(subject) for text in texts):
        subject = "an operation"
    return found.OPERATIONS, subject, texts, places


def _of_arguments(mine: Operation, theirs: Operation) -> _Found:
    """What differs in the arguments or results of the program."""
    places = (mine.place, theirs.place)
    heads = [op.text.rpartition(") -> ") for op in (mine, theirs)]
    for index, each, of in ((0, _ARGUMENT, "argument"), (2, _RESULT, "result")):
        ours, others = (list(each.finditer(head[index])) for head in heads)
        if len(ours) != len(others):
            if index == 0 and (one := _argument_more(ours, others)):
                return found.ARGUMENTS, *one, places
            counts = (str(len(ours)), str(len(others)))
            return found.ARGUMENTS, f"the number of {of}s", counts, places
        for number, (a, b) in enumerate(zip(ours, others, strict=True), 1):
            name = a["name"] or _RESULT_NAME.findall(a["given"] or "")
            if differs := _of_one(f"{of} {(name and ''.join(name)) or number}", a, b):
                return *differs, places
    return found.ARGUMENTS, "the head", words.only_differing(mine.bare, theirs.bare), places


def _argument_more(
    ours: Sequence[re.Match[str]], theirs: Sequence[re.Match[str]]
) -> tuple[str, tuple[str, str]] | None:
    """The first argument that one side has alone: JAX leaves out those that are not used."""
    names = [{one["name"] for one in some if one["name"]} for some in (ours, theirs)]
    for some, others, is_ours in ((ours, names[1], True), (theirs, names[0], False)):
        for one in some:
            if one["name"] and one["name"] not in others:
                used, unused = f"used ({words.shape(one['type'])})", "not used"
                return f"argument {one['name']}", (used, unused) if is_ours else (unused, used)
    return None


def _of_one(
    name: str, ours: re.Match[str], theirs: re.Match[str]
) -> tuple[str, str, tuple[str, str]] | None:
    """In what one argument or result of two programs differs."""
    if ours["type"] != theirs["type"]:
        one, other = words.shape(ours["type"]), words.shape(theirs["type"])
        is_dtype = one.partition("[")[2] == other.partition("[")[2]
        return found.DTYPES if is_dtype else found.ARGUMENTS, name, (one, other)
    given = [each["given"] or "" for each in (ours, theirs)]
    one, other = (words.sharding("".join(_SHARDING.findall(text))) for text in given)
    if one != other:
        return found.SHARDING, f"the sharding of {name}", (one, other)
    layouts = [(mode[1] if (mode := _LAYOUT.search(text)) else "not given") for text in given]
    if layouts[0] != layouts[1]:
        return found.ARGUMENTS, f"the layout of {name}", (layouts[0], layouts[1])
    donated = ["donated" if _DONATION.search(text) else "not donated" for text in given]
    if donated[0] != donated[1]:
        return found.ARGUMENTS, name, (donated[0], donated[1])
    if given[0] != given[1]:
        return found.ARGUMENTS, name, words.only_differing(*given)
    return None
