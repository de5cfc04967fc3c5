"""``lockstep.check_replicas``: a check of replicated arrays that the program calls itself."""

from __future__ import annotations

import hashlib
from typing import Any

from lockstep import _config, _jax_compat
from lockstep._errors import DifferenceError, MissingProcessError
from lockstep._words import processes
from lockstep.bootstrap import service_loss
from lockstep.replicas import report
from lockstep.replicas.check import Comparison, Plan
from lockstep.replicas.exchange import Exchange

_NO_DEADLINE = 10.0**6
_WORDS = "check_replicas"


@service_loss.as_reason()
def check_replicas(tree: Any, timeout: float | None = None) -> None:
    """Checks that the copies of replicated arrays are the same, bit by bit, on all devices.

    Every process that holds a part of the arrays calls this. Compared is what several devices hold:
    the whole of an array with `PartitionSpec()`, and the same shard of an array that is replicated
    along one axis of its mesh; also among the devices of one process. Each device computes a hash
    of its copies, and the hashes are compared. Only if they differ is the first element that
    differs looked for.

    Copies are equal when their bits are: 0.0 and -0.0 differ. All NaNs are equal.

    Args:
      tree: a `jax.Array` of any dtype, also keys, or a pytree of them. Arrays on one device, and
        leaves that are no `jax.Array` (`assert_same` compares those), are left out.
      timeout: seconds that a process waits for the others; 0 means no deadline. Default: None,
        which means ``--collective-timeout`` (600).

    Raises:
      DifferenceError: on every process, with the array's path in the tree, the processes, the first
        element that differs and the values; or the processes pass different trees.
      MissingProcessError: a process did not come in time, or has ended.
      InitializationError: JAX's coordination service, which the check needs, is lost.
      ValueError: it was called inside a function that JAX traces.
    """
    names, arrays = _leaves(tree)
    service_loss.raise_if_lost()
    plan = Plan(arrays)
    position = _trees(arrays, names)
    comparison = Comparison(plan, arrays, position)
    exchange = None
    if len(plan.members) > 1:
        seconds = _config.current().collective_timeout if timeout is None else timeout
        exchange = Exchange(_WORDS, plan.members, seconds or _NO_DEADLINE)
    found = comparison.run(exchange)
    if exchange is not None:
        exchange.close()
        _raise_for_others(plan, comparison, position)
    if found is not None:
        shown = {i: f"{names[i]} ({_type(array)})" for i, array in enumerate(arrays)}
        raise DifferenceError(report.text(_WORDS, found, shown, comparison.labels))


def _leaves(tree: Any) -> tuple[list[str], list[Any]]:
    """The names and arrays of what may have copies; keys as their integers."""
    import jax

    names, arrays = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if _jax_compat.is_tracer(leaf):
            raise ValueError(
                "check_replicas was called inside a function that JAX traces, where arrays have no "
                "values. Call it outside, on what the function takes or returns."
            )
        if isinstance(leaf, jax.Array):
            if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            if len(leaf.sharding.device_set) > 1:
                names.append(jax.tree_util.keystr(path) or "the array")
                arrays.append(leaf)
    return names, arrays


def _type(array: Any) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _trees(arrays: list[Any], names: list[str]) -> str:
    """A digest of what has to be the same on all processes."""
    shared = [
        f"{name} {_type(array)} {len(array.sharding.device_set)}"
        for name, array in zip(names, arrays, strict=True)
        if not array.is_fully_addressable
    ]
    digest = hashlib.blake2b("\n".join(shared).encode(), digest_size=4).hexdigest()
    return f"{len(shared)} arrays ({digest}): {', '.join(shared)}"[:200]


def _raise_for_others(plan: Plan, comparison: Comparison, position: str) -> None:
    """Raises if a process has not come, or has passed something else."""
    if missing := [p for p in plan.members if p not in comparison.labels]:
        raise MissingProcessError(
            f"{_WORDS}: {processes(missing)} did not come, or ended. Every process that holds a "
            "part of the arrays has to call it, as often as the others."
        )
    if any(other != position for other in comparison.positions.values()):
        lines = [f"  {comparison.labels[p]}: {comparison.positions[p]}" for p in plan.members]
        raise DifferenceError(
            f"{_WORDS}: the processes pass different trees of arrays\n" + "\n".join(lines)
        )
