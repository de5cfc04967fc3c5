"""The collectives of a compiled program, with the loops that they stand in. Pure.

A collective may be split into ``all-reduce-start`` and ``-done`` (only the start is counted), or
wrapped into a computation of an ``async-start``. A reduction or a gather of several operands is one
instruction, which XLA may have combined from several of the program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.callsites.hlo_text import Frames, SourceLine
from lockstep.hlo import replica_groups, text, usage
from lockstep.hlo.text import Array, Instruction

OPS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
PERMUTE = "collective-permute"
_REDUCING = ("all-reduce", "reduce-scatter")
_REDUCTIONS = {"add": "sum", "multiply": "product", "minimum": "min", "maximum": "max"}
_REDUCTIONS |= {"and": "and", "or": "or", "xor": "xor"}
_TRIPS = re.compile(r"known_trip_count\D+(\d+)")
_COUNTS = re.compile(r"(num_partitions|replica_count)=(\d+)")
_GENERATED = 'is_spmd_generated="true"'
_MAX_STEPS = 8
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a collective."""

    trips: int | None
    """How often its body runs in one execution of the program; None: XLA does not know."""
    op_name: str
    at: SourceLine


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a compiled program, at one place from which it is called."""

    name: str
    """The instruction's name, ``all-reduce.3``."""
    op: str
    """One of `OPS`."""
    channel: int
    reduction: str
    """``sum``, ``max``, ...; "" where nothing is reduced."""
    inputs: tuple[Array, ...]
    """What one device puts in."""
    results: tuple[Array, ...]
    groups: replica_groups.Groups
    """The devices that take part together; empty for a permute."""
    pairs: tuple[tuple[int, int], ...]
    """The (source, target) pairs of a permute."""
    op_name: str
    """JAX's path of the operation, ``jit(step)/while/body/dot_general``, or an argument's name."""
    at: SourceLine
    user_op: str
    """The path of the first operation that uses the result, where there is one."""
    user_at: SourceLine
    """Its line."""
    generated: bool
    """Whether the partitioner says that it has put the collective in (newer jaxlibs do)."""
    loops: tuple[Loop, ...]
    """From the outermost to the innermost."""
    conditional: bool
    """Whether it stands in a branch, so that it may not run."""
    invariant: bool
    """Whether it moves the same data in every iteration of the loop that it stands in."""
    only_sliced: bool
    """Whether the program takes nothing but slices of the result."""
    carried: bool = False
    """Whether the result goes into the next iteration of its loop, and nothing else uses it."""

    @property
    def bytes(self) -> int:
        """What one device puts in, in bytes, each time that it runs."""
        return sum(array.bytes for array in self.inputs)

    @property
    def result_bytes(self) -> int:
        return sum(array.bytes for array in self.results)

    @property
    def executions(self) -> int | None:
        """How often it runs in one execution of the program; None: not known."""
        product = 1
        for loop in self.loops:
            if loop.trips is None:
                return None
            product *= loop.trips
        return product


def devices(program: str) -> int:
    """The number of devices of a compiled program, from its text: partitions x replicas."""
    counts = dict(_COUNTS.findall(program.partition("\n")[0]))
    return int(counts.get("num_partitions", 1)) * int(counts.get("replica_count", 1))


def find(program: str) -> tuple[Collective, ...]:
    """The collectives in the text of a compiled program, in the order of the text.

    Raises ValueError for a text that is none, and for replica groups of an unknown form.
    """
    return tuple(_Reader(program).walk())


def trips(loop: Instruction) -> int | None:
    """How often the body of a ``while`` runs; None: XLA does not know."""
    found = _TRIPS.search(loop.attribute("backend_config")) or _TRIPS.search(loop.attributes)
    return int(found[1]) if found else None


class _Reader:
    def __init__(self, program: str) -> None:
        self.module = text.parse(program)
        self.frames = Frames(program)
        self.devices = devices(program)

    def walk(self) -> Iterator[Collective]:
        yield from self._computation(self.module.entry, (), False, 0)

    def _computation(
        self, name: str, loops: tuple[Loop, ...], conditional: bool, depth: int
    ) -> Iterator[Collective]:
        if depth > _MAX_DEPTH:
            raise ValueError("the computations of the program call each other without an end")
        for each in self.module.computations.get(name, {}).values():
            op = each.opcode.removesuffix("-start")
            if op in OPS:
                yield self._collective(each, op, name, loops, conditional)
            elif each.opcode == "while":
                inner = (*loops, self._loop(each))
                for body in (*each.named("condition"), *each.named("body")):
                    yield from self._computation(body, inner, conditional, depth + 1)
            elif each.opcode == "conditional":
                branches = each.named("branch_computations")
                branches += each.named("true_computation") + each.named("false_computation")
                for branch in branches:
                    yield from self._computation(branch, loops, True, depth + 1)
            elif each.opcode in ("call", "async-start"):
                for callee in each.named("to_apply") + each.named("calls"):
                    yield from self._computation(callee, loops, conditional, depth + 1)

    def _loop(self, instruction: Instruction) -> Loop:
        op_name, at = self._origin(instruction)
        return Loop(trips(instruction), op_name, at)

    def _collective(
        self,
        instruction: Instruction,
        op: str,
        computation: str,
        loops: tuple[Loop, ...],
        conditional: bool,
    ) -> Collective:
        around = self.module.computations[computation]
        inputs = tuple(
            array
            for operand in instruction.operands
            if operand in around
            for array in around[operand].arrays
        )
        op_name, at = self._traced(instruction, computation)
        user = self._user(computation, instruction.name)
        user_op, user_at = self._origin(user) if user else ("", SourceLine())
        permute = op == PERMUTE
        channel = instruction.attribute("channel_id")
        return Collective(
            name=instruction.name,
            op=op,
            channel=int(channel) if channel.isdigit() else 0,
            reduction=self._reduction(instruction) if op in _REDUCING else "",
            inputs=inputs,
            results=_results(instruction, op, len(inputs)),
            groups=()
            if permute
            else replica_groups.parse(instruction.attribute("replica_groups"), self.devices),
            pairs=replica_groups.parse_pairs(instruction.attribute("source_target_pairs")),
            op_name=op_name,
            at=at,
            user_op=user_op,
            user_at=user_at,
            generated=_GENERATED in instruction.attributes,
            loops=loops,
            conditional=conditional,
            invariant=bool(loops)
            and all(usage.is_invariant(self.module, computation, o) for o in instruction.operands),
            only_sliced=usage.is_only_sliced(self.module, computation, instruction.name),
            carried=bool(loops) and usage.is_carried(self.module, computation, instruction.name),
        )

    def _reduction(self, instruction: Instruction) -> str:
        for name in instruction.named("to_apply"):
            for each in self.module.computations.get(name, {}).values():
                if each.opcode in _REDUCTIONS:
                    return _REDUCTIONS[each.opcode]
        return ""

    def _origin(self, instruction: Instruction) -> tuple[str, SourceLine]:
        """The operation's path, and its line; "" and nothing where there are none."""
        return instruction.op_name, self.frames.source_line(instruction.attribute("metadata"))

    def _traced(self, instruction: Instruction, computation: str) -> tuple[str, SourceLine]:
        """The origin of an instruction; for one without a line (a resharding), of its operand."""
        around = self.module.computations[computation]
        first, at = self._origin(instruction)
        each, op_name = instruction, first
        for _ in range(_MAX_STEPS):
            if at.file or len(each.operands) != 1 or each.operands[0] not in around:
                break
            each = around[each.operands[0]]
            op_name, at = self._origin(each)
        return first or op_name, at

    def _user(self, computation: str, name: str) -> Instruction | None:
        """The first instruction that uses the result and has a line."""
        for _ in range(_MAX_STEPS):
            users = list(self.module.users(computation, name))
            for each in users:
                if self._origin(each)[1].file:
                    return each
            if not users:
                break
            name = users[0].name
        return None


def _results(instruction: Instruction, op: str, inputs: int) -> tuple[Array, ...]:
    given = instruction.arrays
    if instruction.opcode.endswith("-start") and op != "all-reduce":
        # The start gives its operands, its results, and what the machine needs besides.
        return given[inputs : 2 * inputs]
    return given
