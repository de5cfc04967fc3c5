"""Meshes of one to three axes over shuffled devices: many groups that look alike to the engine.

XLA tells the engine a group's first device and the caller's position, and nothing else. Groups
along different axes, and of different meshes, often agree in both: here many do.
"""

from __future__ import annotations

import itertools

import jax
import numpy as np
from checks import assert_shards, check, mapped, run_all, sharded
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

jax.distributed.initialize()

N = jax.device_count()
AXES = ("x", "y", "z")
SHAPES = {
    1: [(1,)],
    3: [(3,), (3, 1), (1, 3)],
    4: [(4,), (2, 2), (4, 1), (2, 1, 2)],
    8: [(8,), (2, 4), (4, 2), (2, 2, 2), (8, 1), (1, 2, 4)],
}[N]


def subsets(axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Every choice of axes, and all of them backwards: the order decides a group's positions."""
    choices = [c for k in range(1, len(axes) + 1) for c in itertools.combinations(axes, k)]
    return [*choices, axes[::-1]] if len(axes) > 1 else choices


def values(mesh: Mesh) -> np.ndarray:
    return np.random.default_rng(3).integers(-50, 50, (*mesh.devices.shape, 3), np.int32)


def summed(x: np.ndarray, mesh: Mesh, axes: tuple[str, ...]) -> np.ndarray:
    where = tuple(mesh.axis_names.index(axis) for axis in axes)
    return np.broadcast_to(x.sum(where, keepdims=True, dtype=x.dtype), x.shape)


def gathered(x: np.ndarray, mesh: Mesh, axes: tuple[str, ...]) -> np.ndarray:
    """What all_gather over ``axes`` leaves on each device: the rows of its group, in order."""
    where = [mesh.axis_names.index(axis) for axis in axes]
    sizes = [x.shape[axis] for axis in where]
    result = np.empty((*x.shape[:-1], int(np.prod(sizes)) * x.shape[-1]), x.dtype)
    for position in np.ndindex(x.shape[:-1]):
        rows = []
        for steps in np.ndindex(*sizes):
            other = list(position)
            for axis, step in zip(where, steps, strict=True):
                other[axis] = step
            rows.append(x[tuple(other)])
        result[position] = np.concatenate(rows)
    return result


def meshes(count: int) -> list[Mesh]:
    rng = np.random.default_rng(1)
    devices = np.array(jax.devices())
    shapes = itertools.islice(itertools.cycle(SHAPES), count)
    return [Mesh(rng.permutation(devices).reshape(s), AXES[: len(s)]) for s in shapes]


def everything_over(mesh: Mesh, choices: list[tuple[str, ...]]) -> None:
    """Sums and gathers over every choice of axes, in one program."""
    x = values(mesh)
    spec = P(*mesh.axis_names)
    function = mapped(
        lambda a: [
            (lax.psum(a, axes), lax.all_gather(a, axes, axis=a.ndim - 1, tiled=True))
            for axes in choices
        ],
        mesh,
        spec,
        spec,
    )
    for axes, (total, rows) in zip(choices, function(sharded(x, mesh, spec)), strict=True):
        assert_shards(total, summed(x, mesh, axes), f"psum over {axes} of {mesh}")
        assert_shards(rows, gathered(x, mesh, axes), f"all_gather over {axes} of {mesh}")


@check
def every_choice_of_axes_of_shuffled_meshes() -> None:
    for mesh in meshes(len(SHAPES) + 2):
        everything_over(mesh, subsets(mesh.axis_names))


@check
def one_program_after_the_other_on_many_meshes() -> None:
    for mesh in meshes(12)[2:]:
        x = values(mesh)
        spec = P(*mesh.axis_names)
        axes = mesh.axis_names[-1:]
        function = mapped(lambda a, axes=axes: lax.psum(a, axes), mesh, spec, spec)
        assert_shards(function(sharded(x, mesh, spec)), summed(x, mesh, axes), str(mesh))


@check
def first_along_one_axis_then_over_all() -> None:
    # The groups of the second sum begin with the same devices as some of the first.
    for mesh in meshes(2 * len(SHAPES)):
        x, spec = values(mesh), P(*mesh.axis_names)
        last, whole = mesh.axis_names[-1:], mesh.axis_names

        def twice(a: jax.Array, last=last, whole=whole) -> jax.Array:
            return lax.psum(lax.psum(a, last) + a, whole)

        first = summed(x, mesh, last) + x
        got = mapped(twice, mesh, spec, spec)(sharded(x, mesh, spec))
        assert_shards(got, summed(first, mesh, whole), str(mesh))


@check
def products_of_sharded_matrices() -> None:
    # The compiler chooses the groups here.
    a = np.random.default_rng(7).integers(-4, 4, (24, 24)).astype(np.float32)
    for mesh in meshes(len(SHAPES)):
        if len(mesh.axis_names) < 2:
            continue
        rows, columns = sharded(a, mesh, P("x", "y")), sharded(a, mesh, P("y", "x"))
        got = jax.jit(
            lambda p, q: (p @ q, (p.T @ q).sum(0)),
            out_shardings=(
                jax.sharding.NamedSharding(mesh, P("x", "y")),
                jax.sharding.NamedSharding(mesh, P()),
            ),
        )(rows, columns)
        assert_shards(got[0], a @ a, str(mesh))
        assert_shards(got[1], (a.T @ a).sum(0), str(mesh))


@check
def changes_of_sharding() -> None:
    a = np.arange(24 * 24, dtype=np.int32).reshape(24, 24)
    specs = [P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x")), P("y"), P()]
    for mesh in [m for m in meshes(len(SHAPES)) if len(m.axis_names) == 2][:2]:
        for before, after in itertools.pairwise(specs):
            move = jax.jit(lambda v: v + 1, out_shardings=jax.sharding.NamedSharding(mesh, after))
            assert_shards(move(sharded(a, mesh, before)), a + 1, f"{before} to {after}")


run_all()
