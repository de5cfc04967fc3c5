"""What all routines over a grid share; and the count of benchmarks/linalg_grids.py."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from linalg import grids
from linalg.grids import SENT
from linalg.matrices import DTYPES, assert_close, full, general, hermitian, mesh, positive, put
from linalg.test_inside import inside
from lockstep import _config
from lockstep._config import Config, Link
from lockstep.linalg import _cost_model, _eigh, _grid_model
from lockstep.linalg._grid_model import GridShape
from lockstep.linalg._layout import Grid

ROUTINES: dict[str, tuple[Any, ...]] = {
    "cholesky": (grids.cholesky, la.potrs, positive, 200, 100),
    "lu": (grids.lu, la.solve, general, 90, 10000),
}
"""How a grid is taken, a solver, its matrices, their sizes, and the factor of `assert_close`."""
each_routine = pytest.mark.parametrize("name", ROUTINES)


def test_loops_count_as_often_as_they_run_and_the_cheaper_branch() -> None:
    over = mesh((4,))

    def body(a: Any) -> Any:
        def step(_: Any, a: Any) -> Any:
            return a + lax.psum(a, "x")  # 128 bytes, twice

        a = lax.fori_loop(0, 3, step, a)
        many = jnp.isfinite(lax.all_gather(a, "x")).all()  # 512 bytes of all
        return lax.cond(many, lambda a: a, lambda a: a * lax.psum(a, "x").sum(), a)

    run = jax.jit(jax.shard_map(body, mesh=over, in_specs=P("x"), out_specs=P("x")))
    a = jax.ShapeDtypeStruct((64,), "float64")
    text = run.lower(a).compile().as_text()
    assert SENT(text, 4) == (4, 3 * 2 * 128 * 3 / 4 + 512 * 3 / 4)


def test_the_users_link_decides_about_tiles_and_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    def tile_of(link: str, n: int) -> int:
        monkeypatch.setattr(_config, "current", lambda: Config(linalg_link=Link.parse(link)))
        return _cost_model.cholesky_tile(n, 16, n // 16, "cpu")

    def taken(link: str) -> list[Any]:
        tile, on = tile_of(link, 8192), (16, "cpu")
        return [
            _grid_model.cholesky_grid(8192, 16, tile, None, "cpu"),
            _grid_model.qr_grid(8192, 8192, 16, *on),
            _grid_model.back_transformation_grid(8192, 8192, *on),
        ]

    assert taken("50us,4GB/s") == taken("50us,40GB/s") == [None] * 3
    assert None not in taken("50us,0.1GB/s")
    assert tile_of("1us,4GB/s", 2048) < tile_of("5000us,4GB/s", 2048)


def test_without_a_link_the_constants_count() -> None:
    assert _cost_model.machine("cpu") == _cost_model.CPU
    assert _cost_model.machine("cuda") == _cost_model.GPU


@pytest.fixture
def every_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 x 2 devices for all that can go over a grid."""
    for name in ("lu_grid", "cholesky_grid"):
        monkeypatch.setattr(_grid_model, name, lambda *_: GridShape(2, 2, 2))
    for name in ("qr_grid", "back_transformation_grid"):
        monkeypatch.setattr(_grid_model, name, lambda *_: Grid(2, 2, 1))
    monkeypatch.setattr(_eigh, "REPLICATED_BELOW", 0)
    jax.clear_caches()


@pytest.mark.full
@pytest.mark.usefixtures("every_grid")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
def test_batches_over_devices_in_any_order(order: tuple[int, ...]) -> None:
    over, n = Mesh(np.array(jax.devices())[list(order)].reshape(4), ("x",)), 24
    b = full((3, n), np.float64)
    general, spd = full((n, n), np.float64) + 4 * np.eye(n), positive(n, np.float64)
    for a, solve in ((general, la.solve), (spd, la.potrs)):
        found = jax.vmap(functools.partial(solve, put(a, over, P("x"))))(put(b, over, P()))
        assert_close(found, np.linalg.solve(a, b.T).T, 1000)
    both = np.stack([hermitian(n, np.float64), positive(n, np.float64)])
    where = {"mesh": over, "in_specs": P("x")}
    batch = put(both, over, P(None, "x"))
    values, vectors = jax.vmap(lambda a: la.eigh(a, **where))(batch)
    assert_close(values, np.linalg.eigvalsh(both), 1000)
    assert_close(both @ np.asarray(vectors), np.asarray(vectors) * values[:, None], 1000)
    q, r = jax.vmap(lambda a: la.qr(a, 2, **where))(batch)
    assert_close(np.asarray(q) @ np.asarray(r), both, 1000)
    inverses = jax.vmap(lambda a: la.inv(a, **where))(batch)
    assert_close(inverses, np.linalg.inv(both), 100000)


@pytest.mark.full
@each_routine
@pytest.mark.parametrize("seed", range(8))
def test_random_sizes_and_grids(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take, solve, matrix, most, factor = ROUTINES[name]
    rng = np.random.default_rng(seed)
    rows, columns = [(2, 2), (2, 3), (3, 2), (2, 4), (4, 2)][rng.integers(5)]
    n, dtype = int(rng.integers(1, most)), DTYPES[rng.integers(4)]
    take(monkeypatch, rows, columns, int(rng.integers(1, 12)))
    a, b = matrix(n, dtype, seed), full((n,), dtype, seed)
    sharded = put(a, mesh((rows * columns,)), P())
    assert_close(solve(sharded, b), np.linalg.solve(a, b), factor)
    if name == "cholesky":
        lower = bool(rng.integers(2))
        assert_close(la.cholesky(sharded, lower), scipy.linalg.cholesky(a, lower=lower))


@pytest.mark.full
@each_routine
def test_inside_on_a_part_of_the_mesh_and_its_gradient(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two matrices, each over a grid of the four devices of its row of the mesh."""
    take, _, matrix, *_ = ROUTINES[name]
    taken, over, n = take(monkeypatch, 2, 2, 2), mesh((2, 4)), 24
    a = np.stack([matrix(n, np.float64, seed) for seed in (1, 2)])
    b = full((2, n), np.float64)

    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        if name == "lu":
            return la.lu_solve_shardmap_ctx(a[0], b[0], in_specs=P("y"))[1][None]
        return la.potrs_shardmap_ctx(a[0], b[0], in_specs=P("y"), return_status=False)[None]

    run = inside(solve, over, (P("x", "y"), P("x")), P("x"))
    assert_close(run(a, b), np.linalg.solve(a, b[..., None])[..., 0], 1000)
    assert taken

    def loss(run: Any) -> Any:
        def of(a: Any, b: Any) -> Any:
            given = a if name == "lu" else (a + a.swapaxes(1, 2)) / 2
            return jnp.sum(run(given, b) ** 3)

        return of

    got = jax.jit(jax.grad(loss(run), (0, 1)))(a, b)
    alone = loss(lambda a, b: jnp.linalg.solve(a, b[..., None])[..., 0])
    jax.tree.map(lambda x, y: assert_close(x, y, 1e4), got, jax.grad(alone, (0, 1))(a, b))
