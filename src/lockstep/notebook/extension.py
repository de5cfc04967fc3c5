"""What IPython calls for ``%load_ext lockstep``."""

from __future__ import annotations

from typing import Any

from lockstep._errors import LockstepError


def load_ipython_extension(shell: Any) -> None:
    """Adds the magics ``%lockstep`` and ``%%lockstep`` to an IPython shell.

    Raises `LockstepError` without ipyparallel.
    """
    try:
        from lockstep.notebook import magics
    except ModuleNotFoundError as error:
        raise LockstepError(
            f"%load_ext lockstep needs {error.name}, which is not installed in this kernel's "
            "Python: pip install 'lockstep-jax[notebook]'"
        ) from error
    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Ends the processes of the notebook."""
    magics = shell.magics_manager.registry.get("LockstepMagics")
    if magics is not None:
        magics.close()
