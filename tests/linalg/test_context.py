"""The ``_shardmap_ctx`` forms: inside a jax.jit, as jaxmg calls them, and inside a shard_map."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la
from lanes import sample
from linalg.matrices import assert_close, full, mesh, put

M, N = 24, 8


def check(found: dict[str, Any], a: np.ndarray, b: np.ndarray) -> None:
    q, r, status = found["qr"]
    assert_close(np.asarray(q) @ np.asarray(r), a)
    assert_close(np.asarray(q).T @ np.asarray(q), np.eye(N))
    statuses = [status]
    same_a, same_b, x, status = found["least_squares"]
    assert_close(same_a, a)
    assert_close(same_b, b)
    assert_close(x, np.linalg.lstsq(a, b)[0], 1000)
    statuses.append(status)
    _, u, s, vh, status = found["gesvd"]
    assert_close((np.asarray(u) * np.asarray(s)) @ np.asarray(vh), a)
    statuses.append(status)
    u, h, status = found["polar"]
    assert_close(np.asarray(u) @ np.asarray(h), a)
    assert [x.tolist() for x in (*statuses, status)] == [[0]] * 4


def call(a: jax.Array, b: jax.Array, **where: Any) -> dict[str, Any]:
    return {
        "qr": la.qr_shardmap_ctx(a, 2, **where),
        "least_squares": la.least_squares_shardmap_ctx(a, b, 2, **where),
        "gesvd": la.gesvd_shardmap_ctx(a, 2, **where),
        "polar": la.polar_shardmap_ctx(a, 2, **where),
    }


@pytest.mark.full
def test_inside_a_jit() -> None:
    over, specs = mesh((2,)), P("x", None)
    a, b = full((M, N), np.float64), full((M, 3), np.float64, 1)
    run = jax.jit(functools.partial(call, mesh=over, matrix_specs=specs))
    check(run(put(a, over, specs), put(b, over, P())), a, b)


@sample(("shape", "spec"), [((2,), P("x")), ((2, 2), P("y", "x"))], 0)
def test_inside_a_shard_map(shape: tuple[int, ...], spec: P) -> None:
    over = mesh(shape)
    a, b = full((M, N), np.float64), full((M, 3), np.float64, 1)
    run = functools.partial(call, in_specs=spec)
    out = {
        "qr": (spec, spec, P()),
        "least_squares": (spec, P(), P(), P()),
        "gesvd": (spec, spec, P(), spec, P()),
        "polar": (spec, spec, P()),
    }
    mapped = jax.shard_map(run, mesh=over, in_specs=(spec, P()), out_specs=out, check_vma=False)
    check(jax.jit(mapped)(put(a, over, spec), put(b, over, P())), a, b)


def hermitian(a: jax.Array, b: jax.Array) -> Any:
    logdet = la.potrs_shardmap_ctx(a, b, T_A=2, return_logdet=True)[2]
    values = la.syevd_shardmap_ctx(a, T_A=2, return_eigenvectors=False)[1]
    return la.potrs_shardmap_ctx(a, b, 2), la.syevd_shardmap_ctx(a, 2), logdet, values


@sample("types", [AxisType.Auto, AxisType.Explicit], 1)
def test_matrices_in_a_jit_as_netket_3_23_passes_them(types: AxisType) -> None:
    """Without a mesh and specs: those are the ones of the context, or of the types."""
    over = jax.make_mesh((2,), ("S",), axis_types=(types,))
    square = full((N, N), np.float64)
    a, b = square @ square.T + np.eye(N), full((N,), np.float64, 1)
    with jax.set_mesh(over):
        found = jax.jit(hermitian)(put(a, over, P("S", None)), put(b, over, P()))
        (same_a, x, s1), (also_a, values, vectors, s2), logdet, alone = found
        for same in (same_a, also_a):
            assert_close(same, a)
        assert vectors.sharding.spec == P("S", None)
        u = np.asarray(vectors)
    assert [s1.tolist(), s2.tolist()] == [[0], [0]]
    assert_close(x, np.linalg.solve(a, b), 1000)
    assert_close(logdet, np.linalg.slogdet(a)[1])
    assert_close(alone, values)
    assert_close((u * np.asarray(values)) @ u.T, a, 1000)


def test_a_matrix_that_is_not_positive_definite_in_a_jit_has_its_status() -> None:
    over = mesh((2,))
    a = put(-np.eye(N), over, P("x", None))
    solve = functools.partial(la.potrs_shardmap_ctx, mesh=over, matrix_specs=P("x", None))
    _, x, status = jax.jit(solve)(a, put(np.ones(N), over, P()))
    assert status.tolist() == [1]
    assert np.isnan(np.asarray(x)).all()


def test_errors() -> None:
    with pytest.raises(ValueError, match="polar: a is 4 x 8; expected at least as many rows"):
        la.polar_shardmap_ctx(put(np.ones((4, 8)), mesh((2,)), P("x")), 2)
