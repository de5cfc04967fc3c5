"""The words for the first difference between two programs, of programs that JAX lowers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from lockstep.flight_recorder import program_difference
from lockstep.flight_recorder.program_difference import Difference
from lockstep.programs import module_text
from lockstep.programs.difference import Lowered, explain

GROUPS = ((1,), (0, 2))
X, Y = np.arange(8.0, dtype="float32"), np.arange(3.0, dtype="float32")


def lowered(function: Callable[..., Any], *arguments: Any, **options: Any) -> Lowered:
    module = jax.jit(function, **options).lower(*arguments).compiler_ir()
    text = module.operation.get_asm(enable_debug_info=True)  # type: ignore[union-attr]
    return Lowered(f"{function.__name__} (a.py:3)", (0, 1, 2), "", text)


def make(
    scale: float = 2.0,
    *,
    more: bool = False,
    last: Callable[[Any], Any] = jnp.sum,
    reverse: bool = False,
    sharding: NamedSharding | None = None,
) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        w = x * scale  # SCALE
        if more:
            w = w / 7.0  # MORE
        w = jnp.where(w > 0, w, 0.0)
        if sharding is not None:
            w = jax.lax.with_sharding_constraint(w, sharding)  # SHARDING
        z = x - w if reverse else w - x  # ORDER
        return last(z) + (y * np.array((1.0, 2.0, 3.0), "float32")).sum()  # LAST

    return step


def difference(**planted: Any) -> Difference:
    return explain(lowered(make(**planted), X, Y), lowered(make(), X, Y), GROUPS)


@pytest.mark.parametrize(
    ("planted", "words", "line"),
    [
        ({"scale": 3.0}, "a constant is 3.0 on process 1, 2.0 on processes 0, 2", "# SCALE"),
        ({"more": True}, "one more operation: divide on process 1", "# MORE"),
        ({"last": jnp.max}, "is reduce by maximum on process 1, reduce by add on", "# LAST"),
        ({"reverse": True}, "is subtract(x, _where) on process 1, subtract(_where, x)", "# ORDER"),
    ],
)
def test_what_differs_is_named_with_its_line(planted: Any, words: str, line: str) -> None:
    text = str(difference(**planted))
    assert text.startswith("process 1 runs another program than processes 0, 2: in step (a.py:3)")
    assert words in text
    assert line in text


def test_a_sharding_is_named() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",), axis_types=(AxisType.Auto,))
    two = [
        lowered(make(sharding=NamedSharding(mesh, PartitionSpec(*spec))), X, Y)
        for spec in ((), ("x",))
    ]
    found = explain(two[0], two[1], GROUPS)
    assert found.kind == program_difference.SHARDING
    assert "a sharding is P(None) on process 1, P('x') on processes 0, 2" in str(found)
    assert "# SHARDING" in str(found)


def test_the_reduction_of_a_collective_is_named() -> None:
    # jax 0.8 makes no loop of a mesh with one device, and then keeps no line of what is in it.
    mesh = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("x")

    def over(reduced: Callable[..., Any]) -> Lowered:
        def step(x: Any) -> Any:
            return reduced(x, "x")  # REDUCED

        out = PartitionSpec()
        mapped = jax.shard_map(step, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
        return lowered(mapped, X)

    found = str(explain(over(jax.lax.pmax), over(jax.lax.psum), GROUPS))
    assert "an operation is maximum on process 1, add on processes 0, 2" in found
    assert "# REDUCED" in found


def test_it_is_written_down_for_the_report(tmp_path: Any) -> None:
    found = difference(scale=3.0)
    found.write(tmp_path / "difference.json")
    assert program_difference.read(tmp_path / "difference.json") == found
    (tmp_path / "difference.json").write_text('{"kind": "none", "subject": "", "sides": []}')
    assert program_difference.read(tmp_path / "difference.json") is None
    assert program_difference.read(tmp_path / "nothing") is None


def test_an_argument_that_one_process_does_not_use_is_named() -> None:
    """JAX leaves it out of the program."""
    one = lowered(lambda x, y: x.sum(), X, Y)
    two = lowered(lambda x, y: x.sum() + y.sum(), X, Y)
    words = "argument y is not used on process 1, used (f32[3]) on processes 0, 2"
    assert words in str(explain(one, two, GROUPS))
    words = "argument y is used (f32[3]) on process 1, not used on processes 0, 2"
    assert words in str(explain(two, one, GROUPS))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("jax_enable_x64", True, "result 1 is f64[8] on process 1, f32[8] on processes 0, 2"),
        (
            "jax_default_matmul_precision",
            "highest",
            "dot_general is precision = [HIGHEST, HIGHEST] on",
        ),
        ("jax_default_prng_impl", "rbg", "jax.random.normal("),
        ("jax_threefry_partitionable", False, "jax.random.normal("),
    ],
)
def test_a_setting_of_jax_is_named_by_what_it_changes(setting: str, value: Any, words: str) -> None:
    def made() -> Callable[..., Any]:
        """A new function: JAX traces one that it knows only once."""

        def step(x: Any) -> Any:
            y = x * jnp.dot(x, x)
            return y + jax.random.normal(jax.random.key(1), x.shape)

        return step

    other = lowered(made(), X)
    before = getattr(jax.config, setting)
    jax.config.update(setting, value)
    try:
        one = lowered(made(), X)
    finally:
        jax.config.update(setting, before)
    assert words in str(explain(one, other, GROUPS))


def test_no_text_is_searched_again_for_each_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of a program with a thousand arguments would be, and that takes minutes."""

    def step(some: list[Any]) -> list[Any]:
        return [jnp.sin(one) * 2.0 for one in some]

    text = lowered(step, [X] * 100).text
    searched = 0
    pattern = module_text._WITH_REDUCER

    class Counting:
        def search(self, given: str) -> Any:
            nonlocal searched
            searched += len(given)
            return pattern.search(given)

    monkeypatch.setattr(module_text, "_WITH_REDUCER", Counting())
    assert len(module_text.operations(text)) > 300
    assert 0 < searched <= len(text)
