"""Explicit sharding: the sharding is part of an array's type, and the type is checked.

    lockstep run -n 2 -d 4 examples/sharding_explicit.py

`f32[4@X,2]` is a 4 x 2 matrix whose first dimension is split over the mesh axis X. Each operation
has a rule for the sharding of its result; where the rule has no answer the program says one, and a
program that does not say is an error at trace time.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, reshard
from jax.sharding import PartitionSpec as P


@jax.jit
def row_sums(x: jax.Array) -> jax.Array:
    print(f"while tracing, x is {jax.typeof(x)} and its row sums are {jax.typeof(x.sum(axis=1))}")
    return x.sum(axis=1)


def main() -> None:
    jax.distributed.initialize()
    jax.set_mesh(jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2))
    host = np.arange(8, dtype=np.float32).reshape(4, 2)

    replicated = jnp.asarray(host)
    by_rows = reshard(replicated, P("X", None))
    print(f"replicated: {jax.typeof(replicated)}   split by rows: {jax.typeof(by_rows)}")
    assert "[4@X,2]" in str(jax.typeof(by_rows))

    doubled = 2 * by_rows
    transposed = by_rows.T
    print(f"2 * x: {jax.typeof(doubled)}   x.T: {jax.typeof(transposed)}")
    assert "[2,4@X]" in str(jax.typeof(transposed))

    sums = row_sums(by_rows)
    for shard in sums.addressable_shards:
        np.testing.assert_array_equal(shard.data, host.sum(axis=1)[shard.index])

    # Both operands split the dimension that is summed away, so the result is a sum over X: whether
    # it ends up replicated or split again is for the program to say.
    try:
        _ = by_rows.T @ by_rows
    except Exception as error:
        print(f"x.T @ x is refused: {str(error).splitlines()[0][:72]}...")
    else:
        raise AssertionError("an ambiguous sharding was accepted")
    gram = jnp.einsum("ki,kj->ij", by_rows, by_rows, out_sharding=P(None, None))
    print(f"x.T @ x with out_sharding=P(None, None): {jax.typeof(gram)}")
    for shard in gram.addressable_shards:
        np.testing.assert_array_equal(shard.data, host.T @ host)


if __name__ == "__main__":
    main()
