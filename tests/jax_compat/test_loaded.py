"""Noting the executables that JAX makes callable."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.interpreters import pxla

from lockstep import _jax_compat


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts back what a test replaces."""
    kind = pxla.UnloadedMeshExecutable
    monkeypatch.setattr(kind, "load", kind.load)


def test_each_executable_is_noted_with_its_devices() -> None:
    noted: list[Any] = []
    _jax_compat.note_loaded(lambda executable, devices: noted.append((executable, devices)))
    made = jax.jit(lambda x: x * 3.5).lower(jnp.ones(3)).compile()
    assert (made.runtime_executable(), jax.devices()[:1]) in noted


def test_executables_of_another_shape_are_refused_before_a_program_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclasses.dataclass
    class Other:
        xla_executable: Any

        def load(self) -> None: ...

    monkeypatch.setattr(pxla, "UnloadedMeshExecutable", Other)
    with pytest.raises(AttributeError, match="device_list"):
        _jax_compat.note_loaded(lambda executable, devices: None)
