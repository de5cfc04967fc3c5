"""The hash of a copy: any changed bit changes it, on every device alike."""

from __future__ import annotations

from typing import Any

import pytest

from lanes import sample
from replicas.copies import flip_bit, replicated

DTYPES = "bool int4 uint4 int8 uint8 int16 uint16 int32 uint32 float8_e4m3fn float8_e5m2 bfloat16 "
DTYPES += "float16 float32 complex64 int64 uint64 float64 complex128"

four_devices = pytest.mark.lockstep(n=1, devices=4)


def mesh() -> Any:
    import jax

    return jax.make_mesh((4,), ("x",))


def hashes_of(*arrays: Any) -> list[list[int]]:
    from lockstep.replicas import hashes

    return hashes.of([[shard.data for shard in array.addressable_shards] for array in arrays])


def values(dtype: str, shape: tuple[int, ...]) -> Any:
    import jax.numpy as jnp
    import numpy as np

    random = np.random.default_rng(len(dtype) + len(shape))
    found = random.normal(size=shape) * 5
    if dtype.startswith("complex"):
        found = found + 1j * random.normal(size=shape)
    return np.array(found).astype(bool if dtype == "bool" else getattr(jnp, dtype))


@four_devices
@sample("dtype", DTYPES.split(), 1, 13)
def test_a_flipped_bit_on_one_device_changes_its_hash_alone(dtype: str) -> None:
    import jax

    with jax.enable_x64(True):
        arrays = [replicated(mesh(), values(dtype, shape)) for shape in ((), (7,), (5, 6), (3, 0))]
        before = hashes_of(*arrays)
        assert all(len(set(own)) == 1 for own in before)
        for array, own in zip(arrays[:3], before[:3], strict=True):
            copy = array.addressable_shards[2].data
            flip_bit(copy, 0 if "int4" in dtype else copy.nbytes - 1)  # two int4 are a byte
            [[*now]] = hashes_of(array)
            assert [new == old for new, old in zip(now, own, strict=True)] == [1, 1, 0, 1], dtype


@four_devices
def test_places_count() -> None:
    import numpy as np

    order = np.arange(100, dtype=np.float32)
    swapped = order.copy()
    swapped[[3, 77]] = swapped[[77, 3]]
    shifted = np.roll(order, 1)
    found = hashes_of(*(replicated(mesh(), each) for each in (order, swapped, shifted)))
    assert len({own[0] for own in found}) == 3


@four_devices
@pytest.mark.parametrize("dtype", ["float8_e5m2", "bfloat16", "float16", "float32", "complex64"])
def test_nans_are_equal_and_zeros_have_a_sign(dtype: str) -> None:
    import numpy as np

    a = np.ones(6).astype(values(dtype, ()).dtype)
    b = a.copy()
    a[4], b[4] = np.nan, np.copysign(np.nan, -1)
    assert a.tobytes() != b.tobytes()
    nans = hashes_of(replicated(mesh(), a), replicated(mesh(), b))
    a[2], b[2] = 0.0, -0.0
    zeros = hashes_of(replicated(mesh(), a), replicated(mesh(), b))
    assert nans[0] == nans[1]
    assert zeros[0] != zeros[1]


@four_devices
def test_the_program_s_own_context_does_not_matter() -> None:
    import jax
    import numpy as np

    array = replicated(mesh(), np.arange(8.0, dtype=np.float32))
    outside = hashes_of(array)
    other = jax.make_mesh((2, 2), ("a", "b"))
    with jax.set_mesh(other), jax.debug_nans(True), jax.transfer_guard("disallow"):
        assert hashes_of(array) == outside
    with jax.default_device(jax.devices()[3]):
        assert hashes_of(array) == outside
