"""`lockstep.check_replicas`: finds every difference between copies, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep as ls
from lanes import full, sample
from lockstep.testing.ranks import Ranks
from processes import python
from replicas.copies import flip_bit, replicated
from support import run_lockstep

COLLECTIVES = [
    pytest.param("lockstep", marks=pytest.mark.lockstep(n=2, devices=2, collectives="lockstep")),
    full("gloo", marks=[pytest.mark.lockstep(n=2, devices=2, collectives="gloo")]),
]
of_three = pytest.mark.lockstep(n=3, devices=1)


def of_two(test: Callable[..., None]) -> Callable[..., None]:
    """Over gloo in `make full` only: the copies are compared through JAX's key-value store."""
    test = pytest.mark.usefixtures("collectives")(test)
    return pytest.mark.parametrize("collectives", COLLECTIVES, indirect=True)(test)


@pytest.fixture
def collectives() -> None:
    """The mark of the parameter says over which the test runs."""


def raised(tree: Any) -> str:
    with pytest.raises(ls.DifferenceError) as caught:
        ls.check_replicas(tree)
    return str(caught.value)


@of_two
def test_equal_copies_pass_again_and_again(lockstep: Ranks) -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from lockstep import _jax_compat

    mesh = ls.process_mesh()

    def made(make: Any, spec: Any) -> Any:
        return jax.jit(make, out_shardings=NamedSharding(mesh, spec))()

    tree = {
        "whole": replicated(mesh, np.arange(12.0, dtype=np.float32).reshape(3, 4)),
        "rows": replicated(mesh, np.arange(12).reshape(4, 3), P("device")),
        "own": jax.device_put(np.full(3, lockstep.rank), jax.local_devices()[0]),
        "shard": jax.device_put(np.zeros(4), NamedSharding(mesh, P(("process", "device")))),
        "key": made(lambda: jax.random.key(3), P()),
        "keys": made(lambda: jax.random.split(jax.random.key(3), 2), P("device")),
        "empty": replicated(mesh, np.zeros((0, 3), np.float32)),
        "scalar": replicated(mesh, np.array(np.nan, np.float32)),
        "none": None,
        "numpy": np.full(2, lockstep.rank),
        "step": lockstep.rank,
    }
    for _ in range(3):
        ls.check_replicas(tree)
        ls.check_replicas(tree["whole"])
    ls.check_replicas({})
    # The records of earlier checks do not pile up in the service: two kinds of one use each.
    left = _jax_compat.distributed_client().key_value_dir_get("lockstep/replicas/")
    assert len({key.rsplit("/", 3)[0] + key.rsplit("/", 3)[1] for key, _ in left}) <= 2, left


@of_two
@sample("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"], 0, 4)
def test_a_flipped_bit_in_the_memory_of_one_process_is_found(lockstep: Ranks, dtype: str) -> None:
    import jax.numpy as jnp
    import numpy as np

    kind = np.dtype(bool if dtype == "bool" else getattr(jnp, dtype))
    array = replicated(ls.process_mesh(), np.ones((40, 50)).astype(kind))
    tree = {"opt": [None, {"w": array}], "b": replicated(ls.process_mesh(), np.zeros(3))}
    ls.check_replicas(tree)
    if lockstep.rank == 1:
        for shard in array.addressable_shards:
            flip_bit(shard.data, (7 * 50 + 9) * kind.itemsize)
    text = raised(tree)
    lockstep.assert_same(text)
    first, here, there, extent, likely = text.splitlines()
    assert first.startswith(
        f"check_replicas: ['opt'][1]['w'] ({dtype}[40, 50]) is not the same on processes 0-1: "
        "at [7, 9] "
    )
    assert first.endswith(" on process 1")
    assert here.startswith("  process 0 (pid ")
    assert there.startswith("  process 1 (pid ")
    assert extent == "  1 of 1000 parts of this piece, of 2 elements each, differs"
    assert "silent data corruption: one bit differs" in likely
    if lockstep.rank == 1:
        for shard in array.addressable_shards:
            flip_bit(shard.data, (7 * 50 + 9) * kind.itemsize)
    ls.check_replicas(tree)


@of_two
def test_one_device_of_a_process_is_told_from_the_other(lockstep: Ranks) -> None:
    import jax
    import numpy as np

    array = replicated(ls.process_mesh(), np.arange(6.0, dtype=np.float32))
    if lockstep.rank == 0:
        flip_bit(array.addressable_shards[1].data, 4 * 3 + 3, 7)
    text = raised([array])
    lockstep.assert_same(text)
    second = jax.devices()[1].id
    assert "[0] (float32[6]) is not the same on processes 0-1: at [3] 3.0 on process 1 and " in text
    assert f"  device {second} of process 0 (pid " in text
    assert "-3.0 (bits 0xc0400000) <- differs" in text


@of_two
def test_copies_of_a_shard_within_one_process(lockstep: Ranks) -> None:
    """The array is sharded over the processes, and each has its part on both devices."""
    import numpy as np
    from jax.sharding import PartitionSpec as P

    array = replicated(ls.process_mesh(), np.zeros((4, 3), np.float32), P("process"))
    ls.check_replicas(array)
    if lockstep.rank == 1:
        flip_bit(array.addressable_shards[0].data, 4 * 5 + 3, 6)
    text = raised(array)
    lockstep.assert_same(text)
    assert text.startswith("check_replicas: the array (float32[4, 3]) is not the same on devices ")
    assert "of process 1: at [3, 2] " in text


@of_two
def test_a_start_from_a_seed_of_each_process(lockstep: Ranks) -> None:
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    everywhere = NamedSharding(ls.process_mesh(), P())
    random = np.random.default_rng(lockstep.rank)
    own = {name: random.normal(size=(3, 4)).astype(np.float32) for name in ("w", "b")}
    params = jax.tree.map(lambda x: jax.make_array_from_process_local_data(everywhere, x), own)
    text = raised(params)
    lockstep.assert_same(text)
    mine = own["b"][0, 0]
    assert "['b'] (float32[3, 4]) is not the same on processes 0-1: at [0, 0] " in text
    assert f"{mine!s} on process {lockstep.rank}" in text
    assert "12 of 12 elements of this piece differ" in text
    assert "Also different: ['w'] (float32[3, 4]); 2 arrays compared" in text
    assert "Likely: each process made the array by itself, from a seed" in text
    ls.check_replicas(jax.tree.map(lambda x: ls.broadcast(x), own))


@pytest.mark.full
@of_three
def test_the_odd_one_of_three_is_named(lockstep: Ranks) -> None:
    import numpy as np

    array = replicated(ls.process_mesh(), np.arange(3000, dtype=np.int32))
    if lockstep.rank == 1:
        flip_bit(array.addressable_shards[0].data, 4 * 2999, 2)
    text = raised(array)
    assert "at [2999] 2999 on processes 0, 2, 2995 on process 1\n" in text
    assert "  processes 0, 2: 2999 (bits 0x00000bb7)\n" in text
    assert ") <- differs\n" in text


@of_three
def test_only_the_processes_that_hold_the_arrays_meet(lockstep: Ranks) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    pair = Mesh(np.array(jax.devices()[:2]), ("x",))
    if lockstep.rank < 2:
        array = replicated(pair, np.zeros(3, np.float32))
        ls.check_replicas(array)
        if lockstep.rank == 0:
            flip_bit(array.addressable_shards[0].data)
        assert "processes 0-1" in raised(array)
    everywhere = NamedSharding(ls.process_mesh(), PartitionSpec())
    ls.check_replicas(jax.device_put(jax.numpy.zeros(3), everywhere))


@of_two
def test_other_trees_are_no_difference_of_copies(lockstep: Ranks) -> None:
    import numpy as np

    array = replicated(ls.process_mesh(), np.zeros(3, np.float32))
    text = raised({"w": array} if lockstep.rank else {"v": array})
    assert text.startswith("check_replicas: the processes pass different trees of arrays\n")
    assert "): 1 arrays (" in text


@of_two
def test_a_process_that_does_not_come_is_named(lockstep: Ranks) -> None:
    import numpy as np

    array = replicated(ls.process_mesh(), np.zeros(3, np.float32))
    if lockstep.rank == 0:
        with pytest.raises(ls.MissingProcessError, match="check_replicas: process 1 did not come"):
            ls.check_replicas(array, timeout=1)
    ls.barrier("after the missing one")
    if lockstep.rank == 1:
        ls.check_replicas(array)  # late: what process 0 has told is still there
    ls.check_replicas(array)


@of_two
def test_it_refuses_to_be_traced() -> None:
    import jax
    import numpy as np

    with pytest.raises(ValueError, match="inside a function that JAX traces"):
        jax.jit(ls.check_replicas)(np.zeros(3))


@pytest.mark.full
def test_a_process_that_has_ended_ends_the_wait() -> None:
    program = """
    import jax, lockstep, os
    lockstep.initialize()
    from jax.sharding import NamedSharding, PartitionSpec as P
    x = jax.device_put(jax.numpy.zeros(3), NamedSharding(lockstep.process_mesh(), P()))
    if jax.process_index() == 1:
        os._exit(3)
    try:
        lockstep.check_replicas(x, timeout=200)
    except Exception as error:
        print(type(error).__name__, error)
    """
    result = run_lockstep(["--grace", "30"], program, d=1, expect_status=3, forked=True)
    assert any("MissingProcessError" in line for line in result.by_process[0]), result


def test_one_process_compares_its_own_devices() -> None:
    program = """
    import lockstep, jax, sys
    sys.path.insert(0, "__TESTS__")
    import numpy as np
    from replicas.copies import flip_bit, replicated
    x = replicated(jax.make_mesh((2,), ("x",)), np.arange(3.0, dtype=np.float32))
    lockstep.check_replicas([x, 1, None])
    flip_bit(x.addressable_shards[1].data, 8)
    try:
        lockstep.check_replicas([x])
    except lockstep.DifferenceError as error:
        print(error)
    """
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    text = program.replace("__TESTS__", str(Path(__file__).parents[1]))
    ended = python(text, env=flags)
    assert ended.stdout.startswith(
        "check_replicas: [0] (float32[3]) is not the same on devices 0-1 of process 0: at [2] 2.0 "
    ), ended
