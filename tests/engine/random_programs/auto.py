"""Random programs whose collectives `jit` inserts: array operations under changing shardings.

The same function applies a step in NumPy, where a sharding means nothing, and in JAX.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.random_programs.program import (
    FLOATS,
    INTEGERS,
    Program,
    Shape,
    Step,
    draw_devices,
    draw_mesh,
)

Spec = tuple[tuple[str, ...], ...]
"""For each axis of the array, the mesh axes that divide it."""

_MODULUS = 5
_SIZES = (1, 3, 4, 6, 8, 12, 16, 24)


class AutoProgram(Program):
    """A program whose `shape` is the whole array's."""

    def what(self) -> str:
        return "under jit"


def generate(seed: int, devices: int) -> AutoProgram:
    """The program with this seed for a job of so many devices."""
    rng = random.Random(f"auto/{seed}/{devices}")
    chosen = draw_devices(rng, devices)
    mesh = draw_mesh(rng, len(chosen))
    shape = tuple(rng.choice(_SIZES) for _ in range(rng.randrange(1, 4)))
    dtype = rng.choice((*INTEGERS, *FLOATS))
    steps = []
    for _ in range(rng.randrange(1, 4)):
        steps.append(Step("constrain", (), {"spec": _draw_spec(rng, mesh, shape)}))
        op = rng.choice(("roll", "flip", "sort", "total", "product", "largest"))
        axis = rng.randrange(len(shape))
        amount = rng.randrange(1, 4) if op == "roll" else None
        steps.append(Step(op, (), {"axis": axis, "amount": amount}))
    return AutoProgram(seed, chosen, mesh, dtype, shape, 0, tuple(steps))


def _draw_spec(rng: random.Random, mesh: dict[str, int], shape: Shape) -> Spec:
    spec: list[tuple[str, ...]] = [() for _ in shape]
    for axis in rng.sample(list(mesh), len(mesh)):
        dimension = rng.randrange(len(shape))
        divided = (*spec[dimension], axis)
        if shape[dimension] % math.prod(mesh[a] for a in divided) == 0:
            spec[dimension] = divided
    return tuple(spec)


def initial(program: AutoProgram) -> np.ndarray:
    rng = np.random.default_rng(program.seed)
    values = rng.integers(0, _MODULUS, program.shape)
    return values.astype(np.float64 if program.dtype in FLOATS else program.dtype)


def run(program: AutoProgram) -> list[np.ndarray]:
    """The state after each step; floating-point numbers are small integers, kept as float64."""
    state, states = initial(program), []
    for step in program.steps:
        state = apply(step, state, np, lambda x, _: x)
        states.append(state)
    return states


def apply(step: Step, x: Any, xp: Any, constrain: Callable[[Any, Spec], Any]) -> Any:
    """One step with the functions of `xp`; keeps the shape, the dtype, and numbers small."""
    if step.op == "constrain":
        return constrain(x, step.params["spec"])
    axis = step.params["axis"]
    match step.op:
        case "roll":
            return xp.roll(x, step.params["amount"], axis)
        case "flip":
            return xp.flip(x, axis)
        case "sort":
            return xp.sort(x, axis)
        case "total":
            return (x + xp.sum(x, axis, dtype=x.dtype, keepdims=True)) % _MODULUS
        case "largest":
            return (x + xp.max(x, axis, keepdims=True)) % _MODULUS
        case "product":
            gram = xp.tensordot(x, x, ((axis,), (axis,))) % _MODULUS
            return (x + xp.max(gram).astype(x.dtype)) % _MODULUS
    raise ValueError(step.op)
