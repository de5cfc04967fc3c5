"""Noting the programs that a client of XLA compiles or loads."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep import _jax_compat
from lockstep._jax_compat import programs


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
