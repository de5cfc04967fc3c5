"""Run one JAX program on many processes.

Import this package before jax: the import prepares the path by which stock jaxlib loads the
collectives engine, and does nothing else. What is not needed for that is imported when it is used:
every process of a job pays for the import, and its launcher too.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

from lockstep._errors import ConfigError as ConfigError
from lockstep._errors import DifferenceError as DifferenceError
from lockstep._errors import DisagreementError as DisagreementError
from lockstep._errors import EngineError as EngineError
from lockstep._errors import ImportOrderError as ImportOrderError
from lockstep._errors import InitializationError as InitializationError
from lockstep._errors import LaunchError as LaunchError
from lockstep._errors import LockstepError as LockstepError
from lockstep._errors import MissingProcessError as MissingProcessError
from lockstep._errors import RecordError as RecordError
from lockstep.bootstrap.plugin import prepare as _prepare

if TYPE_CHECKING:
    from lockstep import linalg as linalg
    from lockstep.bootstrap.initialize import initialize as initialize
    from lockstep.bootstrap.initialize import process_mesh as process_mesh
    from lockstep.sync.barrier import assert_same as assert_same
    from lockstep.sync.barrier import barrier as barrier
    from lockstep.sync.only_on import only_on as only_on

_WHEN_USED = {
    "assert_same": "lockstep.sync.barrier",
    "barrier": "lockstep.sync.barrier",
    "initialize": "lockstep.bootstrap.initialize",
    "only_on": "lockstep.sync.only_on",
    "process_mesh": "lockstep.bootstrap.initialize",
}


def __getattr__(name: str) -> Any:
    if name not in _WHEN_USED and name != "linalg":
        raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
    import importlib

    if name == "linalg":
        return importlib.import_module("lockstep.linalg")
    globals()[name] = getattr(importlib.import_module(_WHEN_USED[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHEN_USED, "linalg"])


_prepare()
