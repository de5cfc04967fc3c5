"""What a random program computes, in NumPy: all devices at once, exactly.

The state has the mesh's axes in front and a device's own axes behind. Integers wrap around in their
own dtype; floating-point numbers are small integers, which every dtype here holds exactly, and are
kept as float64 or complex128.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from engine.random_programs.program import COMPLEX, FLOATS, Groups, Program, Step

MODULUS = 7


def initial(program: Program, number: int = 0) -> np.ndarray:
    """The input of this number: shape [*mesh, *device's shape], in the model's dtype."""
    rng = np.random.default_rng([program.seed, number])
    shape = (*program.mesh.values(), *program.shape)
    values = rng.integers(0, 1 << 30, shape)
    if program.dtype in FLOATS:
        return (values % MODULUS - MODULUS // 2).astype(np.float64)
    if program.dtype in COMPLEX:
        return (values % MODULUS) - 1j * (values // MODULUS % MODULUS)
    return (values % 2 if program.dtype == "bool" else values).astype(program.dtype)


def run(program: Program, state: np.ndarray) -> list[np.ndarray]:
    """The state after each step, from ``state`` on."""
    states = []
    for step in program.steps:
        state = _apply(step, state, program)
        states.append(state)
    return states


def _apply(step: Step, state: np.ndarray, program: Program) -> np.ndarray:
    params = step.params
    if step.op == "mix":
        return _mix(state, program)
    if step.op == "stack":
        at = len(program.mesh) + params["axis"]
        return np.stack([state] * params["count"], axis=at)
    if step.op == "loop":
        for _ in range(params["count"]):
            state = _mix(_apply(params["body"], state, program), program)
        return state
    if step.op == "branch":
        return _apply(params["if_1"] if program.flag else params["if_0"], state, program)
    return _collective(step, state, program)


def _mix(state: np.ndarray, program: Program) -> np.ndarray:
    """Makes the devices differ again, and keeps floating-point numbers small."""
    sizes = tuple(program.mesh.values())
    index = np.arange(math.prod(sizes)).reshape(sizes + (1,) * (state.ndim - len(sizes)))
    if program.dtype == "bool":
        return state ^ (index % 2 == 1)
    if program.dtype in FLOATS:
        return np.mod(state, MODULUS) - index % MODULUS
    if program.dtype in COMPLEX:
        real, imaginary = np.mod(np.real(state), MODULUS), np.mod(np.imag(state), MODULUS)
        return real - index % MODULUS + 1j * imaginary
    return state * state.dtype.type(3) + index.astype(state.dtype)


def _collective(step: Step, state: np.ndarray, program: Program) -> np.ndarray:
    names = list(program.mesh)
    positions = [names.index(axis) for axis in step.axes]
    front = list(range(len(positions)))
    rows = np.moveaxis(state, positions, front)
    members = rows.shape[: len(front)]
    rows = rows.reshape(math.prod(members), *rows.shape[len(front) :])
    groups: Groups = step.params.get("groups") or (tuple(range(len(rows))),)
    others = len(names) - len(front)
    results: dict[int, np.ndarray] = {}
    for group in groups:
        parts = OPERATIONS[step.op](rows[list(group)], others, step)
        results |= dict(zip(group, parts, strict=True))
    out = np.stack([results[i] for i in range(len(rows))])
    out = out.reshape(*members, *out.shape[1:])
    return np.moveaxis(out, front, positions)


Rows = np.ndarray
"""[member of the group, other mesh axes..., device's axes...]"""


def _psum(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    return [rows.sum(0, dtype=rows.dtype)] * len(rows)


def _pmax(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    return [rows.max(0)] * len(rows)


def _pmin(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    return [rows.min(0)] * len(rows)


def _all_gather(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    join = np.concatenate if step.params["tiled"] else np.stack
    return [join(list(rows), axis=others + step.params["axis"])] * len(rows)


def _psum_scatter(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    return _pieces(_psum(rows, others, step)[0], len(rows), others + step.params["axis"], step)


def _all_to_all(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    split, concat = others + step.params["split"], others + step.params["concat"]
    pieces = [_pieces(row, len(rows), split, step) for row in rows]
    join = np.concatenate if step.params["tiled"] else np.stack
    return [join([p[to] for p in pieces], axis=concat) for to in range(len(rows))]


def _pieces(row: np.ndarray, count: int, axis: int, step: Step) -> list[np.ndarray]:
    pieces = np.split(row, count, axis=axis)
    return pieces if step.params["tiled"] else [piece.squeeze(axis) for piece in pieces]


def _ppermute(rows: Rows, others: int, step: Step) -> list[np.ndarray]:
    out = np.zeros_like(rows)
    for source, target in step.params["pairs"]:
        out[target] = rows[source]
    return list(out)


OPERATIONS: dict[str, Callable[[Rows, int, Step], list[np.ndarray]]] = {
    "psum": _psum,
    "pmax": _pmax,
    "pmin": _pmin,
    "all_gather": _all_gather,
    "psum_scatter": _psum_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
}
