"""The exceptions of Lockstep.

    LockstepError
    |-- ConfigError              a LOCKSTEP_* variable or a command-line option is wrong
    |-- ImportOrderError         lockstep was imported after jaxlib was loaded
    |-- EngineError              the engine's library is missing, or does not fit jaxlib
    |-- InitializationError      the processes could not be brought together
    |   `-- DisagreementError    ... because they differ (versions, platform, devices, x64)
    |-- LaunchError              a process could not be started or placed
    `-- RecordError              a recorder file, or the directory of a run, cannot be read

A collective that fails raises ``jax.errors.JaxRuntimeError``: it is raised by JAX itself, with the
engine's text in it.
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
    """The processes of a job could not be brought together."""


class DisagreementError(InitializationError):
    """The processes of a job differ in something that they must share."""


class LaunchError(LockstepError, RuntimeError):
    """A process could not be started, or its place in the job could not be found."""


class RecordError(LockstepError, ValueError):
    """A recorder file, or the directory of a run, is not what it should be."""
