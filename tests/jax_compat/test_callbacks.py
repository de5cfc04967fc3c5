"""Exceptions of callbacks are seen where they are raised, of each kind that this JAX has."""

from __future__ import annotations

import pytest

from processes import python


@pytest.mark.full
def test_each_kind_of_callback_is_watched() -> None:
    ended = python(
        """
        from lockstep import _jax_compat  # before jaxlib is loaded
        import jax, jax.numpy as jnp, logging
        from jax.experimental import io_callback

        seen = []
        _jax_compat.watch_callbacks(lambda error: seen.append(str(error)))
        logging.getLogger("jax._src.callback").warning("another line")

        def raising(kind):
            def call(*_):
                raise ValueError(kind)
            return call

        shape = jax.ShapeDtypeStruct((), jnp.float32)

        def debug(x):
            jax.debug.callback(raising("debug"), x)
            return x

        def pure(x):
            return jax.pure_callback(raising("pure"), shape, x)

        def io(x):
            return io_callback(raising("io"), shape, x)

        for function in (debug, pure, io):
            try:
                jax.jit(function)(jnp.float32(1)).block_until_ready()
                jax.effects_barrier()
            except jax.errors.JaxRuntimeError:
                pass
        print(*seen)
        """
    )
    assert (ended.status, ended.stdout.strip()) == (0, "debug pure io"), ended
