"""Exact Gaussian-process regression with a kernel matrix that no process holds whole.

    lockstep run -n 2 -d 4 examples/gaussian_process.py
    lockstep run -n 2 -d 4 examples/gaussian_process.py --rows 1600 --steps 100

The data are scikit-learn's handwritten digits: from 64 pixels, predict the digit as a number. Rows
of the kernel matrix are sharded over all devices. Length scale, amplitude and noise are fitted by
gradient descent on the exact log marginal likelihood: `lockstep.linalg.potrs` solves with the
kernel matrix and returns its log-determinant, and JAX differentiates through both.
"""

from __future__ import annotations

import lockstep  # isort: skip  # before jax

import argparse
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import lockstep.linalg


def load(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and held-out points, shuffled: pixels in [0, 1], targets around zero."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    x, y = pixels[order].astype(np.float32) / 16, digits[order].astype(np.float32) - 4.5
    return x[:rows], y[:rows], x[-150:], y[-150:]


def kernel(params: dict[str, jax.Array], x: jax.Array, z: jax.Array) -> jax.Array:
    distance = (x**2).sum(1)[:, None] + (z**2).sum(1) - 2 * x @ z.T
    return jnp.exp(params["amplitude"] - distance / 2 * jnp.exp(-2 * params["length"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    jax.distributed.initialize()
    mesh = Mesh(np.array(jax.devices()), ("device",))
    by_rows, everywhere = P("device"), P()
    x, y, x_new, y_new = load(options.rows)

    def solve(params: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """(K + noise I)^-1 y and the log-determinant of K + noise I; K is sharded by rows."""
        noise = jnp.exp(params["noise"]) * jnp.eye(len(x), dtype=x.dtype)
        matrix = kernel(params, jnp.asarray(x), jnp.asarray(x)) + noise
        matrix = jax.lax.with_sharding_constraint(matrix, NamedSharding(mesh, by_rows))
        return lockstep.linalg.potrs(
            matrix, jnp.asarray(y), mesh=mesh, in_specs=(by_rows, everywhere), return_logdet=True
        )

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        """Minus the log marginal likelihood, a point."""
        weights, logdet = solve(params)
        return (jnp.asarray(y) @ weights + logdet + len(y) * math.log(2 * math.pi)) / (2 * len(y))

    @jax.jit
    def step(params: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        value, slope = jax.value_and_grad(loss)(params)
        return value, jax.tree.map(lambda p, s: p - 0.3 * jnp.clip(s, -1, 1), params, slope)

    @jax.jit
    def predict(params: dict[str, jax.Array]) -> jax.Array:
        return kernel(params, jnp.asarray(x_new), jnp.asarray(x)) @ solve(params)[0]

    params = {"length": jnp.zeros(()), "amplitude": jnp.ones(()), "noise": jnp.zeros(())}
    share = len(x) // jax.device_count()
    print(
        f"kernel matrix {len(x)} x {len(x)}: {share} rows on each of {jax.device_count()} devices"
    )
    losses = []
    for k in range(options.steps):
        value, params = step(params)
        losses.append(float(value))
        if jax.process_index() == 0 and k % 5 == 0:
            print(f"step {k:4}  minus log likelihood {losses[-1]:.4f}")
    guess = np.asarray(predict(params).addressable_data(0))
    error = float(np.sqrt(np.mean((guess - y_new) ** 2)))
    assert losses[-1] < losses[0]
    assert error < 0.6 * float(np.std(y_new))
    print("the fitted process predicts held-out digits")
    if jax.process_index() == 0:
        print(f"held-out error {error:.3f}, spread of the targets {np.std(y_new):.3f}")


if __name__ == "__main__":
    main()
