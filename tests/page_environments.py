"""Environments that pages describe: this Lockstep, and the packages that a page names."""

from __future__ import annotations

import functools
import re
import sys
import tomllib
from pathlib import Path

import pytest

from page_commands import ROOT
from version_matrix import environments

WHEELS = environments.FOLDER / "wheel"
"""Where the wheel of this Lockstep is, once `commands_of` has been called."""


HERE = ".".join(map(str, sys.version_info[:2]))


@functools.cache
def commands_of(*packages: str, version: str = HERE) -> Path:
    """The folder of the commands of an environment with ``packages`` and this Lockstep.

    It also has pip, what builds Lockstep, and the pytest that docs/how-to/testing.md names. It
    stays in build/versions/ for the next run, which installs this Lockstep alone. Where no Python
    of this ``version`` is installed, the test is skipped.
    """
    own = Path(sys.executable) if version == HERE else environments.interpreter(version)
    if own is None:
        pytest.skip(f"there is no Python {version} here")
    name = re.sub(r"[^\w.]+", "-", "-".join(["page", f"python-{version}", *packages]))
    building = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = ("pip", "pytest==9.2.0", *building)
    wheel = environments.build_wheel()
    python = environments.environment(name, own, str(wheel), *packages, *tools)
    return python.parent
