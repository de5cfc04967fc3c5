"""Divide and conquer for bidiagonal matrices, by leaves far smaller than those of real ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from lanes import sample
from linalg.matrices import eps, full, mesh
from lockstep.linalg import _bidiagonal_svd, _cpu_kernels, _divide_and_conquer
from lockstep.linalg._layout import RowMap

N = 64
ONES, ZEROS = np.ones(N), np.zeros(N)
HALF = np.where(np.arange(N) < N // 2, 1.0, 0.0)
THIRDS = np.where(np.arange(N) % 3 == 0, 0.0, full((N,), np.float64))

BIDIAGONAL = {
    "random": (full((N,), np.float64), full((N,), np.float64, 1)),
    "half zero": (HALF, HALF),
    "zeros on the diagonal": (THIRDS, ONES),
    "zero": (ZEROS, ZEROS),
    "identity": (ONES, ZEROS),
    "nearly diagonal": (ONES, 1e-10 * ONES),
    "falling": (np.logspace(0, -20, N), np.logspace(0, -20, N)),
    "rising": (np.logspace(-20, 0, N), np.logspace(-20, 0, N)),
    "badly conditioned": (ONES, -2 * ONES),
    "above the diagonal alone": (ZEROS, ONES),
}


@sample("name", list(BIDIAGONAL), 1, 2)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@sample(("devices", "n"), [(2, N), (2, N - 3), (1, N), (4, N - 5)], 0, 1)
def test_bidiagonal_matrices(
    name: str, dtype: Any, devices: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four leaves, with and without padding: the block at the end has no row set aside."""
    assert _cpu_kernels.available("cpu")
    monkeypatch.setattr(_divide_and_conquer, "LEAF", 16)
    layout = RowMap(n, devices, 4 // devices, N // devices)
    diagonal, right = (np.pad(x[:n], (0, N - n)).astype(dtype) for x in BIDIAGONAL[name])
    run = jax.shard_map(
        lambda d, e: _bidiagonal_svd.decompose(d, e, layout, ("x",)),
        mesh=mesh((devices,)),
        in_specs=(P(), P()),
        out_specs=(P(), P("x"), P("x")),
        check_vma=False,
    )
    s, *vectors = (np.asarray(x, np.float64) for x in jax.jit(run)(diagonal, right))
    u, v = (x[layout.slot_of_row[:n]] for x in vectors)
    a = np.diag(diagonal[:n].astype(np.float64)) + np.diag(right[: n - 1].astype(np.float64), 1)
    wanted = np.linalg.svd(a, compute_uv=False)
    limit = 10 * n**0.5 * eps(dtype)
    assert np.abs(s - wanted).max() <= limit * wanted[0]
    assert np.abs((u * s) @ v.T - a).max() <= limit * wanted[0]
    for rows in (u.T, v.T):
        assert np.abs(rows @ rows.T - np.eye(n)).max() <= limit
