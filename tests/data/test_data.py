"""`lockstep.data` and the transfers on real jobs: each check passes on every process."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MODULES = ("data_checks", "transfer_checks")
LONG = ("check_random_keys", "check_there_and_back")
"""They take as much processor time as all others together: in `make full` only."""
CHECKS = [
    pytest.param(module, name, marks=pytest.mark.full if name in LONG else ())
    for module in MODULES
    for name in re.findall(r"^def (check_\w+)", (HERE / f"{module}.py").read_text(), re.M)
]
pytest.register_assert_rewrite(*(f"data.{module}" for module in MODULES))


def layout(n: int, devices: int, collectives: str = "lockstep", full: bool = True) -> object:
    marks = [pytest.mark.lockstep(n=n, devices=devices, collectives=collectives, timeout=120)]
    marks += [pytest.mark.full] if full else []
    return pytest.param(None, marks=marks, id=f"{n}x{devices}-{collectives}")


# By layout, so that all checks of one find its processes warm.
@pytest.mark.parametrize(("module", "name"), CHECKS)
@pytest.mark.parametrize(
    "_",
    [layout(2, 2, full=False), layout(2, 2, "gloo"), layout(3, 2), layout(4, 1), layout(1, 4)],
)
def test_a_check_passes_on_every_process(module: str, name: str, _: None) -> None:
    # Imported in the ranks alone: a module of checks has the mesh of its job.
    getattr(importlib.import_module(f"data.{module}"), name)()
