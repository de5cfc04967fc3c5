"""A request to end, as all processes see it at the same step.

JAX's preemption service does the work: SIGTERM to any process of a job is published in the
coordination service, and the processes agree on the first step that none of them has begun. Here
the steps are counted, and the launcher learns from two notes whether the program asks, and whether
it has been told to stop: a program that ends well without having been told has finished.
"""

from __future__ import annotations

from lockstep import _config, _jax_compat, _run_files
from lockstep.bootstrap import service_loss
from lockstep.job import current_job


class _Asked(current_job.Part):
    """How often this process has asked, and what it was told last."""

    def __init__(self) -> None:
        self.times = 0
        self.stops = False


def should_stop() -> bool:
    """Whether the program should save its state and end; every process calls it in every step.

    It becomes true on all processes at the same call, a second or more after SIGTERM has come to
    the launcher or to any process of the job (a time limit, a preemption), or after ``lockstep run
    --grow`` wants to start again on more hosts. It stays true. A process that is in no job is never
    told to stop.

    It does not wait for other processes while there is no request. A program that calls JAX's
    ``reached_preemption_sync_point`` does not need it, and must not use both, because they count
    the same steps.

    Raises:
      ConfigError: JAX's preemption service is disabled (``jax_enable_preemption_service``).
      InitializationError: JAX's coordination service, which this needs, is lost.
    """
    service_loss.raise_if_lost()
    if _jax_compat.distributed_client() is None:
        return False
    asked = current_job.part(_Asked)
    if not asked.stops:
        if not asked.times:
            _run_files.leave_note(_config.current().own_dir, _run_files.ASKS)
        asked.times += 1
        asked.stops = _jax_compat.reached_stop(asked.times)
        if asked.stops:
            _run_files.leave_note(_config.current().own_dir, _run_files.STOPS)
    return asked.stops
