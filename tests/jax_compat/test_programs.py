"""Noting the programs that a client of XLA compiles or loads, and their texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lockstep import _jax_compat
from lockstep._jax_compat import programs
from lockstep.callsites import hlo_metadata, hlo_text


class Program:
    def local_devices(self) -> list[Any]:
        return []


class Client:
    def __init__(self, platform: str = "cpu") -> None:
        self.platform = platform

    def compile(self, made: Any) -> Any:
        return made

    def compile_and_load(self, made: Any, *args: Any, **options: Any) -> Any:
        return made

    def deserialize_executable(self, made: Any, *args: Any, **options: Any) -> Any:
        return made


@pytest.fixture(autouse=True)
def nothing_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_noting", {})
    for name in ("compile", "compile_and_load", "deserialize_executable"):
        monkeypatch.setattr(Client, name, getattr(Client, name))


def test_programs_of_one_platform_are_noted_once() -> None:
    first: list[Any] = []
    later: list[Any] = []
    client, loaded, compiled = Client(), Program(), Program()
    _jax_compat.note_programs(client, first.append)
    assert client.compile_and_load(compiled, 1, 2, more=3) is compiled
    client.deserialize_executable(loaded)
    client.compile("a program that is not loaded")
    Client("cuda").compile_and_load(Program())
    assert first == [compiled, loaded]
    # JAX has cleared its backends and made another client.
    _jax_compat.note_programs(Client(), later.append)
    client.compile_and_load(compiled)
    assert (first, later) == ([compiled, loaded], [compiled])


def test_a_class_that_cannot_be_changed_is_an_error() -> None:
    with pytest.raises(AttributeError):
        _jax_compat.note_programs(3, print)
    assert not programs._noting


def _called_back(x: Any) -> Any:
    return jax.pure_callback(
        lambda one: np.asarray(one), jax.ShapeDtypeStruct((4, 4), "float32"), x
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.tanh(x @ x).sum(),
        lambda x: jax.lax.scan(lambda c, row: (c + row @ x, c), x[0], x),
        lambda x: jnp.linalg.cholesky(jnp.tril(x), upper=True),
        _called_back,
    ],
    ids=["products", "a loop", "a call", "a callback"],
)
def test_a_text_without_origins_has_the_same_digest(function: Callable[[Any], Any]) -> None:
    """A process that has loaded an executable reads its whole text, and the others that one."""
    made = jax.jit(function).lower(jnp.eye(4)).compile().runtime_executable()
    bare, whole = (_jax_compat.text_of_executable(made, origins=given) for given in (False, True))
    assert "metadata=" in whole
    assert "metadata=" not in bare
    assert hlo_metadata.digest(bare) == hlo_metadata.digest(whole)


def test_a_call_keeps_what_it_computes_in_a_text_without_origins() -> None:
    def digest(lower: bool) -> str:
        solve = jax.jit(lambda a: jax.lax.linalg.triangular_solve(a, a, lower=lower))
        made = solve.lower(jnp.eye(4)).compile().runtime_executable()
        return hlo_metadata.digest(_jax_compat.text_of_executable(made))[0]

    assert digest(True) != digest(False)


def test_arguments_have_the_names_of_the_module() -> None:
    lowered = jax.jit(lambda w, x: (w["a"] @ x[0], x[1])).lower({"a": jnp.eye(2)}, (jnp.ones(2), 1))
    names = _jax_compat.names_of_arguments(lowered.compiler_ir())
    made = lowered.compile().runtime_executable()
    bare, whole = (_jax_compat.text_of_executable(made, origins=given) for given in (False, True))
    assert hlo_text.arguments(bare, names) == hlo_text.arguments(whole)
    assert hlo_text.arguments(bare, names)[0] == "w['a']: f32[2,2]"
    assert hlo_text.arguments(bare)[0] == "argument 1: f32[2,2]"
