"""The exceptions of Lockstep.

    LockstepError
    |-- ConfigError              a LOCKSTEP_* variable or a command-line option is wrong
    |-- ImportOrderError         lockstep was imported after jaxlib was loaded
    |-- EngineError              the engine's library is missing, or does not fit jaxlib
    |-- InitializationError      the processes could not be connected to one job
    |   `-- DisagreementError    they differ (versions, platform, devices, x64)
    |-- MissingProcessError      a process did not arrive at a barrier or a check
    |-- DifferenceError          a check found that values or replicas differ between processes
    |-- DataError                rows, batches or trees do not fit, or differ between processes
    |-- LaunchError              a process could not be started, or its rank is not known
    |-- InspectError             a program cannot be inspected, or a sharding not shown
    |-- SpawnError               a function could not be run on other processes to its end
    |   `-- SpawnTimeoutError    it did not return in time
    `-- RecordError              a recorder file, or the directory of a run, cannot be read

A collective that fails raises ``jax.errors.JaxRuntimeError``: JAX raises it, with the engine's text
in it.
"""

from __future__ import annotations


class LockstepError(Exception):
    """Base of every exception that Lockstep raises."""


class ConfigError(LockstepError, ValueError):
    """A ``LOCKSTEP_*`` variable or an option has a value that cannot be used."""


class ImportOrderError(LockstepError, ImportError):
    """``import lockstep`` came after jaxlib was loaded."""


class EngineError(LockstepError, RuntimeError):
    """The engine's library is missing or does not fit the installed jaxlib."""


class InitializationError(LockstepError, RuntimeError):
    """The processes of a job could not be connected to each other."""


class DisagreementError(InitializationError):
    """The processes of a job differ in something that they must share."""


class MissingProcessError(LockstepError, TimeoutError):
    """A process did not arrive at `barrier` or a check: late, in another call, or ended."""


class DifferenceError(LockstepError, AssertionError):
    """`assert_same` or `check_replicas` found that the processes have different values."""


class DataError(LockstepError, ValueError):
    """The rows of `lockstep.data` do not fit what was asked, or differ between processes."""


class LaunchError(LockstepError, RuntimeError):
    """A process could not be started, or its rank in the job could not be found."""


class SpawnError(LockstepError, RuntimeError):
    """A process of `spawn` or `Pool` has died or not started, or something cannot be sent to it."""


class SpawnTimeoutError(SpawnError, TimeoutError):
    """A function did not return in time on processes of `spawn` or `Pool`."""


class RecordError(LockstepError, ValueError):
    """A recorder file, or the directory of a run, cannot be read."""


class InspectError(LockstepError, ValueError):
    """`inspect` or `show_sharding` got something that it cannot show."""


for _exception in (
    LockstepError,
    *LockstepError.__subclasses__(),
    DisagreementError,
    SpawnTimeoutError,
):
    _exception.__module__ = "lockstep"  # tracebacks and pickles name them as users do
