"""Every process decomposes the same sharded matrices of several shapes, and checks its shards.

With the argument "quick" in one way, and XLA optimizes nothing, which is most of the time.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import quick
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()
M, N = 24, 12
rng = np.random.default_rng(0)
A, B = rng.standard_normal((M, N)), rng.standard_normal((M, 3))
LOW_RANK = A[:, :5] @ A[:5, :N]
S = np.linalg.svd(A, compute_uv=False)


def whole(a: Any) -> np.ndarray:
    """A sharded matrix on every process; not by a product, so that it shows what was computed."""
    mesh = a.sharding.mesh
    copied = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, P()))(a)
    return np.asarray(copied.addressable_data(0))


def assert_equal(got: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11)


def check(a: jax.Array, b: jax.Array) -> None:
    q, r = la.qr(a, 3)  # several panels
    assert q.sharding.is_equivalent_to(a.sharding, 2)
    assert_equal(whole(q) @ whole(r), A)
    assert_equal(whole(q).T @ whole(q), np.eye(N))
    assert_equal(whole(la.least_squares(a, b, 3)), np.linalg.lstsq(A, B)[0])
    for method in ("replicated", "distributed")[: 1 if quick.QUICK else 2]:
        u, s, vh = la.svd(a, False, method=method)
        assert_equal(whole(s), S)
        assert_equal((whole(u) * whole(s)) @ whole(vh), A)
        assert_equal(whole(u).T @ whole(u), np.eye(N))
        assert_equal(whole(vh) @ whole(vh).T, np.eye(N))
        w, h = la.polar(a, method=method)
        assert_equal(whole(w) @ whole(h), A)
        assert_equal(whole(w).T @ whole(w), np.eye(N))
        assert np.linalg.eigvalsh(whole(h)).min() > 0


def check_low_rank(a: jax.Array, b: jax.Array) -> None:
    x, _, rank, _ = la.lstsq(a, b)
    assert_equal(whole(x), np.linalg.lstsq(LOW_RANK, B)[0])
    assert int(whole(rank)) == 5


def main() -> None:
    mesh = jax.make_mesh((2, jax.device_count() // 2), ("x", "y"), (AxisType.Auto,) * 2)
    by_rows = NamedSharding(mesh, P(("x", "y")))
    b = jax.device_put(B, NamedSharding(mesh, P()))
    check(jax.device_put(A, by_rows), b)
    check_low_rank(jax.device_put(LOW_RANK, NamedSharding(mesh, P("x", "y"))), b)
    print("right")


quick.run(main)
