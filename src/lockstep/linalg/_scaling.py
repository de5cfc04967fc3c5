"""Powers of two that keep squares and reciprocals of a matrix's elements within the type's range.

LAPACK's drivers for singular values and eigenvalues scale such matrices too. XLA takes numbers
below the normal ones for zero, so that the reciprocal of one near the largest is lost as well.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lockstep.linalg._layout import Axes


def factor(shard: jax.Array, axes: Axes) -> jax.Array:
    """What to multiply a matrix of these shards with: 1 but for very large and very small ones.

    It takes three quarters of the largest element's exponent away, so that what is at most 1 can be
    multiplied with it in place of the matrix.
    """
    shard = lax.stop_gradient(shard)
    parts = [shard.real, shard.imag] if jnp.iscomplexobj(shard) else [shard]
    sizes = [jnp.abs(part).max(initial=0) for part in parts]
    largest = lax.pmax(jnp.stack(sizes).max(), axes)
    info = np.finfo(largest.dtype)
    small = float(info.tiny) ** 0.5 / float(info.eps)
    outside = (largest < small) | (largest > 1 / small)
    power = -3 * jnp.frexp(largest)[1] // 4
    usable = outside & (largest > 0) & jnp.isfinite(largest)
    return jnp.ldexp(jnp.ones((), largest.dtype), jnp.where(usable, power, 0))
