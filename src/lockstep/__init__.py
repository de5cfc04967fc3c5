"""Run one JAX program on many processes.

Import this package before jax: the import prepares the path by which stock jaxlib loads the
collectives engine, and does nothing else. What is not needed for that is imported at its first use:
every process of a job pays for the import, and its launcher too.

PYTEST_DONT_REWRITE: for the sake of the plug-in `pytest_lockstep`, pytest takes all of this
distribution for its own, and would warn in each rank of a job that lockstep was imported before it.
"""

from typing import TYPE_CHECKING, Any

from lockstep._errors import (
    ConfigError,
    DataError,
    DifferenceError,
    DisagreementError,
    EngineError,
    ImportOrderError,
    InitializationError,
    InspectError,
    LaunchError,
    LockstepError,
    MissingProcessError,
    RecordError,
    SpawnError,
    SpawnTimeoutError,
)

if TYPE_CHECKING:
    from lockstep import data, linalg
    from lockstep.bootstrap.initialize import initialize, process_mesh
    from lockstep.data._gather import gather
    from lockstep.data._scatter import broadcast, scatter
    from lockstep.inspection.compiled import inspect
    from lockstep.inspection.shardings import show_sharding
    from lockstep.pool.pool import Pool, spawn
    from lockstep.sync.barrier import assert_same, barrier
    from lockstep.sync.check_replicas import check_replicas
    from lockstep.sync.continues_from import continues_from
    from lockstep.sync.only_on import only_on
    from lockstep.sync.should_stop import should_stop

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "DataError",
    "DifferenceError",
    "DisagreementError",
    "EngineError",
    "ImportOrderError",
    "InitializationError",
    "InspectError",
    "LaunchError",
    "LockstepError",
    "MissingProcessError",
    "Pool",
    "RecordError",
    "SpawnError",
    "SpawnTimeoutError",
    "__version__",
    "assert_same",
    "barrier",
    "broadcast",
    "check_replicas",
    "continues_from",
    "data",
    "gather",
    "initialize",
    "inspect",
    "linalg",
    "only_on",
    "process_mesh",
    "scatter",
    "should_stop",
    "show_sharding",
    "spawn",
]

_LAZY_MODULES = {
    "Pool": "lockstep.pool.pool",
    "assert_same": "lockstep.sync.barrier",
    "barrier": "lockstep.sync.barrier",
    "broadcast": "lockstep.data._scatter",
    "check_replicas": "lockstep.sync.check_replicas",
    "continues_from": "lockstep.sync.continues_from",
    "gather": "lockstep.data._gather",
    "initialize": "lockstep.bootstrap.initialize",
    "inspect": "lockstep.inspection.compiled",
    "load_ipython_extension": "lockstep.notebook.extension",
    "only_on": "lockstep.sync.only_on",
    "process_mesh": "lockstep.bootstrap.initialize",
    "scatter": "lockstep.data._scatter",
    "should_stop": "lockstep.sync.should_stop",
    "show_sharding": "lockstep.inspection.shardings",
    "spawn": "lockstep.pool.pool",
    "unload_ipython_extension": "lockstep.notebook.extension",
}
_LAZY_PACKAGES = {"data", "linalg"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_MODULES and name not in _LAZY_PACKAGES:
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    import importlib

    if name in _LAZY_PACKAGES:
        return importlib.import_module(f"lockstep.{name}")
    globals()[name] = getattr(importlib.import_module(_LAZY_MODULES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return __all__


def _prepare() -> None:
    from lockstep.bootstrap import plugin

    plugin.prepare()


_prepare()
