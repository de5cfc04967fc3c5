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


def choose_gpus(ids: str) -> None:
    """Has JAX use these GPUs only, as ``local_device_ids`` of `jax.distributed.initialize` does.

    ``ids``: numbers, ``0,1``. A program that gives ``local_device_ids`` overrides them.
    """
    import jax

    for name in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
        jax.config.update(name, ids)
