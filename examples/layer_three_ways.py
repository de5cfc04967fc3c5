"""One layer of a neural network under automatic, explicit and manual sharding: equal results.

    lockstep run -n 2 -d 4 examples/layer_three_ways.py

The layer is sigmoid(x @ w + b). The batch is split over the mesh axis X, the features of the
result over Y; the three programs differ only in where this is specified.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, reshard
from jax.sharding import PartitionSpec as P

Layer = tuple[np.ndarray, np.ndarray, np.ndarray]


def layer(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
    return jax.nn.sigmoid(x @ w + b)


def automatic(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> jax.Array:
    """The inputs are placed; the compiler finds the rest."""
    mesh = make_mesh(AxisType.Auto)
    return jax.jit(layer)(
        jax.device_put(x, NamedSharding(mesh, P("X", None))),
        jax.device_put(w, NamedSharding(mesh, P(None, "Y"))),
        jax.device_put(b, NamedSharding(mesh, P("Y"))),
    )


def explicit(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> jax.Array:
    """The shardings are types, and the result's type is known before anything runs."""
    with jax.set_mesh(make_mesh(AxisType.Explicit)):
        arguments = (
            reshard(x, P("X", None)),
            reshard(w, P(None, "Y")),
            reshard(b, P("Y")),
        )
        result = jax.jit(layer)(*arguments)
        types = ", ".join(str(jax.typeof(argument)) for argument in arguments)
        print(f"explicit: {types} -> {jax.typeof(result)}")
    return result


def manual(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> jax.Array:
    """The same function on each device's shards. No shard lacks an operand, so nothing is sent."""
    mesh = make_mesh(AxisType.Auto)
    per_device = jax.shard_map(
        layer, mesh=mesh, in_specs=(P("X", None), P(None, "Y"), P("Y")), out_specs=P("X", "Y")
    )
    return jax.jit(per_device)(x, w, b)


def make_mesh(kind: AxisType) -> Mesh:
    return jax.make_mesh((2, 4), ("X", "Y"), axis_types=(kind, kind))


def example() -> Layer:
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 32)).astype(np.float32)
    w = random.normal(size=(32, 16)).astype(np.float32) / 8
    b = random.normal(size=16).astype(np.float32)
    return x, w, b


def main() -> None:
    jax.distributed.initialize()
    x, w, b = example()
    expected = 1 / (1 + np.exp(-(x @ w + b)))
    results = {way.__name__: way(x, w, b) for way in (automatic, explicit, manual)}

    for name, result in results.items():
        error = 0.0
        for shard in result.addressable_shards:
            error = max(error, float(np.abs(shard.data - expected[shard.index]).max()))
        assert isinstance(result.sharding, NamedSharding)
        print(f"{name:9}: {result.sharding.spec}, largest difference from NumPy {error:.1e}")
        assert error < 1e-5

    reference = results["automatic"].addressable_shards
    for name, result in results.items():
        for left, right in zip(reference, result.addressable_shards, strict=True):
            assert left.index == right.index, name
            np.testing.assert_allclose(left.data, right.data, rtol=1e-6, atol=1e-7)
    print("all three ways give equal results")


if __name__ == "__main__":
    main()
