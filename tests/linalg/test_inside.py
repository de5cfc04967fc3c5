"""The solvers inside a `jax.shard_map` of the caller's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, full, hermitian, mesh, positive, put

EYE: Any = np.eye(8)


def inside(function: Callable[..., Any], over: Mesh, in_specs: Any, out_specs: Any) -> Any:
    mapped = jax.shard_map(
        function, mesh=over, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return jax.jit(mapped)


def test_jaxmg_calls_as_they_are() -> None:
    over, n = mesh((4,)), 32
    a, b = positive(n, np.float64), full((n, 2), np.float64)
    sharded, rhs = put(a, over, P("x", None)), put(b, over, P(None, None))
    solve = inside(
        functools.partial(la.potrs_shardmap_ctx, T_A=4),
        over,
        (P("x", None), P(None, None)),
        (P(None, None), P(None)),
    )
    x, status = solve(sharded, rhs)
    assert_close(x, np.linalg.solve(a, b))
    assert status.tolist() == [0]
    invert = inside(
        functools.partial(la.potri_shardmap_ctx, T_A=4),
        over,
        (P("x", None),),
        (P("x", None), P(None)),
    )
    inverse, status = invert(sharded)
    assert_close(inverse, np.linalg.inv(a))
    assert status.tolist() == [0]


@sample(
    ("spec", "b_spec", "trans"),
    [(P("x"), P(), 0), (P("x", "y"), P("x"), 1), (P(None, ("y", "x")), P(), 2)],
    1,
)
def test_general_matrices(spec: P, b_spec: P, trans: int) -> None:
    over, n = mesh((2, 2)), 24
    a, b = full((n, n), np.complex128), full((n, 2), np.complex128)

    def solve(a: Any, b: Any) -> Any:
        return la.lu_solve_shardmap_ctx(a, b, 3, matrix_specs=(spec, b_spec), trans=trans)

    run = inside(solve, over, (spec, b_spec), (spec, b_spec, P(None)))
    kept, x, status = run(put(a, over, spec), put(b, over, b_spec))
    np.testing.assert_array_equal(kept, a)
    assert_close(x, np.linalg.solve((a, a.T, a.conj().T)[trans], b), 1000)
    assert status.tolist() == [0]
    _, x, status = run(put(np.zeros_like(a), over, spec), put(b, over, b_spec))
    assert status.tolist() == [1]
    assert np.isnan(np.asarray(x)).all()


def test_jaxmg_context_call_outside_of_shard_map() -> None:
    """jaxmg's own example: an array of the whole matrix, in the caller's `jax.jit`."""
    over, n = mesh((2, 2), AxisType.Explicit), 32

    @jax.jit
    def build_and_solve() -> jax.Array:
        a = jnp.diag(jnp.arange(1.0, n + 1) + n) + jnp.diag(jnp.full((n - 1,), 0.25), k=1)
        a = jax.reshard(a, jax.sharding.NamedSharding(over, P("x", "y")))
        b = jax.reshard(a @ jnp.ones(n), jax.sharding.NamedSharding(over, P("x")))
        return la.lu_solve_shardmap_ctx(a, b, T_A=8, mesh=over, matrix_specs=P("x", "y"))[1]

    with jax.set_mesh(over):
        assert_close(build_and_solve(), np.ones(n))


@pytest.mark.full
def test_gradient_of_a_general_solution_inside() -> None:
    over, n = mesh((2,)), 12
    a, b = full((n, n), np.float64), full((n,), np.float64)

    def solve(a: Any, b: Any) -> Any:
        return la.lu_solve_shardmap_ctx(a, b, 2)[1]

    mapped = inside(solve, over, (P("x"), P()), P())
    ours = jax.grad(lambda a, b: jnp.sum(mapped(a, b) ** 2), (0, 1))
    alone = jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) ** 2), (0, 1))
    got, wanted = jax.jit(ours)(put(a, over, P("x")), b), jax.jit(alone)(a, b)
    jax.tree.map(lambda x, y: assert_close(x, y, 1000), got, wanted)


def test_eigenvalues_and_vectors() -> None:
    over, n = mesh((4,)), 32
    a = hermitian(n, np.float64)
    sharded = put(a, over, P("x", None))
    decompose = inside(
        functools.partial(la.syevd_shardmap_ctx, T_A=4),
        over,
        (P("x", None),),
        (P(None), P("x", None), P(None)),
    )
    values, vectors, status = decompose(sharded)
    assert_close(values, np.linalg.eigvalsh(a))
    assert_close(np.asarray(vectors) * np.asarray(values), a @ np.asarray(vectors))
    assert_close(np.asarray(vectors).T @ np.asarray(vectors), np.eye(n))
    assert status.tolist() == [0]
    values_only = inside(
        functools.partial(la.syevd_shardmap_ctx, return_eigenvectors=False),
        over,
        (P("x", None),),
        (P(None), P(None)),
    )
    values, status = values_only(sharded)
    assert_close(values, np.linalg.eigvalsh(a))


@sample(
    ("spec", "b_spec", "lower"),
    [(P("x", "y"), P("y"), None), (P(None, ("x", "y")), P("x", None), True), (P("y"), P(), False)],
    1,
)
def test_other_splits_and_one_triangle(spec: P, b_spec: P, lower: bool | None) -> None:
    over, n = mesh((2, 2)), 20
    a, b = positive(n, np.complex128), full((n, 3), np.complex128)
    given = a
    if lower is not None:  # only the triangle that is named is read
        keep = np.tri(n, dtype=bool) if lower else np.tri(n, dtype=bool).T
        given = np.where(keep, a, 1e6)

    def solve(a: jax.Array, b: jax.Array) -> Any:
        return la.potrs_shardmap_ctx(
            a,
            b,
            3,
            in_specs=(spec, b_spec),
            lower=lower,
            return_logdet=True,
            return_status=False,
        )

    run = inside(solve, over, (spec, b_spec), (b_spec, P()))
    x, logdet = run(put(given, over, spec), put(b, over, b_spec))
    assert_close(x, np.linalg.solve(a, b))
    assert_close(logdet, np.linalg.slogdet(a)[1])


def test_an_axis_that_is_not_named_carries_a_batch() -> None:
    """Two matrices, each over the two devices of its row of the mesh."""
    over, n = mesh((2, 2)), 12
    a = np.stack([positive(n, np.float64, seed) for seed in (1, 2)])
    b = full((2, n), np.float64)

    def solve(a: jax.Array, b: jax.Array) -> jax.Array:
        x = la.potrs_shardmap_ctx(a[0], b[0], 2, in_specs=P("y"), return_status=False)
        return x[None]

    x = inside(solve, over, (P("x", "y"), P("x")), P("x"))(a, b)
    assert_close(x, np.linalg.solve(a, b[..., None])[..., 0])


def test_status_of_a_matrix_that_is_not_positive_definite() -> None:
    over, n = mesh((4,)), 24
    a = positive(n, np.float64)
    a[6, 6] = -1
    specs = (P("x"), P())
    solve = inside(la.potrs_shardmap_ctx, over, specs, (P(), P(None)))
    x, status = solve(put(a, over, P("x")), np.ones(n))
    assert status.tolist() == [7]
    assert np.isnan(np.asarray(x)).all()


@pytest.mark.full
def test_gradient() -> None:
    over, n = mesh((2,)), 8
    a, b = positive(n, np.float64), full((n,), np.float64)

    def solve(a: jax.Array, b: jax.Array) -> Any:
        return la.potrs_shardmap_ctx(a, b, 2, return_logdet=True, return_status=False)

    run = inside(solve, over, (P("x"), P()), (P(), P()))

    def ours(a: jax.Array, b: jax.Array) -> jax.Array:
        x, logdet = run((a + a.T) / 2, b)
        return jnp.sum(x**3) + logdet

    def alone(a: jax.Array, b: jax.Array) -> jax.Array:
        a = (a + a.T) / 2
        return jnp.sum(jnp.linalg.solve(a, b) ** 3) + jnp.linalg.slogdet(a)[1]

    got = jax.grad(ours, (0, 1))(put(a, over, P("x")), put(b, over, P()))
    jax.tree.map(assert_close, got, jax.grad(alone, (0, 1))(a, b))


def call(a_shape: tuple[int, ...], spec: P, check_vma: bool = False, **options: Any) -> Any:
    over = mesh((2, 2))

    def solve(a: Any, b: Any) -> jax.Array:
        options.setdefault("return_status", False)
        return la.potrs_shardmap_ctx(a, b, **options)

    mapped = jax.shard_map(
        solve, mesh=over, in_specs=(spec, P()), out_specs=P(), check_vma=check_vma
    )
    return mapped(np.ones(a_shape), np.ones(8))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: la.potri_shardmap_ctx(EYE), "not inside jax.shard_map. Call"),
        (lambda: call((8, 8), P("x"), check_vma=True), "needs jax.shard_map.*check_vma=False"),
        (lambda: call((8, 8), P("x")), r"a shard of shape \(4, 8\).*means a matrix of 16 x 8"),
        (lambda: call((8, 8), P(), in_specs=P()), "every device has the whole matrix"),
        (lambda: call((8, 8), P("x"), in_specs=P("z")), "names 'z'; the mesh is"),
        (lambda: call((12, 12), P("x"), in_specs=P("x")), r"a shard of b has shape \(8,\)"),
        (lambda: call((8, 8), P("x"), in_specs=(P("x"), P("y"))), "of b names 'y'; the mesh is"),
    ],
    ids=range(7),
)
def test_error(run: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        run()
