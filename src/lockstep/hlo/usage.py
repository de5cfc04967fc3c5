"""How the operand or the result of an instruction is used in a compiled program. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lockstep.hlo.text import Instruction, Module

_SLICES = ("slice", "dynamic-slice")
_BY_THE_PROGRAM = re.compile(r'op_name="[^"]*/(slice|dynamic_slice|squeeze|split|gather)"')
"""The partitioner slices too, for a resharding: its slices have the path of another operation."""
_RENAMES = ("bitcast", "reshape", "copy", "transpose", "convert")
_MAX_STEPS = 16


def is_invariant(module: Module, body: str, operand: str) -> bool:
    """Whether an operand in the body of a loop is the same in every iteration.

    It is if it comes from an element of the loop's state that the body passes on unchanged. False
    where that cannot be seen.
    """
    around = module.computations[body]
    source = _source(around, operand)
    if source is None or source.opcode != "get-tuple-element" or body not in module.roots:
        return False
    parameter = around.get(source.operands[0])
    root = around[module.roots[body]]
    index = int(source.attribute("index") or -1)
    if parameter is None or parameter.opcode != "parameter" or root.opcode != "tuple":
        return False
    if not 0 <= index < len(root.operands):
        return False
    passed = _source(around, root.operands[index])
    return (
        passed is not None
        and passed.opcode == "get-tuple-element"
        and passed.operands == source.operands
        and passed.attribute("index") == source.attribute("index")
    )


def is_only_sliced(module: Module, computation: str, name: str) -> bool:
    """Whether all uses of a result are slices that the program takes; False without a use."""
    uses = list(_uses(module, computation, name, 0))
    return bool(uses) and all(
        use.opcode in _SLICES and bool(_BY_THE_PROGRAM.search(use.attribute("metadata")))
        for use in uses
    )


def is_carried(module: Module, body: str, name: str) -> bool:
    """Whether a result goes into the next iteration of the loop as it is.

    On the way to the state that the body gives, nothing of the program may use it: only moves of
    elements, which have no path of an operation.
    """
    for _ in range(_MAX_STEPS):
        users = {each.name: each for each in module.users(body, name)}
        if len({each.opcode == "get-tuple-element" for each in users.values()}) != 1:
            return False
        if all(each.opcode == "get-tuple-element" for each in users.values()):
            # The pieces of an all-to-all, which one instruction puts together.
            users = {user.name: user for each in users for user in module.users(body, each)}
        if len(users) != 1:
            return False
        [(name, user)] = users.items()
        if name == module.roots.get(body):
            return user.opcode == "tuple"
        if "op_name=" in user.attribute("metadata"):
            return False
    return False


def _source(around: Mapping[str, Instruction], name: str) -> Instruction | None:
    each = around.get(name)
    for _ in range(_MAX_STEPS):
        if each is None or each.opcode not in _RENAMES:
            return each
        each = around.get(each.operands[0])
    return None


def _uses(module: Module, computation: str, name: str, depth: int) -> Iterator[Instruction]:
    around = module.computations[computation]
    for user in module.users(computation, name):
        if user.opcode == "fusion" and depth < _MAX_STEPS:
            for callee in user.named("calls"):
                inner = _parameters(module, callee)
                for at, operand in enumerate(user.operands):
                    if operand == name and at < len(inner):
                        yield from _uses(module, callee, inner[at], depth + 1)
        elif user.opcode in _RENAMES and user.name in around and depth < _MAX_STEPS:
            yield from _uses(module, computation, user.name, depth + 1)
        else:
            yield user
    if module.roots.get(computation) == name and depth == 0:
        yield around[name]


def _parameters(module: Module, computation: str) -> list[str]:
    """The parameters of a computation in their order."""
    found = [
        i for i in module.computations.get(computation, {}).values() if i.opcode == "parameter"
    ]
    return [each.name for each in sorted(found, key=lambda each: each.number)]
