"""Inspects a function of a program file for a job that does not run: `lockstep inspect`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import lockstep
from lockstep import _jax_compat
from lockstep._errors import InspectError
from lockstep.inspection.report import Report

ARGUMENTS = "example_args"
"""The function of a program that makes the arguments."""


def plan(target: str, arguments: str | None, processes: int, devices: int) -> Report:
    """The report on ``program.py:function`` for ``processes`` with ``devices`` each.

    The program is imported in this process, which must not have used JAX before. ``arguments``
    names the function of the program that makes the arguments, by default `ARGUMENTS`.

    Raises:
      InspectError: there is no such file, function, or function for the arguments.
    """
    _jax_compat.plan_devices(processes, devices)
    _stand_in(processes, devices)
    try:
        module, name = _load(target)
        function = _member(module, name, "function to inspect")
        positional, by_name = _arguments(module, function, arguments)
    except Exception as error:
        if not isinstance(error, InspectError):  # such as a mesh of another number of devices
            error.add_note(
                f"lockstep inspect: the plan is for -n {processes} x -d {devices} = "
                f"{processes * devices} devices."
            )
        raise
    from lockstep.inspection.compiled import inspect

    return inspect(function, *positional, **by_name).on(devices_per_process=devices)


def _stand_in(processes: int, devices: int) -> None:
    """`lockstep.initialize` and `process_mesh` as in the job."""

    def initialize(*_: Any, **__: Any) -> None:
        """Does nothing: there are no other processes."""

    def process_mesh(axis_names: tuple[str, str] = ("process", "device"), **options: Any) -> Any:
        import jax
        import numpy as np

        grid = np.array(jax.devices(), dtype=object).reshape(processes, devices)
        return jax.sharding.Mesh(grid, axis_names, **options)

    public: Any = lockstep
    public.initialize, public.process_mesh = initialize, process_mesh


def _load(target: str) -> tuple[ModuleType, str]:
    """The module in ``program.py:function`` or ``package.module:function``, and the function."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise InspectError(
            f"{target!r} names no function: write program.py:function, or module:function."
        )
    if not file.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        try:
            return importlib.import_module(file), name
        except ModuleNotFoundError as error:
            raise InspectError(f"there is no module {file} ({error}).") from None
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InspectError(f"there is no file {file}.")
    sys.path.insert(0, str(path.parent))
    sys.argv[:] = [file]
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module, name


def _member(module: ModuleType, name: str, what: str) -> Any:
    found = getattr(module, name, None)
    if not callable(found):
        there = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise InspectError(
            f"{module.__name__} has no function {name} ({what}). It has: {', '.join(there)}."
        )
    return found


def _arguments(
    module: ModuleType, function: Any, named: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the program's function for the arguments gives: a tuple, a dict by name, or one."""
    import inspect as signatures

    if named is None and not hasattr(module, ARGUMENTS):
        parameters = signatures.signature(function).parameters.values()
        if all(each.default is not each.empty for each in parameters):
            return (), {}
        raise InspectError(
            f"{module.__name__} does not say which arguments to compile for. Define a function "
            f"{ARGUMENTS}() in it, or name another with --args, that returns a tuple of arrays or "
            "of jax.ShapeDtypeStruct(shape, dtype, sharding=...)."
        )
    made = _member(module, named or ARGUMENTS, "makes the arguments")()
    if isinstance(made, dict):
        return (), made
    return (made if isinstance(made, tuple) else (made,)), {}
