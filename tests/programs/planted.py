"""Programs of random statements, with one difference planted in a statement.

A program is source text with one statement a line, so the line of each operation is known. Each
statement has a place where the programs of two processes may differ, and choices for it.
"""

from __future__ import annotations

import dataclasses
import linecache
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from lockstep.flight_recorder.program_difference import (
    CONSTANT,
    OPERATIONS,
    SHARDING,
)
from lockstep.programs.difference import Lowered

FILE = "/home/user/train.py"
SIZE = 4
MESH = AbstractMesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Auto))


@dataclasses.dataclass(frozen=True)
class Statement:
    """``T`` is the array that it changes, and ``U`` another one, both of ``f32[4,4]``."""

    text: str
    choices: tuple[str, ...]
    """What may stand in the place of ``{}``."""
    kinds: tuple[str, ...]
    words: str = ""
    """What a process with a choice is said to have, with ``{}`` for the choice."""
    is_traced_once: bool = False
    """Whether JAX gives all such statements of a program the line of the first one."""

    def line(self, choice: str, target: str, other: str) -> str:
        text = self.text.replace("{}", choice)
        return re.sub(r"\b[TU]\b", lambda m: {"T": target, "U": other}[m[0]], text)


def constant(text: str, *choices: str, words: str = "{}") -> Statement:
    return Statement(text, choices, (CONSTANT,), words)


def operation(text: str, *choices: str, words: str = "") -> Statement:
    return Statement(text, choices, (OPERATIONS,), words)


STATEMENTS = {
    "a number": constant("T = T * {}", "2.5", "-3.5", "1e-05", "1e+20", "inf"),
    "an element": constant(
        "T = T + np.array([1.0, {}, 3.0, 4.0], 'float32')", "2.5", "7.0", words="{} in element 1"
    ),
    "an element of a matrix": constant(
        "T = T + np.array([[0.0], [1.0], [{}], [3.0]], 'float32')",
        *("2.5", "-7.0"),
        words="{} in element [2, 0]",
    ),
    "an element of many": constant(
        "T = T + jnp.asarray(np.append(np.arange(255.0), {}).reshape(16, 4, 4), 'float32').sum(0)",
        *("2.5", "-7.0"),
        words="{} in element [15, 3, 3]",
    ),
    "an index": constant("T = T[np.array([0, 1, {}, 3])]", "2", "3", words="{} in element 2"),
    "a limit": constant("T = jnp.where(T > {}, T, U)", "0.5", "1.5"),
    "a seed": Statement(
        "T = T + jax.random.normal(jax.random.key({}), T.shape)",
        ("1", "7"),
        (CONSTANT,),
        "{}",
        is_traced_once=True,
    ),
    "a function": operation("T = jnp.{}(T)", "sin", "cos", "exp", "tanh"),
    "a function of StableHLO": operation("T = jax.lax.{}(T)", "tanh", "abs", "floor", words="{}"),
    "an operand": operation("T = {}", "T - U", "U - T", words="subtract("),
    "operands of a division": operation("T = {}", "T / (U + 2.0)", "(U + 2.0) / T"),
    "a product": operation("T = {}", "T @ U", "U @ T", words="dot_general("),
    "a call": operation("T = helper({})", "T, U", "U, T", words="helper("),
    "a called function": operation("T = {}(T, U)", "helper", "other_helper"),
    "a dtype": operation("T = T.astype('{}').astype('float32')", "float16", "bfloat16", "int32"),
    "a shape": operation("T = T + U[:{}].sum()", "2", "3"),
    "a place": operation("T = T + U[{}]", "1", "2"),
    "an axis": operation("T = T + U.sum({})", "0", "1"),
    "a reduction": operation("T = T + U.{}(0)", "sum", "max", "prod"),
    "an axis of cumsum": operation("T = jnp.cumsum(T, {})", "0", "1"),
    "a power": operation("T = T ** {}", "2", "3", "5"),
    "a comparison": operation("T = jnp.where(T {} U, T, U)", "<", ">", "<=", "=="),
    "a condition": operation("T = {}", "T", "jnp.sin(T)", "jnp.sin(jnp.cos(T))"),
    "a transposition": operation("T = {}", "T", "jnp.transpose(T)"),
    "a contraction": operation("T = jnp.einsum('{}->ik', T, U)", "ij,jk", "ij,kj"),
    "a precision": operation("T = jnp.matmul(T, U, precision='{}')", "highest", "default"),
    "an order": operation("T = jnp.concatenate([{}])[:4]", "T, U", "U, T"),
    "a shift": operation("T = jnp.roll(T, {}, 0)", "1", "2"),
    "a length": Statement(
        "T = jax.lax.scan(lambda c, _: (c * 0.5, None), T, None, length={})[0]",
        ("3", "5"),
        (CONSTANT,),
        "{}",
    ),
    "a number of rounds": constant(
        "T = jax.lax.fori_loop(0, {}, lambda i, c: c + 1.0, T)", "3", "4"
    ),
    "a number in a loop": constant(
        "T = jax.lax.scan(lambda c, x: (c * {} + x, x.sum()), T, U)[0]", "0.5", "0.25"
    ),
    "a branch of cond": constant(
        "T = jax.lax.cond(T.sum() > 0, lambda a: a * {}, lambda a: a, T)", "2.5", "3.5"
    ),
    "a number of a while loop": constant(
        "T = jax.lax.while_loop(lambda c: c.sum() < {}, lambda c: c + 1.0, T)", "9.0", "8.0"
    ),
    "a sharding": Statement(
        "T = jax.lax.with_sharding_constraint(T, NamedSharding(MESH, P({})))",
        ("'x'", "'y'", "None, 'x'", "('x', 'y')"),
        (SHARDING,),
    ),
    "a collective": operation("T = over(lambda a: jax.lax.{}(a, 'x'))(T)", "psum", "pmax", "pmin"),
    "an axis of a collective": operation("T = over(lambda a: jax.lax.psum(a, '{}'))(T)", "x", "y"),
    "a permutation": operation(
        "T = over(lambda a: jax.lax.ppermute(a, 'x', [{}]))(T)", "(0, 1), (1, 0)", "(0, 1)"
    ),
    "a number between collectives": constant(
        "T = over(lambda a: jax.lax.psum(a * {}, 'x'))(T)", "2.5", "3.5"
    ),
    "an operation between collectives": operation(
        "T = over(lambda a: jax.lax.psum({}, 'x'))(T)", "a", "jnp.sin(a)"
    ),
    "a spec of shard_map": Statement(
        "T = over(lambda a: jnp.sin(a), P({}))(T)", ("'x'", "'y'"), (SHARDING,)
    ),
    "a gradient": constant("T = jax.grad(lambda a: jnp.sum(a * a * {}))(T)", "2.5", "3.5"),
    "a mapped function": constant("T = jax.vmap(lambda a, b: a * {} + b)(T, U)", "2.5", "3.5"),
    "where or cond": operation(
        "T = {}", "jnp.where(T.sum() > 0, T, U)", "jax.lax.cond(T.sum() > 0, lambda: T, lambda: U)"
    ),
    "a rematerialization": operation(
        "T = jax.grad(lambda a: jnp.sum({}(lambda b: jnp.sin(b) * b)(a)))(T)",
        *("jax.checkpoint", "(lambda f: f)"),
    ),
    "a policy of checkpoint": operation(
        "T = jax.grad(lambda a: jnp.sum(jax.checkpoint(lambda b: jnp.sin(b @ b) @ b, "
        "policy=jax.checkpoint_policies.{})(a)))(T)",
        *("dots_saveable", "nothing_saveable", "everything_saveable"),
    ),
    "an unrolled scan": operation(
        "T = jax.lax.scan(lambda c, x: (c * 0.5 + x, None), T, U, unroll={})[0]", "1", "2", "4"
    ),
    "a custom derivative": operation(
        "T = T + jax.grad(lambda a: jnp.sum({}(a)))(T)", "clipped", "jnp.sin"
    ),
    "an axis of vmap": operation(
        "T = jax.vmap(lambda a, b: a * b.sum(), in_axes=({}, 0))(T, U)", "0", "1"
    ),
    "an axis of a result of vmap": operation(
        "T = jax.vmap(lambda a: a * 2.0, out_axes={})(T)", "0", "1"
    ),
    "a shape of a literal": operation("T = T + jnp.ones({})[:4]", "(4, 4)", "(8, 4)"),
    "an implementation of random numbers": Statement(
        "T = T + jax.random.normal(jax.random.key(0, impl='{}'), T.shape)",
        ("threefry2x32", "rbg"),
        (OPERATIONS,),
        is_traced_once=True,
    ),
    "a rate of dropout": constant(
        "T = jnp.where(jax.random.bernoulli(jax.random.key(0), {}, T.shape), T, 0)", "0.9", "0.5"
    ),
    "a static argument": constant(
        "T = jax.jit(lambda a, n: a + n, static_argnums=1)(T, {})", "2.0", "3.0"
    ),
    "a type of a sum": operation(
        "T = jnp.matmul(T, U, preferred_element_type='{}').astype('float32')",
        *("float32", "bfloat16"),
    ),
    "a number of largest": operation("T = T + jax.lax.top_k(T, {})[0].sum()", "2", "3"),
    "axes of a collective": operation(
        "T = over(lambda a: jax.lax.psum(a, {}))(T)", "'x'", "('x', 'y')"
    ),
    "an update": operation("T = T.at[1].{}(2.0)", "set", "add", "multiply"),
    "a row that is updated": constant("T = T.at[{}].set(0.0)", "1", "2"),
    "an activation": operation("T = jax.nn.{}(T)", "relu", "gelu", "silu"),
    "a stopped gradient": operation(
        "T = jax.grad(lambda a: jnp.sum(a * {}))(T)", "a", "jax.lax.stop_gradient(a)"
    ),
    "a checkpoint": constant("T = jax.checkpoint(lambda a: jnp.sin(a) * {})(T)", "2.5", "3.5"),
    "a triangle": operation(
        "T = T + jax.lax.linalg.eigh(T, lower={}, symmetrize_input=False)[0]", "True", "False"
    ),
    "a unit diagonal": operation(
        "T = jax.lax.linalg.triangular_solve(T, U, left_side=True, unit_diagonal={})",
        *("True", "False"),
    ),
    "an algorithm of a product": operation(
        "T = jnp.matmul(T, U, precision={})", "None", "jax.lax.DotAlgorithmPreset.BF16_BF16_F32"
    ),
    "a value outside": Statement(
        "T = T.at[np.array([0, 9, 1, 2])].get(mode='fill', fill_value={})",
        ("2.5", "3.5"),
        (CONSTANT,),
        "{}",
        is_traced_once=True,
    ),
    "indices that are unique": operation(
        "T = T.at[np.array([0, 2])].add(1.0, unique_indices={})", "True", "False"
    ),
    "a function of a platform": constant(
        "T = jax.lax.platform_dependent(T, cpu=lambda a: a * {}, default=lambda a: a)",
        *("2.5", "3.5"),
    ),
    "a backward rule": operation("T = T + jax.grad(lambda a: jnp.sum({}(a)))(T)", "clipped", "cut"),
    "a setting of random numbers": Statement(
        "with jax.threefry_partitionable({}): T = T + jax.random.bits(jax.random.key(0), T.shape)",
        ("True", "False"),
        (OPERATIONS,),
        is_traced_once=True,
    ),
    "a setting of products": operation(
        "with jax.default_matmul_precision('{}'): T = T @ U", "highest", "default"
    ),
    "groups of a collective": operation(
        "T = over(lambda a: jax.lax.psum(a, 'x', axis_index_groups={}))(T)", "[[0], [1]]", "None"
    ),
    "an axis of an exchange": operation(
        "T = over(lambda a: jax.lax.all_to_all(a, 'x', {}, tiled=True).reshape(2, 2))(T)",
        *("0, 1", "1, 0"),
    ),
    "a sharding inside of shard_map": Statement(
        "T = in_part(lambda a: jax.lax.with_sharding_constraint(a * 2.0, P({})))(T)",
        ("'y'", "None, 'y'"),
        (SHARDING,),
    ),
    "a direction of a scan": Statement(
        "T = jax.lax.scan(lambda c, x: (c * 0.5 + x.sum(), None), T, U, reverse={})[0]",
        ("True", "False"),
        (OPERATIONS, CONSTANT),
    ),
    "a kind of a transform": operation("T = T + jnp.fft.{}(U).real", "fft", "ifft"),
    "an extreme": operation("T = T + jnp.{}(U, 0)", "argmax", "argmin"),
    "a way to pad": operation("T = jnp.pad(T, 1, mode='{}')[:4, :4]", "reflect", "edge"),
    "a way to round": operation(
        "T = jax.lax.round(T, jax.lax.RoundingMethod.{})",
        *("TO_NEAREST_EVEN", "AWAY_FROM_ZERO"),
    ),
    "a kind of integer": operation(
        "T = jax.lax.bitcast_convert_type(T, '{}').astype('float32')", "int32", "uint32"
    ),
    "a stable sort": operation("T = jax.lax.sort(T, is_stable={})", "True", "False"),
    "bits of a fraction": operation("T = jax.lax.reduce_precision(T, 8, {})", "7", "10"),
    "the order of branches": Statement(
        "T = jax.lax.switch(T.sum().astype(int), [{}], T)",
        ("lambda a: a, lambda a: a * 2.0", "lambda a: a * 2.0, lambda a: a"),
        (OPERATIONS,),
    ),
    "a row of equal numbers": constant(
        "T = T + np.array([2.0, {}, 2.0, 2.0], 'float32')",
        *("2.0", "3.0"),
        words="{} in element 1",
    ),
}


ROWS_AND_COLUMNS = PartitionSpec("x", "y")


def over(function: Callable[[Any], Any], spec: PartitionSpec = ROWS_AND_COLUMNS) -> Any:
    return jax.shard_map(function, mesh=MESH, in_specs=spec, out_specs=spec, check_vma=False)


def in_part(function: Callable[[Any], Any]) -> Any:
    """Over axis x; the compiler shards over axis y."""
    spec = PartitionSpec("x")
    return jax.shard_map(
        function, mesh=MESH, in_specs=spec, out_specs=spec, axis_names={"x"}, check_vma=False
    )


HEAD = """\
@jax.jit
def helper(a, b):
    return a - 2 * b

@jax.jit
def other_helper(a, b):
    return a - 3 * b

def step(v, w):
"""


@jax.custom_vjp
def clipped(a: Any) -> Any:
    return jnp.sin(a)


clipped.defvjp(lambda a: (jnp.sin(a), a), lambda a, g: (jnp.clip(g * a, -1, 1),))


@jax.custom_vjp
def cut(a: Any) -> Any:
    return jnp.sin(a)


cut.defvjp(lambda a: (jnp.sin(a), a), lambda a, g: (jnp.where(a > 0, g, 0),))
NAMES = {
    "clipped": clipped,
    "cut": cut,
    "in_part": in_part,
    "jax": jax,
    "jnp": jnp,
    "np": np,
    "inf": float("inf"),
    "NamedSharding": NamedSharding,
    "P": PartitionSpec,
    "MESH": MESH,
    "over": over,
}


def line_of(statement: int) -> int:
    """The number of the line of a statement."""
    return HEAD.count("\n") + statement + 1


def lowered(
    lines: Sequence[str],
    *,
    arguments: Sequence[Any] = (),
    title: str = "step (train.py:3)",
    devices: tuple[int, ...] = (0, 1, 2, 3),
    flags: str = "",
    **options: Any,
) -> Lowered:
    """A program of such statements, as it is given to the compiler on four devices."""
    source = HEAD + "".join(f"    {line}\n" for line in [*lines, "return v, w"])
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    names = dict(NAMES)
    exec(compile(source, FILE, "exec"), names)
    given = arguments or (argument(), argument())
    made = jax.jit(names["step"], **options).trace(*given).lower(lowering_platforms=("cpu",))
    text = made.compiler_ir().operation.get_asm(enable_debug_info=True)  # type: ignore[union-attr]
    return Lowered(title, devices, flags, text)


def argument(shape: tuple[int, ...] = (SIZE, SIZE), dtype: str = "float32", *spec: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(MESH, PartitionSpec(*spec)))
