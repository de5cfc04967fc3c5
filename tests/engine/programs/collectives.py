"""Every collective over all devices: each dtype, layout, and size, against NumPy.

The dtypes of one check are one program: compiling takes longer than all the collectives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from checks import assert_shards, check, line_mesh, mapped, run_all, sharded
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from lockstep.engine import bindings

jax.config.update("jax_enable_x64", True)
jax.distributed.initialize()

N = jax.device_count()
SPLIT = P("i")
RING = [(i, (i + 1) % N) for i in range(N)]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
# float16 and float8 have their own tests: they reach the engine through a compiler pass.
FLOATS = ["float32", "float64", "bfloat16"]
COMPLEX = ["complex64", "complex128"]
NUMBERS = INTEGERS + FLOATS + COMPLEX

Array = np.ndarray


def small_integers(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Values whose sums over the devices are exact in every dtype."""
    values = np.random.default_rng([seed, *shape]).integers(0, 3, shape)
    if dtype in COMPLEX:
        values = values + 1j * values[..., ::-1]
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def of_each(dtypes: list[str], shape: tuple[int, ...]) -> dict[str, Array]:
    return {dtype: small_integers(dtype, shape) for dtype in dtypes}


def put(tree: Any) -> Any:
    return jax.tree.map(lambda x: sharded(x, line_mesh(), P("i")), tree)


def over_devices(function: Callable[[Any], Any], tree: Any, out: P = SPLIT) -> Any:
    """``function`` of every array, in one program over all devices."""
    return mapped(lambda t: jax.tree.map(function, t), line_mesh(), P("i"), out)(put(tree))


def assert_all(got: Any, wanted: Any) -> None:
    jax.tree.map_with_path(
        lambda path, g, w: assert_shards(g, np.asarray(w), jax.tree_util.keystr(path)), got, wanted
    )


def replicated(function: Callable[[Any], Any], tree: Any) -> Any:
    """``function`` of every global array, with the collectives that the compiler puts in."""
    whole = NamedSharding(line_mesh(), P())
    return jax.jit(lambda t: jax.tree.map(function, t), out_shardings=whole)(put(tree))


def repeated(x: Array) -> Array:
    """One row for each device."""
    return np.broadcast_to(x, (N, *x.shape))


@check
def the_engine_is_what_runs() -> None:
    before = bindings.counts()
    over_devices(lambda a: lax.psum(a, "i"), np.ones((N, 3), np.float32)).block_until_ready()
    calls = bindings.counts()["all_reduce"] - before["all_reduce"]
    assert calls == (jax.local_device_count() if N > 1 else 0), calls


@check
def sums() -> None:
    x = of_each(NUMBERS, (N, 5))
    got = over_devices(lambda a: lax.psum(a, "i"), x)
    assert_all(got, {t: repeated(a.sum(0, dtype=a.dtype)) for t, a in x.items()})


@check
def extremes() -> None:
    x = of_each(INTEGERS + FLOATS, (N, 5))
    for name in ("int8", "int64", *FLOATS):
        x[name] = x[name] - np.array(1, x[name].dtype)
    got = over_devices(lambda a: (lax.pmax(a, "i"), lax.pmin(a, "i")), x)
    assert_all(got, {t: (repeated(a.max(0)), repeated(a.min(0))) for t, a in x.items()})


@check
def products() -> None:
    # Powers of two (and of 1 + i), so that the product is exact in every dtype.
    x = {t: a % 2 + 1 if t not in COMPLEX else a for t, a in of_each(NUMBERS, (N, 3)).items()}
    got = replicated(lambda a: jnp.prod(a, axis=0, dtype=a.dtype), x)
    assert_all(got, {t: a.prod(0, dtype=a.dtype) for t, a in x.items()})


@check
def any_and_all() -> None:
    x = np.zeros((N, 4), bool)
    x[0, 1], x[:, 2], x[1:, 3] = True, True, True
    got = replicated(lambda a: (a.any(axis=0), a.all(axis=0)), {"bool": x})
    assert_all(got, {"bool": (x.any(axis=0), x.all(axis=0))})


@check
def all_gathers() -> None:
    x = of_each([*NUMBERS, "bool"], (2 * N, 3))
    got = over_devices(
        lambda a: (lax.all_gather(a, "i", tiled=True), lax.all_gather(a, "i", axis=1)), x, P()
    )
    assert_all(got, {t: (a, a.reshape(N, 2, 3).transpose(1, 0, 2)) for t, a in x.items()})


@check
def reduce_scatters() -> None:
    x = of_each(NUMBERS, (N * N, 3))
    summed = {t: a.reshape(N, N, 3).sum(0, dtype=a.dtype) for t, a in x.items()}
    assert_all(over_devices(lambda a: lax.psum_scatter(a, "i", tiled=True), x), summed)
    # Not tiled: the device with index k gets row k, without the axis.
    rows = over_devices(lambda a: lax.psum_scatter(a, "i"), x)
    assert_all(rows, {t: a.reshape(-1) for t, a in summed.items()})


@check
def all_to_alls() -> None:
    # They travel as bytes: one dtype of each width.
    x = of_each(["bool", "bfloat16", "float32", "complex128"], (N, N, 2, 2 * N))

    def exchange(a: jax.Array) -> tuple[jax.Array, ...]:
        return (
            lax.all_to_all(a[0], "i", 0, 0)[None],
            lax.all_to_all(a[0], "i", 0, 1)[None],
            lax.all_to_all(a, "i", 3, 2, tiled=True),
        )

    got = over_devices(exchange, x)
    for dtype, a in x.items():
        swapped = a.swapaxes(0, 1)
        blocks = a.reshape(N, N, 2, N, 2)  # the last axis cut into one part for each device
        tiled = blocks.transpose(3, 1, 0, 2, 4).reshape(N, N, 2 * N, 2)
        assert_all(got[dtype], (swapped, swapped.transpose(0, 2, 1, 3), tiled))


def permuted(x: Array, pairs: list[tuple[int, int]]) -> Array:
    wanted = np.zeros_like(x)
    for source, target in pairs:
        wanted[target] = x[source]
    return wanted


@check
def permutes() -> None:
    rng = np.random.default_rng(4)
    shuffled = [(int(a), int(b)) for a, b in enumerate(rng.permutation(N))]
    patterns = {
        "ring": RING,
        "backwards": [(b, a) for a, b in RING],
        "line, first gets nothing": RING[:-1],
        "to itself": [(i, i) for i in range(N)],
        "one pair": [(0, N - 1)],
        "last to first": [(N - 1, 0)],
        "shuffled": shuffled,
        "half of it": shuffled[::2],
    }
    x = of_each(["float32", "complex128", "int8", "bool", "bfloat16", "float16"], (N, 7))
    got = over_devices(lambda a: {n: lax.ppermute(a, "i", p) for n, p in patterns.items()}, x)
    assert_all(got, {t: {n: permuted(a, p) for n, p in patterns.items()} for t, a in x.items()})


@check
def sizes() -> None:
    x = [small_integers("int32", (N, N, size)) for size in (0, 1, 3, 1023, 200_003)]
    got = over_devices(
        lambda a: {
            "psum": lax.psum(a, "i"),
            "all_gather": lax.all_gather(a[:, 0], "i"),
            "all_to_all": lax.all_to_all(a[0], "i", 0, 0)[None],
            "ppermute": lax.ppermute(a, "i", RING),
        },
        x,
    )
    for result, a in zip(got, x, strict=True):
        wanted = {
            "psum": repeated(a.sum(0, dtype=a.dtype)),
            "all_gather": np.tile(a[:, :1], (N, 1, 1)),
            "all_to_all": a.swapaxes(0, 1),
            "ppermute": permuted(a, RING),
        }
        assert_all(result, wanted)


@check
def several_operands_of_one_collective() -> None:
    x, y = small_integers("float32", (N, 5)), small_integers("int64", (N, 2))
    function = mapped(
        lambda a, b: lax.psum((a, b, a.sum()), "i"), line_mesh(), P("i"), (P("i"), P("i"), P())
    )
    got = function(put(x), put(y))
    assert_all(got, (repeated(x.sum(0)), repeated(y.sum(0)), x.sum()))


@check
def groups_of_positions() -> None:
    size = 2 if N % 2 == 0 else 1
    groups = [list(range(i, i + size)) for i in range(0, N, size)]
    x = small_integers("float64", (N, 4))
    got = over_devices(lambda a: lax.psum(a, "i", axis_index_groups=groups), x)
    assert_all(got, np.concatenate([np.tile(x[group].sum(0), (size, 1)) for group in groups]))


@check
def inside_loops_and_branches() -> None:
    x = small_integers("float64", (N, 4))

    def step(carry: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        carry = lax.ppermute(carry, "i", RING) + lax.pmax(carry, "i")
        return carry, lax.psum(carry, "i")

    def loops(a: jax.Array) -> tuple[jax.Array, ...]:
        scanned, sums = lax.scan(step, a, length=5)
        counted = lax.while_loop(
            lambda c: lax.pmin(c[0], "i") < 3, lambda c: (c[0] + 1, lax.pmax(c[1], "i")), (0, a)
        )[1]
        branch = lax.cond(
            lax.psum(a.sum(), "i") > 0,
            lambda b: lax.psum(b, "i"),
            lambda b: lax.all_gather(b, "i").max(0),
            a,
        )
        return scanned, sums[-1], counted, branch

    carry = x
    for _ in range(5):
        carry = permuted(carry, RING) + carry.max(0)
    wanted = (carry, repeated(carry.sum(0)), repeated(x.max(0)), repeated(x.sum(0)))
    assert_all(over_devices(loops, x), wanted)


@check
def same_bits_on_every_device_and_every_time() -> None:
    rng = np.random.default_rng(11)
    x = [
        rng.standard_normal((N, size)).astype(dtype)
        for dtype in ("float32", "float64", "complex64", ml_dtypes.bfloat16)
        for size in (3, 1000, 70_000)
    ]
    function = mapped(lambda t: [lax.psum(a, "i") for a in t], line_mesh(), P("i"), P("i"))
    argument, digest = put(x), hashlib.sha256()
    runs = [function(argument) for _ in range(3)]
    for position in range(len(x)):
        results = {
            np.asarray(shard.data).tobytes()
            for run in runs
            for shard in run[position].addressable_shards
        }
        assert len(results) == 1, f"{len(results)} different sums of {x[position].dtype}"
        digest.update(results.pop())
    print(f"digest {digest.hexdigest()}", flush=True)


run_all()
