"""JAX's coordination service has ended or is out of reach: the job fails with an exception.

The engine needs the service no more once it runs, but JAX does: for new groups of devices, for
checkpoints, and at exit. So every collective raises from then on, on all processes, and the process
may compute on its own devices, save, and end without the service.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from lockstep import _config, _jax_compat
from lockstep._errors import InitializationError
from lockstep._stderr import print_line
from lockstep.engine import bindings
from lockstep.job import current_job

_REPORT_SECONDS = 5.0
"""How long jaxlib may take to report the loss after a call of its client has failed."""


class _Loss(current_job.Part):
    """Whether the job has lost its coordination service, and the error that says so."""

    text = ""

    def __init__(self) -> None:
        self.reported = threading.Event()


def react(labels: Callable[[int], Sequence[str]]) -> None:
    """Called on a thread of jaxlib's, which holds the lock of JAX's client: nothing may wait.

    ``labels``: how to name each of so many processes.
    """
    if _jax_compat.distributed_client() is None:
        return  # set aside before: the host of process 0 is out of reach, or the job has ended
    loss = current_job.part(_Loss)
    loss.text = _words(labels)
    loss.reported.set()
    _jax_compat.set_client_aside()
    with contextlib.suppress(Exception):
        if _runs_engine():
            bindings.abort(loss.text)
    print_line(loss.text)


def raise_if_lost(seconds: float = 0.0) -> None:
    """Raises where the service is lost, or becomes so within ``seconds``.

    JAX's client is of no use then: some of its calls do not return.
    """
    loss = current_job.part(_Loss)
    if loss.reported.wait(seconds):
        raise InitializationError(loss.text)


@contextlib.contextmanager
def as_reason() -> Iterator[None]:
    """Raises that the service is lost where the block fails because it cannot be reached.

    A call of the client may fail before jaxlib reports the loss.
    """
    try:
        yield
    except Exception as error:
        if _jax_compat.is_unreachable(error):
            raise_if_lost(_REPORT_SECONDS)
        raise


def _runs_engine() -> bool:
    chosen = _jax_compat.setting("jax_cpu_collectives_implementation")
    return _config.current().collectives == "lockstep" and chosen == "mpi"


def _words(labels: Callable[[int], Sequence[str]]) -> str:
    then = "Collectives raise from now on. " if _runs_engine() else ""

    process, count = _jax_compat.distributed_place()
    return (
        f"lockstep: {labels(count)[process]} has lost JAX's coordination service at "
        f"{_jax_compat.coordinator_address()}: its process, on the host of process 0, was killed "
        f"or cannot be reached. {then}This process may compute on its own devices, save and end; "
        "the job has to be started again."
    )
