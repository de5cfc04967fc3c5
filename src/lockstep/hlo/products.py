"""Counts the flops of the matrix products and convolutions of a compiled program. Pure.

XLA's own account has the body of a loop once; here it counts as often as it runs.
"""

from __future__ import annotations

import math
import re

from lockstep.hlo import collectives, text
from lockstep.hlo.text import Array, Instruction, Module

_NUMBERS = re.compile(r"\d+")
_MAX_DEPTH = 64


def flops(program: str) -> float:
    """Counts operations of one device in one execution, in a condition those of the larger branch.

    A loop of unknown length counts once.
    """
    module = text.parse(program)
    return _of_computation(module, module.entry, 0)


def _of_computation(module: Module, name: str, depth: int) -> float:
    if depth > _MAX_DEPTH:
        return 0.0
    around = module.computations.get(name, {})
    found = 0.0
    for each in around.values():
        if each.opcode in ("dot", "convolution"):
            operands = [around[name].arrays[0] for name in each.operands if name in around]
            found += _of_product(each, operands)
        elif each.opcode == "while":
            trips = collectives.trips(each) or 1
            found += trips * sum(_called(module, each, ("condition", "body"), depth))
        elif each.opcode == "conditional":
            branches = ("branch_computations", "true_computation", "false_computation")
            found += max(_called(module, each, branches, depth), default=0.0)
        elif each.opcode in ("fusion", "call", "async-start", "custom-call"):
            found += sum(_called(module, each, ("calls", "to_apply"), depth))
    return found


def _called(
    module: Module, each: Instruction, attributes: tuple[str, ...], depth: int
) -> list[float]:
    names = [name for attribute in attributes for name in each.named(attribute)]
    return [_of_computation(module, name, depth + 1) for name in names]


def _of_product(each: Instruction, operands: list[Array]) -> float:
    """A multiplication and an addition for each element of the result and of what is summed."""
    if len(operands) < 2:
        return 0.0
    left, right = operands[:2]
    results = each.arrays[0].elements
    if each.opcode == "dot":
        summed = map(int, _NUMBERS.findall(each.attribute("lhs_contracting_dims")))
        return 2.0 * results * math.prod(left.shape[axis] for axis in summed)
    # `b01f_01io->b01f`: the kernel's elements for each of its output features.
    kernel = each.attribute("dim_labels").partition("_")[2].partition("->")[0]
    outputs = right.shape[kernel.index("o")] if "o" in kernel else 1
    return 2.0 * results * right.elements / max(1, outputs)
