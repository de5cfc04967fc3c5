"""JAX's settings (``jax.config``)."""

from __future__ import annotations

from typing import Any


def setting(name: str) -> Any:
    """A setting of JAX by its name in ``jax.config``; raises AttributeError where there is none."""
    import jax

    return getattr(jax.config, name)


def settings_of_trace() -> Any:
    """What JAX traces a function again for, in this thread, beside its arguments: such as
    ``jax.default_matmul_precision``. Hashable; None where this jax does not say it."""
    from jax._src import config

    known = getattr(config, "trace_context", None)
    return known() if known is not None else None


def choose_collectives(implementation: str) -> None:
    """Sets ``JAX_CPU_COLLECTIVES_IMPLEMENTATION`` in a jax that has read the variable already."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", implementation)
