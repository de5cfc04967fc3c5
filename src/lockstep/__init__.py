"""Run one JAX program on many processes.

Import this package before jax: the import prepares the path by which stock jaxlib loads the
collectives engine, and does nothing else.
"""

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
from lockstep.runtime.initialize import initialize as initialize
from lockstep.runtime.initialize import process_mesh as process_mesh
from lockstep.runtime.prepare import prepare as _prepare
from lockstep.runtime.waits import assert_same as assert_same
from lockstep.runtime.waits import barrier as barrier
from lockstep.runtime.waits import only_on as only_on

_prepare()
