"""A program of checks: each prints a line when it holds, and the test asks every process for all.

The module is beside the programs, so that a program finds it when it is run as a script.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

_checks: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Marks a function that `run_all` calls; what it asserts must hold on every process."""
    _checks.append(function)
    return function


def run_all() -> None:
    import jax

    jax.config.update("jax_disable_most_optimizations", True)  # most of the time is compilation
    for function in _checks:
        function()
        print(f"ok {function.__name__}", flush=True)


def names(program: Path) -> list[str]:
    """The checks of a program, in order, without running it."""
    return [
        node.name
        for node in ast.parse(program.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(isinstance(d, ast.Name) and d.id == "check" for d in node.decorator_list)
    ]


def local_values(array: Any) -> list[tuple[Any, Any]]:
    """(index into the global array, values) of the shards that this process holds."""
    import numpy as np

    return [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]


def assert_shards(array: Any, expected: Any, what: str = "") -> None:
    """The local shards of ``array`` are those of the NumPy array ``expected``, to the bit."""
    import numpy as np

    assert array.shape == expected.shape, (what, array.shape, expected.shape)
    for index, values in local_values(array):
        wanted = expected[index]
        assert values.dtype == wanted.dtype, (what, values.dtype, wanted.dtype)
        assert np.array_equal(values, wanted), f"{what} at {index}: {values} is not {wanted}"


def sharded(values: Any, mesh: Any, spec: Any) -> Any:
    """The NumPy array ``values``, which every process has whole, as a sharded array."""
    import jax

    sharding = jax.sharding.NamedSharding(mesh, spec)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def mapped(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """``jit(shard_map(function))`` without the check of replication, which some results evade."""
    import jax

    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    )


@functools.cache
def line_mesh() -> Any:
    """All devices on one axis ``i``."""
    import jax
    import numpy as np

    return jax.sharding.Mesh(np.array(jax.devices()), ("i",))
