"""How what differs between two programs is told, in words of the user's program. Pure."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence

from lockstep.callsites.hlo_text import SourceLine
from lockstep.programs import constants
from lockstep.programs.module_text import Operation

_SHOWN = 80
"""Characters of a value or a line that are shown."""
_FAR_NAME = 4
"""So many words before a value its name is looked for."""
_MOST_NESTED = 6
"""How far back the operands of an operation are told."""
_SPECS = re.compile(r"in_shardings=\[(.*?)\] out_shardings=\[(.*?)\] manual_axes=")


def short_name(operation: Operation) -> str:
    """``multiply``, ``reduce by add``, or the name of the function that is called."""
    applied = re.search(r" applies stablehlo\.(\w+)", operation.text)
    return operation.called or operation.name.rpartition(".")[2] + (
        f" by {applied[1]}" if applied else ""
    )


def calls(
    mine: Operation, ours: Sequence[Operation], theirs: Operation, others: Sequence[Operation]
) -> tuple[str, str]:
    """Two operations of other operands, told as far back as they read alike."""
    for depth in range(1, _MOST_NESTED):
        one, other = _call(mine, ours, depth), _call(theirs, others, depth)
        if one != other:
            return one[:_SHOWN], other[:_SHOWN]
    name = short_name(mine)
    return f"{name} of some operands", f"{name} of others"


def _call(operation: Operation, program: Sequence[Operation], depth: int) -> str:
    """``subtract(x, multiply)``: an operation of arguments and of the results of others."""
    before = list(program[: program.index(operation)])
    given = re.findall(r"%[\w$.-]+", operation.text.partition(" = ")[2])
    return f"{short_name(operation)}({', '.join(_origin(v, before, depth) for v in given)})"


def _origin(value: str, before: list[Operation], depth: int) -> str:
    for index in range(len(before) - 1, -1, -1):
        one = before[index]
        if one.text.startswith((f"{value} = ", f"{value}:")):
            if short_name(one) in ("sharding_constraint", "broadcast_in_dim", "convert"):
                of = re.findall(r"%[\w$.-]+", one.text.partition(" = ")[2])[0]
                return _origin(of, before[:index], depth)
            if one.value:
                return constants.shown(one.value, one.type)
            return short_name(one) if depth < 2 else _call(one, before, depth - 1)
        if "func.func" in one.text:
            named = re.search(rf"{value}: [^%]*?loc\(\"([^\"]*)\"\)", one.text)
            return named[1] if named else value
    return value


def of_values(mine: Operation, theirs: Operation) -> tuple[str, str]:
    """Two constants; of arrays the first element that differs."""
    ours, others = (constants.elements(op.value, op.type) for op in (mine, theirs))
    if max(len(ours), len(others)) == 1:
        return ours[0][:_SHOWN], others[0][:_SHOWN]
    # MLIR writes one element where all are equal.
    ours, others = (len(b) * a if len(a) == 1 else a for a, b in ((ours, others), (others, ours)))
    at = next((i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), None)
    if at is None or len(ours) != len(others):
        kind = shape(mine.type)
        return f"one {kind}", f"another {kind}"
    where = constants.index(at, mine.type)
    return f"{ours[at]} in element {where}", f"{others[at]} in element {where}"


def shape(text: str) -> str:
    """``f32[8,2]`` of ``tensor<8x2xf32>``."""
    inner = re.fullmatch(r"tensor<(?:((?:\d+x)+))?(\w+)>", text)
    if inner is None:
        each = re.sub(r"tensor<(?:\d+x)*\w+>", lambda one: shape(one[0]), text)
        return each[:_SHOWN]
    sizes = ",".join((inner[1] or "").rstrip("x").split("x"))
    return f"{inner[2].replace('ui', 'u')}[{sizes}]"


def mesh(operation: Operation) -> str:
    axes = re.search(r"= <(\[.*?\])(?:, device_ids=(\[.*?\]))?>", operation.text)
    if axes is None:
        return operation.text[:_SHOWN]
    return axes[1].replace('"', "") + (f" of devices {axes[2]}" if axes[2] else "")


def specs(ours: str, theirs: str) -> tuple[str, tuple[str, str]] | None:
    """The first argument or result of two `jax.shard_map` whose shardings differ."""
    found = [_SPECS.search(text) for text in (ours, theirs)]
    if None in found:
        return None
    for group, of in ((1, "argument"), (2, "result")):
        one, other = (re.findall(r"<[^<>]*>", match[group]) for match in found if match)
        for number, (a, b) in enumerate(zip(one, other, strict=False), 1):
            if a != b:
                return f"the sharding of {of} {number} of shard_map", (sharding(a), sharding(b))
    return None


def sharding(text: str) -> str:
    """``[x, replicated]`` of ``<@mesh, [{"x"}, {}]>``."""
    spec = re.search(r"<@\w+, (\[.*\])", text)
    if spec is None:
        return text[:_SHOWN] or "not given"
    parts = re.findall(r"\{([^{}]*)\}", spec[1])
    return "P(" + ", ".join(part.replace('"', "'") or "None" for part in parts) + ")"


def only_differing(ours: str, theirs: str) -> tuple[str, str]:
    """The words in which two texts differ, and the name of what they give."""
    a, b = _words(ours), _words(theirs)
    first = next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x.rstrip(",") != y.rstrip(",")),
        min(map(len, (a, b))),
    )
    named = [some[first + 1 : first + 2] == ["="] for some in (a, b)]
    if named[0] != named[1]:  # `algorithm = <...>`, which one side has alone
        given = _plain((a if named[0] else b)[first : first + 5])[:_SHOWN]
        no = f"no {given.partition(' ')[0]}"
        return (given, no) if named[0] else (no, given)
    start = max(0, first - 2)
    if "=" in a[max(0, first - _FAR_NAME) : first]:  # `contracting_dims = [1] x [0]`
        start = first - 2 - a[:first][::-1].index("=")
    cut = (_plain(words[max(0, start) : first + 1])[:_SHOWN] for words in (a, b))
    mine, other = (text or "nothing more" for text in cut)
    return mine, other


def _words(text: str) -> list[str]:
    """What stands between spaces that are in no brackets; the braces of attributes are left out."""
    words, depth, last = [""], 0, ""
    for letter in text.replace("<{", "").replace("}>", ""):
        depth += letter in "[(<"
        depth -= letter in "])" or (letter == ">" and last != "-")
        if letter == " " and depth <= 0:
            words.append("")
        else:
            words[-1] += letter
        last = letter
    return [word for word in words if word]


def _plain(words: list[str]) -> str:
    """``replica_groups = [[0, 2], [1, 3]]`` of ``= dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>,``."""
    text = " ".join(word for word in words if word != "%").removeprefix("= ")
    text = re.sub(r"dense<(.*)>|\b(?:stablehlo|sdy)\.", r"\1", text).rstrip(",")
    opened = text.count("{") - text.count("}")  # attributes are cut in the middle
    return text.removeprefix("{") if opened > 0 else text.removesuffix("}" * -opened)


def other_flags(ours: str, theirs: str) -> tuple[str, str]:
    """The flags that one side has alone."""

    def only(some: str, others: str) -> str:
        own = [flag for flag in some.split() if flag not in others.split()]
        return " ".join(own)[:_SHOWN] or ("without that" if some else "not set")

    return only(ours, theirs), only(theirs, ours)


def listed(devices: Sequence[int]) -> str:
    shown = ", ".join(map(str, devices[:8]))
    return f"{shown}, ..." if len(devices) > 8 else shown


def line(place: SourceLine) -> str:
    """``train.py:12: y = x * scale``."""
    if not place.file:
        return ""
    source = " ".join(linecache.getline(place.file, place.line).split())
    name = f"{place.file.rpartition('/')[2]}:{place.line}"
    return f"{name}: {source[:_SHOWN]}" if source else name
