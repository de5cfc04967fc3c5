"""Why the compiler put a collective in, by what JAX and the partitioner wrote beside it. Pure."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from lockstep.hlo.collectives import Collective

_LAX = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "ragged-all-to-all",
    "ppermute": "collective-permute",
    "pbroadcast": "collective-broadcast",
}
_CONTRACTIONS = ("dot_general", "conv_general_dilated", "einsum", "ragged_dot")
_RESHARDINGS = ("sharding_constraint", "reshard", "device_put", "mesh_cast", "auto_axes")
_SUFFIX = re.compile(r"(_invariant|_invariant_reduced|_reduced|2)?(\[.*|\(.*)?$")


class Kind(enum.StrEnum):
    EXPLICIT = "explicit"
    """The program calls it: ``lax.psum``."""
    CONTRACTION = "contraction"
    """A product whose contracted dimension is sharded."""
    REDUCTION = "reduction"
    """A sum, or another reduction, over a sharded dimension."""
    LOOKUP = "lookup"
    """Rows of a sharded dimension are looked up; each device adds those that it has."""
    RESHARDING = "resharding"
    """An array is needed in another layout than it has."""
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    kind: Kind
    text: str
    """``lax.psum``, ``contraction in dot_general``."""


def of(collective: Collective) -> Cause:
    """The cause of a collective; what is not known is said to be unknown.

    Of one that XLA has combined of several, the texts of all, and the kind of the first.
    """
    found = {(each := _of(collective, name)).text: each for name in parts(collective.op_name)}
    return Cause(next(iter(found.values())).kind, "; ".join(found))


def _of(collective: Collective, op_name: str) -> Cause:
    last = primitive(op_name)
    name = _SUFFIX.sub("", last)
    if not collective.generated and _LAX.get(name) == collective.op:
        public = "psum_scatter" if name == "reduce_scatter" else name
        return Cause(Kind.EXPLICIT, f"lax.{public}")
    if collective.op in ("all-reduce", "reduce-scatter"):
        if last in _CONTRACTIONS:
            return Cause(Kind.CONTRACTION, f"contraction in {last}")
        if last.startswith(("reduce", "arg", "cum", "log")):
            return Cause(Kind.REDUCTION, f"{last} of a sharded dimension")
        if last.startswith("scatter"):
            return Cause(Kind.REDUCTION, f"{last} over a sharded dimension")
        if last in ("gather", "dynamic_slice"):
            return Cause(Kind.LOOKUP, f"{last} in a sharded dimension")
    if last == "reduce" and _is_of_partial_results(collective):
        return Cause(Kind.REDUCTION, f"{last} of a sharded dimension")
    if last in _RESHARDINGS:
        return Cause(Kind.RESHARDING, f"resharding by {last}")
    if argument := _argument(op_name):
        user = primitive(collective.user_op)
        return Cause(
            Kind.RESHARDING, f"argument {argument} resharded{f' for {user}' if user else ''}"
        )
    if last or (last := primitive(collective.user_op)):
        return Cause(Kind.RESHARDING, f"resharding for {last}")
    if collective.carried:
        return Cause(Kind.RESHARDING, "resharding of what the loop carries")
    return Cause(Kind.UNKNOWN, "unknown: the compiler wrote nothing beside it")


def _is_of_partial_results(collective: Collective) -> bool:
    """Whether each device puts in its part of a reduction: one row, in front of the other axes.

    XLA has no all-reduce of several arrays with a function of its own, such as an argmax's.
    """
    gathers = collective.op == "all-gather" and collective.inputs
    return bool(gathers) and all(x.shape[:1] == (1,) for x in collective.inputs)


def parts(op_name: str) -> list[str]:
    """The paths in ``jit(f)/(a/dot_general:b/reduce_sum)``, which stands at a combined collective.

    A path that stands there several times is given once; any other name is its only part.
    """
    head, opened, rest = op_name.partition("/(")
    if not opened or not rest.endswith(")"):
        return [op_name]
    found, depth, start = [], 0, 0
    for at, char in enumerate(rest):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0 and at < len(rest) - 1:
            return [op_name]  # `jit(f)/(a "b")/dot_general (c)`: a scope with brackets of its own
        if (char == ":" and depth == 0) or depth < 0:
            found.append(f"{head}/{rest[start:at]}")
            start = at + 1
    return list(dict.fromkeys(found)) if len(found) > 1 else [op_name]


def primitive(op_name: str) -> str:
    """JAX's operation at the end of a path: ``dot_general`` of ``jit(f)/while/body/dot_general``.

    "" for the name of an argument, and for no name.
    """
    head, slash, last = op_name.rpartition("/")
    # `transpose(jvp(f)/reduce_sum)`: the path may go on inside of brackets.
    return last.rstrip(")") if slash and "(" in head else ""


def _argument(op_name: str) -> str:
    return "" if not op_name or "/" in op_name or op_name.startswith("jit(") else op_name
