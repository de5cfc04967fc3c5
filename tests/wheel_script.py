"""scripts/wheel.py as a module. It is loaded by its path: `wheel` is also a package of PyPI."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parents[1] / "scripts" / "wheel.py"
_NAME = "lockstep_wheel_script"

_spec = importlib.util.spec_from_file_location(_NAME, _PATH)
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
sys.modules[_NAME] = script  # before it runs: its dataclasses look themselves up
_spec.loader.exec_module(script)
