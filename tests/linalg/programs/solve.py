"""Every process solves, inverts and decomposes the same sharded matrices, and checks its shards.

With the argument "quick" there are fewer, and XLA optimizes nothing, which is most of the time.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
import quick
import scipy.linalg
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from quick import assert_shards

import lockstep.linalg as la
from lockstep.linalg import _cost_model, _grid_model

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
N = 64
rng = np.random.default_rng(0)
q, _ = np.linalg.qr(rng.standard_normal((N, N)))
A = (q * np.linspace(1, 9, N)) @ q.T
A = (A + A.T) / 2
B = rng.standard_normal((N, 3))


def check_numpy(mesh: jax.sharding.Mesh) -> None:
    """Without a mesh each process would solve it alone; with one it is distributed."""
    calls = (lambda: la.potrs(A, B), lambda: la.inv(A), lambda: la.eigh(A), lambda: la.cholesky(A))
    for call in calls:
        with pytest.raises(ValueError, match=r"a is a numpy\.ndarray, which has no sharding"):
            call()
    x = la.potrs(A, B, mesh=mesh, in_specs=(P("x"), P()))
    assert len(x.sharding.device_set) == jax.device_count()
    assert_shards(x, np.linalg.solve(A, B))
    [device] = la.potrs(jax.numpy.asarray(A), B).devices()  # of this process alone
    assert device.process_index == jax.process_index()


def check_general(mesh: jax.sharding.Mesh, spec: P, b: jax.Array) -> None:
    """Both ways to find pivots, and factors that are LAPACK's."""
    general = A @ np.diag(np.linspace(1, 2, N)) + np.triu(A)
    sharded = jax.device_put(general, NamedSharding(mesh, spec))
    for tile, tournament in ((16, False), (8, True))[1 if quick.QUICK else 0 :]:
        _cost_model.lu_by_tournament = lambda *_, tournament=tournament: tournament
        x, status = la.solve(sharded, b, tile=tile, return_status=True)
        assert_shards(x, np.linalg.solve(general, B))
        assert int(status) == 0
    packed, pivots = la.lu_factor(sharded)
    wanted, wanted_pivots = scipy.linalg.lu_factor(general)
    assert_shards(packed, wanted)
    np.testing.assert_array_equal(pivots.addressable_data(0), wanted_pivots)
    assert_shards(la.lu_solve((packed, pivots), b), np.linalg.solve(general, B))


def check_grid(a: jax.Array, b: jax.Array) -> None:
    """The factorizations over rows and columns of devices, two of which are in one process."""
    real, real_lu = _grid_model.cholesky_grid, _grid_model.lu_grid
    _grid_model.cholesky_grid = lambda *_: _grid_model.GridShape(2, 2, 5)
    assert_shards(la.potrs(a, b), np.linalg.solve(A, B))
    assert_shards(la.cholesky(a, True), np.linalg.cholesky(A))
    _grid_model.lu_grid = lambda *_: _grid_model.GridShape(2, 2, 5)
    general = A @ np.diag(np.linspace(1, 2, N)) + np.triu(A)
    assert_shards(la.solve(jax.device_put(general, a.sharding), b), np.linalg.solve(general, B))
    _grid_model.cholesky_grid, _grid_model.lu_grid = real, real_lu


def main() -> None:
    count = jax.device_count()
    mesh = jax.make_mesh((2, count // 2), ("x", "y"), (AxisType.Auto,) * 2)
    check_numpy(mesh)
    shardings = (P(("x", "y")), P()), (P("y", "x"), P("x"))
    for spec, b_spec in shardings[1 if quick.QUICK else 0 :]:
        a = jax.device_put(A, NamedSharding(mesh, spec))
        b = jax.device_put(B, NamedSharding(mesh, b_spec))
        x, logdet, status = la.potrs(a, b, 16, return_status=True, return_logdet=True)
        assert_shards(x, np.linalg.solve(A, B))
        np.testing.assert_allclose(float(logdet), np.linalg.slogdet(A)[1])
        assert int(status) == 0
        assert_shards(la.inv(a, assume_a="pos", tile=16), np.linalg.inv(A))
        if spec == P("y", "x"):
            continue  # the same program as for the other sharding, but for the way in and out
        check_general(mesh, spec, b)
        if count == 4:
            check_grid(a, b)
        values, vectors = la.eigh(a, method="distributed")
        alone = la.eigh(a, method="distributed", eigvals_only=True)
        for found in (values, alone):
            np.testing.assert_allclose(found.addressable_data(0), np.linspace(1, 9, N), atol=1e-12)
        back = jax.jit(lambda v, w: (v * w) @ v.T, out_shardings=NamedSharding(mesh, P()))
        assert_shards(back(vectors, values), A)
    print("right")


quick.run(main)
