"""The modules that a process imports when its engine starts and its first programs compile.

`import lockstep` leaves them out, because most processes with Lockstep are no process of a job.
Together they take a third of the processor time from a fork of ``--preload`` to its first step, so
the interpreter that is forked imports them before.
"""

from __future__ import annotations

import contextlib
import importlib

_NAMES = (
    "hlo.float16_pass",
    "programs.compile_once",
    "programs.gloo_faults",
    "programs.jitted",
    "programs.launches",
    "system.interfaces",
    "watchdog.launch_watch",
    "watchdog.store_watch",
    "watchdog.watchdogs",
)


_OF_JAX = ("jaxlib.mlir.dialects.mhlo",)
"""JAX imports it when it lowers a first program, which takes 0.07 s; another jax may have none."""


def import_all() -> None:
    """Imports what the engine, the guard and the rewriting of programs need. Needs jax."""
    for name in _NAMES:
        importlib.import_module(f"lockstep.{name}")
    for name in _OF_JAX:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
