"""How accurate the singular value decomposition is, beside LAPACK's of the same matrices.

    python benchmarks/linalg_accuracy.py               # the table of docs/reference/linalg/svd.md
    python benchmarks/linalg_accuracy.py --n 64 --only hilbert

The true singular values are those of one-sided Jacobi in extended precision (Hestenes 1958; Demmel
and Veselic, SIAM J. Matrix Anal. Appl. 13, 1992), which finds small ones with full accuracy too.
Products that measure an error are in extended precision. Four CPU devices of one process, tiles of
n / 16 rows, so that QR has four panels; the steps for large matrices (`method="distributed"`).
LAPACK is SciPy's gesdd, and gesvd for its values.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np

DEVICES = 4
SWEEPS = 60
"""Sweeps of Jacobi at most; ten do for most matrices."""


def matrices(n: int) -> dict[str, np.ndarray]:
    rng, place = np.random.default_rng(0), np.arange(n)

    def random(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    def with_values(values: np.ndarray, m: int = n) -> np.ndarray:
        u, v = (np.linalg.qr(random(rows, n))[0] for rows in (m, n))
        return (u * values) @ v.T

    def of_condition(condition: float) -> np.ndarray:
        return with_values(np.logspace(0, -np.log10(condition), n))

    square = random(n, n)
    either = square + 1j * random(n, n)
    sine, cosine = np.sin(1.2), np.cos(1.2)
    return {
        "random": square,
        "random, twice as tall": random(2 * n, n),
        "random, complex": either,
        "condition 1e8": of_condition(1e8),
        "condition 1e12": of_condition(1e12),
        "condition 1e15": of_condition(1e15),
        "condition 1e15, complex": of_condition(1e15) * np.exp(1j * place),
        "rows graded over 16 decades": square * np.logspace(0, -16, n)[:, None],
        "columns graded over 16 decades": square * np.logspace(0, -16, n),
        f"rank {n // 8}": random(n, n // 8) @ random(n // 8, n),
        f"rank {n // 8} and noise of 1e-14": (
            random(n, n // 8) @ random(n // 8, n) + 1e-14 * random(n, n)
        ),
        "Hilbert": 1 / (place[:, None] + place + 1.0),
        "Kahan": sine ** place[:, None] * (np.eye(n) - cosine * np.triu(np.ones((n, n)), 1)),
        "orthogonal": with_values(np.ones(n)),
        "two clusters, spread 1e-14": with_values(
            np.where(place < n // 2, 1, 2) + 1e-14 * place / n
        ),
        "one large value": with_values(np.where(place < 1, 1, 1e-12)),
        "random, times 1e-300": 1e-300 * square,
        "random, times 1e300": 1e300 * square,
        "random, float32": square.astype(np.float32),
        "condition 1e8, float32": of_condition(1e8).astype(np.float32),
        "random, complex64": either.astype(np.complex64),
    }


def extended(a: np.ndarray) -> np.ndarray:
    return a.astype(np.clongdouble if np.iscomplexobj(a) else np.longdouble)


def true_values(a: np.ndarray) -> np.ndarray:
    """The singular values in extended precision, descending."""
    a = extended(a)
    n, scale = a.shape[1], np.abs(a).max()
    a = a[:, np.argsort(-np.abs(a).max(axis=0))] / scale
    # The tournament of a circle: in n - 1 rounds all columns meet, in pairs without a common one.
    order = np.arange(n)
    for _ in range(SWEEPS):
        largest = 0.0
        for _ in range(n - 1):
            largest = max(largest, _rotate(a, order[: n // 2], order[: n // 2 - 1 : -1]))
            order = np.r_[order[:1], order[-1:], order[1:-1]]
        if largest < 1e-17:
            break
    return np.sort(scale * np.sqrt((np.abs(a) ** 2).sum(axis=0)))[::-1]


def _rotate(a: np.ndarray, i: np.ndarray, k: np.ndarray) -> float:
    """Makes columns ``i`` and ``k`` orthogonal, pair by pair; their largest cosine before."""
    x, y = a[:, i], a[:, k]
    xx, yy, xy = (np.abs(x) ** 2).sum(0), (np.abs(y) ** 2).sum(0), (x.conj() * y).sum(0)
    size = np.abs(xy)
    moves = size > 0
    phase = np.where(moves, xy, 1) / np.where(moves, size, 1)
    zeta = (yy - xx) / np.where(moves, 2 * size, 1)
    sign = np.where(zeta < 0, -1, 1)
    tangent = np.where(moves, sign / (np.abs(zeta) + np.sqrt(1 + zeta**2)), 0)
    cosine = 1 / np.sqrt(1 + tangent**2)
    sine = tangent * cosine
    y = y * phase.conj()
    a[:, i], a[:, k] = cosine * x - sine * y, sine * x + cosine * y
    return float((size / np.where(moves, np.sqrt(xx) * np.sqrt(yy), 1)).max())


def errors(a: np.ndarray, true: np.ndarray, u: Any, s: Any, vh: Any) -> list[float]:
    """Of the values, of the product and of the orthogonality, in rounding errors."""
    eps, largest = np.finfo(a.dtype).eps, true[0]
    u, s, vh, a = (extended(np.asarray(x)) for x in (u, s, vh, a))
    residual = (u * (s / largest)) @ vh - a / largest
    grams = [u.conj().T @ u, vh @ vh.conj().T]
    identity = np.eye(len(s))
    return [
        float(np.abs(s - true).max() / largest / eps),
        float(np.abs(residual).max() / eps),
        max(float(np.abs(gram - identity).max() / eps) for gram in grams),
    ]


def ours(a: np.ndarray) -> tuple[Any, ...]:
    """u, s, vh and the values of `svdvals`, from the steps for large matrices."""
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from lockstep.linalg import _arguments, _singular
    from lockstep.linalg._singular_plan import Plan

    over = jax.make_mesh((DEVICES,), ("x",), devices=jax.devices()[:DEVICES])
    sharded = jax.device_put(a, NamedSharding(over, P("x")))
    sharded, placed = _arguments.matrix("svd", sharded, None, None)

    def plan(vectors: bool) -> Plan:
        tile = a.shape[1] // 4 // DEVICES
        return Plan.of(a.shape, placed, vectors, vectors, False, tile, "distributed")

    return (
        *_singular.decompose(sharded, plan(True)),
        *_singular.decompose(sharded, plan(False)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--only", default="", help="matrices whose name contains this")
    options = parser.parse_args()
    os.environ.setdefault("NPROC", "32")
    import lockstep  # noqa: F401  # isort: skip  # before jax
    import jax
    import scipy.linalg

    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_enable_x64", True)
    print("| matrix | values | LAPACK | `svdvals` | LAPACK | residual | LAPACK |", end="")
    print(" orthogonality | LAPACK |\n" + "|---" * 9 + "|")
    for name, a in matrices(options.n).items():
        if options.only.lower() not in name.lower():
            continue
        true = true_values(a)
        u, s, vh, values = ours(a)
        found = errors(a, true, u, s, vh)
        theirs = errors(a, true, *scipy.linalg.svd(a, full_matrices=False))
        alone = [
            float(np.abs(extended(np.asarray(x)) - true).max() / true[0] / np.finfo(a.dtype).eps)
            for x in (values, scipy.linalg.svd(a, compute_uv=False, lapack_driver="gesvd"))
        ]
        pairs = [(found[0], theirs[0]), tuple(alone), *zip(found[1:], theirs[1:], strict=True)]
        print(f"| {name} |", *(f"{x:.2g} | {y:.2g} |" for x, y in pairs), flush=True)


if __name__ == "__main__":
    main()
