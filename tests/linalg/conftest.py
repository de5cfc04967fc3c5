"""Eight CPU devices in the process of the tests, and f64: set before anything asks for a device."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest

# XLA has a thread for each device; one that waits in a collective must not keep others from work.
os.environ.setdefault("NPROC", "32")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
