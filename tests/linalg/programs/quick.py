"""Compiles with as little effort as XLA can: most of the time of these tests is compilation."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax._src import compiler

SLOW_TO_COMPILE: dict[str, str | bool] = {"xla_cpu_use_fusion_emitters": False}
"""Half of what is left without optimizations. jaxlib 0.12 has no such option."""


@contextlib.contextmanager
def compilation() -> Iterator[None]:
    """No optimizations, and none of `SLOW_TO_COMPILE` where jaxlib knows it."""
    real = compiler.get_compile_options

    def options(*args: Any, **more: Any) -> Any:
        found = real(*args, **more)
        found.env_option_overrides = [*found.env_option_overrides, *SLOW_TO_COMPILE.items()]
        return found

    jax.config.update("jax_disable_most_optimizations", True)
    if _is_known():
        compiler.get_compile_options = options
    try:
        yield
    finally:
        compiler.get_compile_options = real
        jax.config.update("jax_disable_most_optimizations", False)


QUICK = "quick" in sys.argv
"""Whether a program is to do less, and without optimizations."""


def run(main: Callable[[], None]) -> None:
    """Of a program: with the argument "quick" XLA optimizes nothing."""
    with compilation() if QUICK else contextlib.nullcontext():
        main()


def assert_shards(got: jax.Array, wanted: np.ndarray) -> None:
    """That each of this process's shards is that of ``wanted``."""
    for shard in got.addressable_shards:
        np.testing.assert_allclose(shard.data, wanted[shard.index], rtol=0, atol=1e-11)


def _is_known() -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=SLOW_TO_COMPILE)
    except jax.errors.JaxRuntimeError:
        return False
    return True
