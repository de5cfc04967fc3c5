"""A least-squares fit with more features than one device should hold.

    lockstep run -n 2 -d 4 examples/least_squares_fit.py
    lockstep run -n 2 -d 4 examples/least_squares_fit.py --features 1500

The data are scikit-learn's handwritten digits. 64 pixels are too few numbers for a linear fit, so
each image is widened by random cosines of them (Rahimi and Recht, "Random features for large-scale
kernel machines", 2007). Each device makes and keeps the rows of its own images;
`lockstep.linalg.least_squares` factors the matrix where it lies. NumPy solves the same problem on
one process.
"""

from __future__ import annotations

import lockstep  # isort: skip  # before jax

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import lockstep.linalg

TRAINING = 1536  # images; the other 261 are held out


def load() -> tuple[np.ndarray, np.ndarray]:
    """The images in random order, pixels in [0, 1], and their digits."""
    pixels, digits = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    return pixels[order] / 16, digits[order]


def widen(pixels: jax.Array, count: int) -> jax.Array:
    """``count`` features of each image: as many cosines of random sums of its pixels."""
    directions, phases = jax.random.split(jax.random.key(0))
    waves = pixels @ jax.random.normal(directions, (64, count), pixels.dtype) / 2
    return jnp.cos(waves + 2 * jnp.pi * jax.random.uniform(phases, (count,), pixels.dtype))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--features", type=int, default=400)
    options = parser.parse_args()
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    pixels, digits = load()
    targets = np.eye(10)[digits]  # one column for each digit: 1 where it is that digit

    mesh = Mesh(np.array(jax.devices()), ("device",))
    by_rows = NamedSharding(mesh, P("device"))
    images, wanted = (jax.device_put(x[:TRAINING], by_rows) for x in (pixels, targets))
    make = jax.jit(widen, static_argnums=1, out_shardings=by_rows)
    matrix = make(images, options.features)
    weights = lockstep.linalg.least_squares(matrix, wanted)  # rows sharded, as those of `wanted`
    weights = jax.device_put(weights, NamedSharding(mesh, P()))

    held_out = widen(jnp.asarray(pixels[TRAINING:]), options.features)
    scores = np.asarray(held_out) @ np.asarray(weights)
    right = np.mean(scores.argmax(1) == digits[TRAINING:])
    alone = widen(jnp.asarray(pixels[:TRAINING]), options.features)
    reference = np.linalg.lstsq(np.asarray(alone), targets[:TRAINING])[0]
    difference = np.abs(weights - reference).max() / np.abs(reference).max()

    rows = matrix.addressable_shards[0].data.shape[0]
    m, n = matrix.shape
    print(f"matrix {m} x {n}: {rows} rows on each of {mesh.size} devices")
    print(f"NumPy's weights on one process: {difference < 1e-8}")
    print(f"held-out digits that the fit recognizes: {right:.1%}")
    assert difference < 1e-8
    assert right > 0.9


if __name__ == "__main__":
    main()
