"""Every process gives matrices that are not Hermitian to the solvers, and prints each refusal.

With the argument "quick" XLA optimizes nothing, which is most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import quick
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import lockstep.linalg as la

jax.distributed.initialize()  # x64 stays off, as JAX has it
N = 48
mesh = jax.make_mesh((2, jax.device_count() // 2), ("x", "y"))
RHS = np.ones(N, np.float32)


def put(a: np.ndarray, spec: P) -> jax.Array:
    return jax.device_put(a, NamedSharding(mesh, spec))


def attempt(call: Callable[[], Any]) -> None:
    try:
        jax.block_until_ready(call())
        print("solved")
    except ValueError as error:
        print(error)


def main() -> None:
    rng = np.random.default_rng(0)
    square = rng.standard_normal((N, N)).astype(np.float32)
    symmetric = square @ square.T + N * np.eye(N, dtype=np.float32)
    wrong = symmetric.copy()
    wrong[40, 3] += 2
    for spec in (P(("x", "y")), P("y", "x")):
        for each in (symmetric, wrong):
            attempt(lambda each=each, spec=spec: la.potrs(put(each, spec), RHS))
        attempt(lambda spec=spec: la.eigh(put(wrong, spec)))
    attempt(lambda: la.potrs(put(wrong, P("x")) * jnp.nan, RHS))
    given = put(wrong, P("x"))
    attempt(lambda: la.inv(given, assume_a="pos", donate=True))
    print("still there" if not given.is_deleted() else "deleted")


quick.run(main)
