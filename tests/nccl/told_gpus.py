"""The beginnings of programs that run on CPUs, of which Lockstep is told that they are GPUs."""

from __future__ import annotations

from pathlib import Path

TOLD_GPUS = f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import lockstep
from lockstep.bootstrap import jax_hooks
told = jax_hooks._after_backends
jax_hooks._after_backends = lambda platform: told("cuda" if platform == "cpu" else platform)
import jax
lockstep.initialize()
me, count = jax.process_index(), jax.process_count()
"""
ROWS = """
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((count,), ("x",), (AxisType.Auto,))
rows = NamedSharding(mesh, P("x"))
x = jax.make_array_from_callback((count, 4), rows, lambda at: np.ones((1, 4), "float32"))
"""


def line_of(program: str, mark: str) -> int:
    """The line of a program that ends with this mark; 0: none does."""
    return next((n for n, line in enumerate(program.splitlines(), 1) if line.endswith(mark)), 0)
