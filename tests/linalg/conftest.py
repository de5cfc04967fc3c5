"""Eight CPU devices in the process of the tests, and f64: set before anything asks for a device."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from lanes import is_make_test
from linalg.programs import quick
from lockstep.linalg import _cpu_kernels

# XLA has a thread for each device; one that waits in a collective must not keep others from work.
os.environ.setdefault("NPROC", "32")
if "LOCKSTEP_PROCESS_ID" not in os.environ:  # a rank of the plug-in has its devices
    jax.config.update("jax_num_cpu_devices", 8)

# A folder for each machine: XLA compiles for its processor.
CACHE = Path(__file__).parents[2] / "build" / "jax-cache" / platform.node()


@pytest.fixture(autouse=True, scope="module")
def _compiled_before(request: pytest.FixtureRequest) -> Iterator[None]:
    """XLA does not compile again what has not changed: that is most of these tests' time.

    And in ``make test`` it optimizes nothing, which is most of the rest.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_dir", str(CACHE))
    compilation_cache.reset_cache()
    with quick.compilation() if is_make_test(request.config) else contextlib.nullcontext():
        yield
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()


@pytest.fixture
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the engine's kernels, or in plain JAX: an indirect parameter."""
    if not request.param:
        monkeypatch.setattr(_cpu_kernels, "available", lambda platform: False)
    assert _cpu_kernels.available("cpu") == request.param
    return request.param


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
