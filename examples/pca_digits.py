"""Principal components of the digits, by a singular value decomposition over all devices.

    lockstep run -n 2 -d 4 examples/pca_digits.py
    lockstep run -n 2 -d 4 examples/pca_digits.py --plot pca.png

Rows of the matrix are scikit-learn's 1797 images of handwritten digits, sharded over all devices.
JAX splits a dimension evenly, so three rows of zeros are added after the mean image is subtracted:
they change neither the singular values nor the right singular vectors. The decomposition is
`lockstep.linalg.svd`, beside NumPy's on one process.
"""

from __future__ import annotations

import lockstep  # isort: skip  # before jax

import argparse

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from sklearn.datasets import load_digits

import lockstep.linalg


def plot(file: str, places: np.ndarray, digits: np.ndarray, share: float) -> None:
    """The images in the plane of the first two components, one colour for each digit."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 5))
    dots = axes.scatter(*places.T, c=digits, cmap="tab10", vmin=-0.5, vmax=9.5, s=6)
    figure.colorbar(dots, ticks=range(10), label="digit")
    axes.set(
        xlabel="first component",
        ylabel="second component",
        title=f"two of 64 dimensions hold {share:.0%} of the variance",
    )
    figure.savefig(file, dpi=80, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plot", metavar="FILE", help="draw the first two components")
    options = parser.parse_args()
    jax.distributed.initialize()
    jax.config.update("jax_enable_x64", True)
    pixels, digits = load_digits(return_X_y=True)
    centered = pixels - pixels.mean(axis=0)

    mesh = Mesh(np.array(jax.devices()), ("device",))
    padding = -len(centered) % mesh.size
    padded = np.pad(centered, ((0, padding), (0, 0)))
    matrix = jax.device_put(padded, NamedSharding(mesh, P("device", None)))
    u, s, vh = lockstep.linalg.svd(matrix, full_matrices=False)

    # The same on every process: s already is, and of the rest the first two components.
    everywhere = NamedSharding(mesh, P())
    places = np.asarray(jax.device_put(u[:, :2] * s[:2], everywhere))[: len(digits)]
    components = np.asarray(jax.device_put(vh[:2], everywhere))
    variance = np.asarray(s) ** 2 / np.sum(np.asarray(s) ** 2)

    _, wanted, directions = np.linalg.svd(centered, full_matrices=False)
    error = np.abs(s - wanted).max() / wanted[0]
    turned = np.abs(np.sum(components * directions[:2], axis=1))  # 1: the same but for the sign
    rows = u.addressable_shards[0].data.shape[0]
    print(f"{len(digits)} images and {padding} rows of zeros: {rows} rows on each device")
    print(f"variance in the first components: {', '.join(f'{x:.1%}' for x in variance[:4])}")
    print(f"components that hold 90%: {np.searchsorted(variance.cumsum(), 0.9) + 1} of 64")
    print(f"NumPy's singular values and components: {error < 1e-12 and turned.min() > 1 - 1e-9}")
    assert error < 1e-12
    assert turned.min() > 1 - 1e-9
    if options.plot and jax.process_index() == 0:
        plot(options.plot, places, digits, variance[:2].sum())
        print(f"drawn: {options.plot}")


if __name__ == "__main__":
    main()
